"""How a convolution is laid out on the kernels of triton_kernels/convolution.py: tiles, splits, 1×1 as a plain matrix product."""
from functools import lru_cache
from math import gcd, prod

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.cuda.tuner import choose
from tritorch.ops import convolution_host
from tritorch.ops.copy import transfer
from tritorch.ops.gemm import gemm, hardware
from tritorch.ops.gemm_choice import GROUP_M, held
from tritorch.precision import dot_precision
from tritorch.shape import cdiv, contiguous_strides, extent, is_dense, next_power_of_2, view_strides
from tritorch.tensor import empty, empty_strided, strided

K = kernels("convolution")

# BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, and the share of the largest tile's rate that the tile reaches when it fills the GPU.
TILES = {
    "half": ((128, 128, 64, 8, 3, 1.0), (128, 64, 64, 8, 3, 0.8), (64, 128, 64, 8, 3, 0.8), (64, 64, 64, 4, 4, 0.6),
             (128, 32, 64, 8, 4, 0.5), (32, 64, 64, 4, 4, 0.35), (64, 16, 64, 4, 4, 0.2), (16, 64, 64, 4, 4, 0.2),
             (128, 256, 64, 8, 3, 0.95), (256, 128, 64, 8, 3, 0.95), (128, 128, 64, 4, 3, 0.9), (128, 128, 64, 8, 4, 0.9),
             (128, 64, 64, 4, 4, 0.75), (64, 128, 64, 4, 4, 0.75), (256, 64, 64, 8, 3, 0.75)),
    "tf32": ((128, 128, 32, 8, 3, 1.0), (128, 64, 32, 4, 3, 0.8), (64, 128, 32, 4, 3, 0.8), (64, 64, 32, 4, 3, 0.6),
             (64, 16, 32, 4, 3, 0.2), (16, 64, 32, 4, 3, 0.2), (128, 128, 32, 8, 4, 0.9), (128, 64, 32, 8, 4, 0.75)),
    "bf16": ((128, 128, 32, 8, 3, 1.0), (64, 64, 32, 4, 3, 0.6), (64, 16, 32, 4, 3, 0.2), (16, 64, 32, 4, 3, 0.2)),
    "ieee": ((128, 64, 16, 8, 3, 1.0), (64, 128, 16, 8, 3, 1.0), (64, 64, 16, 4, 3, 0.8), (32, 32, 32, 4, 3, 0.4), (64, 16, 16, 4, 3, 0.3),
             (16, 64, 16, 4, 3, 0.3)),
    "fp64": ((64, 64, 16, 4, 2, 1.0), (32, 32, 16, 4, 2, 0.6), (16, 16, 32, 4, 2, 0.3)),
    "sum": ((32, 32, 8, 4, 2, 1.0), (16, 16, 16, 4, 2, 0.6)),
}
MOST = 6                                                                 # tiles that the tuner may choose from
DEPTHWISE = {True: ((16, 64, 4), (32, 64, 4), (32, 64, 8), (8, 128, 4), (64, 64, 8)),
             False: ((256, 1, 4), (512, 1, 4), (1024, 1, 8), (128, 1, 4))}
"""Pixels and channels of a tile, and warps, by whether channels are next to each other: lanes lie along what is contiguous."""

MANY = 0x7FF00000                                                        # nearly 2³¹: the last block may reach past the end
HOST, HOST_TILE = 0, (128, 64, 64)                                       # what `hardware` calls the host's processors; their largest tile
CHANNELS = 32                                                            # from here on a step takes one tap of a block of channels


def _kind(dtype, precision):
    """The row of TILES."""
    return {2: "half", 8: "fp64"}.get(dtype.itemsize, precision) if dtype.is_floating_point else "sum"


