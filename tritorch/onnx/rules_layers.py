"""Layers: products, convolutions, pooling, resizing, normalization, embedding."""
import math

import numpy as np

from tritorch.dtype import types
from tritorch.onnx.rules import rule
from tritorch.onnx.rules_shapes import plain
from tritorch.tracing.sizes import Baked


# ------------------------------------------------------------------ products
@rule("linear")
def linear(g, input, weight, bias=None):
    x, w = g.like(input), g.like(weight)
    if input.ndim == 2 and (bias is None or bias.ndim == 1):
        return g.op("Gemm", x, w, None if bias is None else g.like(bias), transB=1)
    product = g.op("MatMul", x, g.permuted(w, [1, 0]))
    return product if bias is None else g.op("Add", product, g.like(bias))


@rule("matmul")
def matmul(g, input, other):
    return g.op("MatMul", g.like(input), g.like(other))


@rule("addmm")
def addmm(g, input, mat1, mat2, beta=1, alpha=1, out_dtype=None):
    a, b, kind = g.like(mat1), g.like(mat2), g.out.dtype
    if mat1.ndim == 2 and kind.is_floating_point and kind is mat1.dtype:
        added = None if input is None or beta == 0 else g.like(input)
        return g.op("Gemm", a, b, added, alpha=float(alpha), beta=float(beta))
    product = g.op("MatMul", a, b)
    product = product if alpha == 1 else g.op("Mul", product, g.like(alpha))
    if input is None or beta == 0:
        return product
    return g.op("Add", product, g.like(input) if beta == 1 else g.op("Mul", g.like(input), g.like(beta)))


@rule("convolution")
def convolution(g, input, weight, bias, size, stride, padding, dilation, groups):
    return g.op("Conv", input, weight, None if bias is None else g.like(bias), kernel_shape=_taps(weight), strides=list(stride),
                pads=[*padding, *padding], dilations=list(dilation), group=groups)


def _taps(weight):
    return [int(n) for n in weight.shape[2:]]


@rule("convolution_input")
def convolution_input(g, gradient, weight, size, stride, padding, dilation, groups):
    more = []
    for d, n in enumerate(size):
        least = [(m - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[2 + d] - 1) + 1 for m in _all(gradient.shape[2 + d])]
        extra = {a - b for a, b in zip(_all(n), least * len(_all(n)))} if plain(n) else {a - b for a, b in zip(n.values, least)}
        if len(extra) > 1:
            raise Baked(f"an output size of {n}")
        more.append(int(extra.pop()))
    return g.op("ConvTranspose", gradient, weight, kernel_shape=_taps(weight), strides=list(stride), pads=[*padding, *padding],
                dilations=list(dilation), group=groups, output_padding=more)


def _all(n):
    """The values of a number in all traces."""
    return [n] if plain(n) else list(n.values)


# ------------------------------------------------------------------ pooling
@rule("max_pool_values", "max_pool_volume_values")
def max_pool_values(g, input, size, kernel, stride, padding, dilation):
    if kernel is None or not all(map(plain, kernel)):
        return _adaptive(g, input, size, "ReduceMax", kernel)
    return _max_pool(g, input, size, kernel, stride, padding, dilation, 1)


@rule("max_pool")
def max_pool(g, input, size, kernel, stride, padding, dilation):
    """The second result is what `places_of` makes places of: those in the whole tensor."""
    if kernel is None:
        raise Baked("the places of adaptive pooling")
    values, places = _max_pool(g, input, size, kernel, stride, padding, dilation, 2)
    g.odd.add(places)
    return values, places


@rule("places_of")
def places_of(g, taps, windows, size, *rest):
    return g.op("Mod", taps, g.op("Mul", g.number(size[0], types.int64), g.number(size[1], types.int64)))


def _max_pool(g, input, size, kernel, stride, padding, dilation, outputs):
    ceil = _rounds_up(input, size, kernel, stride, padding, dilation)
    return g.op("MaxPool", input, outputs=outputs, kernel_shape=list(kernel), strides=list(stride), pads=[*padding, *padding],
                dilations=list(dilation), ceil_mode=int(ceil))


