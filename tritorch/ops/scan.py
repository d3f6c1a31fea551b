"""Scans along one dim: cumsum, cumprod, cummax, cummin, and the linear recurrence that gradients of scans need."""

import numpy as np

from tritorch.cuda import tuner
from tritorch.cuda.launch import kernels, launch, sm_count, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import create
from tritorch.ops.arrays import cast, single
from tritorch.ops.destinations import call, made_in_dtype
from tritorch.ops.extremes import highest, lowest
from tritorch.ops.monoids import PAIRED, both_parts, operands
from tritorch.ops.reduce import accumulator, loadable, whole
from tritorch.ops.rows import chunk_of, half, remember, rows, vector_of
from tritorch.ops.shaping import cat
from tritorch.pairs import HOLOMORPHIC, OWN
from tritorch.return_types import result
from tritorch.shape import cdiv, next_power_of_2, wrap_dim
from tritorch.tensor import empty

K, COMPLEX = kernels("scan"), kernels("complex_scan")
CummaxResult, CumminResult = result("cummax", "values indices"), result("cummin", "values indices")


WAYS = ((4096, 4), (4096, 8), (2048, 4), (8192, 8), (8192, 16), (1024, 4))
"""Elements of a tile (half of it where the state is more than one value) and warps."""
LANES = 32


