"""How attention is laid out on the kernels of triton_kernels/attention*.py."""
import math
from typing import NamedTuple

import numpy as np

from tritorch.cuda import driver
from tritorch.cuda.launch import TensorDescriptor, kernels, launch, tile
from tritorch.cuda.tuner import choose
from tritorch.dtype import types
from tritorch.ops.attention_cpu import keep_scale, threshold
from tritorch.ops.attention_lists import listed
from tritorch.ops.attention_tiles import DENSE, GLUON, TILES, WHOLE, best_first, candidate, shared_bytes
from tritorch.ops.gemm import hardware
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.precision import dot_precision
from tritorch.shape import broadcast_strides, cdiv, extent, next_power_of_2
from tritorch.tensor import empty

FORWARD, SPLIT, BACKWARD, BIAS = [kernels(f"attention{name}") for name in ("", "_split", "_backward", "_bias")]
HOPPER, HOPPER_Q, HOPPER_KV, TOGETHER = [kernels(f"attention{name}_gluon") for name in ("", "_backward", "_backward_kv", "_together")]
WIDE, WIDE_KV = kernels("attention_backward_wide_gluon"), kernels("attention_backward_wide_kv_gluon")
LOG2E = math.log2(math.e)
PARTS = 512                                                              # programs for a gradient of few tiles: a few for each processor
FEW, KEYS = 64, 128                                                      # rows that share a key head; fewest keys of a piece
SHORT, ONE_TILE = 64, ("forward", "backward_q", "backward_kv")           # rows and keys that fit one tile, as in a window of an image

