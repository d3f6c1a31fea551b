"""A Gluon kernel that only Hopper can run."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma


@gluon.jit
def wgmma_kernel(out_ptr):
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    a = gl.allocate_shared_memory(gl.float16, [64, 64], shared)
    b = gl.allocate_shared_memory(gl.float16, [64, 64], shared)
    c = warpgroup_mma(a, b, gl.zeros([64, 64], gl.float32, product))
    row, column = gl.arange(0, 64, gl.SliceLayout(1, product)), gl.arange(0, 64, gl.SliceLayout(0, product))
    gl.store(out_ptr + row[:, None] * 64 + column[None, :], c)
