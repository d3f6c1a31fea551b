"""Lists of the blocks that a mask of rows and keys shows, which the kernels of attention in Gluon go over."""
from tritorch.cuda.launch import kernels, launch
from tritorch.dtype import types
from tritorch.shape import cdiv
from tritorch.tensor import empty

BLOCKS = kernels("attention_blocks")
HEAD, TILE = 4, 128                                                      # numbers before a list, rows of a block that has one


def listed(p, attn_mask, block, lse=None):
    """(lists, words, their steps along batches and heads in matrices) of the blocks of `block` keys for each of TILE rows; with `lse`, of
    rows for keys. (None, None, (0, 0)) where all rows have the same mask."""
    if not p.dense:
        return None, None, (0, 0)
    B, H, (L, S), stride = p.batches, p.numbers[0], p.numbers[2:4], p.stride_mask
    if lse is not None:
        L, S, stride = S, L, (*stride[:2], stride[3], stride[2])
    batches, heads = [1 if step == 0 else n for n, step in zip((B, H), stride)]
    rows, columns = cdiv(L, TILE), cdiv(S, block)
    lists = empty((batches * heads, rows, HEAD + columns), types.int32, attn_mask.device)
    words = empty((batches * heads, rows, columns, TILE, 4), types.int32, attn_mask.device)
    launch(BLOCKS.attention_blocks_kernel, (rows * batches * heads,), lists, words, attn_mask, lse, stride,
           None if lse is None else lse.strides, heads, L, S, MASK=p.constants["MASK"], WIDE=p.constants["WIDE"], BLOCK_M=TILE,
           BLOCK_N=block, num_warps=8)
    return lists, words, (heads * (batches > 1), int(heads > 1))
