"""Random operators whose parameters are tensors: Bernoulli and normal numbers, and what `multinomial` draws by."""
import numpy as np

from tritorch.cuda.launch import kernels, launch
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.draws import draw_exponential
from tritorch.ops.faults import fault_word
from tritorch.ops.filling import filled
from tritorch.ops.indexing import finish, in_order
from tritorch.ops.normals import standard_normal, unit
from tritorch.philox import bits_of, words
from tritorch.shape import cdiv, next_power_of_2

K = kernels("random")
CHANCES, A_SUM = "probabilities from 0 up, and finite", "rows of probabilities with a positive sum, not infinite"


@op(aliasable=True)
def random_bernoulli(p, seed, offset, base=None):
    """out[i] = 1 where u_i < p[i], else 0. Gradient: zero, as in PyTorch."""
    check(p.dtype.is_floating_point, "bernoulli", "a floating dtype", p.dtype)
    return p.shape, p.dtype, p.device


@random_bernoulli.impl("cpu")
def random_bernoulli_cpu(out, p, seed, offset, base):
    chance = p.astype(np.float64)
    check(bool(((chance >= 0) & (chance <= 1)).all()), "bernoulli", "probabilities from 0 to 1", "others")
    out[...] = unit(words(seed, offset, p.size)).astype(np.float64).reshape(p.shape) < chance


@random_bernoulli.impl("cuda", passes={"seed": int, "offset": int})
def random_bernoulli_cuda(out, p, seed, offset, base):
    word, number = fault_word(out.device, "bernoulli", "probabilities from 0 to 1", RuntimeError)
    filled(out, K.bernoulli_kernel, word, p.contiguous(), out.numel(), seed, offset, base, number)


@random_bernoulli.grad("p")
def random_bernoulli_grad(g):
    return g.new_zeros(g.shape)


@random_bernoulli.samples
def random_bernoulli_samples(make):
    yield make(3, 5, low=0, high=1, grad=False), 7, 0
    yield make(2, 67, low=0, high=1, grad=False), -1, 1 << 33
    yield make(low=0, high=1, grad=False), 1, 1
    yield make(0, 2, low=0, high=1, grad=False), 1, 1


@random_bernoulli.errors
def random_bernoulli_errors(make):
    yield (make(3, integer=True, low=0, high=2), 0, 0), {}, RuntimeError, "floating dtype"


@random_bernoulli.workloads
def random_bernoulli_workloads(make):
    yield "16M float32", lambda: (make(1 << 24, low=0, high=1), 7, 0), 8 << 24, 0


@op
def random_normal_around(mean, std, seed, offset, base=None):
    """out[i] = mean[i] + std[i] z_i for mean and std of one shape. Gradient: zero, as in PyTorch; write mean + std * randn for another."""
    check(mean.shape == std.shape and mean.dtype is std.dtype, "normal", "mean and std of one shape and dtype", mean.shape, std.shape)
    check(mean.dtype.is_floating_point, "normal", "a floating dtype", mean.dtype)
    return mean.shape, mean.dtype, mean.device


@random_normal_around.impl("cpu")
def random_normal_around_cpu(out, mean, std, seed, offset, base):
    check(bool((std >= 0).all()), "normal", "std ≥ 0", "negative elements")
    z = standard_normal(bits_of(out.dtype, out.size, seed, offset))[:out.size].reshape(out.shape)
    out[...] = mean.astype(z.dtype, copy=False) + std.astype(z.dtype, copy=False) * z


@random_normal_around.impl("cuda", passes={"seed": int, "offset": int})
def random_normal_around_cuda(out, mean, std, seed, offset, base):
    word, number = fault_word(out.device, "normal", "std ≥ 0", RuntimeError)
    filled(out, K.normal_around_kernel, word, mean.contiguous(), std.contiguous(), out.numel(), seed, offset, base, number)


@random_normal_around.grad("mean", "std")
def random_normal_around_grad(g):
    return g.new_zeros(g.shape), g.new_zeros(g.shape)


@random_normal_around.samples
def random_normal_around_samples(make):
    yield make(3, 5, grad=False), make(3, 5, positive=True, grad=False), 7, 0
    yield make(0, grad=False), make(0, grad=False), 7, 0
    yield make(grad=False), make(positive=True, grad=False), 7, 3
    yield make(131, grad=False), make(131, positive=True, grad=False), 1 << 50, 3


@random_normal_around.errors
def random_normal_around_errors(make):
    yield (make(3), make(4), 0, 0), {}, RuntimeError, "one shape"


