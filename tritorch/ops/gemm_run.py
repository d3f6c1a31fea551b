"""Starting the kernels of a matrix product. Each `run_…` takes the Problem (gemm.py), how many pieces K is cut into, the tensors and
scalars (out, pre, a, b, c, alpha, beta), what is fused after the sums, and the options of its kernel."""
from functools import lru_cache
from math import gcd, prod

from tritorch.cuda import driver
from tritorch.cuda.counters import MOST, here
from tritorch.cuda.device import current_device
from tritorch.cuda.launch import TensorDescriptor, kernels, launch, sm_count, tile
from tritorch.cuda.trace import current, traces
from tritorch.dtype import types
from tritorch.ops import gemm_choice as choice
from tritorch.ops.copy import transfer
from tritorch.ops.gemm_choice import GROUP_M
from tritorch.ops.gemm_pairs import most_parts
from tritorch.ops.rows import chunk_of
from tritorch.shape import cdiv, contiguous_strides, next_power_of_2
from tritorch.storage import block_storage
from tritorch.tensor import empty, strided

EARLY = True                                                             # kernels may begin before the one in front of them has ended
SUMMING = 256                                                            # programs that add up streamed parts, if tiles are few
K, VECTOR, EXACT, EXACT_GLUON = kernels("matmul"), kernels("matvec"), kernels("matmul_exact"), kernels("matmul_exact_gluon")
PERSISTENT, GLUON, EACH, STREAM = kernels("matmul_persistent"), kernels("matmul_gluon"), kernels("matmul_each"), kernels("matmul_stream")
SMALL, PARTS_GLUON, GROUPS = kernels("matmul_small_gluon"), kernels("matmul_parts_gluon"), kernels("matmul_groups_gluon")


def early():
    """Options of a kernel that may begin before the one in front of it has ended: what it does until it reads hides behind
    that one."""
    return dict(launch_pdl=True) if EARLY and _can_begin_early(current_device()) else {}


@lru_cache
def _can_begin_early(index):
    return driver.current().device_properties(index).major >= 9


driver.watchers.append(_can_begin_early.cache_clear)


def _batches(shape, *strides):
    """Sizes and strides of the batch dims as the kernels take them."""
    return None if prod(shape) == 1 else tuple([n for row in (shape, *strides) for n in row])


def _geometry(p, splits):
    """`batches`, then out's strides between splits, rows and columns; parts of a split product are one after the other."""
    if splits == 1:
        return _batches(p.batch, p.out[0], p.a[0], p.b[0], p.c[0]), 0, *p.out[1:]
    parts = [s * p.M * p.N for s in contiguous_strides(p.batch)]
    return _batches(p.batch, parts, p.a[0], p.b[0], p.c[0]), prod(p.batch) * p.M * p.N, p.N, 1


def _in_parts(p, splits, block_k, tiles, block, tensors, fused, start):
    """start(how many splits, elements of K in each, tensors, what is fused, form of c, what joins them): the programs of a tile of `block`
    elements add up what they have, or where that is too much for one of them a second kernel does."""
    span = chunk_of(p.k, block_k, splits)
    splits = cdiv(p.k, span) if span else 1
    if splits == 1:
        return start(1, span, tensors, fused, p.form, (None, None, 1))
    out, pre, a, b, c, alpha, beta = tensors
    kind = p.dtype.compute if p.dtype.is_floating_point else out.dtype
    if choice.joins(splits, tiles, block):
        wide = kind if kind.is_floating_point or kind.itemsize > 4 else types.int32
        parts = empty((tiles * splits * block,), wide, out.device)
        return start(splits, span, tensors, fused, p.form, (parts, counters(out.device), splits))
    parts = empty((splits, *p.shape), kind, out.device)
    start(splits, span, (parts, None, a, b, None, None, None), dict(SLOPE=None, ACTIVATION=None), None, (None, None, 1))
    block, total = tile(256, 4096), out.numel()
    launch(K.split_sum_kernel, (cdiv(total, block),), out, pre, parts, c, _batches(p.batch, p.out[0], p.a[0], p.b[0], p.c[0]), *p.out[1:],
           *p.c[1:], p.M, p.N, total, alpha, beta, SPLITS=splits, BLOCK=block, **early(), **fused)


