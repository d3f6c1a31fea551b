"""Random bits as uniform and as normal numbers, in numpy."""
import math

import numpy as np

# Polynomials, highest power first: of x², for sin x = x · … and cos x with |x| up to π/2; of f, for log(1 + f) = f + f² · … with 1 + f from
# √½ to √2.
SINE = 2.6052248854602222e-06, -0.0001980907527619341, 0.008333051063211076, -0.1666665799190217, 0.9999999957327914
COSINE = (-2.605149501122561e-07, 2.4760161339593134e-05, -0.0013888361400004323, 0.041666636258051316, -0.4999999935847167,
          0.9999999997806562)
LOGARITHM = (0.08734750613876259, -0.1430748307198223, 0.1491798878700537, -0.16570514069484582, 0.199620712827901, -0.25001755013763793,
             0.33333950238812216, -0.4999999160813834)


def unit(bits):
    """[0, 1): 24 bits of uint32 in float32, 53 bits of uint64 in float64."""
    if bits.dtype == np.uint64:
        return (bits >> np.uint64(11)) * 2.0**-53
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def open_unit(bits):
    """(0, 1), neither end."""
    if bits.dtype == np.uint64:
        return ((bits >> np.uint64(12)) + 0.5) * 2.0**-52
    return ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)


def standard_normal(bits):
    """Box and Muller, 1958, for pairs of words. In float32 by sums, products and a square root alone, each of which every machine rounds
    alike: triton_kernels/random_same.py draws the same numbers to the last bit."""
    x, y = bits[0::2], bits[1::2]
    if bits.dtype == np.uint64:
        out, radius, angle = np.empty(bits.shape), np.sqrt(-2 * np.log(open_unit(x))), 2 * math.pi * unit(y)
        np.multiply(radius, np.cos(angle), out=out[0::2])
        np.multiply(radius, np.sin(angle), out=out[1::2])
        return out
    u = x.astype(np.float32)
    u *= np.float32(2.0**-32)
    u += np.float32(2.0**-33)
    radius = minus_two_logs(u)
    np.sqrt(radius, out=radius)
    half = y.view(np.int32).astype(np.float32)
    half *= np.float32(math.pi * 2.0**-32)
    square = half * half
    reach = polynomial(SINE, square)
    reach *= half
    sine, out = reach.copy(), np.empty(bits.shape, np.float32)
    reach *= radius + radius
    np.multiply(reach, polynomial(COSINE, square), out=out[1::2])
    reach *= sine
    np.subtract(radius, reach, out=out[0::2])
    return out


def polynomial(factors, x):
    """Its value in float32, each step rounded."""
    value = x * np.float32(factors[0])
    for factor in factors[1:-1]:
        value += np.float32(factor)
        value *= x
    value += np.float32(factors[-1])
    return value


def minus_two_logs(u):
    """-2 log u for float32 in (0, 1]; u is lost."""
    bits = u.view(np.int32)
    exponent = bits - np.int32(0x3F3504F3)
    exponent >>= 23
    bits -= exponent << np.int32(23)
    u -= np.float32(1)
    out = u * u
    out *= polynomial(LOGARITHM, u)
    out += u
    scaled = exponent.astype(np.float32)
    scaled *= np.float32(math.log(2))
    out += scaled
    out *= np.float32(-2)
    return out