class Problem(NamedTuple):
    """What the kernels of a call have in common."""

    batches: int                                                         # sequences
    stride_mask: tuple
    stride_slopes: tuple
    numbers: tuple                                                       # the scalars that every kernel takes, in their order
    constants: dict                                                      # likewise the constexprs
    key: tuple                                                           # what the best tiles depend on
    tma: bool                                                            # whether all operands can come by TMA
    gluon: tuple                                                         # which of the kernels in Gluon know all that is asked for
    dense: bool                                                          # whether rows have masks of their own

    @classmethod
    def of(cls, tensors, others, attn_mask, alibi_slopes, cu_seq_q, longest, window, scale, dropout):
        """`tensors` are the operands that may be read by TMA: query, key, value (and the gradient); `others` are further ones."""
        query, key, value = tensors[:3]
        (B, H, L, E), G, S, EV, dtype = query.shape, key.shape[1], key.shape[2], value.shape[3], query.dtype
        if longest is not None:
            B, (L, S) = cu_seq_q.shape[0] - 1, longest
        left, right = [None if n is None or n >= L + S else n for n in window]           # what reaches all keys may not fit into 32 bits
        p, seed, offset = dropout
        stride_mask = (0,) * 4 if attn_mask is None else broadcast_strides(attn_mask.shape, attn_mask.strides, (B, H, L, S))
        stride_slopes = (0, 0) if alibi_slopes is None else broadcast_strides(alibi_slopes.shape, alibi_slopes.strides, (B, H))
        spans = [extent(x.shape[2:], x.strides[2:]) for x in (*tensors, *others)] + [extent((L, S), stride_mask[2:])]
        if stride_mask[2] == 0 and attn_mask is not None:
            stride_mask = (*stride_mask[:2], None, stride_mask[3])       # all rows have the same mask
        masked = 0 if attn_mask is None else 2 if attn_mask.dtype.is_floating_point else 1
        number = np.float64 if dtype.itemsize == 8 else float
        numbers = (H, H // max(G, 1), L, S, left or 0, right or 0, number(scale * LOG2E), threshold(p), number(keep_scale(p)), seed, offset)
        constants = {"E": E, "EV": EV, "LEFT": left is not None, "RIGHT": right is not None, "MASK": masked, "DROPOUT": p > 0,
                     "PRECISION": dot_precision(dtype), "WIDE": max(spans) > 0x7FF00000, "BLOCK_D": max(next_power_of_2(E), 16),
                     "BLOCK_V": max(next_power_of_2(EV), 16)}
        tma = dtype.itemsize == 2 and longest is None and constants["BLOCK_D"] == constants["BLOCK_V"] and all(map(described, tensors))
        met = (left is None or left >= 0 and L <= S) and (right or 0) >= 0                       # every row meets some key
        gluon, dense = (), masked > 0 and stride_mask[2] is not None
        own = dense and stride_mask[1] != 0
        possible = tma and p < 1 and met and scale > 0 and all(map(described, others))
        if possible and dense and left is None and right is None and alibi_slopes is None:
            small = constants["BLOCK_D"] <= 128
            gluon = "forward", *["backward_q"] * small, *["backward_kv"] * (small and (H == G or not own))
        elif possible and not dense:
            plain = (left is None or constants["BLOCK_D"] == 256) and alibi_slopes is None and not masked and not p
            gluon = "forward", *["backward"] * (H == G or stride_mask[1] == 0), *["backward_q", "backward_kv"] * plain
        features = [left is not None, right is not None, alibi_slopes is not None, p > 0, longest is not None, tma, bool(gluon)]
        mask = f"mask {masked}{' of rows' * dense}{' and heads' * own}"
        key = (dtype, constants["PRECISION"], E, EV, B * H, H // max(G, 1), L, S, mask, *features)
        return cls(B, stride_mask, stride_slopes, numbers, constants, key, tma, gluon, dense)

    def pieces(self, machine, packed):
        """Into how many pieces to cut the keys of a forward pass, 0 where the plain kernel is as good: by shapes and machine alone."""
        (H, group, L, S, left, right), processors = self.numbers[:6], machine[0] if machine else 32
        if self.constants["RIGHT"]:                                      # the keys that are met; a sequence's last row stands at its last
            S = min(S, S if packed else L + right, L + left + right if self.constants["LEFT"] else S)
        alone = cdiv(L, 128) * self.batches * H                          # programs of the plain kernel, each with a head of its own
        if S < 2 * KEYS or not alone or L * group > FEW and 2 * alone > processors:
            return 0
        return max(min(2 * processors // (cdiv(L * group, FEW) * self.batches * H // group), S // KEYS), 1)

    def candidates(self, which, machine):
        """The ways to run a kernel, the best guess first."""
        group, L, S = self.numbers[1:4]
        L = L * group if which == "split" else L
        block, dtype, precision = max(self.constants["BLOCK_D"], self.constants["BLOCK_V"]), *self.key[:2]
        kernel = "together" if which == "backward" else "plain"
        if machine is None:                                              # the simulated device: few, large blocks, yet more than one
            rows, keys = [min(max(next_power_of_2(n) // 2, 16), 512) for n in (L, S)]
            return [candidate(kernel, False, rows, keys, 4, 1)]
        kind = {2: "half", 8: "fp64"}.get(dtype.itemsize, "ieee" if precision == "ieee" else "tf32")
        shared, major = machine[1:]
        by_tma, one_tile = self.tma and major >= 9, kind == "half" and max(L, S) <= SHORT and block <= 128 and which in ONE_TILE
        table = TILES[which].get(f"{kind} sm_80" if major == 8 else f"{kind} by TMA" if by_tma else kind, TILES[which][kind])
        shape = min((d for d in table if d >= block), default=256)
        tiles = table.get(shape, ())
        ways = [candidate(kernel, False, *tile) for tile in tiles]
        if by_tma:                                                       # forward, pointers are often faster: 91 to 98 µs on an H100
            others = [candidate(kernel, False, *tile) for tile in TILES[which]["half"][shape]] if which == "forward" else ways[:1]
            ways = [candidate(kernel, True, *tile) for tile in tiles] + others
        if one_tile:                                                     # nothing is loaded ahead, and programs are small and many
            ways = [candidate(kernel, False, *[max(next_power_of_2(n), 16) for n in (L, S)], 4, 1)] + ways
        if which == "split":
            if kind == "half" and 7 / 8 * machine[0] < cdiv(L, FEW) * self.batches * self.numbers[0] // group <= machine[0]:
                ways += [{**candidate(kernel, False, *tile), "PIECES": 1} for tile in WHOLE.get(shape, ())]
            ways = [{**way, "BLOCK_M": min(way["BLOCK_M"], max(next_power_of_2(L), 16))} for way in ways]
        fitting = [way for way in ways if shared_bytes(which, way, block, dtype.itemsize) <= shared]
        gluon = []
        if which in self.gluon and major == 9 and max(L, S) > SHORT and not driver.on_host():
            gluon = [{"kernel": "gluon", **tile, "num_warps": 4} for tile in (DENSE if self.dense else GLUON)[which].get(block, ())
                     if ("HALVES" not in tile or self.constants["RIGHT"] and not self.constants["MASK"])
                     and (tile.get("GROUPS", 2) < 4 or not self.constants["MASK"] and not self.constants["DROPOUT"])]
        if self.dense and gluon:                                         # numbers for each head are read as they are, and more by threads
            return fitting + gluon if self.constants["MASK"] == 2 and self.stride_mask[1] else gluon + fitting
        return best_first(which, block, min(L, S), gluon, fitting, "backward_kv" in self.gluon) or ways[-1:]


def described(x):
    """Whether TMA can read a tensor: rows of consecutive elements that start at multiples of 16 bytes."""
    steps = [s for n, s in zip(x.shape[:-1], x.strides) if n > 1]
    return x.strides[-1] == 1 and all(s > 0 and s % 8 == 0 for s in steps) and not x.data_ptr() & 15 and 0 not in x.shape


def descriptor(x, rows, columns):
    """Tiles of (rows, columns) of the heads of x. The steps of dims of size 1 say nothing, but must be legal."""
    steps = [s if n > 1 else 8 for n, s in zip(x.shape[:3], x.strides)]
    return TensorDescriptor(x, (1, 1, rows, columns), x.shape, (*steps, 1))


def columns_beside(problem):
    """REST of triton_kernels/attention_columns_gluon.py: the columns that are multiplied beside the first half; 0: all are."""
    block = problem.constants["BLOCK_D"]
    rest = max(problem.constants["E"], problem.constants["EV"]) - block // 2
    return next((n for n in (16, 32, 64) if rest <= n < block // 2), 0) if block >= 128 else 0


def operands(way, block, rows, keys):
    """Tensors that are read by rows and by keys, as the kernel takes them."""
    if not way["TMA"]:
        return (*rows, *keys)
    return (*[descriptor(x, way["BLOCK_M"], block) for x in rows], *[descriptor(x, way["BLOCK_N"], block) for x in keys])


def settled(problem, way):
    """Constexprs and options of a launch."""
    return {**problem.constants, **{name: value for name, value in way.items() if name != "kernel"}}


def readable(attn_mask, query):
    """The mask as kernels read it: Triton 3.6 compiles no product of float64 whose factor depends on what is loaded in fewer bits."""
    return attn_mask.long() if attn_mask is not None and attn_mask.dtype is types.bool and query.dtype is types.float64 else attn_mask


# ------------------------------------------------------------------ the kernels
def forward(out, lse, query, key, value, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k, longest, window, scale, dropout, base):
    """Fill out and lse."""
    attn_mask = readable(attn_mask, query)
    p = Problem.of((query, key, value), (out,), attn_mask, alibi_slopes, cu_seq_q, longest, window, scale, dropout)
    cu_seq_q, cu_seq_k = _dense(cu_seq_q, cu_seq_k)
    late = scale > 0 and attn_mask is None and alibi_slopes is None

    def run(way):
        if way["kernel"] == "gluon":
            rows, keys = way["ROWS"], way["BLOCK_N"]
            *lists, steps = listed(p, attn_mask, keys)
            return start_gluon(p, {"HALVES": 0, "LEAN": 0, **way}, HOPPER.attention_gluon_kernel, p.numbers[2], p.numbers[0],
                               (rows, *[None] * 6, rows, keys, keys),
                               (out, lse, attn_mask, *lists, alibi_slopes, base, query, key, value),
                               (lse.strides, p.stride_mask, steps, p.stride_slopes), ("LEFT", "RIGHT"), p.numbers[7:],
                               ("MASK", "DROPOUT", "WIDE"), {"REST": columns_beside(p)})
        q, k, v = operands(way, p.constants["BLOCK_D"], (query,), (key, value))
        launch(FORWARD.attention_kernel, (cdiv(p.numbers[2], way["BLOCK_M"]) * p.batches * query.shape[1],), out, lse, q, k, v, attn_mask,
               alibi_slopes, cu_seq_q, cu_seq_k, base, out.strides, lse.strides, query.strides, key.strides, value.strides, p.stride_mask,
               p.stride_slopes, *p.numbers, LATE=late, **settled(p, way))

    if pieces := p.pieces(hardware(), longest is not None):
        tensors = out, lse, query, key, value, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k, base
        _chosen(p._replace(tma=False, gluon=()), "split", SPLIT, "attention_split_kernel",
                lambda way: run_in_pieces(p, way, way.get("PIECES", pieces), *tensors, late=late))
    else:
        _chosen(p, "forward", FORWARD, "attention_kernel", run)
    if longest is not None:
        leave_unpacked(cu_seq_q, (out, 0.0), (lse, -math.inf))


def run_in_pieces(p, way, pieces, out, lse, query, key, value, *others, late):
    """Start the kernel that cuts the keys, and the one that joins its pieces; one piece is the result itself."""
    (H, group, L), whole = p.numbers[:3], pieces == 1
    parts = out if whole else empty((pieces, *out.shape), lse.dtype, lse.device)
    tops, totals = (lse, None) if whole else [empty((pieces, *lse.shape), lse.dtype, lse.device) for _ in range(2)]
    steps = [(*x.strides[x.ndim - n:], 0 if whole else x.strides[0]) for x, n in ((parts, 4), (tops, 3))]
    options = {name: value for name, value in settled(p, way).items() if name not in ("TMA", "PIECES")}
    options["ALIKE"] = p.constants["MASK"] > 0 and p.stride_mask[1] == 0
    programs = cdiv(L * group, way["BLOCK_M"]) * pieces * p.batches * H // group
    launch(SPLIT.attention_split_kernel, (programs,), parts, tops, totals, query, key, value, *others, *steps, query.strides, key.strides,
           value.strides, p.stride_mask, p.stride_slopes, pieces, *p.numbers, LATE=late, **options)
    if not whole:
        block = max(min(next_power_of_2(pieces), 2048 // p.constants["BLOCK_V"]), 1)       # all numbers of a warp stay in registers
        launch(SPLIT.attention_join_kernel, (lse.numel(),), out, lse, parts, tops, totals, out.strides, lse.strides, pieces, lse.numel(),
               *lse.shape[1:], p.numbers[8], BLOCK_P=block, num_warps=1,
               **{name: p.constants[name] for name in ("EV", "DROPOUT", "BLOCK_V")})


def leave_unpacked(cu, *values):
    """Give each tensor its value in the rows that belong to no sequence: a batch of a fixed number of rows ends with some."""
    for x, value in values:
        (heads, rows), columns, block = x.shape[1:3], math.prod(x.shape[3:]), tile(64, 512)
        if x.numel():
            launch(FORWARD.attention_unpacked_kernel, (cdiv(rows, block) * heads,), x, cu, (*x.strides[1:], 0)[:3], cu.shape[0] - 1, rows,
                   value, COLUMNS=columns, BLOCK_M=block, BLOCK_D=next_power_of_2(columns))


def start_gluon(p, way, kernel, length, heads, shapes, tensors, strides, bounds, further=(), known=(), columns=()):
    """Start a Hopper kernel, whose programs stay and take pairs of blocks in turn. `shapes` are the rows of each tensor's tile, or None
    where the tensor is read by a pointer; `length` of `heads` matrices is what its programs own; `bounds` are those that it knows."""
    H, group, L, S, left, right, scale = p.numbers[:7]
    programs = min(hardware()[0], cdiv(cdiv(length, way.get("GROUPS", 2) * way["ROWS"]), 2) * p.batches * heads)
    args = [x if rows is None else descriptor(x, rows, p.constants["BLOCK_D"]) for rows, x in zip(shapes, tensors)]
    launch(kernel, (programs,), *args, *strides, p.batches, H, group, L, S, *(left, right)[-len(bounds):], scale, *further,
           PROGRAMS=programs, **{name: p.constants[name] for name in (*bounds, *known, "BLOCK_D")}, **dict(columns),
           **{name: value for name, value in way.items() if name != "kernel"})


def backward(gq, gk, gv, g, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale, dropout,
             base):
    """Fill the gradients of query, key and value: together, or those of the rows apart from those of the keys. Long, because four kernels
    take the same operands."""
    attn_mask = readable(attn_mask, query)
    p = Problem.of((query, key, value, g), (out, gq, gk, gv), attn_mask, alibi_slopes, cu_seq_q, longest, window, scale, dropout)
    delta, block, H, G = empty(lse.shape, lse.dtype, lse.device), p.constants["BLOCK_D"], query.shape[1], key.shape[1]
    shared = query.strides, key.strides, value.strides, p.stride_mask, p.stride_slopes
    cu_seq_q, cu_seq_k = _dense(cu_seq_q, cu_seq_k)
    L, S = p.numbers[2:4]

    def run_q(way):
        if way["kernel"] == "gluon":
            rows, keys, read = way["ROWS"], way["BLOCK_N"], (g, query, key, value, out, lse)
            if block == 256:
                return start_gluon(p, way, WIDE.attention_backward_wide_q_gluon_kernel, L, H,
                                   (rows, None, rows, rows, keys, keys, None, None), (gq, delta, *read),
                                   (out.strides, lse.strides, delta.strides), ("LEFT", "RIGHT"), known=("EV",))
            *lists, steps = listed(p, attn_mask, keys)
            return start_gluon(p, {"KEPT": 1, **way}, HOPPER_Q.attention_backward_q_gluon_kernel, L, H,
                               (rows, *[None] * 5, rows, rows, keys, keys, rows, None), (gq, delta, attn_mask, *lists, base, *read),
                               (lse.strides, delta.strides, p.stride_mask, steps), ("RIGHT",), p.numbers[7:], ("DROPOUT", "WIDE"),
                               {"REST": columns_beside(p)})
        q, grad, k, v = operands(way, block, (query, g), (key, value))
        launch(BACKWARD.attention_backward_q_kernel, (cdiv(L, way["BLOCK_M"]) * p.batches * H,), gq, delta, grad, q, k, v, attn_mask,
               alibi_slopes, out, lse, cu_seq_q, cu_seq_k, base, gq.strides, g.strides, *shared, out.strides, lse.strides, delta.strides,
               *p.numbers, **settled(p, way))

    def run_kv(way, sums=None, turns=None, places=0):
        if way["kernel"] == "gluon":
            keys, rows, read = way["ROWS"], way["BLOCK_M"], (g, query, key, value, lse, delta)
            if block == 256:
                return start_gluon(p, way, WIDE_KV.attention_backward_wide_kv_gluon_kernel, S, G,
                                   (keys, keys, rows, rows, keys, keys, None, None), (gk, gv, *read), (lse.strides, delta.strides),
                                   ("LEFT", "RIGHT"))
            *lists, steps = listed(p, attn_mask, rows, lse)
            return start_gluon(p, {"HELD": 0, **way}, HOPPER_KV.attention_backward_kv_gluon_kernel, S, G,
                               (keys, keys, *[None] * 4, rows, rows, keys, keys, None, None), (gk, gv, attn_mask, *lists, base, *read),
                               (lse.strides, delta.strides, p.stride_mask, steps), ("RIGHT",), p.numbers[7:], ("DROPOUT", "WIDE"),
                               {"REST": columns_beside(p)})
        q, grad, k, v = operands(way, block, (query, g), (key, value))
        launch(BACKWARD.attention_backward_kv_kernel, (cdiv(S, way["BLOCK_N"]) * p.batches * G,), gk, gv, gq, sums, turns, grad, q, k, v,
               attn_mask, alibi_slopes, lse, delta, cu_seq_q, cu_seq_k, base, gk.strides, gv.strides, gq.strides, g.strides, *shared,
               lse.strides, delta.strides, places, *p.numbers, WAIT=not driver.on_host(), **settled(p, way))

    def run(way):
        if way["kernel"] == "apart":
            _chosen(p, "backward_q", BACKWARD, "attention_backward_q_kernel", run_q)
            return _chosen(p, "backward_kv", BACKWARD, "attention_backward_kv_kernel", run_kv)
        rows, keys = way["BLOCK_M"], way["BLOCK_N"]
        places = cdiv(L, rows) if longest is None else query.shape[2] // rows + p.batches
        blocks = places * H * (p.batches if longest is None else 1)
        sums = empty((blocks, rows, block), lse.dtype, lse.device)
        turns = empty((1 + blocks,), types.int32, lse.device)
        by_tma = way["kernel"] == "together_gluon" and value.shape[3] < block      # loads of half filled tiles are narrow: 115 to 36 µs
        read = [descriptor(x, rows, block) for x in (g, out)] if by_tma else (g, out)
        launch(BACKWARD.attention_backward_delta_kernel, (cdiv(L, rows) * p.batches * H,), gq, delta, turns, *read, cu_seq_q, cu_seq_k,
               gq.strides, g.strides, out.strides, delta.strides, places, H, *p.numbers[2:6], TMA=by_tma, BLOCK_M=rows, BLOCK_N=keys,
               **{name: p.constants[name] for name in ("E", "EV", "LEFT", "RIGHT", "WIDE", "BLOCK_D", "BLOCK_V")})
        if way["kernel"] == "together":
            return run_kv(way, sums, turns, places)
        tiles = cdiv(S, keys)
        programs = min(hardware()[0], tiles * p.batches * G)
        descs = [descriptor(x, n, block) for x, n in ((gk, keys // 2), (gv, keys // 2), (g, rows), (query, rows), (key, keys // 2),
                                                      (value, keys // 2))]
        launch(TOGETHER.attention_together_gluon_kernel, (programs,), *descs[:2], gq, sums, turns, *descs[2:], lse, delta, attn_mask,
               alibi_slopes, base, gq.strides, lse.strides, delta.strides, p.stride_mask, p.stride_slopes, cdiv(4 * programs, tiles),
               p.batches, *p.numbers, BY_ROWS=rows == 128, PROGRAMS=programs,
               **{name: value for name, value in {"BESIDE": 0, "BEHIND": 0, **way}.items() if name != "kernel"},
               **{name: p.constants[name] for name in ("E", "LEFT", "RIGHT", "MASK", "DROPOUT", "WIDE", "BLOCK_D")})

    _chosen(p, "backward", BACKWARD, "attention_backward_kv_kernel", run)
    if longest is not None:
        leave_unpacked(cu_seq_q, (gq, 0.0))
        leave_unpacked(cu_seq_k, (gk, 0.0), (gv, 0.0))


def bias_backward(gb, distance, g, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale,
                  dropout, base):
    """Fill gb, the gradient of attn_mask, or with `distance` that of alibi_slopes."""
    p = Problem.of((query, key, value), (g, out), attn_mask, alibi_slopes, cu_seq_q, longest, window, scale, dropout)
    H, (L, S), places = query.shape[1], p.numbers[2:4], _dense(cu_seq_q, cu_seq_k)
    beside = (1, 1) * distance                                           # a slope is a mask of one row and one key
    own = (*(1,) * (4 - len(beside) - len(gb.shape)), *gb.shape, *beside)
    every_row, every_key = own[2] == 1, own[3] == 1

    def run(way):
        rows, keys = (1 if every_row else cdiv(L, way["BLOCK_M"])), (1 if every_key else cdiv(S, way["BLOCK_N"]))
        shared = (p.batches if own[0] == 1 else 1) * (H if own[1] == 1 else 1) * (cdiv(L, way["BLOCK_M"]) if every_row else 1)
        tiles = rows * keys * own[0] * own[1]
        parts = max(min(shared, cdiv(tile(PARTS, 3), tiles)), 1)
        sums = empty((parts, *gb.shape), lse.dtype, lse.device) if parts > 1 else gb
        steps = broadcast_strides((*gb.shape, *beside), (*sums.strides[parts > 1:], *beside), own)
        launch(BIAS.attention_backward_bias_kernel, (tiles, parts), sums, g, query, key, value, attn_mask, alibi_slopes, out, lse, *places,
               base, (gb.numel(), *steps), g.strides, query.strides, key.strides, value.strides, p.stride_mask, p.stride_slopes,
               out.strides, lse.strides, p.batches, *own[:2], *p.numbers, EVERY_ROW=every_row, EVERY_KEY=every_key, DISTANCE=distance,
               **settled(p, way))
        if parts > 1:
            reduce_rows([gb], [sums], (0,), False, Monoid("sum", "sum"), sums.dtype)

    if gb.numel():
        _chosen(p._replace(tma=False, gluon=()), "bias", BIAS, "attention_backward_bias_kernel", run)


def _dense(*places):
    """Where sequences begin, as kernels read it: contiguous."""
    return [None if x is None else x.contiguous() for x in places]


def _chosen(problem, which, family, kernel, run):
    """Run the kernel in the best way that is known."""
    machine = hardware()
    ways = problem.candidates(which, machine)
    run(ways[0] if machine is None else choose(f"attention_{which}", problem.key, ways, getattr(family, kernel), run))


def keep(out, dropout_p, seed, offset, base):
    """Fill out (B, H, L, S) with the dropout factors."""
    B, H, L, S = out.shape
    block_m, block_n = (32, 64) if hardware() else (256, 256)
    launch(FORWARD.attention_keep_kernel, (cdiv(L, block_m) * B * H * cdiv(S, block_n),), out, base, out.strides, H, L, S,
           threshold(dropout_p), np.float64(keep_scale(dropout_p)), seed, offset, BLOCK_M=block_m, BLOCK_N=block_n)
