"""What is summed over pairs of numbers: terms of losses and of distances (see monoids.py), and gradients of distances."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from . import monoids, slopes
from .loss import binary_cross_entropy_terms


# ------------------------------------------------------------------ losses
@triton.jit
def mse_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, slopes.mse_terms(x, y), 0),)


@triton.jit
def l1_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, slopes.l1_terms(x, y), 0),)


@triton.jit
def smooth_l1_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, slopes.smooth_l1_terms(x, y, param), 0),)


@triton.jit
def huber_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, slopes.huber_terms(x, y, param), 0),)


@triton.jit
def logits_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, (1.0 - y) * x - slopes.log_sigmoid(x), 0),)


@triton.jit
def chances_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, binary_cross_entropy_terms(x, y), 0),)


@triton.jit
def divergence_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, slopes.divergence_terms(x, y), 0),)


# ------------------------------------------------------------------ distances: norms of x - y
@triton.jit
def zeroth_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return monoids.zeroth_lift(x - y, base, valid, param, IDENTITY)


@triton.jit
def absolute_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return monoids.absolute_lift(x - y, base, valid, param, IDENTITY)


@triton.jit
def square_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return monoids.square_lift(x - y, base, valid, param, IDENTITY)


@triton.jit
def cube_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return monoids.cube_lift(x - y, base, valid, param, IDENTITY)


@triton.jit
def fourth_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return monoids.fourth_lift(x - y, base, valid, param, IDENTITY)


@triton.jit
def power_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return monoids.power_lift(x - y, base, valid, param, IDENTITY)


@triton.jit
def bounded_absolute_lift(x, y, base, valid, param, IDENTITY: tl.constexpr):
    return monoids.bounded_absolute_lift(x - y, base, valid, param, IDENTITY)


# ------------------------------------------------------------------ gradients of distances in x: g of a distance, its value, x and y
@triton.jit
def signed(g, x):
    return tl.where(x > 0, g, tl.where(x < 0, -g, 0.0)).to(g.dtype)


@triton.jit
def sign_slope_lift(g, distance, x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid, signed(g, x - y), 0),)


@triton.jit
def straight_slope_lift(g, distance, x, y, base, valid, param, IDENTITY: tl.constexpr):
    return (tl.where(valid & (distance != 0), g / tl.where(distance == 0, 1.0, distance).to(g.dtype) * (x - y), 0),)


@triton.jit
def power_slope_lift(g, distance, x, y, base, valid, param, IDENTITY: tl.constexpr):
    """g · sign(x - y) · (|x - y| / distance)^(p - 1), 0 where x is y."""
    apart = tl.abs(x - y)
    share = apart / tl.where(distance == 0, 1.0, distance).to(g.dtype)
    power = libdevice.pow(share, (param - 1).to(g.dtype) + tl.zeros_like(share))
    return (tl.where(valid & (apart != 0) & (distance != 0), signed(g, x - y) * power, 0),)
