"""A mask that all rows share, as of sequences that are filled up, for the kernels of attention in Gluon: a number for each key."""
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LOG2E = gl.constexpr(1.4426950408889634)
FLOOR = gl.constexpr(-2.0 ** 17)                                         # as in attention.py
LOWEST, TINY = gl.constexpr(-2.0 ** 100), gl.constexpr(2.0 ** -120)


@gluon.jit
def line_of(mask_ptr, stride, batch, head, keys, S):
    """What a mask that all rows share adds to the scores of keys, in units of log 2; -inf past the end. A finite number is not so low that
    its product with TINY would tell in a sum with FLOOR."""
    mask = gl.load(mask_ptr + batch.to(gl.int64) * stride[0] + head.to(gl.int64) * stride[1] + keys * stride[3], mask=keys < S, other=0)
    if mask_ptr.dtype.element_ty.is_floating():
        mask = mask.to(gl.float32)
        line = gl.where(mask == float("-inf"), mask, gl.maximum(mask * LOG2E, LOWEST, propagate_nan=tl.PropagateNan.ALL))
    else:
        line = gl.where(mask != 0, 0.0, float("-inf"))
    return gl.where(keys < S, line, float("-inf"))


@gluon.jit
def end_of_seen(mask_ptr, stride, batch, head, S, LAYOUT: gl.constexpr, BLOCK_N: gl.constexpr):
    """The keys up to the last block of which a mask shows any, that nobody need look at the others; one block where it shows none."""
    SPAN: gl.constexpr = 2 * BLOCK_N
    start, last = gl.to_tensor(gl.cdiv(S, SPAN) * SPAN), gl.to_tensor(-1)
    while (last < 0) & (start > 0):
        start -= SPAN
        keys = start + gl.arange(0, SPAN, LAYOUT)
        last = gl.max(gl.where(line_of(mask_ptr, stride, batch, head, keys, S) != float("-inf"), keys, -1), 0)
    return gl.minimum((gl.maximum(last, 0) // BLOCK_N + 1) * BLOCK_N, S)


@gluon.jit
def masked(s, line, MASK: gl.constexpr):
    """Scores in units of log 2 with the mask in them, as `biased` in attention.py has it; `line` lies along a dim of s."""
    s = s + line
    if MASK == 2:
        s = gl.maximum(s, line * TINY + FLOOR, propagate_nan=tl.PropagateNan.ALL)         # FLOOR, but -inf where a key is hidden
    return s
