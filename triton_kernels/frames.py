"""Frames of signals, added up where they overlap."""
import triton
import triton.language as tl


@triton.jit
def overlap_add_kernel(out_ptr, x_ptr, stride_ob, stride_ot, stride_xb, stride_xf, stride_xj, T, FRAMES, SIZE, STEP, LAYERS,
                       BLOCK: tl.constexpr):
    """out (batch, T): each place the sum of the frames of x (batch, FRAMES, SIZE) that lie on it, frame f from f · STEP on, the last one
    first; at most LAYERS of them."""
    blocks = tl.cdiv(T, BLOCK)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    t = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    last = t // STEP
    total = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for layer in range(LAYERS):
        f = last - layer
        j = t - f * STEP
        there = (t < T) & (f >= 0) & (f < FRAMES) & (j < SIZE)
        total += tl.load(x_ptr + batch * stride_xb + f * stride_xf + j * stride_xj, mask=there, other=0)
    tl.store(out_ptr + batch * stride_ob + t * stride_ot, total, mask=t < T)
