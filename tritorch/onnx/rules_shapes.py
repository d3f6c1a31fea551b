"""Operators that move elements: views, concatenation, padding, indexing, filling, casts."""
import math

from tritorch.dtype import types
from tritorch.onnx.rules import rule
from tritorch.tracing.sizes import Varying
from tritorch.tracing.tracer import Value


def wrapped(dim, ndim):
    return dim % ndim if ndim else 0


def plain(n):
    return not isinstance(n, Varying)


# ------------------------------------------------------------------ views
@rule("view_as_shape")
def view_as_shape(g, x, shape):
    """-1 stands for what varies; sizes of the input at the same place are 0 to Reshape."""
    want = list(g.out.shape)
    kept = [k for k, n in enumerate(want) if not plain(n) and k < x.ndim and x.shape[k] == n]
    free = [k for k, n in enumerate(want) if not plain(n) and k not in kept]
    if len(free) <= 1 and 0 not in [n for n in want if plain(n)]:
        return g.op("Reshape", x, g.constant([0 if k in kept else -1 if k in free else n for k, n in enumerate(want)]))
    return g.reshape(x, want)


@rule("permute_dims")
def permute_dims(g, x, dims):
    return g.permuted(x, [wrapped(d, x.ndim) for d in dims])


@rule("transpose")
def transpose(g, input, dim0, dim1):
    dims = list(range(input.ndim))
    if dims:
        a, b = wrapped(dim0, input.ndim), wrapped(dim1, input.ndim)
        dims[a], dims[b] = b, a
    return g.permuted(input, dims) if dims else g.x(input)


@rule("expand_to")
def expand_to(g, x, shape):
    return g.op("Expand", x, g.sizes(g.out.shape))


@rule("squeeze_dims")
def squeeze_dims(g, x, dims):
    gone = [wrapped(d, x.ndim) for d in dims]
    gone = [d for d in gone if plain(x.shape[d]) and x.shape[d] == 1] if x.ndim else []
    return g.squeezed(x, *gone) if gone else g.op("Identity", x)


@rule("unsqueeze")
def unsqueeze(g, input, dim):
    return g.unsqueezed(input, wrapped(dim, input.ndim + 1))


@rule("as_lines")
def as_lines(g, x):
    return g.unsqueezed(x, 2)


@rule("select")
def select(g, input, dim, index):
    if plain(index):
        return g.op("Gather", input, g.constant(int(index)), axis=wrapped(dim, input.ndim))
    return g.op("Gather", input, g.number(index, types.int64), axis=wrapped(dim, input.ndim))


@rule("slice_dim")
def slice_dim(g, x, dim, start, stop, step):
    start, stop = _bound(start, x.shape[dim]), _bound(stop, x.shape[dim])
    return g.sliced(x, dim, start, stop, step)


def _bound(n, size):
    """A start or stop as Python has it, which Slice takes, too: -c, c, or the end."""
    if plain(n) or plain(size):
        return n
    if n == size:
        return 2**63 - 1
    for c in {b - a for a, b in zip(n.values, size.values)} - {0}:
        if all(a == max(b - c, 0) for a, b in zip(n.values, size.values)):
            return -c
    c = max(n.values)
    return c if all(a == min(b, c) for a, b in zip(n.values, size.values)) else n


@rule("diagonal")
def diagonal(g, input, offset=0, dim1=0, dim2=1):
    a, b = wrapped(dim1, input.ndim), wrapped(dim2, input.ndim)
    x = g.permuted(input, [d for d in range(input.ndim) if d not in (a, b)] + [a, b])
    sizes = [g.plus(g.size(input.shape[d]), -abs(offset) if (offset > 0) == (d == b) else 0) for d in (a, b)]
    count = g.op("Min", *sizes)
    steps = g.op("Range", g.constant(0), g.squeezed(count, 0), g.constant(1))
    places = g.op("Add", steps, g.constant(max(offset, 0)))
    x = g.sliced(x, input.ndim - 2, max(-offset, 0), 2**63 - 1)
    x = g.op("Slice", x, g.constant([0]), count, g.constant([input.ndim - 2]), g.constant([1]))
    lead = list(g.out.shape[:-1])
    index = g.op("Expand", g.unsqueezed(places, 1), g.op("Concat", *([g.sizes(lead)] if lead else []), count, g.constant([1]), axis=0))
    return g.squeezed(g.op("GatherElements", x, index, axis=input.ndim - 1), input.ndim - 1)


