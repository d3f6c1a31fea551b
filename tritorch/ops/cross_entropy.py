"""Cross entropy against class indices, fused: the losses of rows, their gradient, their mean. The public function is in `loss`."""
import numpy as np

from tritorch.autograd.modes import again
from tritorch.autograd.snapshot import expendable
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.cuda.tuner import choose
from tritorch.dispatch import op
from tritorch.dtype import check_beside, types
from tritorch.errors import check, sentence
from tritorch.ops.arrays import single
from tritorch.ops.create import arange
from tritorch.ops.faults import fault_word
from tritorch.ops.normalize import contiguous, scalar
from tritorch.ops.reduce import spread, sums_along
from tritorch.ops.rows import WHOLE_ACROSS, few_tiles, half, lanes_of, remember, rows, vector_of
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty, strided

K = kernels("loss")
CLASSES = "class indices below the number of classes"


def class_dim(x):
    """Classes are dim 1, or dim 0 of a single sample."""
    return min(x.ndim, 2) - 1


def unfit(name, input, target, rest, what="targets"):
    """The error for targets of another shape than `rest`, which is a ValueError where it is the batch that differs, as in PyTorch."""
    kind = ValueError if input.ndim == 1 or target.shape[:1] != rest[:1] else RuntimeError
    return kind(sentence(name, f"{what} of shape {tuple(rest)}", target.shape))


@op(returns=("loss", "target_weight", "lse"))
def cross_entropy_rows(input, target, weight=None, ignore_index=-100, label_smoothing=0.0):
    """Cross entropy of every sample, the weight of its target (0 where ignored), and the log-sum-exp of its logits.

    loss = (1 - s) · w_t · (lse - x_t) + s / C · Σ w_c · (lse - x_c). Only `loss` has a gradient. Half types give float32.
    """
    name, dim = "cross_entropy", class_dim(input)
    check(input.ndim > 0 and input.dtype.is_floating_point, name, "floating logits of at least one dim", input.dtype, input.shape)
    rest = (*input.shape[:dim], *input.shape[dim + 1:])
    if target.shape != rest:
        raise unfit(name, input, target, rest)
    check(target.dtype in (types.int64, types.int32, types.uint8), name, "class indices or probabilities", target.dtype)
    if weight is not None:
        check_weight(name, weight, input, dim)
    check(0 <= label_smoothing <= 1, name, "label_smoothing in [0, 1]", label_smoothing)
    row = rest, input.dtype.compute, input.device
    return [row, row, row]


@cross_entropy_rows.impl("cpu")
def cross_entropy_cpu(loss, target_weight, lse, x, target, weight, ignore_index, label_smoothing):
    dim, x = class_dim(x), single(x)
    counts, at = counted(target, x.shape[dim], ignore_index)
    top = np.maximum.reduce(x, dim, None, None, True)
    top = np.where(top > -np.inf, top, 0)                                # of +∞ comes NaN, as of log_softmax
    e = np.subtract(x, top)
    np.exp(e, out=e)
    total = np.log(sums_along(e, dim))
    lse[...] = (total + top).reshape(lse.shape)
    target_weight[...] = counts if weight is None else np.where(counts, weight[at], 0)
    top -= np.expand_dims(x[places(at, dim)], dim)
    total += top
    loss[...] = total.reshape(loss.shape) if counts is True and weight is None else (
        np.where(counts, target_weight * total.reshape(loss.shape), 0))
    if label_smoothing:
        w = along(weight, x, dim) if weight is not None else x.dtype.type(1)
        smooth = ((np.expand_dims(lse, dim) - x) * w).sum(axis=dim)
        loss[...] = np.where(counts, (1 - label_smoothing) * loss + label_smoothing / x.shape[dim] * smooth, 0)


def check_weight(name, weight, input, dim):
    """Raise RuntimeError unless there is a weight for each class, of a dtype that fits."""
    if weight.shape != (input.shape[dim],):
        raise RuntimeError(sentence(name, f"a weight for each of {input.shape[dim]} classes", weight.shape))
    check_beside(name, "weights", input.dtype, weight)


