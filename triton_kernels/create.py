"""Sequences made on the device."""
import triton
import triton.language as tl


@triton.jit
def ramp_kernel(out_ptr, stride, n, start, step, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """start + k * step, in int64 or float64, rounded once."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = start + (k if WHOLE else k.to(tl.float64)) * step
    tl.store(out_ptr + k * stride, value.to(out_ptr.dtype.element_ty), mask=k < n)