@rule("unfold")
def unfold(g, input, dimension, size, step):
    d, many = wrapped(dimension, input.ndim), g.out.shape[wrapped(dimension, input.ndim)]
    starts = g.op("Mul", g.op("Range", g.constant(0), g.number(many, types.int64), g.constant(1)), g.constant(step))
    places = g.op("Add", g.unsqueezed(starts, 1), g.constant([list(range(size))]))
    windows = g.op("Gather", input, places, axis=d)
    rest = [k for k in range(input.ndim + 1) if k != d + 1]
    return g.permuted(windows, [*rest, d + 1])


@rule("frames")
def frames(g, input, size, step):
    return unfold(g, input, -1, size, step)


# ------------------------------------------------------------------ new memory
@rule("copy_to")
def copy_to(g, input, dtype, *rest):
    return g.cast(input, dtype) if input.dtype is not dtype else g.op("Identity", input)


@rule("assign")
def assign(g, input, src, *rest):
    value = g.like(src)
    return g.op("Expand", value, g.sizes(g.out.shape)) if src.shape != g.out.shape else g.op("Identity", value)


@rule("fill")
def fill(g, input, value):
    number = g.like(value)
    if isinstance(value, Value) and value.ndim:
        number = g.op("Reshape", number, g.constant([], types.int64))
    return g.op("Expand", number, g.sizes(g.out.shape))


@rule("ramp")
def ramp(g, start, step, count, dtype, device):
    kind = dtype if dtype.is_floating_point or dtype in (types.int64, types.int32, types.int16) else types.int64
    wide = types.float32 if kind in (types.float16, types.bfloat16) else kind
    steps = g.cast(g.op("Range", g.constant(0), g.number(count, types.int64), g.constant(1)), wide)
    made = steps if plain(step) and step == 1 else g.op("Mul", steps, g.number(step, wide))
    made = made if plain(start) and start == 0 else g.op("Add", made, g.number(start, wide))
    return made if wide is dtype else g.cast(made, dtype)


@rule("concatenated")
def concatenated(g, tensors, dim, sizes):
    parts = [t for t in tensors if t.shape != (0,)] or tensors[:1]
    return g.op("Concat", *[g.like(t) for t in parts], axis=wrapped(dim, parts[0].ndim))


@rule("flip_dims")
def flip_dims(g, x, dims):
    dims, many = [wrapped(d, x.ndim) for d in dims], len(dims)
    if not many or not x.ndim:
        return g.op("Identity", x)
    return g.op("Slice", x, g.constant([-1] * many), g.constant([-2**63 + 1] * many), g.constant(dims), g.constant([-1] * many))


@rule("roll_dims")
def roll_dims(g, x, shifts, dims):
    name = g.x(x)
    for shift, dim in zip(shifts, dims):
        d = wrapped(dim, x.ndim)
        cut = -shift % x.shape[d] if plain(x.shape[d]) and x.shape[d] else -shift
        if plain(cut) and cut == 0:
            continue
        name = g.op("Concat", g.sliced(name, d, cut, 2**63 - 1), g.sliced(name, d, 0, cut), axis=d)
    return name if name != g.x(x) else g.op("Identity", x)


@rule("triangle")
def triangle(g, input, diagonal, upper):
    x = g.cast(input, types.int32) if input.dtype is types.bool else g.x(input)
    found = g.op("Trilu", x, g.number(diagonal, types.int64), upper=int(upper))
    return g.cast(found, types.bool) if input.dtype is types.bool else found


@rule("constant_pad")
def constant_pad(g, input, pad, value=0.0):
    before, after = _ends(pad, input.ndim)
    x, kind = g.x(input), input.dtype
    for d, (a, b) in enumerate(zip(before, after)):
        if plain(a) and plain(b) and min(a, b) < 0:                      # what is cut off
            x = g.sliced(x, d, max(-a, 0), b if b < 0 else 2**63 - 1)
            before[d], after[d] = max(a, 0), max(b, 0)
    if kind is types.bool:
        x, kind = g.cast(x, types.int32), types.int32
    found = g.op("Pad", x, g.sizes([*before, *after]), g.number(value, kind), mode="constant")
    return g.cast(found, types.bool) if input.dtype is types.bool else found


