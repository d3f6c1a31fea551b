"""How attention under a mask of rows and keys starts on Hopper: blocks are listed first, then those on the lists are met."""
from tritorch.cuda.launch import kernels, launch
from tritorch.dtype import types
from tritorch.ops.gemm import hardware
from tritorch.shape import cdiv
from tritorch.tensor import empty

BLOCKS = kernels("attention_blocks")
FORWARD, BACKWARD, BACKWARD_KV = [kernels(f"attention_dense{name}_gluon") for name in ("", "_backward", "_backward_kv")]
HEAD, TILE = 4, 128                                                      # numbers before a list, rows of a block that has one


def listed(p, attn_mask, block, lse=None):
    """(lists, words, their steps along batches and heads in matrices) of the blocks of `block` keys for each of TILE rows; with `lse`, of
    rows for keys."""
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


def started(kernel, p, way, length, heads, tensors, strides):
    """Start a kernel whose programs stay and take pairs of blocks of TILE in turn, of `length` of so many heads; `tensors` are those that
    it takes first."""
    H, group, L, S, scale = *p.numbers[:4], p.numbers[6]
    programs = min(hardware()[0], cdiv(cdiv(length, TILE), 2) * p.batches * heads)
    launch(kernel, (programs,), *tensors, *strides, p.batches, H, group, L, S, scale, *p.numbers[7:], PROGRAMS=programs,
           **{name: p.constants[name] for name in ("MASK", "DROPOUT", "WIDE", "BLOCK_D")},
           **{name: value for name, value in way.items() if name != "kernel"})


def forward(p, way, out, lse, attn_mask, base, query, key, value, tiles):
    """Fill out and lse. `tiles` gives descriptors of tiles of so many rows of tensors."""
    lists, words, steps = listed(p, attn_mask, way["BLOCK_N"])
    started(FORWARD.attention_dense_gluon_kernel, p, way, p.numbers[2], p.numbers[0],
            (*tiles(way["ROWS"], out), lse, attn_mask, lists, words, base, *tiles(way["ROWS"], query), *tiles(way["BLOCK_N"], key, value)),
            (lse.strides, p.stride_mask, steps))


def backward_q(p, way, gq, delta, attn_mask, base, g, query, key, value, out, lse, tiles):
    """Fill gq and delta."""
    lists, words, steps = listed(p, attn_mask, way["BLOCK_N"])
    (gq, g, query, out), keys = tiles(way["ROWS"], gq, g, query, out), tiles(way["BLOCK_N"], key, value)
    started(BACKWARD.attention_dense_backward_q_gluon_kernel, p, way, p.numbers[2], p.numbers[0],
            (gq, delta, attn_mask, lists, words, base, g, query, *keys, out, lse), (lse.strides, delta.strides, p.stride_mask, steps))


def backward_kv(p, way, gk, gv, attn_mask, base, g, query, key, value, lse, delta, tiles):
    """Fill gk and gv."""
    lists, words, steps = listed(p, attn_mask, way["BLOCK_M"], lse)
    own, met = tiles(way["ROWS"], gk, gv, key, value), tiles(way["BLOCK_M"], g, query)
    started(BACKWARD_KV.attention_dense_backward_kv_gluon_kernel, p, way, p.numbers[3], p.numbers[0] // p.numbers[1],
            (*own[:2], attn_mask, lists, words, base, *met, *own[2:], lse, delta), (lse.strides, delta.strides, p.stride_mask, steps))
