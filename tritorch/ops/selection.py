"""The first few of each row on the GPU, without sorting the row: chosen in chunks until one program can sort what is left."""
from tritorch.cuda import tuner
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dtype import types
from tritorch.ops.ordering import key_bits, longest, sort_rows
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty

K = kernels("selection")
FEW = {256: 16, 1024: 6}         # by columns: so many elements are found one after the other in less time than by sorting or selection
TILES = [{"ELEMENTS": elements, "num_warps": warps} for elements, warps in ((4096, 4), (4096, 8), (2048, 4), (8192, 16), (1024, 2))]


def first_of_rows(values, indices, rows, descending):
    """As `sort_rows`, by selection where that reads less: k is small and the rows are not short."""
    n, k, limit = rows.shape[1], values.shape[1], longest()
    few = next((most for columns, most in FEW.items() if n <= columns), 0)
    if k <= few and 2 * k <= max(n, 2) and key_bits(rows.dtype) <= 32:
        _few(values, indices, rows, descending)
        return
    if n < tile(512, 32) or 8 * k > min(n, limit):
        sort_rows(values, indices, rows, descending)
        return
    order = None
    while n > limit:
        order, n = _select(rows, order, n, k, k, descending)
    most = next_power_of_2(4 * k)                               # to stop at some more costs less than to find the threshold
    if n > 2 * most:
        order, _ = _select(rows, order, n, k, most, descending)
    sort_rows(values, indices, rows, descending, order)


def _few(values, indices, rows, descending):
    count, n = rows.shape
    k = values.shape[1]
    width = 1 if n <= 16 else 8 if n <= 128 else 32
    block = tile(128, 1024) // width
    launch(K.few_kernel, (cdiv(count, block),), values, indices, rows, rows.strides[0], count, n, k, KEY_BITS=key_bits(rows.dtype),
           FALLING=descending, HELD=cdiv(n, width), ROWS=block, WIDTH=width, KEPT=next_power_of_2(k), num_warps=4)


def shape(count, n, groups, choice):
    """How rows of n elements lie in a program."""
    length = next_power_of_2(max(n, 2))
    rows = max(min(next_power_of_2(count), choice["ELEMENTS"] // length), 1)
    return {"ROWS": rows, "LEN": length, "GROUPS": min(next_power_of_2(groups), length), "num_warps": choice["num_warps"]}


def _select(rows, order, n, k, most, descending):
    """Where the first k to `most` of each chunk are (or of the elements that `order` names), and how long that makes a row."""
    count, limit = rows.shape[0], longest()
    chunks = cdiv(n, limit)
    total = (chunks - 1) * most + min(most, n - (chunks - 1) * limit)
    found = empty((count, total), types.int64 if rows.shape[1] >= 1 << 31 else types.int32, rows.device)

    def run(choice):
        held = shape(count, min(n, limit), k, choice)
        launch(K.select_kernel, (cdiv(count, held["ROWS"]) * chunks,), found, rows, order, rows.strides[0], count, n, k, most, total,
               FALLING=descending, FILL=most if most > k else 0, **held)

    run(tuner.choose("select", (rows.dtype.name, n, k, count), TILES, K.select_kernel, run))
    return found, total


def kth_of_rows(values, indices, rows, k):
    """The k-th smallest element of each row (of at most `longest()`), as (count,) tensors; k "all" or "numbers": its median, that of its
    numbers."""
    count, n = rows.shape
    median, k = (k, n) if isinstance(k, str) else (None, k)

    def run(choice):
        held = shape(count, n, k, choice)
        launch(K.kth_kernel, (cdiv(count, held["ROWS"]),), values, indices, rows, rows.strides[0], count, n, k, FALLING=False,
               MEDIAN=median, **held)

    run(tuner.choose("kth", (rows.dtype.name, n, count), TILES, K.kth_kernel, run))
