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


@lru_cache(maxsize=1024)
def options(which, itemsize, L, S, E, EV, machine):
    """Block sizes of a kernel."""
    block_d, block_v = max(next_power_of_2(E), 16), max(next_power_of_2(EV), 16)
    if machine is None:                                                  # the simulated device: few, large blocks, yet more than one
        rows, keys = [min(max(next_power_of_2(n) // 2, 16), 512) for n in (L, S)]
        warps, stages = 4, 1
    else:
        table = TILES[itemsize]
        rows, keys, warps, stages = table[min((d for d in table if d >= max(block_d, block_v)), default=256)][which]
    return dict(E=E, EV=EV, BLOCK_M=rows, BLOCK_N=keys, BLOCK_D=block_d, BLOCK_V=block_v, num_warps=warps, num_stages=stages)


class Call:
    """What the kernels of one call share: mask, geometry and scalars."""

    def __init__(self, tensors, attn_mask, dropout_p, is_causal, scale, seed, offset, base):
        query, key, value = tensors[:3]
        (self.B, self.H, self.L, self.E), (self.G, self.S), self.EV = query.shape, key.shape[1:3], value.shape[-1]
        number = np.float64 if query.dtype.name == "float64" else float
        shape = (self.B, self.H, self.L, self.S)
        self.mask, self.stride_mask = attn_mask, (0, 0, 0, 0)
        if attn_mask is not None:
            self.stride_mask = broadcast_strides(attn_mask.shape, attn_mask.strides, shape)
        self.numbers = (self.H, self.H // max(self.G, 1), self.L, self.S, number(scale * math.log2(math.e)), threshold(dropout_p),
                        number(keep_scale(dropout_p)), seed, offset)
        wide = max([extent(x.shape[2:], x.strides[2:]) for x in tensors] + [extent(shape[2:], self.stride_mask[2:])]) > 0x7FF00000
        self.constants = dict(CAUSAL=is_causal, MASK=0 if attn_mask is None else 1 if attn_mask.dtype.name == "bool" else 2,
                              DROPOUT=dropout_p > 0, PRECISION=dot_precision(query.dtype), WIDE=wide)
        self.itemsize = query.dtype.itemsize

    def options(self, which):
        return {**options(which, self.itemsize, self.L, self.S, self.E, self.EV, hardware()), **self.constants}


def forward(out, lse, query, key, value, attn_mask, dropout_p, is_causal, scale, seed, offset, base):
    """Fill out and lse."""
    call = Call((query, key, value, out), attn_mask, dropout_p, is_causal, scale, seed, offset, base)
    o = call.options(FORWARD)
    launch(K.attention_kernel, (cdiv(call.L, o["BLOCK_M"]), call.B * call.H), out, lse, query, key, value, call.mask, base, out.strides,
           lse.strides, query.strides, key.strides, value.strides, call.stride_mask, *call.numbers, **o)


def backward(gq, gk, gv, g, query, key, value, attn_mask, out, lse, dropout_p, is_causal, scale, seed, offset, base):
    """Fill the gradients of query, key and value."""
    call = Call((query, key, value, g, out, gq, gk, gv), attn_mask, dropout_p, is_causal, scale, seed, offset, base)
    delta = empty(lse.shape, lse.dtype, lse.device)
    inputs, strides = (query, key, value, call.mask), (query.strides, key.strides, value.strides, call.stride_mask)
    o = call.options(BACKWARD_Q)
    launch(K.attention_backward_q_kernel, (cdiv(call.L, o["BLOCK_M"]), call.B * call.H), gq, delta, g, *inputs, out, lse, base, gq.strides,
           g.strides, *strides, out.strides, lse.strides, *call.numbers, **o)
    o = call.options(BACKWARD_KV)
    launch(K.attention_backward_kv_kernel, (cdiv(call.S, o["BLOCK_N"]), call.B * call.G), gk, gv, g, *inputs, lse, delta, base, gk.strides,
           gv.strides, g.strides, *strides, lse.strides, *call.numbers, **o)


def keep(out, dropout_p, seed, offset, base):
    """Fill out (B, H, L, S) with the dropout factors."""
    B, H, L, S = out.shape
    block_m, block_n = (32, 64) if hardware() else (256, 256)
    launch(K.attention_keep_kernel, (cdiv(L, block_m), cdiv(S, block_n), B * H), out, base, out.strides, H, L, S, threshold(dropout_p),
           np.float64(keep_scale(dropout_p)), seed, offset, BLOCK_M=block_m, BLOCK_N=block_n)
