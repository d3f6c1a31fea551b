"""Random operators: each takes (seed, offset) as attributes and computes its numbers from them, the same on CPU and GPU.

`tritorch.philox` says which bits belong to which element. Public functions that take a Generator are in `random` and `dropout`.
`base`, a device tensor of (seed, offset), is there while a graph is captured: see `Generator.take`.
"""
from __future__ import annotations

import math

import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.device import meta
from tritorch.dispatch import op
from tritorch.dtype import bfloat16, float16, float32, float64, int8, int32, int64, uint8
from tritorch.dtype import bool as bool_
from tritorch.errors import check, sentence
from tritorch.generator import default_generator
from tritorch.ops.filling import fill_later, filled
from tritorch.ops.normals import open_unit, standard_normal, unit
from tritorch.philox import bits_of, long_words, multiply_high, words
from tritorch.shape import cdiv, memory_order
from tritorch.tensor import in_order

K, SAME = kernels("random"), kernels("random_same")


def place(device, generator, count):
    """(seed, offset, base) for `count` words from a generator, or from the default one of the device. On meta nobody draws."""
    if device is meta:
        return 0, 0, None
    if generator is None:
        generator = default_generator(device)
    if generator.device is not device:                                   # not by `check`: the sentence takes longer than the rest
        raise RuntimeError(sentence("generator", f"a generator on {device}", generator.device))
    return generator.take(cdiv(count, 4))


# ------------------------------------------------------------------ fills: a family of distributions with two parameters
def draw_uniform(bits, low, high):
    if (low, high) == (0, 1):
        return unit(bits)
    value = unit(bits) * (high - low) if bits.dtype == np.uint64 else (bits >> np.uint32(8)) * ((high - low) * 2.0**-24)
    value += low
    return value


SHORT_ROUNDS = 7                                                          # of Philox, for normal numbers of 16 bits


def normal_pairs(word):
    """For two normal numbers of 16 bits a word: it gives the radius and, times 2³² over the golden ratio, the angle. So all pairs that
    there are lie evenly, 2³² of them, and the values are as likely as those of a normal number that is rounded."""
    return np.stack((word, word * np.uint32(0x9E3779B9)), 1).reshape(-1)


