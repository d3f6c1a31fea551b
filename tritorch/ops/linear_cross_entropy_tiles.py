"""Which kernel turns logits into losses and gradients, and in which tiles."""
from tritorch.cuda import driver, tuner
from tritorch.cuda.launch import kernels, launch, sm_count, tile
from tritorch.ops.gemm import hardware
from tritorch.ops.normalize import scalar
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty

K, WAITING = kernels("linear_cross_entropy"), kernels("linear_cross_entropy_gluon")
SHAPES = (16384, 32), (8192, 32), (8192, 16), (8192, 8), (4096, 8), (4096, 4), (2048, 4)  # of the first two the rows under way stay in L2
CANDIDATES = [dict(BLOCK_N=block, num_warps=warps) for block, warps in SHAPES]
WAIT_IN = (4096, 16, 2), (2048, 8, 2)                                    # BLOCK_N, warps, programs a multiprocessor: rows in shared memory


def turn_into_gradients(losses, weights, logits, target, weight, sum_w, scale, report, ignore_index, label_smoothing, scaled):
    """Losses of rows of logits, the weights of their targets, and in the place of the logits the gradients of the losses. The losses are
    those times `scale`, a number on the device, unless it is None, and so are the gradients if `scaled`. `weight`: of classes, `sum_w` the
    sum of these; `report`: where a target that is no class is told."""
    (rows, classes), wide, (word, number), acc = logits.shape, logits.strides[0], report, losses.dtype
    options = dict(SMOOTH=label_smoothing > 0, PADDED=wide > classes, SCALED=scaled, ACC=getattr(K.tl, acc.name))

    def run(candidate, out=None):
        out, vec = logits if out is None else out, min(16 // logits.dtype.itemsize, candidate["BLOCK_N"])
        if candidate.get("kernel") == "gluon":
            block, warps, each = [candidate[name] for name in ("BLOCK_N", "num_warps", "PER_SM")]
            launch(WAITING.loss_and_gradient_gluon_kernel, (min(rows, each * sm_count()),), losses, weights, out, word, logits, target,
                   weight, scale, wide, wide, target.strides[0], rows, classes, wide, ignore_index, number, SCALED=scaled, BLOCK_N=block,
                   HELD=cdiv(classes, block), num_warps=warps, maxnreg=2048 // (each * warps))
            return
        launch(K.loss_and_gradient_kernel, (rows,), losses, weights, out, word, logits, target, weight, sum_w, scale, wide, wide,
               target.strides[0], classes, wide, ignore_index, scalar(label_smoothing, acc), number, **options, **candidate, VEC=vec,
               LANES=min(32 * candidate.get("num_warps", 4), candidate["BLOCK_N"] // vec))

    def tried(candidate):
        run(candidate, empty((rows, wide), logits.dtype, logits.device))

    run(choice(logits.dtype, classes, not label_smoothing, tried))


def choice(dtype, classes, plain, run):
    """Block size and warps of the kernel; `run` leaves the logits as they are, which the kernel itself need not. `plain`: without label
    smoothing, so that rows may wait in shared memory."""
    if not tile(1, 0):
        return dict(BLOCK_N=min(max(next_power_of_2(classes) // 2, 1), 4096))
    fitting = [c for c in CANDIDATES if c["BLOCK_N"] < 2 * next_power_of_2(classes)] or CANDIDATES[-1:]
    return tuner.choose("linear_cross_entropy", (dtype.name, classes, plain), waiting(dtype, classes, plain) + fitting,
                        K.loss_and_gradient_kernel, run)


def waiting(dtype, classes, plain):
    """Candidates for Hopper by which rows wait in shared memory, where it has room for those of all programs."""
    machine = hardware()
    if not plain or dtype.itemsize != 2 or machine[2] != 9 or driver.on_host():
        return []
    return [dict(kernel="gluon", BLOCK_N=block, PER_SM=each, num_warps=warps) for block, warps, each in WAIT_IN
            if classes > block and 2 * cdiv(classes, block) * block * each <= machine[1] - 1024]
