"""How rows are sorted on the GPU: in one launch where a program holds a whole row, else by radix passes."""
from tritorch.cuda import driver, tuner
from tritorch.cuda.launch import compiled_for_host, kernels, launch, tile
from tritorch.dtype import types
from tritorch.shape import cdiv
from tritorch.tensor import empty

K, VOTES = kernels("sorting"), kernels("sorting_gluon")
PIECE = 256                                                     # tiles whose counts one program adds up
SHORT = [{"RB": 4, "MORE": 0, "REGISTERS": 80}, {"RB": 3, "MORE": 0, "REGISTERS": 64}, {"RB": 4, "MORE": 1, "REGISTERS": 80},
         {"RB": 5, "MORE": 0, "REGISTERS": 96}]
SHORTEST, LEAST = [SHORT[1], SHORT[0], SHORT[2]], 10         # below 2 ** LEAST keys, with 8 in a thread more threads share the work
RADIX, FEW_TILES = [[{"LOG": log, "DIGIT": digit, "RB": rb, "REGISTERS": registers, "FLOAT": float32, "WARPS": warps}
                     for log, digit, rb, registers, float32, warps in choices] for choices in (
    ((12, 8, 4, 64, False, 16), (12, 8, 4, 64, True, 32), (12, 8, 5, 112, True, 16), (11, 8, 4, 64, True, 16)),
    ((10, 8, 3, 64, False, 8), (11, 8, 4, 64, False, 16), (11, 8, 4, 64, True, 8), (10, 8, 4, 64, True, 8), (10, 8, 3, 64, True, 8),
     (11, 8, 3, 64, True, 16), (12, 8, 4, 64, True, 16), (11, 11, 4, 64, True, 16)))]
"""64M keys of 32 bits take 4605 µs by the first of RADIX on an H200. The first of FEW_TILES took 21 µs on an H100, the second 25, of 32768
keys of 16 bits; of more keys it has more tiles than the second."""
GLUON = [{"kernel": "gluon", "LOG": log, "DIGIT": 8, "WARPS": warps, "REGISTERS": registers}
         for log, warps, registers in ((12, 8, 80), (12, 8, 64), (13, 16, 64), (12, 16, 40))]    # of keys of 32 bits in many tiles
FEW = 64                                                        # tiles in all whose counts each program adds up itself: one launch less
COUNTED = 32                                                    # above so many elements of a row the host counts their digits
SIMULATED = [{"LOG": 8, "DIGIT": 6, "RB": 3, "REGISTERS": 48, "FLOAT": True, "WARPS": 4}]


def key_bits(dtype):
    return 1 if dtype is types.bool else 8 * dtype.itemsize


def log_of(n):
    """The smallest L with n <= 2^L."""
    return max(n - 1, 0).bit_length()


def longest():
    """The greatest row that one program sorts."""
    return tile(8192, 512)


def sort_rows(values, indices, rows, descending=False, order=None, bits=None):
    """The first values.shape[1] of each row in stable order, NaN the greatest, into contiguous (rows, k) tensors.

    `rows` is contiguous, (count, n). `order`: a row is rows[r, order[r, :]] instead, at most `longest()` of them in rising order.
    `bits`: the elements are integers below 2^bits - 1, or -1, which comes last.
    """
    count, n = rows.shape[0], rows.shape[1] if order is None else order.shape[1]
    if not values.numel():
        return
    common = {"FALLING": descending, "RAW": bits is not None}
    bits = key_bits(rows.dtype) if bits is None else bits
    if n <= longest() and not (compiled_for_host() and order is None and n > COUNTED):
        _short(values, indices, rows, order, count, n, {**common, "KEY_BITS": bits})
    else:
        _radix(values, indices, rows, count, n, bits, common)


def _short(values, indices, rows, order, count, n, common):
    length = max(log_of(n), 1)
    least = min(max(length, tile(10, 9)), length + log_of(count))            # a tile of less than 1024 keys leaves a program little to do

    def run(choice):
        rb = min(choice["RB"], length)
        held = max(least + choice["MORE"] * (length < least), length, rb + 5)
        launch(K.sort_rows_kernel, (cdiv(count, 1 << held - length),), values, indices, rows, order, rows.strides[0], count, n,
               values.shape[1], **common, M=held, L=length, RB=rb, **_threads(held - rb, choice["REGISTERS"], common["KEY_BITS"]))

    run(tuner.choose("sort_rows", (rows.dtype.name, n, count), SHORT if length >= LEAST else SHORTEST, K.sort_rows_kernel, run))