def normal_bits(dtype, count, seed, offset, start=0):
    """The bits of `count` normal numbers from the start-th on."""
    if dtype.itemsize == 2:
        return normal_pairs(words(seed, offset + start // 8, cdiv(count, 2), rounds=SHORT_ROUNDS))
    return bits_of(dtype, count, seed, offset + start // 4)


def draw_normal(bits, mean, std):
    z = standard_normal(bits)
    if (mean, std) != (0, 1):
        np.add(np.multiply(z, z.dtype.type(std), out=z), z.dtype.type(mean), out=z)
    return z


UNIT = {draw_uniform: "unit_uniform", draw_normal: "unit_normal"}         # the same with the parameters 0 and 1
MOST = 1 << 14                                                            # programs that fill with normal numbers, block after block
SHORT = [(2048, 1, False), (2048, 2, False), (4096, 1, False), (4096, 2, False), (4096, 2, True)]      # BLOCK, SHORT, INVERSE of its kernel


def draw_log_normal(bits, mean, std):
    return np.exp(draw_normal(bits, mean, std))


def draw_exponential(bits, rate, unused):
    u = open_unit(bits)
    return -np.log(u) / u.dtype.type(rate)


def draw_geometric(bits, log_failure, unused):
    u = open_unit(bits)
    return np.ceil(np.log(u) / u.dtype.type(log_failure))


def draw_cauchy(bits, median, sigma):
    u = open_unit(bits)
    turn = u * u.dtype.type(math.pi)
    return u.dtype.type(median) - u.dtype.type(sigma) * np.cos(turn) / np.sin(turn)


def draw_bernoulli(bits, p, unused):
    return unit(bits).astype(np.float64) < p


def below(dtype, a, b):
    """The largest value of `dtype` under b, on the side of a: rounding must not reach the open end of an interval."""
    return float(np.nextafter(dtype.type(b), dtype.type(a)))


def describe(door, example, usual, floating):
    """What a distribution is tested and timed with."""
    def samples(make):
        device = make(1).device
        a, b = example
        yield (3, 5), float32, device, a, b, 7, 0
        yield (11,), float64, device, a, b, -1, 1 << 33
        yield (2, 2, 129), float16, device, a, b, 1 << 60, 5
        yield (64,), bfloat16, device, a, b, 0, (1 << 32) - 3
        yield (), float32, device, a, b, 1, 1
        yield (0, 3), float32, device, a, b, 1, 1
        if not floating:
            yield (40,), int64, device, a, b, 1, 1
            yield (40,), bool_, device, a, b, 1, 1

    door.samples(samples)
    if floating:
        door.errors(lambda make: [(((3,), int64, make(1).device, *example, 0, 0), {}, RuntimeError, "floating dtype")])
    door.workloads(lambda make: [(f"512 MiB of {dtype.name}", lambda dtype=dtype: (
        ((1 << 29) // dtype.itemsize,), dtype, make(1).device, *usual, 7, 0), 1 << 29, 0) for dtype in (float32, bfloat16)])


def drawn_there(draw, count, a, b, seed, offset):
    """What draws into a float32 tensor of a device the numbers of the CPU to the last bit, or None. No two roundings are made one."""
    if draw not in UNIT:
        return None

    def there(target):
        block = tile(1024, 1 << 16)
        front, end = (target, count, np.float64(a), np.float64(b)), {"BLOCK": block, "enable_fp_fusion": False}
        if draw is draw_normal:
            launch(SAME.same_normal_kernel, (cdiv(count, block),), *front, seed, offset, PLAIN=(a, b) == (0, 1), **end)
        else:
            top = np.float64(below(np.dtype(np.float32), a, b))
            launch(K.fill_kernel, (cdiv(count, block),), *front, top, seed, offset, None, DRAW=K.uniform, WIDE=False, CLAMP=True, **end)

    return there


def distribution(name, draw, doc, example, usual=None, clamp=False, floating=True, normal=False):
    """An operator that fills a new tensor with draws of a distribution with parameters a and b: `example` is tested, `usual` timed.
    `normal`: it is made of normal numbers."""
    def rule(shape, dtype, device, a, b, seed, offset, base=None):
        check(not floating or dtype.is_floating_point and dtype.itemsize > 1, name, "a floating dtype of 16 bits or more", dtype)
        return shape, dtype, device

    rule.__name__ = rule.__qualname__ = name
    rule.__doc__ = doc
    door = op(rule)

    @door.impl("cpu", raw=True)
    def run(out, shape, dtype, device, a, b, seed, offset, base):
        def piece(kind, count, start):
            bits = normal_bits(kind, count, seed, offset, start) if normal else bits_of(kind, count, seed, offset + start // 4)
            value = draw(bits, a, b)[:count]
            value = value.astype(np.float32, copy=False) if floating and kind.itemsize < 8 else value
            return np.minimum(value, value.dtype.type(below(kind, a, b))) if clamp else value

        fill_later(out, piece, None if dtype is not float32 or base is not None else drawn_there(draw, out.numel(), a, b, seed, offset))

    @door.impl("cuda", passes={"seed": int, "offset": int})
    def start(out, shape, dtype, device, a, b, seed, offset, base):
        plain = UNIT.get(draw) if (a, b) == (0, 1) else None
        front, more = (out.numel(), np.float64(a), np.float64(b)), {"DRAW": getattr(K, plain or draw.__name__[5:])}
        if normal:
            ways = [{"BLOCK": tile(block, 4096), "SHORT": words, "INVERSE": inverse, "num_warps": 4} for block, words, inverse in SHORT]
            filled(out, K.fill_normal_kernel, *front, seed, offset, base, most=MOST, ways=ways if dtype.itemsize == 2 else None, **more)
        else:
            top = below(dtype.numpy, a, b) if clamp else 0.0
            filled(out, K.fill_kernel, *front, np.float64(top), seed, offset, base, **more, WIDE=dtype is float64,
                   CLAMP=clamp and not (plain and dtype.itemsize >= 4))  # numbers of float32 are below 1 as they are

    describe(door, example, usual or example, floating)
    return door


random_uniform = distribution("random_uniform", draw_uniform, """out[i] = a + u_i (b − a): uniform in [a, b), u of 24 bits (53 in float64).

    >>> import tritorch as torch; from tritorch.ops.draws import random_uniform
    >>> random_uniform((3,), torch.float32, torch.device("cpu"), 0.0, 1.0, 7, 0)
    tensor([0.9546, 0.7502, 0.1142])
    """, (-1.0, 2.0), (0.0, 1.0), clamp=True)
random_normal = distribution("random_normal", draw_normal, """out[i] = a + b z_i, z standard normal: mean a, deviation b.

    Box and Muller, "A note on the generation of random normal deviates", 1958.

    >>> import tritorch as torch; from tritorch.ops.draws import random_normal
    >>> random_normal((2, 3), torch.float32, torch.device("cpu"), 0.0, 1.0, 7, 0).shape
    tritorch.Size([2, 3])
    """, (0.5, 2.0), (0.0, 1.0), normal=True)
random_log_normal = distribution("random_log_normal", draw_log_normal, "out[i] = exp(a + b z_i) with z standard normal.", (0.0, 0.5),
                                normal=True)
random_exponential = distribution("random_exponential", draw_exponential,
                                  "out[i] = −log(u_i) / a: exponential of rate a; b is not used.", (1.5, 0.0))
random_geometric = distribution("random_geometric", draw_geometric,
                                "out[i] = ceil(log(u_i) / a), a = log(1 − p): trials up to the first success; b is not used.",
                                (math.log(0.7), 0.0), floating=False)
random_cauchy = distribution("random_cauchy", draw_cauchy, "out[i] = a + b tan(π (u_i − ½)): Cauchy with median a and scale b.", (0.5, 2.0))
random_coin = distribution("random_coin", draw_bernoulli, "out[i] = 1 where u_i < a, else 0: Bernoulli with the same chance everywhere.",
                           (0.3, 0.0), floating=False)


# ------------------------------------------------------------------ integers
@op
def random_integers(shape, dtype, device, low, high, seed, offset, base=None):
    """out[i] = low + floor(bits_i (high − low) / 2⁶⁴): integers in [low, high), 64 random bits each.

    >>> import tritorch as torch; from tritorch.ops.draws import random_integers
    >>> random_integers((4,), torch.int64, torch.device("cpu"), 0, 10, 7, 0).dtype
    tritorch.int64
    """
    check(low < high, "randint", "low < high", low, high)
    check(high - low <= 1 << 64, "randint", "a range of 64 bits", high - low)
    if not dtype.is_floating_point:
        least, most = (0, 1) if dtype is bool_ else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
        check(least <= low and high - 1 <= most, "randint", f"bounds within {dtype}", low, high)
    return shape, dtype, device


def span_of(low, high):
    return min(high - low, (1 << 64) - 1)


@random_integers.impl("cpu")
def random_integers_cpu(out, shape, dtype, device, low, high, seed, offset, base):
    value = multiply_high(long_words(seed, offset, out.size), span_of(low, high)).view(np.int64) + np.int64(low)
    out[...] = value.reshape(out.shape)


@random_integers.impl("cuda", passes={"seed": int, "offset": int})
def random_integers_cuda(out, shape, dtype, device, low, high, seed, offset, base):
    span = span_of(low, high)
    filled(out, K.integers_kernel, out.numel(), low, span - (span >> 63 << 64), seed, offset, base)


@random_integers.samples
def random_integers_samples(make):
    device = make(1).device
    yield (3, 5), int64, device, 0, 10, 7, 0
    yield (101,), int64, device, -(1 << 63), (1 << 63) - 1, 3, 9
    yield (7, 3), uint8, device, 0, 256, 3, 9
    yield (33,), int32, device, -5, 1 << 31, -3, 1 << 40
    yield (10,), bool_, device, 0, 2, 1, 16
    yield (10,), float32, device, -3, 4, 1, 0
    yield (), int64, device, 5, 6, 1, 1
    yield (0,), int64, device, 0, 6, 1, 1


@random_integers.errors
def random_integers_errors(make):
    yield ((3,), int64, make(1).device, 5, 5, 0, 0), {}, RuntimeError, "low < high"
    yield ((3,), int8, make(1).device, 0, 300, 0, 0), {}, RuntimeError, "bounds within"


@random_integers.workloads
def random_integers_workloads(make):
    yield "16M int64", lambda: ((1 << 24,), int64, make(1).device, 0, 1000, 7, 0), 8 << 24, 0


# ------------------------------------------------------------------ dropout
@op(aliasable=True)
def random_dropout(x, p, seed, offset, base=None, order=None):
    """out[i] = x[i] / (1 − p) with chance 1 − p, else x[i] · 0. Backward is the same operator on the gradient. Elements are counted in
    row-major order, or in that of dims with the strides `order`. Srivastava et al., "Dropout", JMLR 2014.

    >>> import tritorch as torch; from tritorch.ops.draws import random_dropout
    >>> random_dropout(torch.ones(6), 0.5, 7, 0)
    tensor([2., 2., 0., 0., 0., 2.])
    """
    check(x.dtype.is_floating_point, "dropout", "a floating dtype", x.dtype)
    check(0 <= p < 1, "dropout", "0 ≤ p < 1", p, error=ValueError)
    return x.shape, x.dtype, x.device, order


def threshold(p):
    """An element is dropped if its word is below this."""
    return min(round(p * 2**32), 2**32 - 1)


@random_dropout.impl("cpu")
def random_dropout_cpu(out, x, p, seed, offset, base, order):
    if order is not None:
        out, x = [t.transpose(memory_order(order)) for t in (out, x)]
    compute = np.float64 if x.dtype == np.float64 else np.float32
    factor = np.array([0, 1 / (1 - p)], compute)[(words(seed, offset, x.size) >= threshold(p)).view(np.uint8)].reshape(x.shape)
    if x.dtype == compute:
        np.multiply(x, factor, out=out)
    else:
        out[...] = x.astype(compute) * factor


@random_dropout.impl("cuda", passes={"seed": int, "offset": int})
def random_dropout_cuda(out, x, p, seed, offset, base, order):
    if order is not None:
        out, x = [in_order(t, order) for t in (out, x)]
    filled(out, K.dropout_kernel, x.contiguous(), out.numel(), threshold(p), np.float64(1 / (1 - p)), seed, offset, base)


@random_dropout.grad("x")
def random_dropout_grad(g, p, seed, offset, base, order):
    return random_dropout(g, p, seed, offset, base, order)


@random_dropout.samples
def random_dropout_samples(make):
    yield make(3, 5), 0.5, 7, 0
    yield make(2, 3, 67), 0.1, -1, 1 << 33
    yield make(2, 3, 5), 0.4, 3, 5, None, (15, 1, 3)
    yield make(), 0.3, 1, 1
    yield make(0, 2), 0.3, 1, 1
    yield make(17), 0.0, 16, (1 << 32) - 2


@random_dropout.errors
def random_dropout_errors(make):
    yield (make(3, integer=True, low=0, high=2), 0.5, 0, 0), {}, RuntimeError, "floating dtype"
    yield (make(3), 1.5, 0, 0), {}, ValueError, "0 ≤ p < 1"


@random_dropout.workloads
def random_dropout_workloads(make):
    for dtype in float32, bfloat16:
        n = (1 << 29) // dtype.itemsize
        yield f"512 MiB of {dtype.name}", lambda dtype=dtype, n=n: (make(n, dtype=dtype), 0.1, 7, 0), 1 << 30, 0


