"""8-bit floating numbers by arithmetic on bits, for casts that the compiler does not know (see tritorch/cuda/compiler_float8.py)."""
import triton
import triton.language as tl


@triton.jit
def half_of_e4m3(bits):
    """float16 of a float8_e4m3fn given as uint8: sign, 4 bits of exponent, 3 bits."""
    code = bits.to(tl.int16)
    small = (((code & 0x80) << 8) | ((code & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return tl.where((code & 0x7F) == 0x7F, float("nan"), small * 256.0)             # the exponents' biases differ by 8


@triton.jit
def rounded(x, FRACTION: tl.constexpr, BIAS: tl.constexpr, MOST: tl.constexpr):
    """The bits, as uint8, of the number nearest to a float32 x, halves to even, whose exponent has this bias and whose fraction as many
    bits; MOST are the bits of the float32 that stands for all larger ones.

    A float32 times a power of two, added to it, is rounded by the adder where its last bit is that of the smallest numbers.
    """
    CUT: tl.constexpr = 23 - FRACTION
    SHIFTED: tl.constexpr = 151 - BIAS - FRACTION                        # exponent of a float32 whose last bit is that of subnormal numbers
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    least = tl.minimum(size, MOST)
    normal = ((least + ((1 << (CUT - 1)) - 1) + ((least >> CUT) & 1)) >> CUT) - ((127 - BIAS) << FRACTION)
    subnormal = (least.to(tl.float32, bitcast=True) + 2.0 ** (SHIFTED - 127)).to(tl.int32, bitcast=True) - (SHIFTED << 23)
    code = tl.where(least < ((128 - BIAS) << 23), subnormal, normal)
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def e4m3_of_float(x):
    """What is larger than 448, infinity too, becomes 448, as by the instruction of sm_89."""
    return rounded(x, 3, 7, 0x43E00000)


@triton.jit
def e5m2_of_float(x):
    """What is larger than 57344 by half a step or more becomes infinity."""
    return rounded(x, 2, 15, 0x47800000)


@triton.jit
def with_infinity(value, x):
    """A float8_e5m2 that the instruction of sm_89 made of x: it knows no infinity."""
    infinity = tl.where(x < 0, 0xFC, 0x7C).to(tl.uint8).to(value.dtype, bitcast=True)
    return tl.where(tl.abs(x) >= 61440.0, infinity, value)
