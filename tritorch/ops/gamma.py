"""Gamma and Dirichlet numbers, and their derivatives by the parameters.

A number x with the distribution function F(x; α) has the derivative dx/dα = -(∂F/∂α) / p(x): Figurnov, Mohamed and Mnih, "Implicit
reparameterization gradients", 2018. For the gamma distribution ∂F/∂α = ∫₀ˣ (log t - ψ(α)) p(t) dt, and the whole integral to ∞ is 0. So
it is taken from 0 to x where log x < ψ(α), from x to ∞ elsewhere: what is summed has one sign, and nothing cancels. With t = x e⁻ˢ and
t = x + s

    dx/dα = x ∫₀^∞ (ψ(α) - log x + s) exp(-α s + x (1 - e⁻ˢ)) ds  =  ∫₀^∞ (log x - ψ(α) + log(1 + s/x)) (1 + s/x)^(α-1) e⁻ˢ ds,

both by the double exponential rule s = c exp(t - e⁻ᵗ): Takahasi and Mori, 1974. Near 0 the power of t makes that hard for α < 1, but
dx/dα at α is x/α · (ψ(α+1) - log x + the same at α + 1). Beta numbers go the same way, with t = x e⁻ˢ and 1 - t = (1 - x) e⁻ˢ.
"""
import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, underivable
from tritorch.ops.arrays import store_rounded
from tritorch.ops.draws import place
from tritorch.ops.elementwise import binary, ternary
from tritorch.ops.filling import filled
from tritorch.ops.normals import open_unit
from tritorch.ops.softmax import softmax
from tritorch.ops.special import digamma
from tritorch.philox import MASK, SHIFT, in_pieces, philox
from tritorch.quiet import quietly
from tritorch.tensor import empty

K = kernels("gamma")
LOW = np.finfo(np.float64).min


# ------------------------------------------------------------------ numbers
def words_at(seed, counters, lane):
    """The four words of each counter, as uint64."""
    return philox(seed, counters & MASK, counters >> SHIFT, lane)


def attempt(seed, counters, lane):
    """A standard normal of 48 bits for the radius and for the angle, and the logarithm of a uniform of 32."""
    w0, w1, w2, w3 = words_at(seed, counters, lane)
    u = ((w0 << np.uint64(16) | w2 >> np.uint64(16)) + 0.5) * 2.0**-48
    turn = ((w1 << np.uint64(16) | w2 & np.uint64(0xFFFF)) + 0.5) * 2.0**-48
    return np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * turn), np.log((w3 + 0.5) * 2.0**-32)


def parts_of(alpha, seed, offset):
    """(d, r, b) for a flat array of float64: the gamma number of shape α is d r³ eᵇ.

    Element i uses counter offset + i, attempt j of the rejection the lane j, from 1 on; lane 0 gives the uniform for α < 1.
    """
    counters = np.uint64(offset & 0xFFFFFFFFFFFFFFFF) + np.arange(alpha.size, dtype=np.uint64)
    high, low, _, _ = words_at(seed, counters, 0)
    boost = np.where(alpha < 1, np.log(open_unit(high << SHIFT | low)) / alpha, 0.0)
    proper = (alpha > 0) & np.isfinite(alpha)
    d = np.where(proper, np.where(alpha < 1, alpha + 1, alpha), 1.0) - 1 / 3
    c, root = 1 / np.sqrt(9 * d), np.ones_like(d)
    pending, lane = np.flatnonzero(proper), 1
    while pending.size:
        z, log_u = attempt(seed, counters[pending], lane)
        t = c[pending] * z
        good = (t > -1) & (log_u < 0.5 * z * z + d[pending] * (3 * np.log1p(t) - t * (3 + t * (3 + t))))
        root[pending[good]] = 1 + t[good]
        pending, lane = pending[~good], lane + 1
    return d, root, boost


def draws_of(alpha, seed, offset, log=False):
    """Gamma numbers of shape α, or their logarithms, in float64."""
    flat, out = alpha.reshape(-1), np.empty(alpha.size)

    def work(start, stop):
        shapes = flat[start:stop].astype(np.float64)
        d, root, boost = parts_of(shapes, seed, offset + start)
        value = np.log(d) + 3 * np.log(root) + boost if log else d * root * root * root * np.exp(boost)
        value = np.where(shapes == 0, -np.inf if log else 0.0, np.where(shapes == np.inf, shapes, value))
        out[start:stop] = np.where(shapes >= 0, value, np.nan)

    in_pieces(out.size, work)
    return out.reshape(alpha.shape)


def least_of(dtype):
    """The smallest number of the usual precision: no gamma number is 0, whose logarithm is infinite."""
    return float(types.finfo(dtype).tiny)


@op(aliasable=True)
def standard_gamma(alpha, seed, offset, base=None):
    """out[i] is a gamma number of shape alpha[i] and scale 1, as in PyTorch never below the smallest normal number of the dtype.

    Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; where α < 1 a number of α + 1 times u^(1/α).
    """
    check(alpha.dtype.is_floating_point, "_standard_gamma", "a floating dtype", alpha.dtype, error=NotImplementedError)
    return alpha.shape, alpha.dtype, alpha.device


