"""Division, rounded to the nearest in float32 as in every other type."""
import triton
import triton.language as tl


@triton.jit
def div(x, y):
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)                                           # the plain division of float32 is 2 ulp
    else:
        return x / y
