"""Functions that the GPU has instructions for, where their last bits do not matter; float64 is as exact as ever."""
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

FEW = tl.constexpr(64)


@triton.jit
def quick_exp(x):
    """exp(x), in float32 by the GPU's own function: two instructions, within (2 + |x|) ulp, numbers too small for it as 0."""
    return libdevice.fast_expf(x) if x.dtype == tl.float32 else libdevice.exp(x)


@triton.jit
def quick_power(x, p):
    """x^p of x >= 0, in float32 in three instructions, not a hundred, within (2 + |p log2 x|) ulp, what is below 2⁻¹²⁶ as 0."""
    return libdevice.exp2(p * libdevice.fast_log2f(x)) if x.dtype == tl.float32 else libdevice.pow(x, p + tl.zeros_like(x))


@triton.jit
def quick_inverse(x):
    """1 / x, in float32 within 2 ulp, for x below 2¹²⁶."""
    one = tl.where(x == x, 1.0, 1.0)                                    # tl.full would need a layout inside of a Gluon kernel
    return libdevice.fast_dividef(one, x) if x.dtype == tl.float32 else 1.0 / x


@triton.jit
def widened(x, T: tl.constexpr):
    """x as T, float32 or wider. What was just rounded to bfloat16 goes by its bits: LLVM would round it a second time, each number by
    itself, which the GPU does at the rate of exp, where two numbers at once are rounded eight times as fast."""
    if x.dtype == tl.bfloat16 and T == tl.float32:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(T)


@triton.jit
def after_the_one_before(EARLY: tl.constexpr):
    """Of a kernel launched EARLY (launch_pdl), which begins while the one in front of it still runs: wait for all that one has written, and
    let the next begin if programs are FEW (see tritorch/cuda/compiler_early.py). Nothing of memory may be read or written above this, but
    a descriptor that is an argument."""
    if EARLY:
        gdc_wait()
        if tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2) <= FEW:
            gdc_launch_dependents()


@triton.jit
def let_the_next_begin(EARLY: tl.constexpr):
    """The same of a kernel that has no more than to store what it has summed up: the next one comes once all programs are here or have
    ended, which leaves few multiprocessors to crowd onto, and comes while they store."""
    if EARLY:
        gdc_launch_dependents()
