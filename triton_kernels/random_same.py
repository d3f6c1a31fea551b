"""Normal numbers in float32 that are those of the CPU to the last bit: for tensors that are drawn where they are going.

They are made of nothing but what IEEE 754 rounds in one way: sums, products and a square root, no two of them fused (the launch says so:
enable_fp_fusion=False), in the order of `tritorch.ops.normals.standard_normal`, of which this is the twin. The kernels in random.py are
quicker and right within 3e-6.
"""
import triton
import triton.language as tl

from .random import NUMBERS, bits_of, in_order


@triton.jit
def minus_two_logs(u):
    """-2 log u for float32 in (0, 1], u = 2^e (1 + f) with 1 + f from √½ to √2."""
    bits = u.to(tl.int32, bitcast=True)
    e = (bits - 0x3F3504F3) >> 23
    f = (bits - (e << 23)).to(tl.float32, bitcast=True) - 1.0
    q = f * 0.08734750613876259 - 0.1430748307198223
    q = q * f + 0.1491798878700537
    q = q * f - 0.16570514069484582
    q = q * f + 0.199620712827901
    q = q * f - 0.25001755013763793
    q = q * f + 0.33333950238812216
    q = q * f - 0.4999999160813834
    return (f * f * q + f + e.to(tl.float32) * 0.6931471805599453) * -2.0


@triton.jit
def normal_pair(x, y):
    """Box and Muller's two numbers, by the sine and the cosine of half the angle."""
    u = x.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    radius = tl.sqrt_rn(minus_two_logs(u))
    half = y.to(tl.int32, bitcast=True).to(tl.float32) * 7.314590396335798e-10                   # π · 2⁻³²
    s = half * half
    sine = s * 2.6052248854602222e-06 - 0.0001980907527619341
    sine = sine * s + 0.008333051063211076
    sine = sine * s - 0.1666665799190217
    sine = (sine * s + 0.9999999957327914) * half
    cosine = s * -2.605149501122561e-07 + 2.4760161339593134e-05
    cosine = cosine * s - 0.0013888361400004323
    cosine = cosine * s + 0.041666636258051316
    cosine = cosine * s - 0.4999999935847167
    cosine = cosine * s + 0.9999999997806562
    reach = (radius + radius) * sine
    return radius - reach * sine, reach * cosine


@triton.jit(do_not_specialize=NUMBERS)
def same_normal_kernel(out_ptr, N, mean, std, seed: tl.int64, offset: tl.int64, PLAIN: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = mean + std z_i; PLAIN: z_i."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    w0, w1, w2, w3 = bits_of(seed, offset, start, None, False, BLOCK)
    x0, y0 = normal_pair(w0, w1)
    x1, y1 = normal_pair(w2, w3)
    z = in_order(x0, y0, x1, y1)
    if not PLAIN:
        z = z * std.to(tl.float32) + mean.to(tl.float32)
    i = start + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, z, mask=i < N)
