"""Scores to weights, for the kernels of attention in Gluon: which of them are hidden, biases by distance, exponentials."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .attention_lists_gluon import shown_scores
from .attention_mask_gluon import masked

LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def sums_of_threads(p):
    """(rows, 4): what each of the four threads that hold a row adds up alone."""
    return gl.sum(gl.sum(p.reshape((p.shape[0], p.shape[1] // 8, 4, 2)), 3), 1)


@gluon.jit
def hidden(s, rows, keys, bounds, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """Scores, -inf where rows may not meet keys. Each is compared where it is chosen: ptxas keeps 64 results of comparisons at a time in
    bits of registers, which takes three times the instructions."""
    S, left, right = bounds
    ends = gl.full((s.shape[0], ), 0, gl.int32, rows.type.layout) + S
    if RIGHT:
        ends = gl.minimum(rows + right + 1, S)
    s = gl.inline_asm_elementwise("{.reg .pred met; setp.lt.s32 met, $2, $3; selp.f32 $0, $1, 0fFF800000, met;}", "=f,f,r,r",
                                  [s, keys[None, :], ends[:, None]], dtype=gl.float32, is_pure=True, pack=1)
    if LEFT:
        s = gl.where(keys[None, :] >= (rows - left)[:, None], s, float("-inf"))
    return s


@gluon.jit
def slope_of(slopes_ptr, stride, batch, head):
    """What a distance of 1 from the diagonal takes off the scores of a head, in units of log 2."""
    return gl.load(slopes_ptr + batch.to(gl.int64) * stride[0] + head.to(gl.int64) * stride[1]).to(gl.float32) * LOG2E


@gluon.jit
def less_by_distance(s, rows, keys, slope):
    """Scores in units of log 2 less slope · distance; rows and keys lie along the dims of s, and are converted before they are many."""
    return s - slope * gl.abs(rows.to(gl.float32) - keys.to(gl.float32))


@gluon.jit
def softmax(s, top, total, words, rows, n, seen, scale, slope, line, EDGE: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
            MASK: gl.constexpr):
    """(weights, new maximum, new totals of each thread, how much shrinks what was there). Scores s are not scaled yet."""
    keys = n + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
    if slope is not None:
        s = less_by_distance(s * scale, rows[:, None], keys[None, :], slope)
        scale = 1.0
    if MASK > 0:
        s = masked(s * scale, line.load(gl.SliceLayout(0, s.type.layout))[None, :], MASK)
        scale = 1.0
    if EDGE:
        if len(seen) > 4:
            s = shown_scores(s * scale, words, seen, rows, keys)
            scale = 1.0
        else:
            s = hidden(s, rows, keys, seen[:3], LEFT, RIGHT)
    higher = gl.maximum(top, gl.max(s, 1) * scale)
    pivot = higher
    if EDGE or MASK > 0:
        pivot = gl.where(higher == float("-inf"), 0.0, higher)           # a row that sees no key yet
    p = gl.exp2(s * scale - pivot[:, None])
    shrink = gl.exp2(top - pivot)
    mine = gl.convert_layout(shrink, gl.SliceLayout(1, total.type.layout), assert_trivial=True)
    return p, higher, total * mine[:, None] + sums_of_threads(p), shrink