@random_normal_around.workloads
def random_normal_around_workloads(make):
    yield "16M float32", lambda: (make(1 << 24), make(1 << 24, positive=True), 7, 0), 12 << 24, 0


@op
def random_race(p, seed, offset, base=None):
    """p[i] / e_i with e_i exponential of rate 1: the largest of a row is element i with the chance p[i] / Σ p, the next one among the rest…
    Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006."""
    return p.shape, p.dtype, p.device


@random_race.impl("cpu")
def random_race_cpu(out, p, seed, offset, base):
    check(bool(((p >= 0) & (p < np.inf)).all()), "multinomial", CHANCES, "others")
    e = draw_exponential(bits_of(out.dtype, out.size, seed, offset), 1.0, 0.0)[:out.size].reshape(p.shape)
    out[...] = p.astype(e.dtype) / e


@random_race.impl("cuda", passes={"seed": int, "offset": int})
def random_race_cuda(out, p, seed, offset, base):
    word, number = fault_word(out.device, "multinomial", CHANCES, RuntimeError)
    filled(out, K.race_kernel, word, p.contiguous(), out.numel(), seed, offset, base, number)


@random_race.samples
def random_race_samples(make):
    yield make(3, 5, positive=True, grad=False), 7, 0
    yield make(2, 67, positive=True, grad=False), -1, 1 << 33
    yield make(0, 2, positive=True, grad=False), 1, 1


@random_race.workloads
def random_race_workloads(make):
    yield "16M float32", lambda: (make(1 << 24, positive=True), 7, 0), 8 << 24, 0


@op
def draw_one(p, u):
    """(rows, 1): of each row of p (rows, k) one index with the chance p[i] / Σ p, where the running sum passes u (rows, 1) times the whole.

    >>> import tritorch as torch; from tritorch.ops.chances import draw_one
    >>> draw_one(torch.tensor([[1.0, 0.0, 3.0]]), torch.tensor([[0.5]], dtype=torch.float64))
    tensor([[2]])
    """
    check(p.ndim == 2 and p.shape[1] > 0 and u.shape == (p.shape[0], 1) and u.dtype is types.float64, "draw_one",
          "rows, and a float64 number for each", p.shape, u.shape)
    return (p.shape[0], 1), types.int64, common_device("draw_one", p, u)


def _width(k):
    """How far the elements that are summed first lie apart."""
    return min(next_power_of_2(k), 2048)


@draw_one.impl("cpu")
def draw_one_cpu(out, p, u):
    check(bool(((p >= 0) & (p < np.inf)).all()), "multinomial", CHANCES, "others")
    (rows, k), width = p.shape, _width(p.shape[1])
    count = cdiv(k, width)
    wide = np.zeros((rows, count * width))
    wide[:, :k] = p
    sums = wide.reshape(rows, count, width).swapaxes(1, 2).reshape(rows, count * width).cumsum(1)
    check(bool((sums[:, -1] > 0).all()), "multinomial", A_SUM, 0.0)
    for n in range(rows):
        at = min(np.searchsorted(sums[n], u[n, 0] * sums[n, -1], "right"), np.searchsorted(sums[n], sums[n, -1]))
        out[n] = at % count * width + at // count


@draw_one.impl("cuda")
def draw_one_cuda(out, p, u):
    if out.numel():
        made, width = in_order(out), _width(p.shape[1])
        word, chances = fault_word(out.device, "multinomial", CHANCES, RuntimeError)
        _, positive = fault_word(out.device, "multinomial", A_SUM, RuntimeError)
        launch(K.draw_one_kernel, (p.shape[0],), made, word, p, u.contiguous(), *p.strides, p.shape[1], chances, positive,
               COUNT=next_power_of_2(cdiv(p.shape[1], width)), WIDTH=width, num_warps=max(width // 256, 1))
        finish(out, made)


@draw_one.samples
def draw_one_samples(make):
    for rows, k in ((3, 5), (2, 4100), (4, 1), (0, 3)):
        yield make(rows, k, positive=True, grad=False), make(rows, 1, low=0, high=1, grad=False, dtype=types.float64)


@draw_one.errors
def draw_one_errors(make):
    yield (make(2, 3, positive=True), make(2, 1)), {}, RuntimeError, "a float64 number for each"


@draw_one.workloads
def draw_one_workloads(make):
    p = make(4096, 32000, positive=True, grad=False)
    yield "4096x32000 fp32", lambda: (p, make(4096, 1, low=0, high=1, grad=False, dtype=types.float64)), p.nbytes, 0