@standard_gamma.impl("cpu", raw=True)
def standard_gamma_cpu(out, alpha, seed, offset, base):
    quietly(store_rounded, out.array, np.maximum(draws_of(alpha.array, seed, offset), least_of(out.dtype)))


@standard_gamma.impl("cuda", passes={"seed": int, "offset": int})
def standard_gamma_cuda(out, alpha, seed, offset, base):
    filled(out, K.gamma_kernel, alpha.contiguous(), out.numel(), np.float64(least_of(out.dtype)), seed, offset, base, block=256, LOG=False)


@standard_gamma.grad("alpha")
def standard_gamma_rule(g, alpha, out):
    return g * standard_gamma_grad(alpha, out)


@op(aliasable=True)
def sample_dirichlet(alpha, seed, offset, base=None):
    """Rows of Dirichlet numbers along the last dim: gamma numbers of the shapes alpha over their sum, by their logarithms, so that the
    smallest alpha give numbers too."""
    check(alpha.dtype.is_floating_point, "_sample_dirichlet", "a floating dtype", alpha.dtype, error=NotImplementedError)
    return alpha.shape, alpha.dtype, alpha.device


def softmax_of(logs):
    """exp of each row, over its sum."""
    parts = np.exp(logs - logs.max(-1, keepdims=True, initial=LOW))
    return parts / parts.sum(-1, keepdims=True)


@sample_dirichlet.impl("cpu", raw=True)
def sample_dirichlet_cpu(out, alpha, seed, offset, base):
    logs = np.atleast_1d(np.maximum(draws_of(alpha.array, seed, offset, log=True), LOW))
    parts = quietly(softmax_of, logs).reshape(out.shape)
    quietly(store_rounded, out.array, np.maximum(parts, least_of(out.dtype)))


@sample_dirichlet.impl("cuda", passes={"seed": int, "offset": int})
def sample_dirichlet_cuda(out, alpha, seed, offset, base):
    logs = empty(alpha.shape, types.float64, alpha.device)
    filled(logs, K.gamma_kernel, alpha.contiguous(), out.numel(), np.float64(LOW), seed, offset, base, block=256, LOG=True)
    out.copy_(softmax(logs, -1).clamp(min=least_of(out.dtype)))


@sample_dirichlet.grad("alpha")
def sample_dirichlet_rule(g, alpha, out):
    if not alpha.ndim:
        return g * 0
    slope = dirichlet_grad(out, alpha, alpha.sum(-1, True).expand(alpha.shape))
    return slope * (g - (out * g).sum(-1, True))


def random_samples(make):
    yield make(3, 5, positive=True, grad=False), 7, 0
    yield make(120, low=0.0, high=3.0, grad=False), -1, 1 << 33
    yield make(low=0.1, high=9, grad=False), 1, (1 << 32) - 1
    yield make(0, 2, grad=False), 1, 1


for made in standard_gamma, sample_dirichlet:
    made.samples(random_samples)
    made.errors(lambda make, name=made.__name__: [
        ((make(3, integer=True, low=1, high=2), 0, 0), {}, NotImplementedError, f"_{name}: expected a floating dtype")])
    made.workloads(lambda make: [("4M float32", lambda: (make(1 << 20, 4, low=0.1, high=10), 7, 0), 8 << 22, 0)])


def _standard_gamma(input, generator=None):
    """Gamma numbers with the shapes in `input`, of scale 1. The gradient is that of implicit reparameterization.

    >>> import tritorch as torch
    >>> torch._standard_gamma(torch.tensor([0.5, 3.0])).shape
    tritorch.Size([2])
    """
    return standard_gamma(input, *place(input.device, generator, 4 * input.numel()))


def _sample_dirichlet(input, generator=None):
    """Dirichlet numbers with the concentrations along the last dim of `input`: positive, of sum 1.

    >>> import tritorch as torch
    >>> torch._sample_dirichlet(torch.ones(2, 3)).sum(-1).round(decimals=3)
    tensor([1., 1.])
    """
    return sample_dirichlet(input, *place(input.device, generator, 4 * input.numel()))


# ------------------------------------------------------------------ derivatives
def nodes_of(step):
    """(place, weight) of the double exponential rule."""
    t = np.arange(-3.5, 3.9, step)
    places = np.exp(t - np.exp(-t))
    return list(zip(places, places * (1 + np.exp(-t)) * step))


NODES = {8: nodes_of(1 / 8), 4: nodes_of(1 / 5)}                         # for the digits of float64, and of float32


def integral(apart, scale, nodes, term):
    """∫₀^∞ (|apart| + p) eᵉ ds with (p, e) = term(s)."""
    apart, total = np.abs(apart), np.zeros_like(scale)
    for node, weight in nodes:
        p, power = term(scale * node)
        total += (p + apart) * (weight * np.exp(power))
    return scale * total


