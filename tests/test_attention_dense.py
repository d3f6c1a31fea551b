"""Masks of rows and keys on Hopper: the lists of blocks, and the schedules of the kernels that go over them, run on threads."""
from types import SimpleNamespace

import numpy as np
import pytest
from arrays import draw
from gluon_threads import Pointer, run, tensor
from test_attention_gluon import BACKWARD, FORWARD, reference, tiles

from tritorch.ops import attention_cpu, attention_lists
from tritorch.tensor import from_array

LOWEST = float(np.finfo(np.float32).min)


def causal(B, L, S):
    """Behind the diagonal, and behind each sequence's end, nothing is seen; the first rows of the last sequence see nothing at all."""
    ends = np.linspace(S, S // 2, B, dtype=int)[:, None, None, None]
    seen = np.tile(np.tri(L, S, S - L, dtype=bool), (B, 1, 1, 1)) & (np.arange(S) < ends)
    seen[-1, :, :20] = False
    return seen


def mask_of(kind, B, L, S):
    """bool; `lowest`: 0 and the lowest number; `hidden`: 0 and -inf; `numbers`: any in some blocks, 0 in others, and -inf."""
    seen = causal(B, L, S)
    if kind == "bool":
        return seen
    added = np.where(seen, 0, LOWEST if kind == "lowest" else -np.inf).astype(np.float32)
    if kind == "numbers":
        added[..., 64:, :64] += draw(B, 1, L - 64, 64)
    return added


def listed(mask, rows, keys, turned=False):
    """(lists, words) as attention_blocks.py says, one element at a time where it counts."""
    B, _, L, S = mask.shape
    shown, free = (mask, mask) if mask.dtype == bool else (mask > -2.0 ** 99, mask == 0)
    low = np.zeros_like(shown) if mask.dtype == bool else ~shown & (mask > -np.inf)
    mean = low.any(-1, keepdims=True) & ~shown.any(-1, keepdims=True)
    if turned:
        shown, free, low, mean, L, S = [*[np.broadcast_to(x, mask.shape).swapaxes(2, 3) for x in (shown, free, low, mean)], S, L]
    blocks, across = -(-L // rows), -(-S // keys)
    lists = np.full((B, blocks, 4 + across), -1)
    words = np.zeros((B, blocks, across, rows, 4), np.int64)
    for b, block in np.ndindex(B, blocks):
        of = np.s_[b, 0, block * rows:(block + 1) * rows]
        part, whole, changed = [], [], (shown[of] & ~free[of]).any() or (mean & low)[of].any()
        for n in range(across):
            tile = np.s_[:, n * keys:(n + 1) * keys]
            if free[of][tile].all() and free[of][tile].shape[1] == keys:
                whole.append(n)
            elif shown[of][tile].any() or changed and (not turned and mean[of].any() or turned and mean[of][tile].any()):
                part.append(n)
        if not turned and mean[of].any():
            part, whole = list(range(across)), []
        words[b, block] = -1 if whole and not part else 0
        for place, n in enumerate(part):
            piece = np.zeros((rows, keys), bool)
            inside = shown[of][:, n * keys:(n + 1) * keys]
            piece[:inside.shape[0], :inside.shape[1]] = inside
            bits = piece.reshape(rows, keys // 8, 4, 2).transpose(0, 2, 1, 3).reshape(rows, 4, -1).astype(np.int64)
            words[b, block, place] = (bits << np.arange(bits.shape[2])).sum(2).astype(np.uint32).astype(np.int32)
        part = part or ([] if whole else [0])
        lists[b, block, :3] = len(part), len(part) + len(whole), changed
        lists[b, block, 4:4 + len(part)] = part
        lists[b, block, 4 + across - len(whole):] = whole[::-1]
    return lists, words


def lse_of(mask, heads=1):
    """What tells the rows that see the lowest numbers alone."""
    top = (np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask).max(-1)
    return np.repeat(np.where(top == -np.inf, top, np.maximum(top, -9e4)), heads, 1).astype(np.float32)


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", ["bool", "lowest", "hidden", "numbers"])
def test_lists(kind, turned, block, cuda, monkeypatch):
    """Of rows, and of keys; from memory in which keys lie apart."""
    monkeypatch.setattr("tritorch.cuda.driver.hardware_tiles", True)
    mask = mask_of(kind, 2, 300, 333)
    held = from_array(np.ascontiguousarray(mask.swapaxes(2, 3))).to(cuda).mT
    p = SimpleNamespace(dense=True, batches=2, numbers=(4, 2, 300, 333), stride_mask=(held.stride(0), 0, *held.stride()[2:]),
                        constants={"MASK": 1 if kind == "bool" else 2, "WIDE": False})
    lists, words, steps = attention_lists.listed(p, held, block, from_array(lse_of(mask, 4)).to(cuda) if turned else None)
    want_lists, want_words = listed(mask, attention_lists.TILE, block, turned)
    assert steps == (1, 0)
    for found, want, bits, want_bits in zip(lists.cpu().array.reshape(-1, lists.shape[2]), want_lists.reshape(-1, lists.shape[2]),
                                            words.cpu().array.reshape(-1, *words.shape[2:]), want_words.reshape(-1, *words.shape[2:])):
        part, steps, changed = want[:3]
        whole = steps - part
        assert found[:3].tolist() == want[:3].tolist()
        assert (found[4:4 + part] == want[4:4 + part]).all() and (found[len(found) - whole:] == want[len(want) - whole:]).all()
        if not changed:
            there = min(attention_lists.TILE, 300)
            assert (bits[:max(part, 1), :there] == want_bits[:max(part, 1), :there]).all()


@pytest.mark.parametrize("kind, p", [("bool", 0.0), ("bool", 0.3), ("lowest", 0.0), ("numbers", 0.3), ("hidden", 0.0)])
@pytest.mark.parametrize("programs, stages", [(2, 2), (3, 3)])
def test_schedules(kind, p, programs, stages):
    (B, H, G, L, S), D, rng = (2, 2, 1, 150, 200), 16, np.random.default_rng(3)
    q, k, v, g = [rng.standard_normal((B, n, rows, D)) for n, rows in ((H, L), (G, S), (G, S), (H, L))]
    mask = mask_of(kind, B, L, S)
    added = np.where(mask, 0, -np.inf) if kind == "bool" else np.where(mask == LOWEST, attention_cpu.FLOOR[np.float32], mask)
    q = np.where((added < -9e4).all(-1, keepdims=True), 0, q)            # a mean of all values, also where the floor is a sum
    seed, offset, keep = 5, (1 << 32) - 2000, 1.0
    if p:
        keep = np.array([attention_cpu.kept(seed, offset, n, slice(0, L), L, S, p, np.dtype("f8")) for n in range(B * H)])
        keep = keep.reshape(B, H, L, S)
    lonely = (added == -np.inf).all(-1, keepdims=True)                   # rows that see nothing: as if all of their weights were dropped
    want = [*reference(q, k, v, g, None, None, None, 0.3, np.where(lonely, 0, added), keep * ~lonely)]
    want[1][np.broadcast_to(lonely[..., 0], want[1].shape)] = -np.inf
    want[3:] = [x.reshape(B, G, H // G, S, D).sum(2) for x in want[3:]]
    stride, step = (H * L, L, 1), (L * S, 0, S, 1)
    sizes, numbers = (B, H, H // G, L, S), (0.3 * np.log2(np.e), tensor(attention_cpu.threshold(p)), attention_cpu.keep_scale(p),
                                            tensor(seed), tensor(offset))
    known = {"RIGHT": False, "DROPOUT": p > 0, "WIDE": False, "PROGRAMS": programs, "ROWS": 64,
             "BLOCK_D": D, "REST": 0, "STAGES": stages}
    out, gq, gk, gv = [np.full_like(x, np.nan) for x in (q, q, k, v)]
    lse, delta = np.full((2, B, H, L), np.nan)
    before = [Pointer(x) for x in (mask, *listed(mask, 128, 64))]
    run("attention_gluon_kernel", FORWARD, *tiles(64, out), Pointer(lse), *before, None, None, *tiles(64, q, k, v), stride, step, (1, 0),
        None, *sizes, 0, 0, *numbers, GROUPS=2, HALVES=0, LEAN=0, BLOCK_N=64, LEFT=False, MASK=1 if kind == "bool" else 2, **known)
    run("attention_backward_q_gluon_kernel", BACKWARD, *tiles(64, gq), Pointer(delta), *before, None, *tiles(64, g, q, k, v, out),
        Pointer(lse), stride, stride, step, (1, 0), *sizes, 0, *numbers, BLOCK_N=64, KEPT=programs - 1, **known)
    before = [Pointer(x) for x in (mask, *listed(mask, 128, 64, True))]
    run("attention_backward_kv_gluon_kernel", BACKWARD, *tiles(64, gk, gv), *before, None, *tiles(64, g, q, k, v), Pointer(lse),
        Pointer(delta), stride, stride, step, (1, 0), *sizes, 0, *numbers, BLOCK_M=64, HELD=programs - 2, **known)
    for mine, other in zip((out, lse, gq, gk, gv), want):
        np.testing.assert_allclose(mine, other, atol=1e-9 if kind in ("bool", "hidden") else 1e-6)
