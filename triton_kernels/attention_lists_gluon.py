"""Masks of rows and keys for the kernels of attention in Gluon, by the lists that attention_blocks.py has made.

Those blocks come first of which single scores are hidden or changed, then the others, which cost what they do without a mask. Others are
not read. Which scores of a block are hidden is in bits: a word for each of the four threads that hold a row, which is there by the time the
product is. Where bits do not tell, a thread reads the mask itself.
"""
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .attention_mask_gluon import masked

LOG2E = gl.constexpr(1.4426950408889634)
LOWEST = gl.constexpr(-2.0 ** 100)                                       # as in attention_mask_gluon.py
HEAD = gl.constexpr(4)                                                   # as in attention_blocks.py


# ------------------------------------------------------------------ lists and words
@gluon.constexpr_function
def spread(C):
    """(row, c, t, d): where a product of 64 rows and 8 C columns has the column 8 c + 2 t + d, as its threads hold it."""
    columns = [[0, 1 << bit, 0, 0] for bit in range(C.bit_length() - 1)]
    return gl.DistributedLinearLayout([[0, 0, 0, 1], [8, 0, 0, 0], *columns], [[0, 0, 1, 0], [0, 0, 2, 0], [1, 0, 0, 0], [2, 0, 0, 0],
                                      [4, 0, 0, 0]], [[16, 0, 0, 0], [32, 0, 0, 0]], [], [64, C, 4, 2])


@gluon.constexpr_function
def words_of(C):
    """(row, t): where each thread has the words of its own numbers."""
    return gl.SliceLayout(1, gl.SliceLayout(3, spread(C)))


@gluon.jit
def list_of(lists, mask_args, batch, head, row, first, sizes, DIM: gl.constexpr, TILE: gl.constexpr, BLOCK: gl.constexpr):
    """What the block that begins at a row meets: (blocks at the front of its list, all of them, the list, its words, the `first` of the
    block's rows that the words are asked for, how many blocks there could be); and if bits may not tell (whether they do, the mask of the
    head, its steps along rows and keys, how many there are of these). `lists` are the pointers to lists and to words, and their steps of
    batches and heads in matrices; the steps of the mask are in a tuple that has no name in a kernel, or warps would not know that one is 1.
    DIM is 2, or 3 where rows are keys and keys are rows."""
    lists_ptr, words_ptr, step_batch, step_head = lists
    mask_ptr, stride = mask_args
    across = gl.cdiv(sizes[3], BLOCK)
    place = (batch * step_batch + head * step_head).to(gl.int64) * gl.cdiv(sizes[2], TILE) + row // TILE
    list_ptr = lists_ptr + place * (HEAD + across)
    seen = (gl.load(list_ptr), gl.load(list_ptr + 1), list_ptr, words_ptr + place * across * 512, first, across)
    if mask_ptr.dtype.element_ty.is_floating():
        mask_ptr += batch.to(gl.int64) * stride[0] + head.to(gl.int64) * stride[1]
        seen = seen + (gl.load(list_ptr + 2) == 0, mask_ptr, stride[DIM], stride[5 - DIM], sizes[2], sizes[3])
    return seen


@gluon.jit
def block_at(seen, i):
    """The ith block that is met: of a list, of which there are more numbers, or else from right to left."""
    if len(seen) > 4:
        return gl.load(seen[2] + HEAD + gl.where(i < seen[0], i, seen[5] - 1 - (i - seen[0])))
    else:
        return seen[3] - i


@gluon.jit
def words_at(seen, i, BLOCK: gl.constexpr):
    """The words of 64 rows and the ith block of a list; without one, nothing to speak of."""
    if len(seen) > 4:
        W: gl.constexpr = words_of(BLOCK // 8)
        row, t = gl.arange(0, 64, gl.SliceLayout(1, W)), gl.arange(0, 4, gl.SliceLayout(0, W))
        return gl.load(seen[3] + gl.to_tensor(i).to(gl.int64) * 512 + (seen[4] * 4 + row[:, None] * 4 + t[None, :]))
    else:
        return i


@gluon.jit
def shown(s, words):
    """Scores, -inf where their bit is 0. Each bit is looked at where its score is chosen, as in attention_gluon.hidden."""
    C: gl.constexpr = s.shape[1] // 8
    L4: gl.constexpr = spread(C)
    zeros = gl.zeros((64, C, 4, 2), gl.int32, L4)
    c = gl.arange(0, C, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, L4))))
    d = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L4))))
    bits = (zeros + 1) << (2 * c[None, :, None, None] + d[None, None, None, :])
    words = gl.convert_layout((words[:, None, :, None] + zeros).reshape(s.shape), s.type.layout, assert_trivial=True)
    bits = gl.convert_layout(bits.reshape(s.shape), s.type.layout, assert_trivial=True)
    return gl.inline_asm_elementwise("{.reg .pred met; .reg .b32 bit; and.b32 bit, $2, $3; setp.ne.s32 met, bit, 0; "
                                     "selp.f32 $0, $1, 0fFF800000, met;}", "=f,f,r,r", [s, words, bits], dtype=gl.float32, is_pure=True,
                                     pack=1)


@gluon.jit
def with_mask(s, seen, rows, keys):
    """Scores in units of log 2 with the numbers of a mask in them; rows and keys lie along the dims of s."""
    there = (rows < seen[10])[:, None] & (keys < seen[11])[None, :]
    added = gl.load(seen[7] + (rows[:, None] * seen[8] + keys[None, :] * seen[9]), mask=there, other=float("-inf")).to(gl.float32)
    added = gl.where(added == float("-inf"), added, gl.maximum(added * LOG2E, LOWEST, propagate_nan=tl.PropagateNan.ALL))
    return masked(s, added, 2)


@gluon.jit
def shown_scores(s, words, seen, rows, keys):
    """Scores in units of log 2 under the mask: by its bits where these tell."""
    if len(seen) == 6:
        s = shown(s, words)
    else:
        if seen[6]:
            s = shown(s, words)
        else:
            s = with_mask(s, seen, rows, keys)
    return s