def _rounds_up(input, size, kernel, stride, padding, dilation):
    """Whether there are more windows than fit."""
    for n, m, k, s, p, d in zip(input.shape[2:], size, kernel, stride, padding, dilation):
        fit = [(v + 2 * p - d * (k - 1) - 1) // s + 1 for v in _all(n)]
        if any(a > b for a, b in zip(_all(m) * len(fit) if plain(m) else m.values, fit)):
            return True
    return False


@rule("avg_pool", "avg_pool_volume")
def avg_pool(g, input, size, kernel, stride, padding, include=True, divisor=None):
    if kernel is None or not all(map(plain, kernel)):
        return _adaptive(g, input, size, "ReduceMean", kernel)
    window, up = math.prod(kernel), _rounds_up(input, size, kernel, stride, padding, (1,) * len(kernel))
    if up:
        return _avg_pool_up(g, input, size, kernel, stride, padding, include, divisor)
    found = g.op("AveragePool", input, kernel_shape=list(kernel), strides=list(stride), pads=[*padding, *padding],
                 count_include_pad=int(include or divisor is not None))
    return found if divisor is None else g.op("Mul", found, g.like(window / divisor))


def _avg_pool_up(g, input, size, kernel, stride, padding, include, divisor):
    """Windows that begin inside and end outside: padded to whole ones, whose sums are divided by what PyTorch counts."""
    if not all(map(plain, input.shape[2:])):
        raise Baked("ceil_mode of average pooling")
    counts, after = np.ones(()), []
    for n, m, k, s, p in zip(input.shape[2:], size, kernel, stride, padding):
        after.append(max((m - 1) * s + k - n - p, 0))
        starts = np.arange(m) * s - p
        low, high = (starts, np.minimum(starts + k, n + p)) if include else (np.maximum(starts, 0), np.minimum(starts + k, n))
        counts = np.multiply.outer(counts, high - low)
    x = g.op("Pad", input, g.constant([0, 0, *padding, 0, 0, *after]), g.like(0.0))
    means = g.op("AveragePool", x, kernel_shape=list(kernel), strides=list(stride))
    return g.op("Mul", means, g.constant(math.prod(kernel) / (counts if divisor is None else divisor), g.out.dtype))


def _adaptive(g, input, size, kind, kernel):
    """The input in size parts along each dim, which may overlap; those of a kernel are a whole dim or one element."""
    name = g.x(input)
    for d, (n, m) in enumerate(zip(input.shape[2:], size), 2):
        if plain(m) and m == 1:
            name = g.reduced(kind, name, [d], True)
            continue
        if n == m and (kernel is None or kernel[d - 2] == 1):
            continue
        if not plain(n) or not plain(m):
            raise Baked(f"adaptive pooling of {n} elements to {m}")
        parts = [(k * n // m, -(-(k + 1) * n // m)) for k in range(m)]
        name = g.op("Concat", *[g.reduced(kind, g.sliced(name, d, a, b), [d], True) for a, b in parts], axis=d) if parts else name
    return name


# ------------------------------------------------------------------ resizing
@rule("resize")
def resize(g, input, size, scales, how, corners, dtype):
    """By sizes where the pixels are as far apart as these say, else by scales."""
    seen = {name for h in how for name in _all(h)}                       # "nearest" stands beside others where nothing changes
    kind = next(name for name in ("cubic", "linear", "nearest-exact", "nearest") if name in seen)
    if kind.startswith("nearest") and not all(plain(s) and (s == 1 or (1 / s).is_integer()) for s in scales):
        return _nearest(g, input, size, scales, how)
    mode, step = {"nearest": ("nearest", "asymmetric"), "nearest-exact": ("nearest", "half_pixel")}.get(kind, (kind, "half_pixel"))
    if corners and kind in ("linear", "cubic"):
        step = "align_corners"
    options = dict(mode=mode, coordinate_transformation_mode=step, cubic_coeff_a=-0.75 if kind == "cubic" else None,
                   nearest_mode={"nearest": "floor", "nearest-exact": "round_prefer_ceil"}.get(kind))
    if corners and step == "align_corners" or all(_by_size(n, m, s) for n, m, s in zip(input.shape[2:], size, scales)):
        return g.op("Resize", g.like(input), None, None, g.op("Concat", _lead(g, input), g.sizes(size), axis=0), **options)
    factors = [1.0, 1.0, *[1 / s for s in scales]]
    for n, m, f in zip(input.shape[2:], size, factors[2:]):              # ONNX has them in float32, and rounds sizes down
        if any(math.floor(v * float(np.float32(f))) != w for v, w in zip(_all(n), _all(m))):
            raise Baked(f"a scale of {f}, which gives other sizes in float32")
    return g.op("Resize", g.like(input), None, g.constant(factors, types.float32), **options)


def _nearest(g, input, size, scales, how):
    """The pixels themselves, their places computed as the operator does: ONNX would find others where a place is rounded."""
    name, kind = g.like(input), types.float64 if input.dtype is types.float64 else types.float32
    for d, (n, m, scale, way) in enumerate(zip(input.shape[2:], size, scales, how), 2):
        if n == m and plain(scale) and scale == 1:
            continue
        if not plain(scale) and not _by_size(n, m, scale):
            raise Baked(f"a scale of {scale} for {n} pixels")
        pace = g.constant(scale, kind) if plain(scale) else g.cast(g.op("Div", *[g.number(v, types.float64) for v in (n, m)]), kind)
        places = g.cast(g.op("Range", g.constant(0), g.number(m, types.int64), g.constant(1)), kind)
        places = g.op("Add", places, g.constant(0.5, kind)) if "nearest-exact" in _all(way) else places
        places = g.cast(g.op("Floor", g.op("Mul", places, pace)), types.int64)
        name = g.op("Gather", name, g.op("Min", places, g.op("Sub", g.number(n, types.int64), g.constant(1))), axis=d)
    return name


def _lead(g, input):
    return g.sizes(input.shape[:2])


def _by_size(n, m, scale):
    """Whether a scale is the quotient of the two sizes, in all traces; a constant one of sizes that vary is a scale."""
    many = max(len(_all(v)) for v in (n, m, scale))
    if plain(scale) and many > 1 and scale != 1:
        return False
    n, m, scale = [_all(v) * (many // len(_all(v))) for v in (n, m, scale)]
    return all(abs(a / b - s) <= 1e-9 * abs(s) for a, b, s in zip(n, m, scale))


@rule("grid_sample")
def grid_sample(g, input, grid, mode, padding, corners, orders):
    if any(orders):
        raise Baked("a derivative of grid_sample")
    names = {"bilinear": "linear", "bicubic": "cubic"} if g.opset >= 20 else {}
    return g.op("GridSample", g.like(input), g.like(grid), mode=names.get(mode, mode), padding_mode=padding, align_corners=int(corners))


@rule("affine_places", since=20)
def affine_places(g, theta, sizes, corners):
    return g.op("AffineGrid", theta, g.op("Concat", g.sizes([theta.shape[0], 1]), g.sizes(sizes), axis=0), align_corners=int(corners))


@rule("determinant")
def determinant(g, A):
    return g.op("Det", A), None, None, None


# ------------------------------------------------------------------ normalization
@rule("batch_norm_apply")
def batch_norm_apply(g, input, mean, var, weight=None, bias=None, eps=1e-5, relu=False):
    channels = int(input.shape[1])
    scale = g.constant([1.0] * channels, input.dtype) if weight is None else g.cast(weight, input.dtype)
    shift = g.constant([0.0] * channels, input.dtype) if bias is None else g.cast(bias, input.dtype)
    out = g.op("BatchNormalization", input, scale, shift, mean, var, epsilon=float(eps))
    return g.op("Relu", out) if relu else out


@rule("batch_norm_train")
def batch_norm_train(g, input, weight=None, bias=None, eps=1e-5, relu=False):
    """By the statistics of the batch."""
    dims = [0, *range(2, input.ndim)]
    mean = g.reduced("ReduceMean", input, dims, True)
    apart = g.op("Sub", input, mean)
    var = g.reduced("ReduceMean", g.op("Mul", apart, apart), dims, True)
    out = g.op("Div", apart, g.op("Sqrt", g.op("Add", var, g.like(eps))))
    out = _scaled(g, out, weight, bias, input.ndim)
    return g.op("Relu", out) if relu else out, g.op("Reshape", mean, g.constant([-1])), g.op("Reshape", var, g.constant([-1]))


def _scaled(g, x, weight, bias, ndim):
    """x · weight + bias with one of each a channel."""
    shape = [-1, *[1] * (ndim - 2)]
    for kind, p in (("Mul", weight), ("Add", bias)):
        x = x if p is None else g.op(kind, x, g.op("Reshape", g.like(p), g.constant(shape)))
    return x


@rule("group_norm_rows")
def group_norm_rows(g, input, num_groups, weight=None, bias=None, eps=1e-5):
    groups = g.op("Reshape", input, g.constant([0, num_groups, -1]))
    one, zero = (g.constant([v] * num_groups, input.dtype) for v in (1.0, 0.0))
    normal = g.op("InstanceNormalization", groups, one, zero, epsilon=float(eps))
    return _scaled(g, g.op("Reshape", normal, g.shape_of(input)), weight, bias, input.ndim), None, None


@rule("layer_norm_rows")
def layer_norm_rows(g, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    scale = g.constant(np.ones([int(n) for n in normalized_shape]), input.dtype) if weight is None else g.like(weight)
    return g.op("LayerNormalization", input, scale, None if bias is None else g.like(bias), axis=-len(normalized_shape),
                epsilon=float(eps)), None


@rule("rms_norm_rows")
def rms_norm_rows(g, input, normalized_shape, weight=None, eps=1e-6):
    axis = -len(normalized_shape)
    if g.opset >= 23:
        scale = g.constant(np.ones([int(n) for n in normalized_shape]), input.dtype) if weight is None else g.like(weight)
        return g.op("RMSNormalization", input, scale, axis=axis, epsilon=float(eps)), None
    wide = types.float32 if input.dtype in (types.float16, types.bfloat16) else input.dtype
    x = g.cast(input, wide)
    mean = g.reduced("ReduceMean", g.op("Mul", x, x), list(range(input.ndim + axis, input.ndim)), True)
    out = g.op("Div", x, g.op("Sqrt", g.op("Add", mean, g.cast(float(eps), wide))))
    out = out if weight is None else g.op("Mul", out, g.cast(weight, wide))
    return out if wide is input.dtype else g.cast(out, input.dtype), None


# ------------------------------------------------------------------ bags of rows
@rule("bag_sums")
def bag_sums(g, table, index, offsets=None, factors=None, mean=False, by_freq=False, padding_idx=-1):
    """Bags of one length, as rows of a matrix of indices."""
    if offsets is not None or index.ndim != 2:
        raise Baked("bags that begin at offsets")
    rows = g.op("Gather", table, index, axis=0)
    kept = g.op("Not", g.op("Equal", index, g.cast(padding_idx, index.dtype)))
    weights = g.cast(kept, table.dtype)
    count = g.op("Max", g.reduced("ReduceSum", weights, [1], True), g.like(1.0))
    if factors is not None:
        weights = g.op("Mul", weights, g.op("Reshape", factors, g.sizes(index.shape)))
    total = g.reduced("ReduceSum", g.op("Mul", rows, g.unsqueezed(weights, 2)), [1], False)
    return g.op("Div", total, count) if mean else total, None, None