def _tiles(M, N, depth, groups, dtype, precision, machine, splits=False, most=1 << 15):
    """Candidates for a product M × N × depth: tiles, of at most so many elements, by the time that their waves over the GPU take, or, where
    splits of the depth fill the GPU anyway, that they take in all."""
    kind = _kind(dtype, precision)
    if machine is None:                                                  # the simulated device: few, huge tiles, yet more than one
        side = 1024 if kind != "sum" else 32
        sizes = [[min(max(next_power_of_2(n) // 2, 16), side) for n in (M, N, depth)] + [4, 1]]
    elif machine[2] == HOST:
        m, n, k = [min(max(next_power_of_2(size), 16), most) for size, most in zip((M, N, depth), HOST_TILE)]
        if m > 16 and not splits and cdiv(M, m) * cdiv(N, n) * groups < 2 * machine[0]:
            m //= 2
        sizes = [[m, n, k, 4, 1]]
    else:
        sms, shared = (1 if splits else machine[0]), machine[1]
        fitting = [t for t in TILES[kind] if (t[0] + t[1]) * t[2] * dtype.itemsize * held(t[4], machine) <= shared and t[0] * t[1] <= most]
        sizes = sorted(fitting, key=lambda t: (cdiv(cdiv(M, t[0]) * cdiv(N, t[1]) * groups, sms) * t[0] * t[1] / t[5], -t[0] * t[1]))[:MOST]
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    return [dict(zip(names, size)) for size in sizes]


def _constants(dtype, precision):
    return dict(DOT=_kind(dtype, precision) != "sum", PRECISION=precision, GROUP_M=GROUP_M)


def _turned(stride, dilation):
    """What the transposed kernels ask of stride and dilation: gcd, and the inverse of dilation / gcd modulo stride / gcd."""
    common = tuple([gcd(a, b) for a, b in zip(stride, dilation)])
    return common, tuple([pow(d // c, -1, s // c) for s, d, c in zip(stride, dilation, common)])


def _wide(pixels, *operands):
    """There are 2³¹ pixels or more, or offsets within one image pass as many elements."""
    return max([pixels, *[extent(shape[1:], strides[1:]) for shape, strides in operands]]) > MANY


def channels_last(x):
    """The same values with channels next to each other in memory: what a step reads lies together, so it is loaded ahead in wide pieces."""
    if x.strides[1] == 1 or x.shape[1] == 1:
        return x
    n, c, h, w = x.shape
    out = empty_strided(x.shape, (c * h * w, 1, c * w, c), x.dtype, x.device)
    transfer(out, x)
    return out


def _widens(x, groups):
    """Three channels, which no thread can load at once, become four where matrix units do not mind the products with zero."""
    return groups == 1 and x.shape[1] == 3 and _kind(x.dtype, dot_precision(x.dtype)) in ("half", "tf32")


def _four(x):
    """x, channels last, with a channel of zeros after its three."""
    n, c, h, w = x.shape
    out = empty((n, h, w, 4), x.dtype, x.device)
    if out.numel():
        block = tile(512, 4096)
        launch(K.four_channels_kernel, (cdiv(n * h * w, block),), out, x, x.strides, n, c, h, w, BLOCK=block)
    return strided(out.storage, (n, 4, h, w), (4 * h * w, 1, 4 * w, 4), 0, x.dtype)


def _is_four(shape, strides):
    """Whether kernels can take it as gapless, channels last, with four of them."""
    return shape[1] == 4 and strides == (4 * shape[2] * shape[3], 1, 4 * shape[3], 4)


def _taps_first(weight):
    """The weights of a depthwise convolution (K, 1, R, S) with the channels of a tap next to each other: threads have several channels."""
    k, _, r, s = weight.shape
    out = empty_strided(weight.shape, (1, k, k * s, k), weight.dtype, weight.device)
    transfer(out, weight)
    return out


def _depthwise(weight, groups):
    """One channel of the input a group, and few of the output."""
    return groups > 1 and weight[1] == 1 and weight[0] // groups <= 8


# ------------------------------------------------------------------ forward, and the gradient of the input
def convolve(out, x, weight, bias, stride, padding, dilation, groups):
    """out = bias + the convolution of x with the weights."""
    _gather(out, x, weight, bias, stride, padding, dilation, groups, False)


def convolve_input(out, gradient, weight, stride, padding, dilation, groups):
    """The gradient of the input."""
    _gather(out, gradient, weight, None, stride, padding, dilation, groups, True)


def convolve_input_onto(out, gradient, weight, there):
    """out = what is there + the gradient of the input of a 1×1 convolution; all images are channels last and without gaps."""
    if out.numel():
        gemm(_pixels(out), _pixels(gradient), weight.flatten(1), behind=(_pixels(there),))


def _gather(out, x, weight, bias, stride, padding, dilation, groups, transposed):
    if not out.numel():
        return
    if not weight.numel():                                               # no channels to sum over
        out.fill_(0) if bias is None else transfer(out, bias.detach().view(1, -1, 1, 1).expand(out.shape))
        return
    if not transposed:
        x, stride = _what_is_read(x, weight.shape[2:], out.shape[2:], stride, padding)
    if weight.shape[2:] == (1, 1) and groups == 1 and stride == (1, 1) and padding == (0, 0) and x.shape[2:] == out.shape[2:]:
        matrix = weight.flatten(1)
        rows, source = _pixels(out), _pixels(x)
        if rows is not None and source is not None:
            return gemm(rows, source, matrix if transposed else matrix.mT, bias)
        rows, source = _flat(out), _flat(x)
        if rows is not None and source is not None:
            return gemm(rows, matrix.mT if transposed else matrix, source, None if bias is None else bias.unsqueeze(1))
    depthwise = _depthwise(weight.shape, groups)
    if depthwise and convolution_host.done(out, x, weight, bias, stride, padding, dilation, transposed):
        return
    if x.shape[1] // groups >= CHANNELS and not depthwise:
        x, weight = channels_last(x), channels_last(weight)
    elif depthwise and x.strides[1] == 1:
        weight = _taps_first(weight)
    elif not transposed and _widens(x, groups):
        x, weight = _four(x), _four(weight)
    images = out.shape, out.strides, x.shape, x.strides
    filters = weight.shape, weight.strides, stride, padding, dilation, groups
    if depthwise:
        name, sizes, numbers, options, key, candidates = _plan_depthwise(*images, *filters, transposed, hardware())
    else:
        name, sizes, numbers, options, key, candidates = _plan(*images, *filters, transposed, x.dtype, dot_precision(x.dtype), hardware())
    (M, N, others), kernel, stride_b = sizes, getattr(K, name), 0 if bias is None else bias.strides[0]

    def run(blocks):
        grid = (cdiv(M, blocks["BLOCK_M"]) * cdiv(N, blocks["BLOCK_C" if depthwise else "BLOCK_N"]) * others,)
        launch(kernel, grid, out, x, weight, bias, *numbers[:3], stride_b, *numbers[3:], **options, **blocks)

    run(candidates[0] if len(candidates) == 1 else choose(name.removesuffix("_kernel"), key, candidates, kernel, run))


def _what_is_read(x, taps, size, stride, padding):
    """The pixels of x that weights of 1×1 meet, as a view, and the stride between them."""
    if taps != (1, 1) or padding != (0, 0) or stride == (1, 1):
        return x, stride
    down, right = x.strides[2] * stride[0], x.strides[3] * stride[1]
    return strided(x.storage, (*x.shape[:2], *size), (*x.strides[:2], down, right), x.offset, x.dtype), (1, 1)


def _pixels(x):
    """Channels last: (N, C, H, W) as a matrix (N · H · W, C) over the same memory, or None."""
    (n, c, h, w), (step, one, row, pixel) = x.shape, x.strides
    if one != 1 and c > 1 or pixel < c:
        return None
    strides = view_strides((n, h, w), (step, row, pixel), (n * h * w,))
    return None if strides is None else strided(x.storage, (n * h * w, c), (*strides, 1), x.offset, x.dtype)


def _flat(x):
    """(N, C, H, W) as (N, C, H · W) over the same memory, or None."""
    shape = (*x.shape[:2], x.shape[2] * x.shape[3])
    strides = view_strides(x.shape, x.strides, shape)
    return None if strides is None else strided(x.storage, shape, strides, x.offset, x.dtype)


@lru_cache(maxsize=4096)
def _plan(shape, so, shape_x, sx, shape_w, sw, stride, padding, dilation, groups, transposed, dtype, precision, machine):
    """(kernel, rows and columns of a product and the number of products, numbers, constants, the tuner's key, candidates) of a convolution;
    it depends on shapes, strides, dtype and machine alone."""
    (N, channels, H, W), (P, Q), (R, S) = shape_x, shape[2:], shape_w[2:]
    C, out_channels = channels // groups, shape[1] // groups
    phases = prod(stride) if transposed else 1
    M = N * cdiv(P, stride[0]) * cdiv(Q, stride[1]) if transposed else N * P * Q
    flat = C < CHANNELS
    depth = C * cdiv(R, stride[0]) * cdiv(S, stride[1]) if transposed else C * R * S
    ones = (sw[1], sw[0]) if transposed else sw[:2]
    strides_w = (sw[0] * (C if transposed else out_channels), *ones, *sw[2:])
    numbers = (so, sx, strides_w, N, H, W, P, Q, C, out_channels, R, S, stride, padding, dilation, *_turned(stride, dilation))
    four = not transposed and groups == 1 and _is_four(shape_x, sx) and _is_four(shape_w, sw)
    options = dict(TRANSPOSED=transposed, FLAT=flat, FOUR=four, WIDE=_wide(N * P * Q, (shape_x, sx), (shape_w, sw)),
                   **_constants(dtype, precision))
    key = _kind(dtype, precision), transposed, flat, so[1] == 1, groups, phases, M, out_channels, C, R * S
    candidates = _tiles(M, out_channels, depth if flat else C, groups * phases, dtype, precision, machine)
    return "convolution_kernel", (M, out_channels, groups * phases), numbers, options, key, candidates


@lru_cache(maxsize=4096)
def _plan_depthwise(shape, so, shape_x, sx, shape_w, sw, stride, padding, dilation, groups, transposed, machine):
    """The same for a depthwise convolution."""
    (N, _, H, W), (_, channels, P, Q), (R, S) = shape_x, shape, shape_w[2:]
    phases, last = prod(stride) if transposed else 1, sx[1] == 1
    M = N * cdiv(P, stride[0]) * cdiv(Q, stride[1]) if transposed else N * P * Q
    numbers = (so, sx, (sw[0], *sw[2:]), N, H, W, P, Q, channels, shape_w[0] // groups, R, S, stride, padding, dilation,
               *_turned(stride, dilation))
    key, candidates = (transposed, last, phases, M, channels, R * S), _depthwise_tiles(M, channels, last, machine)
    return "depthwise_kernel", (M, channels, phases), numbers, dict(TRANSPOSED=transposed, WIDE=_wide(N * P * Q)), key, candidates


def _depthwise_tiles(pixels, channels, channels_last, machine):
    """Candidates for depthwise kernels."""
    if machine is None:
        return [dict(BLOCK_M=min(max(next_power_of_2(pixels) // 2, 1), 4096), BLOCK_C=min(next_power_of_2(channels), 16))]
    return [dict(BLOCK_M=m, BLOCK_C=c, num_warps=warps) for m, c, warps in DEPTHWISE[channels_last]]


# ------------------------------------------------------------------ the gradient of the weights
def convolve_weight(out, gradient, x, stride, padding, dilation, groups):
    """The gradient of the weights; splits of the pixels are added in order. Long, as it chooses among all ways to have it."""
    pixels = gradient.numel() // max(gradient.shape[1], 1)
    if not out.numel():
        return
    if not pixels:
        out.fill_(0)
        return
    x, stride = _what_is_read(x, out.shape[2:], gradient.shape[2:], stride, padding)
    pointwise = out.shape[2:] == (1, 1) and groups == 1 and stride == (1, 1) and padding == (0, 0) and x.shape[2:] == gradient.shape[2:]
    if pointwise and _by_products(out, gradient, x):
        return
    if _widens(x, groups):
        k, _, r, s = out.shape
        made = empty_strided((k, 4, r, s), (4 * r * s, 1, 4 * s, 4), out.dtype, out.device)
        convolve_weight(made, gradient, _four(x), stride, padding, dilation, groups)
        transfer(out, strided(made.storage, out.shape, made.strides, 0, out.dtype))
        return
    depthwise = _depthwise(out.shape, groups)
    if depthwise and gradient.strides[3] == 1 and convolution_host.rows_suit(x, out.shape, padding):
        return convolution_host.depthwise_weight(out, gradient, x, stride, padding, dilation)
    if not depthwise:
        gradient, x = [channels_last(t) if t.shape[1] // groups >= CHANNELS else t for t in (gradient, x)]
    images = out.shape, gradient.shape, gradient.strides, x.shape, x.strides, stride, padding, dilation, groups
    if depthwise:
        name, numbers, options, key, candidates = _plan_depthwise_weight(*images, hardware())
    else:
        name, numbers, options, key, candidates = _plan_weight(*images, x.dtype, dot_precision(x.dtype), hardware())
    kernel, order = getattr(K, name), out.strides if is_dense(out.shape, out.strides) else contiguous_strides(out.shape)

    def run(candidate):
        blocks = dict(candidate)
        tiles, splits, span = _pieces(out.shape, pixels, groups, depthwise, "ONE_TAP" in options, blocks, blocks.pop("WAVES", 1),
                                     hardware())
        parts, strides = out, (0, *out.strides)
        if splits > 1:
            strides = (out.numel(), *order)
            parts = empty_strided((splits, *out.shape), strides, x.dtype.compute, out.device)
        if depthwise:
            strides = (*strides[:2], *strides[3:])
        launch(kernel, (tiles, splits), parts, gradient, x, strides, *numbers[:-3], span, *numbers[-3:], **options, **blocks)
        if splits > 1:
            _add_parts(out, parts, splits)

    run(candidates[0] if len(candidates) == 1 else choose(name.removesuffix("_kernel"), key, candidates, kernel, run))


def _by_products(out, gradient, x):
    """Whether the gradient of 1×1 weights is a product, or one for each image, of what lies there. If so, it is filled."""
    rows, source = _pixels(gradient), _pixels(x)
    if rows is not None and source is not None:
        gemm(out.flatten(1), rows.mT, source)
        return True
    rows, source = _flat(gradient), _flat(x)
    if rows is None or source is None or not _adds_less(*rows.shape, x.shape[1]):
        return False
    _by_image(out, rows, source)
    return True


def _adds_less(images, rows, pixels, columns):
    """Whether a product for each image, in float32, moves less than copies of both operands in channels-last order."""
    return images < 1024 and 2 * rows * columns < (rows + columns) * pixels


def _by_image(out, gradient, x):
    """The gradient of 1×1 weights from (N, K, pixels) and (N, C, pixels): a product for each image, where it lies."""
    n, k, _ = gradient.shape
    parts = empty((n, *out.shape), x.dtype.compute, out.device)
    gemm(parts.view(n, k, -1), gradient, x.mT)
    _add_parts(out, parts, n)


def _pieces(shape, pixels, groups, depthwise, one_tap, blocks, waves, machine):
    """(tiles of the result, splits of the pixels, pixels of each)."""
    K, C, R, S = shape
    if depthwise:
        tiles, block = cdiv(K, blocks["BLOCK_C"]) * R * S, blocks["BLOCK_M"]
    else:
        across = cdiv(C, blocks["BLOCK_N"]) * R * S if one_tap else cdiv(C * R * S, blocks["BLOCK_N"])
        tiles, block = cdiv(K // groups, blocks["BLOCK_M"]) * across * groups, blocks["BLOCK_K"]
    return tiles, *split(tiles, pixels, block, machine and (waves * machine[0],))


def _add_parts(out, parts, splits):
    """out = the sum of the parts, which have its layout if that has no gaps, or are contiguous."""
    total, block = out.numel(), tile(256, 4096)
    made = out if out.strides == parts.strides[1:] else empty(out.shape, out.dtype, out.device)
    launch(K.add_parts_kernel, (cdiv(total, block),), made, parts, total, splits, BLOCK=block)
    if made is not out:
        transfer(out, made)


@lru_cache(maxsize=4096)
def _plan_weight(shape, shape_g, sg, shape_x, sx, stride, padding, dilation, groups, dtype, precision, machine):
    """(kernel, numbers but for the span, constants, the tuner's key, candidates); WAVES: programs a multiprocessor."""
    (N, channels, P, Q), (H, W), (_, C, R, S) = shape_g, shape_x[2:], shape
    rows, width, pixels = channels // groups, C * R * S, N * P * Q
    tiles = _tiles(rows, width, pixels, groups, dtype, precision, machine, True, 1 << 15 if C >= CHANNELS else 1 << 12)
    candidates = [*tiles, *[dict(t, WAVES=2) for t in tiles[:4] if machine]]
    numbers = (sg, sx, N, H, W, P, Q, C, rows, R, S, stride, padding, dilation)
    wide = _wide(pixels, (shape_g, sg), (shape_x, sx))
    key = _kind(dtype, precision), sg[1] == 1, sx[1] == 1, groups, pixels, rows, C, R * S
    options = dict(FOUR=groups == 1 and _is_four(shape_x, sx), WIDE=wide, **_constants(dtype, precision))
    if machine and machine[2] == HOST and C >= CHANNELS:
        options["ONE_TAP"] = True
    return "convolution_weight_kernel", numbers, options, key, candidates


@lru_cache(maxsize=4096)
def _plan_depthwise_weight(shape, shape_g, sg, shape_x, sx, stride, padding, dilation, groups, machine):
    """The same for a depthwise convolution."""
    (N, channels, P, Q), (H, W), (R, S) = shape_g, shape_x[2:], shape[2:]
    pixels, last = N * P * Q, sx[1] == 1 and sg[1] == 1
    candidates = [dict(t, WAVES=4) if machine else t for t in _depthwise_tiles(pixels, channels, last, machine)]
    numbers = (sg, sx, N, H, W, P, Q, channels, channels // groups, S, stride, padding, dilation)
    return "depthwise_weight_kernel", numbers, dict(WIDE=_wide(pixels)), (last, pixels, channels, R * S), candidates


def split(programs, k, block_k, machine):
    """Pieces of K and the elements of each: where the result has too few tiles to fill the GPU, several programs share one."""
    sms = machine[0] if machine else 4
    wanted = min(sms // max(programs, 1), k // (4 * block_k) if machine else cdiv(k, block_k), 64)
    if wanted < 2:
        return 1, cdiv(k, block_k) * block_k
    span = cdiv(cdiv(k, block_k), wanted) * block_k
    return cdiv(k, span), span