def counted(target, classes, ignore_index, name="cross_entropy"):
    """(which samples count, or True for all, their classes)."""
    if not 0 <= ignore_index < classes and (target.view(f"u{target.itemsize}") < classes).all():           # a negative one is too large
        return True, target
    counts = target != ignore_index
    wrong = target[counts & ((target < 0) | (target >= classes))]
    if wrong.size:
        raise IndexError(f"{name}: expected class indices in [0, {classes - 1}], got {wrong.flat[0]}")
    return counts, np.where(counts, target, 0)


def places(at, dim):
    """The index of the class `at` of every row: as np.take_along_axis makes it, in a third of the time."""
    others = [np.arange(n).reshape([-1 if k == d else 1 for k in range(at.ndim)]) for d, n in enumerate(at.shape)]
    return (*others[:dim], at, *others[dim:])


def along(weight, x, dim):
    """Class weights in the shape of x."""
    return weight.astype(x.dtype).reshape([-1 if d == dim else 1 for d in range(x.ndim)])


LONG = ((2048, 4, 1, 8), (4096, 8, 1, 4), (4096, 4, 1, 4), (8192, 8, 1, 2), (8192, 16, 1, 2), (4096, 8, 3, 8), (2048, 4, 3, 8))
"""Ways to walk along the classes of a row: so many at a time, warps, stages, tiles of a piece, which is what a program has backward.
Forward, where a program has a whole row, the third comes first if its tiles fill that. Of 50304 classes, 32768 rows in bfloat16, the fifth
took 1060 µs forward on an H100, the first 1076, backward the sixth 2274 µs, the first 2303; of 32768 classes, 8192 rows, 185 and 189 µs,
372 and 380."""
MANY = 16384
"""Classes from which on these come first."""
ACROSS = ((512, 8, 4), (1024, 4, 4), (256, 8, 4), (64, 32, 4), (64, 64, 8), (128, 32, 8), (32, 64, 4))
"""Ways where rows, not classes, are next to each other in memory: rows and classes at a time, warps."""
MANY_ACROSS = 1 << 18
"""Rows from which on there are programs enough for threads to have 16 bytes of each of 8 classes, and backward programs all classes: of 150
classes passes take 59 and 90 µs, not 80 and 109, backward of 19 classes 61 µs, not 75 (predicted for 2^19 and 2^21 rows in bfloat16)."""


def tight(N):
    """The columns, a power of two and at least 32, of the widest tiles that are at most a quarter more than a row of N."""
    n = next_power_of_2(N)
    while n > 32 and 4 * n * cdiv(N, n) > 5 * N:
        n //= 2
    return n