def _ends(pad, ndim):
    """What is added before and after, first dim first."""
    before, after = [0] * ndim, [0] * ndim
    for k in range(0, len(pad), 2):
        before[-1 - k // 2], after[-1 - k // 2] = pad[k], pad[k + 1]
    return before, after


@rule("edge_pad")
def edge_pad(g, input, pad, mode):
    before, after = _ends(pad, input.ndim)
    if mode != "circular":
        return g.op("Pad", input, g.sizes([*before, *after]), mode={"reflect": "reflect", "replicate": "edge"}[mode])
    name = g.x(input)
    for d in range(2, input.ndim):
        parts = [g.sliced(name, d, -before[d], 2**63 - 1)] if before[d] else []
        parts += [name, *([g.sliced(name, d, 0, after[d])] if after[d] else [])]
        name = g.op("Concat", *parts, axis=d) if len(parts) > 1 else name
    return name


# ------------------------------------------------------------------ places
@rule("table_rows")
def table_rows(g, weight, index, *rest):
    return g.op("Gather", weight, index, axis=0)


@rule("index_select", "pick")
def index_select(g, input, dim, index, strides=None):
    if not input.ndim:
        return g.op("Identity", input)
    places = index if index.ndim else g.unsqueezed(index, 0)
    return g.op("Gather", input, places, axis=wrapped(dim, input.ndim))


@rule("gather")
def gather(g, input, dim, index, sparse_grad=False):
    if not input.ndim:
        return g.op("Expand", input, g.shape_of(index))
    return g.op("GatherElements", _cut(g, input, index, dim), g.cast(index, types.int64), axis=wrapped(dim, input.ndim))


def _cut(g, input, index, dim):
    """The input as long as the index but along `dim`: GatherElements wants that."""
    name = g.x(input)
    for d, (n, m) in enumerate(zip(input.shape, index.shape)):
        if d != wrapped(dim, input.ndim) and n != m:
            name = g.sliced(name, d, 0, m)
    return name


@rule("scatter_write", "scatter_add", "scatter_join")
def scatter(g, input, dim, index, src, reduce=None):
    kinds = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    how = {"scatter_write": "none", "scatter_add": "add"}.get(g.current.name) or kinds[reduce]
    if isinstance(src, Value):
        values = g.x(src)
        for d, (n, m) in enumerate(zip(src.shape, index.shape)):
            values = values if n == m else g.sliced(values, d, 0, m)
    else:
        values = g.op("Expand", g.like(src), g.shape_of(index))
    return g.op("ScatterElements", input, g.cast(index, types.int64), values, axis=wrapped(dim, input.ndim), reduction=how)


@rule("index_add")
def index_add(g, input, dim, index, source, alpha=1):
    d = wrapped(dim, input.ndim)
    values = g.x(source) if alpha == 1 else g.op("Mul", source, g.like(alpha))
    shape = [-1 if k == d else 1 for k in range(input.ndim)]
    places = g.op("Expand", g.op("Reshape", g.cast(index, types.int64), g.constant(shape)), g.shape_of(source))
    return g.op("ScatterElements", input, places, values, axis=d, reduction="add")


@rule("put")
def put(g, input, indices, values, accumulate, wrap=True):
    """ScatterND along the dims that have index tensors, brought to the front."""
    dims = [d for d, k in enumerate(indices) if k is not None]
    given, rest = [indices[d] for d in dims], [d for d in range(input.ndim) if d not in dims]
    joined, shape = _joined(given), [input.shape[d] for d in rest]
    places = [g.unsqueezed(g.op("Expand", g.cast(k, types.int64), g.sizes(joined)), len(joined)) for k in given]
    places = g.op("Concat", *places, axis=-1) if len(places) > 1 else places[0]
    lead = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0                       # where the joined dims stand in the values
    values = g.op("Expand", values, g.sizes([*shape[:lead], *joined, *shape[lead:]]))
    front = [*range(lead, lead + len(joined)), *range(lead), *range(lead + len(joined), len(joined) + len(rest))]
    moved = [*dims, *rest]
    if moved == list(range(input.ndim)):
        return g.op("ScatterND", input, places, values, reduction="add" if accumulate else "none")
    made = g.op("ScatterND", g.permuted(input, moved), places, g.permuted(values, front), reduction="add" if accumulate else "none")
    return g.permuted(made, [moved.index(d) for d in range(input.ndim)])


def _joined(tensors):
    """The shape that index tensors broadcast to."""
    ndim = max(t.ndim for t in tensors)
    shape = [1] * ndim
    for t in tensors:
        for d, n in enumerate(t.shape, ndim - t.ndim):
            shape[d] = n if plain(shape[d]) and shape[d] == 1 else shape[d]
    return shape


@rule("joint_places")
def joint_places(g, indices, sizes, wrap=True):
    total = None
    for index, size in zip(indices, sizes):
        n, k = g.number(size, types.int64), g.cast(index, types.int64)
        k = g.op("Where", g.op("Less", k, g.constant(0)), g.op("Add", k, n), k) if wrap else k
        total = k if total is None else g.op("Add", g.op("Mul", total, n), k)
    return g.op("Reshape", g.op("Expand", total, g.sizes(_joined(indices))), g.constant([-1]))


@rule("within")
def within(g, x, *rest):
    return g.op("Identity", x)


@rule("back")
def written_back(g, whole, part, *args):
    """The whole with a part, which a view of it shows, replaced. g.current.op is the view."""
    name = g.current.name
    if name in ("view_as_shape", "unsqueeze", "as_lines", "squeeze_dims"):
        return g.op("Reshape", part, g.shape_of(whole))
    if name == "permute_dims":
        dims = [wrapped(d, whole.ndim) for d in args[0]]
        return g.permuted(part, [dims.index(d) for d in range(whole.ndim)])
    if name == "transpose":
        dims = list(range(whole.ndim))
        a, b = wrapped(args[0], whole.ndim), wrapped(args[1], whole.ndim)
        dims[a], dims[b] = b, a
        return g.permuted(part, dims)
    if name == "select":
        dim, start = wrapped(args[0], whole.ndim), args[1]
        size = whole.shape[dim]
        start = start if not plain(start) or start >= 0 else _from_end(start, size)
        return _replaced(g, whole, g.unsqueezed(part, dim), dim, start, _next(start), 1)
    dim, start, stop, step = args
    return _replaced(g, whole, part, dim, start, stop, step)


def _from_end(start, size):
    return start + size if plain(size) else Varying([start + n for n in size.values])


def _next(n):
    return n + 1 if plain(n) else Varying([v + 1 for v in n.values])


def _replaced(g, whole, part, dim, start, stop, step):
    """whole[start:stop:step] = part, along a dim."""
    if not plain(step) or step == 1:
        return g.op("Concat", g.sliced(whole, dim, 0, start), part, g.sliced(whole, dim, stop, 2**63 - 1), axis=dim)
    places = g.op("Range", g.number(start, types.int64), g.number(stop, types.int64), g.constant(step))
    x, last = g.x(whole), [dim, *[d for d in range(whole.ndim) if d != dim]]
    made = g.op("ScatterND", g.permuted(x, last), g.unsqueezed(places, 1), g.permuted(part, last))
    return g.permuted(made, [last.index(d) for d in range(whole.ndim)])


@rule("unfold_images")
def unfold_images(g, input, kernel, dilation, padding, stride):
    """Windows of every tap, gathered: (N, C, H, W) to (N, C · taps, blocks)."""
    name, many = g.op("Pad", input, g.constant([0, 0, *padding, 0, 0, *padding]), g.like(0.0)), []
    for d in (2, 3):
        n = input.shape[d]
        blocks = [(v + 2 * padding[d - 2] - dilation[d - 2] * (kernel[d - 2] - 1) - 1) // stride[d - 2] + 1 for v in
                  ([n] if plain(n) else n.values)]
        many.append(blocks[0] if plain(n) else Varying(blocks))
    for d in (0, 1):
        starts = g.op("Mul", g.op("Range", g.constant(0), g.number(many[d], types.int64), g.constant(1)), g.constant(stride[d]))
        taps = g.constant([[k * dilation[d]] for k in range(kernel[d])])
        name = g.op("Gather", name, g.op("Add", taps, g.unsqueezed(starts, 0)), axis=2 + 2 * d)
    name = g.permuted(name, [0, 1, 2, 4, 3, 5])                          # (N, C, taps, rows, taps, columns) before
    return g.op("Reshape", name, g.constant([0, math.prod(kernel) * input.shape[1], -1]))


@rule("fold_images")
def fold_images(g, input, size, kernel, dilation, padding, stride):
    """Blocks added up; those that lie side by side are only moved."""
    if tuple(kernel) == tuple(stride) and set(dilation) == {1} and set(padding) == {0}:
        rows = [v // kernel[0] for v in ([size[0]] if plain(size[0]) else size[0].values)]
        channels = int(g.out.shape[1])
        many = rows[0] if plain(size[0]) else Varying(rows)
        parts = g.op("Reshape", input, g.op("Concat", g.constant([0, channels, *kernel]), g.size(many), g.constant([-1]), axis=0))
        return g.op("Reshape", g.permuted(parts, [0, 1, 4, 2, 5, 3]), g.op("Concat", g.constant([0, channels]), g.sizes(size), axis=0))
    return g.op("Col2Im", input, g.sizes(size), g.constant([*kernel]), strides=list(stride), pads=[*padding, *padding],
                dilations=list(dilation))
