"""A kernel with the arguments of an elementwise addition, for the launch path to start."""
import triton


@triton.jit
def nothing_kernel(out_ptr, x_ptr, y_ptr, n, BLOCK: triton.language.constexpr):
    pass