def _threads(log, registers, bits):
    """Options of a launch with 2^log threads. Left alone, ptxas takes registers for addresses until two CTAs fill a multiprocessor, and too
    few warps are left to wait for shared memory in turns."""
    warps = max(1 << log - 5, 1)
    return {"num_warps": warps, "maxnreg": min(registers * (2 if bits > 32 else 1), 2048 // warps)}


def _radix(values, indices, rows, count, n, bits, common):
    few = FEW_TILES if count * n <= FEW << 9 else FEW_TILES[1:] + FEW_TILES[:1]
    votes = not common["RAW"] and rows.dtype.itemsize == 4 and n < 1 << 31 and not driver.on_host()
    candidates = tile(few if count * n <= FEW << 12 else RADIX + GLUON * votes, SIMULATED)
    if compiled_for_host():
        candidates = [{**RADIX[0], "LOG": min(RADIX[0]["LOG"], log_of(n))}]

    def run(choice):
        _passes(values, indices, rows, count, n, bits, choice, common)

    run(tuner.choose("radix_sort", (rows.dtype.name, bits, n, count), candidates, K.rank_kernel, run))


def _passes(values, indices, rows, count, n, bits, choice, common):
    log, passes = choice["LOG"], cdiv(bits, choice["DIGIT"])
    digit = cdiv(bits, passes)
    tiles, pieces = cdiv(n, 1 << log), cdiv(cdiv(n, 1 << log), PIECE)
    wide = types.int64 if n >= 1 << 31 else types.int32
    device, gluon = rows.device, "kernel" in choice
    place = None if gluon else empty((count * tiles << log,), types.int16, device)
    first, last = [empty((count * tiles << digit,), types.int16, device) for _ in range(2)]
    few = count * tiles <= FEW and not gluon
    shift, base = [None if few else empty((count * size << digit,), wide, device) for size in (tiles, pieces)]
    source, origin = rows, None
    for low in range(0, bits, digit):
        end = low + digit >= bits
        target = (values, indices) if end else [empty((count, n), t, device) for t in (rows.dtype, wide)]
        _pass(*target, source, origin, place, first, last, shift, base, count, n, low, log, choice, {"BITS": digit, **common})
        source, origin = target


def _pass(values, indices, source, origin, place, first, last, shift, base, count, n, low, log, choice, common):
    """One digit: what each tile has of it, the tiles' counts added up, the elements sent where they belong."""
    bits, tiles, k = common["BITS"], cdiv(n, 1 << log), values.shape[1]
    if place is None:
        common = {"BITS": bits, "FALLING": common["FALLING"], "LOG": log, "num_warps": choice["WARPS"]}
        launch(VOTES.count_kernel, (count * tiles,), first, last, source, n, low, **common)
    elif compiled_for_host():
        launch(K.count_rank_kernel, (count * tiles,), place, first, last, source, n, low, LOG=log, **common)
    else:
        launch(K.rank_kernel, (count * tiles,), place, first, last, source, n, low, LOG=log, RB=choice["RB"],
               FLOAT=choice["FLOAT"], **_threads(log - choice["RB"], choice["REGISTERS"], 32), **common)
    if shift is not None:
        _add_up(shift, base, first, last, count, tiles, bits)
    if place is None:
        launch(VOTES.send_kernel, (count * tiles,), values, indices, source, origin, first, shift, base, n, k, low, PIECE=PIECE,
               maxnreg=choice["REGISTERS"], **common)
        return
    each = max((1 << log) // (32 * choice["WARPS"]), 4)        # elements of a thread
    most = {"maxnreg": 8 * each} if shift is not None and source.dtype.itemsize < 8 else {}     # or fewer threads are resident
    launch(K.scatter_kernel, (count * tiles,), values, indices, source, origin, place, first, last, shift, base, n, k, low,
           num_warps=choice["WARPS"], PIECE=PIECE, LOG=log, **most, **common)


def _add_up(shift, base, first, last, count, tiles, bits):
    """From what tiles have of each digit to where these begin."""
    pieces, block = cdiv(tiles, PIECE), min(32, 1 << bits)
    launch(K.spread_kernel, (count * pieces * ((1 << bits) // block),), shift, base, first, last, tiles, PIECE=PIECE, BITS=bits, AHEAD=16,
           BLOCK_D=block, num_warps=1)
    launch(K.base_kernel, (count,), base, pieces, num_warps=8, BITS=bits)
