"""Rules of random operators.

Where each sample draws its own numbers, their place in the generator's stream has room for all of them: one call draws them together. Where
all have the same, they are drawn once. Rejection is the exception: how many numbers it takes follows from the parameters, so that operators
which draw until they accept are called for each sample if all start at the same place.
"""
import math

from tritorch.dtype import types
from tritorch.func.batching.calls import all_the_same, each_its_own, rule
from tritorch.ops import create
from tritorch.ops.bounds import HUGE, within
from tritorch.ops.chances import CHANCES
from tritorch.ops.draws import random_exponential, random_normal, random_uniform
from tritorch.ops.put import masked_fill

FILLS = [f"random_{name}" for name in "uniform normal log_normal exponential geometric cauchy coin integers".split()]


# ------------------------------------------------------------------ others for each sample
@rule(*FILLS, table=each_its_own)
def fills(call):
    """Of a shape: more of them."""
    return call.run((call.size, *call["shape"]), *call.args[1:])


@rule(*"random_bernoulli random_normal_around random_race random_poisson random_binomial standard_gamma".split(), table=each_its_own)
def elements(call):
    """Of parameters: those of all samples."""
    return call.run(*call.everything())


@rule("sample_dirichlet", table=each_its_own)
def dirichlet(call):
    """Rows of parameters; a number is a row of one."""
    alpha, *place = call.everything()
    return call.run(alpha, *place) if alpha.ndim > 1 else call.op(alpha.unsqueeze(1), *place).squeeze(1)


@rule("random_dropout", table=each_its_own)
def dropout(call):
    """Samples come first in the order of elements."""
    x, p, seed, offset, base, order = call.everything()
    return call.run(x, p, seed, offset, base, order and (_beyond(x.shape[1:], order), *order))


def _beyond(shape, strides):
    """A stride larger than others of this shape."""
    return 1 + sum([(n - 1) * s for n, s in zip(shape, strides) if n])


# ------------------------------------------------------------------ the same for all samples
@rule(*FILLS, table=all_the_same)
def one_fill(call):
    """What is drawn for one is written into all."""
    one = call.op(*call.args)
    return one.expand(call.size, *one.shape)


@rule("random_dropout", table=all_the_same)
def one_dropout(call):
    """One mask."""
    x, *more = call.args
    mask = call.op(create.ones(call.given[0].shape, dtype=x.dtype.compute, device=x.device), *more)
    return (call.all(0) * mask).to(x.dtype)


@rule("random_bernoulli", table=all_the_same)
def one_bernoulli(call):
    """One uniform number is below the chances of all samples or not."""
    p, *place = call.args
    u = random_uniform(call.given[0].shape, types.float32, p.device, 0.0, 1.0, *place)
    chances = within(p.detach(), 0.0, 1.0, "bernoulli", "probabilities from 0 to 1")
    return _tied((u < chances).to(p.dtype), p)


@rule("random_normal_around", table=all_the_same)
def one_normal(call):
    """One standard normal number, around what each sample says."""
    mean, std, *place = call.args
    z = random_normal(call.given[0].shape, mean.dtype.compute, mean.device, 0.0, 1.0, *place)
    deviation = within(std.detach(), 0.0, math.inf, "normal", "std ≥ 0")
    return _tied((mean.detach() + deviation * z).to(mean.dtype), mean, std)


@rule("random_race", table=all_the_same)
def one_race(call):
    """One exponential number."""
    p, *place = call.args
    e = random_exponential(call.given[0].shape, p.dtype.compute, p.device, 1.0, 0.0, *place)
    return (within(p, 0.0, HUGE, "multinomial", CHANCES) / e).to(p.dtype)


def _tied(made, *inputs):
    """What has the gradient 0 with respect to inputs."""
    for x in inputs:
        if x.requires_grad:
            made = made + masked_fill(x, create.full((), True, device=x.device), 0)
    return made


# ------------------------------------------------------------------ what is made of such numbers
@rule("draw_one")
def draw_one(call):
    """More rows."""
    p, u = call.everything()
    return call.op(p.flatten(0, 1), u.flatten(0, 1)).reshape(u.shape)