def gamma_slope(alpha, x):
    """dx/dα of gamma numbers."""
    a, v = np.broadcast_arrays(alpha.astype(np.float64), x.astype(np.float64))
    above = np.log(v) - digamma(np.where(a < 1, a + 1, a))
    step = (a < 1) & (above < 0)
    shape, apart = np.where(step, a + 1, a), np.where((a < 1) & ~step, above + 1 / a, above)
    low, more = apart < 0, np.maximum(shape - 1, 0)
    slope = np.maximum(np.where(low, shape - v, 1 - more / v), 0)
    scale = 2 / (slope + np.sqrt(slope * slope + 2 * np.where(low, v, more / (v * v))))

    value, nodes, high = np.empty_like(v), NODES[x.dtype.itemsize], ~low
    shape_low, v_low, power, v_high = shape[low], v[low], shape[high] - 1, v[high]

    def below(s):
        return s, -shape_low * s - v_low * np.expm1(-s)

    def beyond(s):
        p = np.log1p(s / v_high)
        return p, power * p - s

    value[low] = integral(apart[low], scale[low], nodes, below) * v_low
    value[high] = integral(apart[high], scale[high], nodes, beyond)
    value = np.where(step, v / a * (value - above), value)
    return np.where((v == 0) & (a > 0), 0.0, np.where(a < 0, np.nan, value)).astype(x.dtype)


def dirichlet_slope(x, alpha, total):
    """dx/dα of beta numbers, over 1 - x."""
    v, a, sum = np.broadcast_arrays(*[t.astype(np.float64) for t in (x, alpha, total)])
    b, rest, log_v = sum - a, 1 - v, np.log(v)
    above = digamma(a + 1) - digamma(sum)
    step = (a < 1) & (log_v < above)
    shape, apart = np.where(step, a + 1, a), log_v - above + np.where(step, 1 / sum, 1 / a)
    low = apart < 0
    odds, rate, power = np.where(low, v / rest, rest / v), np.where(low, shape, b), np.where(low, b, shape) - 1
    more = np.maximum(power, 0)
    slope = np.maximum(rate - more * odds, 0)
    scale = 2 / (slope + np.sqrt(slope * slope + 2 * more * odds * (1 + odds)))
    scale = np.where(scale < 1, scale, np.maximum(scale, 1 / rate))      # what bends is over at s = 1, the rate is what stays

    def term(s):
        p = np.log1p(-odds * np.expm1(-s))
        return np.where(low, s, p), power * p - rate * s

    value = integral(apart, scale, NODES[x.dtype.itemsize], term) * np.where(low, odds, 1.0)
    value = np.where(step, v * (sum * value + above - log_v) / a, value)
    return np.where((v == 0) | (b <= 0), 0.0, value).astype(x.dtype)


def floats_alike(name, *operands):
    """The floating dtype that all tensors have."""
    kinds = {x.dtype for x in operands}
    check(len(kinds) == 1, f"_{name}", "tensors of one dtype", *kinds)
    check(operands[0].dtype.is_floating_point, f"_{name}", "a floating dtype", operands[0].dtype, error=NotImplementedError)
    return operands[0].dtype


standard_gamma_grad = binary("standard_gamma_grad", "dx/dα of a gamma number x of shape alpha.", gamma_slope, functions=K,
                             names=("alpha", "sample"), tensors="input other", result=floats_alike,
                             domain={"low": 0.2, "high": 3.0, "grad": False})
dirichlet_grad = ternary("dirichlet_grad", "dx/dα of a beta number x of parameters alpha and total - alpha, over 1 - x.", dirichlet_slope,
                         functions=K, names=("x", "alpha", "total"), result=floats_alike)
dirichlet_grad.samples(lambda make: [
    (make(*shape, low=0.05, high=0.9, grad=False), make(*shape, low=0.2, high=2.0, grad=False), make(low=2.5, high=4.0, grad=False))
    for shape in ((3, 4), (7,), (), (0, 2))])
for made in standard_gamma_grad, dirichlet_grad:
    for argument in made.names:
        made.grad(argument)(underivable(f"_{made.__name__}", argument))


def _standard_gamma_grad(input, output):
    """The derivative by the shapes `input` of the gamma numbers `output`; see `_standard_gamma`.

    >>> import tritorch as torch
    >>> torch._standard_gamma_grad(torch.tensor([1.0]), torch.tensor([1.0]))
    tensor([1.1736])
    """
    return standard_gamma_grad(input, output)


def _dirichlet_grad(x, alpha, total):
    """What the gradient of `_sample_dirichlet` is made of: the derivative by alpha of beta numbers x of (alpha, total - alpha), over 1 - x.

    >>> import tritorch as torch
    >>> torch._dirichlet_grad(torch.tensor([0.5]), torch.tensor([1.0]), torch.tensor([2.0]))
    tensor([0.6931])
    """
    return dirichlet_grad(x, alpha, total)