def counters(device):
    """The current stream's counters, as a tensor."""
    storage = block_storage(here(device.index), 4 * MOST, device)
    if traces and (trace := current()) is not None:
        trace.counts(storage)
    return strided(storage, (MOST,), (1,), 0, types.int32)


def run_plain(p, splits, tensors, fused, options, verdict=None, precision=None):
    """The tiled kernel of any layout. precision "parts": float32 from bfloat16 parts that are made in registers; of few elements of K these
    are summed up carefully."""
    if precision == "parts" and p.k < choice.CAREFUL:
        precision = "careful parts"
    programs = choice.tiles_of(p.M, p.N, prod(p.batch), options["BLOCK_M"], options["BLOCK_N"])

    def start(splits, span, tensors, fused, form, join):
        *pointers, alpha, beta = tensors
        parts, counts, joined = join
        launch(K.matmul_kernel, (programs, splits), *pointers, verdict, parts, counts, *_geometry(p, splits // joined), *p.a[1:], *p.b[1:],
               *p.c[1:], p.M, p.N, p.k, span, alpha, beta, FORM=form, DOT=p.dot, PRECISION=precision or p.precision,
               EVEN_K=p.k == splits * span, WIDE=p.wide, GROUP_M=GROUP_M, JOINED=joined, **early(), **fused, **options)

    _in_parts(p, splits, options["BLOCK_K"], programs, options["BLOCK_M"] * options["BLOCK_N"], tensors, fused, start)


def run_vector(p, splits, tensors, fused, options):
    """A matrix times a vector: b is the matrix if M is 1, else a."""
    N, turned = max(p.M, p.N), p.M == 1
    w, x, along = ((p.b[2], p.b[1]), p.a[2], 2) if turned else (p.a[1:], p.b[1], 1)

    def start(splits, span, tensors, fused, form, join):
        out, pre, a, b, c, alpha, beta = tensors
        batches, step, *strides = _geometry(p, splits)
        launch(VECTOR.matvec_kernel, (cdiv(N, options["BLOCK_N"]) * prod(p.batch), splits), out, pre, *((b, a) if turned else (a, b)), c,
               batches, step, strides[along - 1], *w, x, p.c[along], N, p.k, span, alpha, beta, EVEN_K=p.k == splits * span, WIDE=p.wide,
               TURNED=turned, **fused, **options)

    _in_parts(p, splits, options["BLOCK_K"], 0, 0, tensors, fused, start)


def run_each(p, splits, tensors, fused, options):
    """A thread for each element of the result."""
    *pointers, alpha, beta = tensors
    total = prod(p.shape)
    launch(EACH.each_kernel, (cdiv(total, options["BLOCK"]),), *pointers, _batches(p.batch, p.out[0], p.a[0], p.b[0], p.c[0]), *p.out[1:],
           *p.a[1:], *p.b[1:], *p.c[1:], p.M, p.N, p.k, total, alpha, beta, WIDE=total >= 1 << 31, **fused, **options)


def run_whole(p, splits, tensors, fused, options, parts=False):
    """A program of a Hopper kernel for each tile, or piece of K of one; `parts`: float32 from bfloat16 parts that it cuts itself."""
    p, tensors, options = as_swapped(p, tensors, options)
    block_m, block_n, block_k = [options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")]
    box_a, box_b, tiles = p.boxes["a"], p.boxes["b"], choice.tiles_of(p.M, p.N, p.batch[0], block_m, block_n)

    def start(splits, span, tensors, fused, form, join):
        out, pre, a, b, c, alpha, beta = tensors
        parts_ptr, counts, joined = join
        boxes = TensorDescriptor(a, *box(box_a, block_m, block_k)), TensorDescriptor(b, *box(box_b, block_k, block_n))
        there = _there(p, splits // joined)
        lying, own = (a, b), (p.a[0][0], *p.a[1:], p.b[0][0], *p.b[1:])
        settled = dict(CAREFUL=p.k < choice.CAREFUL, GROUP_M=GROUP_M) if parts else dict(WHOLE=span <= block_k * options["STAGES"])
        launch(PARTS_GLUON.matmul_parts_gluon_kernel if parts else SMALL.matmul_small_gluon_kernel,
               (tiles, splits) if parts else (cdiv(p.M, block_m), cdiv(p.N, block_n), splits * p.batch[0]), out, pre, parts_ptr, counts,
               *boxes, *(lying if parts else ()), c, *there, *(own if parts else ()), p.c[0][0], *p.c[1:], p.batch[0], p.M, p.N, p.k, span,
               alpha, beta, TRANS_A=box_a[0], TRANS_B=box_b[0], **_shared(p, box_a[1], box_b[1]), FORM=form, JOINED=joined, **settled,
               **early(), **fused, **options)

    _in_parts(p, splits, 2 * block_k if parts else block_k, tiles, block_m * block_n, tensors, fused, start)     # two blocks are a round


def _there(p, splits):
    """Strides of the result between splits, matrices, rows and columns; parts of a split product are one after the other."""
    return (0, p.out[0][0], *p.out[1:]) if splits == 1 else (p.batch[0] * p.M * p.N, p.M * p.N, p.N, 1)


def run_groups(p, splits, tensors, fused, options):
    """float32 from bfloat16 parts on Hopper, by groups of warps that share a tile's K: as many programs as multiprocessors, or fewer."""
    p, tensors, options = as_swapped(p, tensors, options)
    block_m, block_n, block_k = [options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")]
    box_a, box_b = p.boxes["a"], p.boxes["b"]
    tiles = choice.tiles_of(p.M, p.N, p.batch[0], block_m, block_n)

    def start(splits, span, tensors, fused, form, join):
        out, pre, a, b, c, alpha, beta = tensors
        parts, counts, joined = join
        boxes = TensorDescriptor(a, *box(box_a, block_m, block_k)), TensorDescriptor(b, *box(box_b, block_k, block_n))
        programs = max(sm_count() // splits, 1)
        alone = tiles <= programs
        grid = (cdiv(p.M, block_m), cdiv(p.N, block_n), splits * p.batch[0]) if alone else (programs, splits)
        launch(GROUPS.matmul_groups_gluon_kernel, grid, out, pre, parts, counts, *boxes, a, b, c, *_there(p, splits // joined), p.a[0][0],
               *p.a[1:], p.b[0][0], *p.b[1:], p.c[0][0], *p.c[1:], p.batch[0], p.M, p.N, p.k, span, alpha, beta, TRANS_A=box_a[0],
               TRANS_B=box_b[0], **_shared(p, box_a[1], box_b[1]), FORM=form, CAREFUL=p.k < choice.CAREFUL,
               PROGRAMS=0 if alone else programs, GROUP_M=GROUP_M, JOINED=joined, **early(), **fused, **options)

    _in_parts(p, splits, block_k * options["GROUPS"], tiles, block_m * block_n, tensors, fused, start)


def as_swapped(p, tensors, options):
    """The problem, tensors and options of the transpose, if options say so; else as they are."""
    if "SWAPPED" not in options:
        return p, tensors, options
    return swapped(p), swapped_tensors(*tensors), {name: value for name, value in options.items() if name != "SWAPPED"}


def swapped(p):
    """The problem whose result is the transpose of p's."""
    (out, *outs), (a, *as_), (b, *bs), (c, *cs) = p.out, p.a, p.b, p.c
    boxes = {name: (not turned, *there) for name, (turned, *there) in (("a", p.boxes["b"]), ("b", p.boxes["a"]))}
    return p._replace(shape=(*p.shape[:-2], p.N, p.M), M=p.N, N=p.M, out=(out, *outs[::-1]), a=(b, *bs[::-1]), b=(a, *as_[::-1]),
                      c=(c, *cs[::-1]), form={"row": "column", "column": "row"}.get(p.form, p.form), boxes=boxes)


def swapped_tensors(out, pre, a, b, c, alpha, beta):
    return out, pre, b, a, c, alpha[2:] + alpha[:2] if type(alpha) is tuple else alpha, beta


def run_by_tma(kernel, p, tensors, fused, options, sums=()):
    """A persistent kernel: as many programs as multiprocessors. With STREAM the one in Gluon leaves parts of tiles, which a second one adds
    up, or with JOINED the last of a tile's programs. `sums`: what it takes for the sums of a's rows; what it adds comes to it by TMA where
    that can bring it. Long, as all ways need all that is described."""
    out, pre, a, b, c, alpha, beta = tensors
    block_m, block_n, block_k = [options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")]
    stream, cluster, joined = options.get("STREAM", False), options.get("CLUSTER", 1), "JOINED" in options
    tiles = choice.tiles_of(p.M, p.N, p.batch[0], block_m * options.get("PARTS", 1), block_n, cluster)
    programs, steps, columns = min(tiles, sm_count() // cluster * cluster), cdiv(p.k, block_k), cdiv(p.N, block_n)
    across = options.get("ACROSS", False)                                # ptxas would wait for every product of these
    alone = kernel is GLUON.matmul_gluon_kernel and tiles <= sm_count() and options["CONSUMERS"] == 1 and not (across or joined)
    grid = (tiles // (columns * p.batch[0]), columns, p.batch[0]) if alone else (programs,)
    box_a, box_b = p.boxes["a"], p.boxes["across" if across else "b"]
    if "a" in p.boxes["copied"]:
        a = copied(a, box_a, p.a)
    if "b" in p.boxes["copied"] and not across:
        b = copied(b, box_b, p.b)
    in_tf32 = p.precision == "tf32"
    a = TensorDescriptor(a, *box(box_a, block_m, block_k), round_f32_to_tf32=in_tf32)
    b = TensorDescriptor(b, *box(box_b, block_k, block_n // cluster), round_f32_to_tf32=in_tf32)
    strides, sizes, scalars = (p.c[0][0], *p.c[1:]), (p.batch[0], p.M, p.N, p.k), (alpha, beta)
    leaving = (block_m // options["PIECES"], block_n) if across else (block_m, block_n // options["PIECES"])
    settled = dict(TRANS_A=box_a[0], TRANS_B=box_b[0], **_shared(p, box_a[1], box_b[1]), PROGRAMS=0 if alone else programs, GROUP_M=GROUP_M,
                   **early(), **{name: value for name, value in options.items() if name != "JOINED"})
    join = (None,) if sums else ()
    if stream:
        dealt = choice.dealt(p.M, p.N, tiles, steps, block_m, block_n, sm_count())
        settled, programs = {**settled, **dealt}, dealt["PROGRAMS"]
        parts = empty((programs + tiles, block_m, block_n), types.float32 if p.dtype.is_floating_point else types.int32, out.device)
        part_sums = [x if x is None else empty((programs + (2 if joined else 1) * tiles, block_m), types.float32, out.device) for x in sums]
        if joined:
            grid, join, settled["MOST"] = (programs,), ((parts, *part_sums, counters(out.device)),), most_parts(programs, tiles)
        else:
            launch(kernel, (programs,), TensorDescriptor(parts, (1, *leaving)), None, *part_sums, None, a, b, None, 0, 0, 0, *join, *sizes,
                   None, None, FORM=None, SLOPE=None, ACTIVATION=None, **settled)
            most = next_power_of_2(max(tiles * block_m * block_n // SUMMING, 128))
            rows = max(tile(min(1024, most), block_m * block_n) // block_n, 1)
            launch(STREAM.stream_sum_kernel, (tiles * block_m // rows,), out, pre, *sums, parts, *part_sums, c, p.out[0][0], *p.out[1:],
                   *strides, p.M, p.N, steps, tiles, *scalars, FORM=p.form, BLOCK_M=block_m, BLOCK_N=block_n, ROWS=rows,
                   AHEAD=min(next_power_of_2(max(programs // tiles, 1)), 16), num_warps=4, **dealt, **fused)
            return
    scattered = bool(sums) and p.boxes["scattered"]
    added = coming(p, out, pre, c, beta) if sums and not (across or scattered or joined) else None
    if added is not None:                                                # half as large pieces, twice as many buffers, for both ways
        settled["PIECES"], leaving = 2 * options["PIECES"], (block_m, leaving[1] // 2)
        sums = *sums, TensorDescriptor(added[0], *box(added[1], *leaving))
    elif sums:
        sums = *sums, None
    if scattered or joined and p.form == "tile":                         # addresses of larger pieces would fill registers
        settled["PIECES"], leaving = 2 * options["PIECES"], (block_m, leaving[1] // 2)
    written = [x if x is None or scattered or not p.boxes["leaves"] else like(x, p.boxes["out"]) for x in (out, pre)]
    boxes = [x if x is None else (x, p.out[0][0], p.out[1]) if scattered else TensorDescriptor(x, *box(p.boxes["out"], *leaving))
             for x in written]
    launch(kernel, grid, *boxes, *sums, a, b, c, *strides, *join, *sizes, *scalars, FORM=p.form, **fused, **settled)
    for x, there in zip((out, pre), written):
        if there is not x:
            transfer(as_described(x, p.boxes["out"], p.out), there)


def coming(p, out, pre, c, beta):
    """What the epilogue adds, number by number, and its matrices, where TMA can bring it to where the result leaves from; else None."""
    if pre is not None:
        return None
    as_out = None if p.boxes["leaves"] else p.boxes["out"]
    x, matrices = (beta[0], as_out) if type(beta) is tuple and len(beta) % 2 else (c, p.boxes["added"])
    return (x, matrices) if matrices and x.dtype is out.dtype and not x.data_ptr() & 15 else None


def _shared(p, a, b):
    """Which operand, of a shape that TMA reads, is one matrix for all of the batch."""
    return dict(SHARED_A=a[0] < p.batch[0], SHARED_B=b[0] < p.batch[0])


def copied(x, matrix, strides):
    """A copy of an operand as `matrix` describes it; its own batch strides, row and column stride."""
    copy = like(x, matrix)
    transfer(copy, as_described(x, matrix, strides))
    return copy


def like(x, matrix):
    """Memory for a matrix batch of x's type."""
    turned, shape, strides = matrix
    return strided(empty((strides[0] * shape[0],), x.dtype, x.device).storage, shape, strides, 0, x.dtype)


def as_described(x, matrix, strides):
    """x, of these batch strides, row and column stride, in the shape of `matrix`."""
    step, row, column = strides
    turned, shape, _ = matrix
    return strided(x.storage, shape, (*step, column, row) if turned else (*step, row, column), x.offset, x.dtype)


def box(matrix, rows, columns):
    """(block, shape, strides) of a descriptor of a matrix batch."""
    turned, shape, strides = matrix
    return (1, columns, rows) if turned else (1, rows, columns), shape, strides


# ------------------------------------------------------------------ float32 in parts
PROGRAMS_SPLIT, ROWS, COLUMNS = 1024, 16, 256                            # of split_kernel: all programs are on the GPU at once


def _in_rows(batch, rows, columns, strides):
    """(transposed, strides, sizes) of a float32 operand as split_kernel walks through it; a matrix that serves a whole batch comes once."""
    (step,), row, column = strides
    turned = column != 1 and row == 1
    if turned:
        rows, columns, row, column = columns, rows, column, row
    return turned, (step, row, column), (batch if step else 1, rows, columns)


def run_exact(kernel, rows_a, p, tensors, fused, options):
    """float32 from three bfloat16 parts of each operand; where those cannot tell, the tiled kernel behind it does the work. `rows_a`: of
    a that the kernel loads at once, None: all of a tile."""
    out, pre, a, b, c, alpha, beta = tensors
    a_rows, b_rows = _in_rows(p.batch[0], p.M, p.k, p.a), _in_rows(p.batch[0], p.k, p.N, p.b)
    parts, boxes, geometry, evens = [], [], [], []
    for (turned, strides, (batch, rows, columns)), *block in ((a_rows, rows_a or options["BLOCK_M"], options["BLOCK_K"]),
                                                              (b_rows, options["BLOCK_K"], options["BLOCK_N"])):
        padded = cdiv(columns, 8) * 8
        parts.append(empty((3, batch, rows, padded), types.bfloat16, out.device))
        boxes.append(TensorDescriptor(parts[-1], *box((turned, (3 * batch, rows, columns), (rows * padded, padded, 1)), *block)))
        geometry += [*strides, padded, batch, rows, columns]
        evens.append(gcd(16, *strides[:2], columns))
    elements = [x.numel() for x in parts]
    programs_a = min(max(PROGRAMS_SPLIT * elements[0] // sum(elements), 1), PROGRAMS_SPLIT - 1)
    ranges, verdict = empty((2, PROGRAMS_SPLIT), types.int32, out.device), empty((1,), types.int32, out.device)
    launch(EXACT.split_kernel, (PROGRAMS_SPLIT,), *parts, ranges, a, b, *geometry, EVEN_A=evens[0], EVEN_B=evens[1], PROGRAMS_A=programs_a,
           PROGRAMS=PROGRAMS_SPLIT, BLOCK_R=ROWS, BLOCK_C=COLUMNS, num_warps=8, **early())
    programs = min(choice.tiles_of(p.M, p.N, p.batch[0], options["BLOCK_M"], options["BLOCK_N"]), sm_count())
    launch(kernel, (programs,), out, pre, verdict, *boxes, c, ranges, p.out[0][0], *p.out[1:], p.c[0][0], *p.c[1:],
           p.batch[0], p.M, p.N, p.k, (p.k - 1).bit_length(), alpha, beta, TRANS_A=a_rows[0], TRANS_B=b_rows[0],
           **_shared(p, a_rows[2], b_rows[2]), FORM=p.form, PROGRAMS_A=programs_a,
           PROGRAMS_SPLIT=PROGRAMS_SPLIT, PROGRAMS=programs, GROUP_M=GROUP_M, **early(), **fused, **options)
    run_plain(p, 1, tensors, fused, choice.FALLBACK, verdict)


RUN = {
    "groups": run_groups, "small": run_whole, "parts_gluon": lambda *args: run_whole(*args, parts=True),
    "plain": run_plain, "vector": run_vector, "each": run_each, "parts": lambda *args: run_plain(*args, precision="parts"),
    "exact": lambda p, splits, *rest: run_exact(EXACT.matmul_exact_kernel, None, p, *rest),
    "exact_gluon": lambda p, splits, *rest: run_exact(EXACT_GLUON.matmul_exact_gluon_kernel, 64, p, *rest),
    "persistent": lambda p, splits, tensors, fused, options: run_by_tma(PERSISTENT.matmul_persistent_kernel, p, tensors, fused,
                                                                        {**options, "APART": p.key[0] == "fp8"}),
    "gluon": lambda p, splits, *rest, sums=None: run_by_tma(GLUON.matmul_gluon_kernel, p, *rest, (sums,)),
}