@remember
def class_tiles(M, N, across, itemsize, forward, simulated):
    """Candidates for the kernels of cross entropy that walk along the classes."""
    height, width = next_power_of_2(M), next_power_of_2(N)
    if simulated:
        ways = [(min(half(M), 512), min(half(N), 2048), 4, 1, 1)]
    elif across:
        ways = [(min(m, height), min(n, width), warps, 1, 4) for m, n, warps in ACROSS]
        if M >= MANY_ACROSS:
            warps = min(itemsize, 4) if forward or N <= WHOLE_ACROSS else 4
            ways = [(512, min(8, width), warps, 1, min(cdiv(N, 8), 32)), *ways]
    elif width >= 2048:
        first = LONG[4:5] if forward and N >= MANY else LONG[5:6] if N >= MANY else LONG[2:3] if forward and N % LONG[2][0] == 0 else ()
        ways = [(1, min(n, width), warps, stages, tiles) for n, warps, stages, tiles in (*first, *LONG)]
    else:
        sizes = ((2048, 4), (4096, 4), (1024, 1), (4096, 8))
        sizes = (sizes[2], *sizes) if width >= 256 else sizes                        # a warp can hold a row, and none waits for another
        ways = [(max(min(height, size // width), 1), width, warps, 1, 1) for size, warps in sizes]
        if not forward and N <= 64:                                      # few threads a row: each needs its lse, target and gradient
            n = min(8 if N <= 16 else 16, width)
            ways = [(min(height, 1024 // max(n, 8)), n, 4, 1, cdiv(N, n)), *ways]
        elif not forward and 4 * width > 5 * N:                          # narrow tiles, of which little is beyond a row's end: of 257
            n = tight(N)                                                 # classes 135 µs, not 278 (predicted for 2^19 rows in bfloat16)
            ways = [(min(height, 512 // n), n, 1, 1, cdiv(N, n)), *ways]
    return [dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "STAGES", "TILES"), way)) for way in ways]


def launch_classes(family, kernel, geometry, dtype, start, trial=None):
    """Call `start(options, tiles of a piece, lanes, elements of a vector)` with the best tile; `trial`, if start itself may be called
    but once, is called to find it."""
    M, N, across = geometry.M, geometry.N, geometry.across
    forward, simulated, vector = family == "cross_entropy", bool(tile(0, 1)), vector_of(geometry, dtype.itemsize)
    ways = class_tiles(M, N, across, dtype.itemsize, forward, simulated)
    if forward and not simulated:
        few = few_tiles(M, N, across, vector, most=WHOLE_ACROSS)
        if across and dtype.itemsize <= 2:                               # four rows a thread: of 19 classes 34 µs, not 36 (predicted)
            few = sorted(few, key=lambda t: -t["BLOCK_M"])
        ways = few + ways

    def run(t, start=trial or start):
        options = {name: value for name, value in t.items() if name != "TILES"}
        vec = min(vector, t["BLOCK_N"])
        start(options, t.get("TILES", 1), lanes_of(t["BLOCK_M"], t["BLOCK_N"], t["num_warps"], across, vec), vec)

    if M:
        run(ways[0] if len(ways) == 1 else choose(family, (dtype.name, across, vector > 1, M, N), ways, kernel, run), start)


@cross_entropy_rows.impl("cuda")
def cross_entropy_cuda(loss, target_weight, lse, x, target, weight, ignore_index, label_smoothing):
    geometry = rows(x.shape, (class_dim(x),), *[t.strides for t in (loss, target_weight, lse, x, target)])
    M, shape_m, stride_m, N, _, (stride_xn,), *_ = geometry
    acc, weight = x.dtype.compute, contiguous(weight)

    word, number = fault_word(x.device, "cross_entropy", CLASSES)

    def start(options, tiles, lanes, vec):
        launch(K.cross_entropy_kernel, (cdiv(M, options["BLOCK_M"]),), loss, target_weight, lse, word, x, target, weight, shape_m, stride_m,
               stride_xn, M, N, ignore_index, scalar(label_smoothing, acc), number, SMOOTH=label_smoothing > 0, ACC=getattr(K.tl, acc.name),
               LANES=lanes, VEC=vec, ALIGN=geometry.align, **{"HELD": 0} | options)

    launch_classes("cross_entropy", K.cross_entropy_kernel, geometry, x.dtype, start)


@cross_entropy_rows.grad("input")
def cross_entropy_grad(g_loss, input, target, weight, lse, ignore_index, label_smoothing):
    if again(input):
        lse = input.logsumexp(class_dim(input)).to(lse.dtype)
    values = g_loss, input, target, lse, weight, ignore_index, label_smoothing
    return cross_entropy_backward.into(input.detach(), *values) if expendable(input) else cross_entropy_backward(*values)


@op(aliasable=True)                                                      # so that the gradient can take the place of the logits
def cross_entropy_backward(gradient, input, target, lse, weight=None, ignore_index=-100, label_smoothing=0.0):
    """The gradient of cross entropy with respect to the logits, from that of every sample's loss.

    gx_c = g · (exp(x_c - lse) · ((1 - s) · w_t + s / C · Σ w) - (1 - s) · w_t · [c = t] - s / C · w_c)
    """
    return input.shape, input.dtype, input.device


@cross_entropy_backward.impl("cpu")
def cross_entropy_backward_cpu(gx, g, x, target, lse, weight, ignore_index, label_smoothing):
    dim, x, g = class_dim(x), single(x), single(g)
    counts, at = counted(target, x.shape[dim], ignore_index)
    scale = g if counts is True else np.where(counts, g, 0)
    hit = scale if weight is None else scale * weight[at].astype(x.dtype)
    work = gx if gx.dtype == x.dtype else np.empty_like(x)
    np.subtract(x, np.expand_dims(lse, dim), out=work)
    np.exp(work, out=work)
    if not label_smoothing:
        work *= np.expand_dims(hit, dim)
    else:
        share, hit = label_smoothing / x.shape[dim], (1 - label_smoothing) * hit
        total = x.shape[dim] if weight is None else weight.sum(dtype=x.dtype)
        work *= np.expand_dims(hit + share * total * scale, dim)
        work -= np.expand_dims(scale, dim) * (share if weight is None else share * along(weight, x, dim))
    if counts is not True:
        work[np.broadcast_to(np.expand_dims(~counts, dim), x.shape)] = 0
    work[places(at, dim)] -= hit
    if work is not gx:
        gx[...] = work


@cross_entropy_backward.impl("cuda")
def cross_entropy_backward_cuda(gx, g, x, target, lse, weight, ignore_index, label_smoothing):
    geometry = rows(x.shape, (class_dim(x),), *[t.strides for t in (gx, g, x, lse, target)])
    M, shape_m, stride_m, N, _, stride_n, *_ = geometry
    acc, weight = x.dtype.compute, contiguous(weight)
    total = weight.sum() if weight is not None and label_smoothing else None

    def start(options, tiles, *_, out=gx):
        chunk = max(tiles, cdiv(cdiv(N, options["BLOCK_N"]), 65535)) * options["BLOCK_N"]      # as many pieces as a grid has room for
        grid = cdiv(M, options["BLOCK_M"]), cdiv(N, chunk)
        launch(K.cross_entropy_backward_kernel, grid, out, g, x, lse, target, weight, total, shape_m, stride_m, *stride_n, M, N, chunk,
               ignore_index, scalar(label_smoothing, acc), SMOOTH=label_smoothing > 0, ACC=getattr(K.tl, acc.name), ACROSS=geometry.across,
               ALIGN=geometry.align, **options)

    def trial(*how):                                                     # gx may lie where the logits are, which are needed once more
        spare = empty((gx.storage.nbytes // gx.dtype.itemsize,), gx.dtype, gx.device)
        start(*how, out=strided(spare.storage, gx.shape, gx.strides, gx.offset, gx.dtype))

    launch_classes("cross_entropy_backward", K.cross_entropy_backward_kernel, geometry, x.dtype, start,
                   trial if gx.storage is x.storage else None)


@cross_entropy_backward.formula
def cross_entropy_backward_formula(gradient, input, target, lse, weight, ignore_index, label_smoothing):
    dim = class_dim(input)
    n, shape = input.shape[dim], [-1 if d == dim else 1 for d in range(input.ndim)]
    w = (input.new_ones(n) if weight is None else weight).reshape(shape)
    hit = (arange(n, device=input.device).reshape(shape) == target.unsqueeze(dim)).to(input.dtype) * w
    share, hits = label_smoothing / n, (1 - label_smoothing) * hit
    mass = hits.sum(dim, keepdim=True) + share * w.sum()
    rate = (input - lse.unsqueeze(dim)).exp() * mass - hits - share * w
    return rate * (gradient * (target != ignore_index)).unsqueeze(dim)


# ------------------------------------------------------------------ the mean of losses
@op(returns=("mean", "total"))
def weighted_mean(loss, target_weight):
    """Σ loss / Σ target_weight and the latter sum, of losses that have their weights in them. Only `mean` has a gradient. Half types give
    float32."""
    check(loss.shape == target_weight.shape, "weighted_mean", "a weight for every loss", loss.shape, target_weight.shape)
    check(loss.dtype.is_floating_point and loss.dtype is target_weight.dtype, "weighted_mean", "floating losses and weights of one dtype",
          loss.dtype, target_weight.dtype)
    return [((), loss.dtype.compute, loss.device)] * 2


@weighted_mean.impl("cpu")
def weighted_mean_cpu(mean, total, loss, target_weight):
    np.add.reduce(single(target_weight), None, None, total)
    np.add.reduce(single(loss), None, None, mean)
    mean /= total


@weighted_mean.impl("cuda")
def weighted_mean_cuda(mean, total, loss, target_weight):
    """In one launch; many losses first become as many sums as there are programs."""
    block, M = tile(4096, 1 << 14), loss.numel()
    values = loss.contiguous(), target_weight.contiguous()
    if M > 4 * block:
        tiles = cdiv(M, block)
        chunk = cdiv(tiles, 1024) * block
        M, sums = cdiv(M, chunk), [empty((cdiv(M, chunk),), mean.dtype, mean.device) for _ in values]
        launch(K.weighted_mean_kernel, (M,), *sums, *values, loss.numel(), chunk, MEAN=False, BLOCK=block, num_warps=8)
        values = sums
    launch(K.weighted_mean_kernel, (1,), mean, total, *values, M, M, MEAN=True, BLOCK=block, num_warps=8)


@weighted_mean.grad("loss")
def weighted_mean_grad_loss(g_mean, target_weight, total, loss_shape):
    total = target_weight.sum(dtype=total.dtype) if again(target_weight) else total
    return spread(g_mean / total, loss_shape, None, False)


@weighted_mean.grad("target_weight")
def weighted_mean_grad_weight(g_mean, target_weight, mean, total):
    total = target_weight.sum(dtype=total.dtype) if again(target_weight) else total
    return spread(-g_mean * mean / total, target_weight.shape, None, False)


@weighted_mean.samples
def weighted_mean_samples(make):
    yield make(4), make(4, positive=True)
    yield make(3, 2, 5), make(3, 2, 5, positive=True)
    yield make(), make(positive=True)


@weighted_mean.errors
def weighted_mean_errors(make):
    yield (make(4), make(5)), {}, RuntimeError, "expected a weight for every loss"
    yield (make(4), make(4, integer=True)), {}, RuntimeError, "expected floating losses and weights of one dtype"


weighted_mean.workloads(lambda make: [(f"{n} losses", lambda n=n: (make(n), make(n)), 8 * n, 2 * n) for n in (8192, 1 << 22)])


@cross_entropy_rows.samples
def cross_entropy_samples(make):
    yield make(4, 7), make(4, integer=True, low=0, high=7)
    yield make(5, 3), make(5, integer=True, low=0, high=3), make(3, positive=True, grad=False), 1, 0.1
    yield make(2, 5, 3, 2), make(2, 3, 2, integer=True, low=0, high=5), None, 2
    yield make(3, 301), make(3, integer=True, low=0, high=301), None, -100, 0.2
    yield make(6), make(integer=True, low=0, high=6)
    yield make(0, 4), make(0, integer=True, low=0, high=4)


@cross_entropy_backward.samples
def cross_entropy_backward_samples(make):
    yield make(4), make(4, 7), make(4, integer=True, low=0, high=7), make(4)
    yield make(5), make(5, 3), make(5, integer=True, low=0, high=3), make(5), make(3, positive=True, grad=False), 1, 0.1
    yield make(2, 3, 2), make(2, 5, 3, 2), make(2, 3, 2, integer=True, low=0, high=5), make(2, 3, 2), None, 2
    yield make(3), make(3, 301), make(3, integer=True, low=0, high=301), make(3), None, -100, 0.2


@cross_entropy_rows.errors
def cross_entropy_errors(make):
    yield (make(4, 7), make(5, integer=True, low=0, high=7)), {}, ValueError, "expected targets of shape (4,)"
    yield (make(4, 7), make(4, integer=True, low=7, high=8)), {}, IndexError, "expected class indices in [0, 6], got 7"
    yield (make(4, 7), make(4, integer=True, low=0, high=7), make(3)), {}, RuntimeError, "expected a weight for each of 7 classes"


cross_entropy_rows.workloads(lambda make: [
    (f"8192x{n}", lambda n=n: (make(8192, n, dtype=types.bfloat16), make(8192, integer=True, low=0, high=n)), 2 * 8192 * n, 4 * 8192 * n)
    for n in (32768, 50304, 131072)])
cross_entropy_backward.workloads(lambda make: [
    (f"8192x{n}", lambda n=n: (make(8192), make(8192, n, dtype=types.bfloat16), make(8192, integer=True, low=0, high=n), make(8192)),
     4 * 8192 * n, 4 * 8192 * n) for n in (32768, 50304, 131072)])
