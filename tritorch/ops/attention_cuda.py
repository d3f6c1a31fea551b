"""How attention is laid out on the kernels of triton_kernels/attention.py."""
import math
from functools import lru_cache

import numpy as np

from tritorch.cuda.launch import kernels, launch
from tritorch.ops.attention_cpu import keep_scale, threshold
from tritorch.ops.gemm import hardware
from tritorch.precision import dot_precision
from tritorch.shape import broadcast_strides, cdiv, extent, next_power_of_2
from tritorch.tensor import empty

K = kernels("attention")
LOG2E = math.log2(math.e)

# For each width of the values multiplied in bytes, up to a head size: BLOCK_M, BLOCK_N, num_warps, num_stages of the forward kernel, of
# the gradient of q, and of those of k and v. Compiled for sm_80, sm_90 and sm_100 without dropout none spills, float64 at 256 aside.
TILES = {
    2: {64: ((128, 64, 8, 3), (128, 64, 8, 2), (128, 64, 8, 2)),
        128: ((128, 64, 8, 3), (64, 64, 8, 2), (64, 64, 8, 2)),
        256: ((64, 64, 8, 2), (32, 64, 8, 2), (32, 32, 8, 2))},
    4: {64: ((64, 32, 8, 2), (32, 32, 8, 2), (32, 32, 8, 2)),
        128: ((32, 32, 8, 1), (32, 32, 8, 2), (32, 32, 8, 1)),
        256: ((32, 32, 8, 1), (16, 16, 8, 2), (16, 16, 8, 1))},
    8: {64: ((32, 16, 4, 2), (16, 16, 8, 1), (16, 16, 8, 1)),
        128: ((32, 16, 8, 2), (16, 16, 4, 2), (16, 16, 4, 1)),
        256: ((16, 16, 8, 1), (16, 16, 8, 2), (16, 16, 8, 1))},
}
FORWARD, BACKWARD_Q, BACKWARD_KV = range(3)


def options(which, itemsize, L, S, E, EV, machine):
    """Block sizes of a kernel."""
    block_d, block_v = max(next_power_of_2(E), 16), max(next_power_of_2(EV), 16)
    if machine is None:                                                  # the simulated device: few, large blocks, yet more than one
        rows, keys = [min(max(next_power_of_2(n) // 2, 16), 512) for n in (L, S)]
        warps, stages = 4, 1
    else:
        table = TILES[itemsize]
        rows, keys, warps, stages = table[min((d for d in table if d >= max(block_d, block_v)), default=256)][which]
    return {"E": E, "EV": EV, "BLOCK_M": rows, "BLOCK_N": keys, "BLOCK_D": block_d, "BLOCK_V": block_v, "num_warps": warps,
            "num_stages": stages}


@lru_cache(maxsize=1024)
def plan(query, key, value, mask, dtype, dropout, is_causal, precision, machine, *layouts):
    """(strides of the mask, options of the three kernels). query, key and value are shapes, mask is a shape, strides and dtype, or None,
    layouts are the (shape, strides) of all tensors."""
    (B, H, L, E), S, EV = query, key[2], value[3]
    stride_mask = broadcast_strides(*mask[:2], (B, H, L, S)) if mask else (0, 0, 0, 0)
    spans = [extent(shape[2:], strides[2:]) for shape, strides in layouts] + [extent((L, S), stride_mask[2:])]
    shared = {"CAUSAL": is_causal, "MASK": 0 if mask is None else 1 if mask[2].name == "bool" else 2, "DROPOUT": dropout,
              "PRECISION": precision, "WIDE": max(spans) > 0x7FF00000}
    return stride_mask, [{**options(which, dtype.itemsize, L, S, E, EV, machine), **shared} for which in range(3)]


def prepare(tensors, attn_mask, dropout_p, is_causal, scale, seed, offset):
    """(strides of the mask, the numbers that every kernel takes, options of the three kernels)."""
    query, key, value = tensors[:3]
    dtype, H, G = query.dtype, query.shape[1], key.shape[1]
    mask = None if attn_mask is None else (attn_mask.shape, attn_mask.strides, attn_mask.dtype)
    stride_mask, kernels_options = plan(query.shape, key.shape, value.shape, mask, dtype, dropout_p > 0, is_causal, dot_precision(dtype),
                                        hardware(), *[(x.shape, x.strides) for x in tensors])
    number = np.float64 if dtype.itemsize == 8 else float
    numbers = (H, H // max(G, 1), query.shape[2], key.shape[2], number(scale * LOG2E), threshold(dropout_p), number(keep_scale(dropout_p)),
               seed, offset)
    return stride_mask, numbers, kernels_options


def forward(out, lse, query, key, value, attn_mask, dropout_p, is_causal, scale, seed, offset, base):
    """Fill out and lse."""
    stride_mask, numbers, o = prepare((query, key, value, out), attn_mask, dropout_p, is_causal, scale, seed, offset)
    B, H, L, _ = query.shape
    launch(K.attention_kernel, (cdiv(L, o[FORWARD]["BLOCK_M"]) * B * H,), out, lse, query, key, value, attn_mask, base, out.strides,
           lse.strides, query.strides, key.strides, value.strides, stride_mask, *numbers, **o[FORWARD])


def backward(gq, gk, gv, g, query, key, value, attn_mask, out, lse, dropout_p, is_causal, scale, seed, offset, base):
    """Fill the gradients of query, key and value."""
    stride_mask, numbers, o = prepare((query, key, value, g, out, gq, gk, gv), attn_mask, dropout_p, is_causal, scale, seed, offset)
    (B, H, L, _), (G, S) = query.shape, key.shape[1:3]
    delta = empty(lse.shape, lse.dtype, lse.device)
    inputs, strides = (query, key, value, attn_mask), (query.strides, key.strides, value.strides, stride_mask)
    launch(K.attention_backward_q_kernel, (cdiv(L, o[BACKWARD_Q]["BLOCK_M"]) * B * H,), gq, delta, g, *inputs, out, lse, base, gq.strides,
           g.strides, *strides, out.strides, lse.strides, *numbers, **o[BACKWARD_Q])
    launch(K.attention_backward_kv_kernel, (cdiv(S, o[BACKWARD_KV]["BLOCK_N"]) * B * G,), gk, gv, g, *inputs, lse, delta, base, gk.strides,
           gv.strides, g.strides, *strides, lse.strides, *numbers, **o[BACKWARD_KV])


def keep(out, dropout_p, seed, offset, base):
    """Fill out (B, H, L, S) with the dropout factors."""
    B, H, L, S = out.shape
    block_m, block_n = (32, 64) if hardware() else (256, 256)
    launch(K.attention_keep_kernel, (cdiv(L, block_m) * B * H, cdiv(S, block_n)), out, base, out.strides, H, L, S, threshold(dropout_p),
           np.float64(keep_scale(dropout_p)), seed, offset, BLOCK_M=block_m, BLOCK_N=block_n)