@remember
def tiles(M, N, across, itemsize, states, processors):
    """Candidates: tiles, and into how many pieces to cut few long rows, which are then read twice. With SIDE a thread has so many rows."""
    found = []
    if across and processors and M >= LANES:
        # nothing is exchanged: a running sum over dim 1 of (64, 1000, 512) takes 65 µs, not 131 (predicted)
        side = 2 if itemsize <= 2 else 1
        n, programs = min(16 * side, next_power_of_2(N)), cdiv(M, LANES * side)
        steps = cdiv(N, n)
        pieces = max(min(cdiv(16 * processors, programs), steps, 1024), 1) if programs < 3 * processors else 1
        pieces = cdiv(steps, cdiv(steps, pieces)) if steps else 1
        found.append({"BLOCK_M": LANES * side, "BLOCK_N": n, "pieces": pieces, "num_warps": 1, "SIDE": side})
    for limit, warps in WAYS if processors else WAYS[:1]:
        limit = limit if states == 1 else limit // 2
        m = min(next_power_of_2(M), (128 if cdiv(M * itemsize, 128) >= processors else 64) // itemsize) if across else 1
        n = min(next_power_of_2(N), limit // m)
        m = m if across else min(next_power_of_2(M), limit // n)
        if not processors:
            m, n = min(half(M), 1024), min(half(N), 1024)
        programs, steps = cdiv(M, m), cdiv(N, n)
        wanted = cdiv(4 * processors, programs) if processors else 2
        pieces = min(wanted, steps, 1024) if programs < processors or not processors else 1
        way = {"BLOCK_M": m, "BLOCK_N": n, "pieces": cdiv(steps, cdiv(steps, max(pieces, 1))) if steps else 1, "num_warps": warps,
               "SIDE": 0}
        if way not in found:
            found.append(way)
    return tuple(found)


def scan_rows(outs, inputs, dim, lift, combine, finish, states, acc, identity=0, reverse=False):
    """Scan `inputs` along `dim` into `outs` on the GPU: in one launch or, where there are few long rows, in three."""
    shape = inputs[0].shape
    functions = K
    if inputs[0].dtype.is_complex:
        functions, acc, states = COMPLEX, acc.parts, (None,) * PAIRED[combine]
        outs, inputs = both_parts(outs), [t for x in inputs for t in operands(x)]
        lift, combine, finish = [f"pair_{name}" for name in (lift, combine, finish)]
    geometry = rows(shape, (dim,) if shape else (), *[t.strides for t in (*outs, *inputs)])
    M, shape_m, stride_m, N, _, stride_n, across, wide, align = geometry
    if not M or not N:
        return
    lift, joined, scan, finish = [getattr(functions, name) for name in (f"{lift}_lift", f"{combine}_combine", f"{combine}_scan",
                                                                        f"{finish}_finish")]
    monoid = {"LIFT": lift, "COMBINE": joined, "SCAN": scan, "FINISH": finish, "IDENTITY": identity, "ACC": getattr(K.tl, acc.name),
              "REVERSE": reverse}

    size = inputs[0].dtype.itemsize

    def run(way):
        m, n, pieces, warps = way["BLOCK_M"], way["BLOCK_N"], way["pieces"], way["num_warps"]
        chunk = chunk_of(N, n, pieces)
        even = M % m == N % n == 0 and chunk * pieces == N

        def stage(targets, prefix, **kind):
            launch(K.scan_kernel, (cdiv(M, m), pieces), targets, tuple(inputs), prefix, shape_m, stride_m, stride_n, M, N, chunk, **monoid,
                   **kind, EVEN=even, LOOP=chunk > n, WIDE=wide, ALIGN=min(align, n), VEC=min(vector_of(geometry, size), n),
                   SIDE=way["SIDE"], BLOCK_M=m, BLOCK_N=n, num_warps=warps)

        totals = ()
        if pieces > 1:
            totals = tuple([empty((pieces, M), s or acc, outs[0].device) for s in states])
            stage(totals, (), PREFIX=False, TOTALS=True)
            all_pieces = next_power_of_2(pieces)
            block = min(m, max(2048 // all_pieces, 1))
            launch(K.prefix_kernel, (cdiv(M, block),), totals, M, pieces, SCAN=monoid["SCAN"], BLOCK_M=block, PIECES=all_pieces)
        stage(tuple(outs), totals, PREFIX=pieces > 1, TOTALS=False)

    ways = tiles(M, N, across, size, len(states), tile(1, 0) and sm_count())
    run(ways[0] if len(ways) == 1 else tuner.choose("scan", (combine, size, across, M, N), ways, K.scan_kernel, run))


def sample_scans(make):
    """The calls that every scan is tested with."""
    yield make(5), 0
    yield make(3, 7), 1
    yield make(7, 3), 0
    yield make(2, 5, 3), -2
    yield make(2, 301), 1
    yield make(), 0
    yield make(0, 3), 1


def bad_dim(f):
    f.errors(lambda make: [((make(2, 3), 2), {}, IndexError, "expected a dim in [-2, 1], got 2")])


def sweeps(f, extra=0):
    """Rows and columns of 512 MiB in rows of 4096, and one long row; `extra` bytes an element are written besides."""
    def workloads(make):
        for kind in types.float32, types.bfloat16:
            n, each = (1 << 29) // kind.itemsize, 2 * kind.itemsize + extra
            for label, shape, dim in ("rows", (n // 4096, 4096), 1), ("columns", (n // 4096, 4096), 0), ("one row", (n,), 0):
                arguments = lambda shape=shape, dim=dim, kind=kind: (make(*shape, dtype=kind), dim)  # noqa: E731
                yield f"{kind.name} {label} of {shape}", arguments, each * n, 0
    f.workloads(workloads)


# ------------------------------------------------------------------ sums and products
def running(name, doc, combine, ufunc, reverse=False):
    """A scan with `dtype`: the input is cast first, integers give int64."""
    def rule(input, dim, dtype=None):
        wrap_dim(dim, input.ndim, name)
        return input.shape, whole(input.dtype) if dtype is None else types.as_dtype(dtype), input.device

    rule.__name__, rule.__doc__ = name, doc
    f = made_in_dtype(op(rule))

    @f.impl("cpu")
    def cpu(out, x, dim, dtype):
        if not x.ndim:
            out[...] = x
            return
        x = single(x if dtype is None else cast(x, out.dtype))
        target = out
        if reverse:
            x, target = np.flip(x, dim), np.flip(out, dim)
        if x.dtype == out.dtype:
            ufunc.accumulate(x, axis=dim, out=target)
        else:
            target[...] = ufunc.accumulate(x, axis=dim, dtype=None if x.dtype.kind == "f" else out.dtype)

    @f.impl("cuda")
    def cuda(out, x, dim, dtype):
        x = loadable(x, out.dtype) if dtype else x
        scan_rows([out], [x], wrap_dim(dim, x.ndim, name), combine, combine, "first", (None,), whole(out.dtype.compute), reverse=reverse)

    f.samples(sample_scans)
    bad_dim(f)
    sweeps(f)
    return f


cumsum = running("cumsum", """Running sum along `dim`.

    out_i = x_0 + … + x_i. Integers and bools give int64; half types add up in float32.

    >>> import tritorch as torch; torch.tensor([1, 2, 3]).cumsum(0)
    tensor([1, 3, 6])
    """, "sum", np.add)
reverse_cumsum = running("reverse_cumsum", """Running sum along `dim` from its end: the gradient of cumsum.

    out_i = x_i + … + x_(n-1).

    >>> import tritorch as torch; from tritorch.ops.scan import reverse_cumsum; reverse_cumsum(torch.tensor([1, 2, 3]), 0)
    tensor([6, 5, 3])
    """, "sum", np.add, reverse=True)
cumprod = running("cumprod", """Running product along `dim`.

    out_i = x_0 · … · x_i. Integers and bools give int64. The gradient is right where factors are 0.

    >>> import tritorch as torch; torch.tensor([1, 2, 3]).cumprod(0)
    tensor([1, 2, 6])
    """, "prod", np.multiply)


cumsum.complex = reverse_cumsum.complex = OWN
cumprod.complex = HOLOMORPHIC


@cumsum.grad("input")
def cumsum_grad(g, dim):
    return reverse_cumsum(g, dim)


@reverse_cumsum.grad("input")
def reverse_cumsum_grad(g, dim):
    return cumsum(g, dim)


@cumprod.grad("input")
def cumprod_grad(g, input, dim):
    # d out_j / d x_i = (product before i) · (product from i + 1 to j): sums of those over j are a linear recurrence from the end
    if not input.ndim or not input.shape[dim]:
        return g
    input, n = input.to(g.dtype), input.shape[dim]                       # of `dtype`, as what was multiplied
    ones = create.ones_like(input.narrow(dim, 0, 1))
    before, after = shifted(ones, input.narrow(dim, 0, n - 1), dim), shifted(input.narrow(dim, 1, n - 1), ones, dim)
    return cumprod(before, dim) * linear_recurrence(after, g, dim, True)


def shifted(front, back, dim):
    """Two parts put together along dim."""

    return cat([front, back], dim)


# ------------------------------------------------------------------ extremes
def extreme(name, doc, combine, identity, compare, ufunc):
    """cummax and cummin: the values and where the last of each was."""
    def rule(input, dim):
        wrap_dim(dim, input.ndim, name)
        return [(input.shape, input.dtype, input.device), (input.shape, types.int64, input.device)]

    rule.__name__, rule.__doc__ = name + "_pair", doc
    f = op(rule, returns=("values", "indices"))

    @f.impl("cpu")
    def cpu(values, indices, x, dim):
        if not x.ndim:
            values[...], indices[...] = x, 0
            return
        ufunc.accumulate(x, axis=dim, out=values)
        new = compare(x, values) | (x != x)
        place = np.arange(x.shape[dim]).reshape([-1 if d == dim % x.ndim else 1 for d in range(x.ndim)])
        np.maximum.accumulate(np.where(new, place, 0), axis=dim, out=indices)

    @f.impl("cuda")
    def cuda(values, indices, x, dim):
        scan_rows([values, indices], [x], wrap_dim(dim, x.ndim, name), "indexed", combine, "both", (None, types.int64),
                  accumulator(x.dtype), identity(x.dtype))

    @f.grad("input")
    def grad(g_values, indices, dim):
        return g_values.new_zeros(g_values.shape).scatter_add(dim, indices, g_values) if g_values.ndim else g_values

    f.samples(sample_scans)
    bad_dim(f)
    sweeps(f, 8)
    return f


cummax_pair = extreme("cummax", """Running maximum along `dim` and the index of the last element that reached it, as (values, indices).

    >>> import tritorch as torch; torch.cummax(torch.tensor([1, 3, 2]), 0).values
    tensor([1, 3, 3])
    """, "max", lowest, np.greater_equal, np.maximum)
cummin_pair = extreme("cummin", """Running minimum along `dim` and the index of the last element that reached it, as (values, indices).

    >>> import tritorch as torch; torch.cummin(torch.tensor([3, 1, 2]), 0).values
    tensor([3, 1, 1])
    """, "min", highest, np.less_equal, np.minimum)


def cummax(input, dim, *, out=None):
    """(values, indices) of the running maximum along `dim`.

    >>> import tritorch as torch; torch.cummax(torch.tensor([1, 3, 2, 3]), 0).indices
    tensor([0, 1, 1, 3])
    """
    return call(cummax_pair, (input, dim), out, CummaxResult)


def cummin(input, dim, *, out=None):
    """(values, indices) of the running minimum along `dim`.

    >>> import tritorch as torch; torch.cummin(torch.tensor([3, 1, 2, 1]), 0).indices
    tensor([0, 1, 1, 3])
    """
    return call(cummin_pair, (input, dim), out, CumminResult)


# ------------------------------------------------------------------ linear recurrence
@op
def linear_recurrence(a, b, dim, reverse=False):
    """h_i = a_i · h_(i-1) + b_i along `dim`, from h_(-1) = 0; `reverse` runs from the end.

    A parallel scan over the maps h -> a · h + b (Blelloch, Prefix Sums and Their Applications, 1990).

    >>> import tritorch as torch; from tritorch.ops.scan import linear_recurrence
    >>> linear_recurrence(torch.tensor([2.0, 2.0, 2.0]), torch.ones(3), 0)
    tensor([1., 3., 7.])
    """
    wrap_dim(dim, a.ndim, "linear_recurrence")
    check(a.shape == b.shape, "linear_recurrence", "a and b of one shape", a.shape, b.shape)
    check(a.dtype is b.dtype and a.dtype.has_gradients, "linear_recurrence", "a and b of one floating dtype", a.dtype, b.dtype)
    return a.shape, a.dtype, a.device


@linear_recurrence.impl("cpu")
def linear_recurrence_cpu(out, a, b, dim, reverse):
    if not a.ndim:
        out[...] = b
        return
    a, b, h = [np.moveaxis(v, dim, 0)[::-1 if reverse else 1] for v in (single(a), single(b), out)]
    state = np.zeros(h.shape[1:], a.dtype)
    for i in range(len(h)):
        state *= a[i]
        state += b[i]
        h[i] = state


@linear_recurrence.impl("cuda")
def linear_recurrence_cuda(out, a, b, dim, reverse):
    scan_rows([out], [a, b], wrap_dim(dim, a.ndim, "linear_recurrence"), "recurrence", "recurrence", "recurrence", (None, None),
              out.dtype.compute, reverse=reverse)


linear_recurrence.complex = HOLOMORPHIC


@linear_recurrence.grad("a", "b")
def linear_recurrence_grad(g, a, out, dim, reverse):
    if not a.ndim or not a.shape[dim]:
        return create.new_zeros(a, a.shape), g
    n, zero = a.shape[dim], create.zeros_like(a.narrow(dim, 0, 1))

    def moved(x, back):
        """x moved by one along dim, to the front or to the back; 0 comes in."""
        return shifted(zero, x.narrow(dim, 0, n - 1), dim) if back else shifted(x.narrow(dim, 1, n - 1), zero, dim)

    gb = linear_recurrence(moved(a, reverse), g, dim, not reverse)
    return gb * moved(out, not reverse), gb


@linear_recurrence.samples
def linear_recurrence_samples(make):
    yield make(5), make(5), 0
    yield make(3, 7), make(3, 7), 1, True
    yield make(7, 3), make(7, 3), 0
    yield make(2, 5, 3), make(2, 5, 3), -2, True
    yield make(), make(), 0
    yield make(0, 3), make(0, 3), 1


@linear_recurrence.errors
def linear_recurrence_errors(make):
    yield (make(3), make(4), 0), {}, RuntimeError, "expected a and b of one shape"


@linear_recurrence.workloads
def linear_recurrence_workloads(make):
    yield "8192x8192", lambda: (make(8192, 8192), make(8192, 8192), 1), 3 * 4 * 8192 * 8192, 2 * 8192 * 8192
