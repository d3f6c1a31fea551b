"""The schedules of attention's kernels in Gluon: rings, turns, phases, edges and pairs of blocks, run on threads."""
import functools

import numpy as np
import pytest
from gluon_threads import Descriptor, Pointer, code_of, language, run, tensor

from tritorch.ops import attention_cpu

FORWARD = [f"attention_{name}gluon" for name in ("places_", "slots_", "columns_", "dropout_", "mask_", "lists_", "softmax_", "")]
BACKWARD = [*FORWARD, "attention_backward_gluon", "attention_backward_kv_gluon"]
TOGETHER = [*FORWARD, "attention_backward_gluon", "attention_turns_gluon", "attention_together_gluon"]
WIDE = [*FORWARD, "attention_backward_gluon", "attention_backward_wide_gluon", "attention_backward_wide_kv_gluon"]
SHAPES = [(1, 2, 2, 40, 40), (2, 2, 1, 70, 33), (1, 4, 2, 33, 90), (1, 1, 1, 130, 130), (1, 1, 1, 5, 5), (1, 2, 1, 64, 100)]


def reference(q, k, v, g, slopes, left, right, scale, added=0.0, keep=1.0):
    k, v = [np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v)]
    s = q @ k.swapaxes(-1, -2) * scale
    away = np.arange(s.shape[-1]) - np.arange(s.shape[-2])[:, None]
    if slopes is not None:
        s = s - slopes[:, None, None] * abs(away)
    s = s + added
    s = np.where((away >= (-np.inf if left is None else -left)) & (away <= (np.inf if right is None else right)), s, -np.inf)
    top = s.max(-1, keepdims=True)
    lse = top + np.log(np.exp(s - top).sum(-1, keepdims=True))
    p = np.exp(s - lse)
    out = p * keep @ v
    slopes = p * (g @ v.swapaxes(-1, -2) * keep - (g * out).sum(-1, keepdims=True))
    return out, lse[..., 0], slopes @ k * scale, slopes.swapaxes(-1, -2) @ q * scale, (p * keep).swapaxes(-1, -2) @ g


def tiles_of(columns, n, *arrays):
    return [Descriptor(x, 1, 1, n, columns) for x in arrays]


def tiles(n, *arrays):
    return tiles_of(arrays[0].shape[-1], n, *arrays)


@pytest.mark.parametrize("left, right", [(None, None), (None, 0), (None, 17), (20, 0), (0, 3), (37, None)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows, block, stages, groups, programs, rest, lean, held", [
    (16, 32, 2, 2, 2, 0, 0, 0), (16, 16, 3, 3, 3, 2, 0, 0), (32, 16, 2, 2, 1, 0, 1, 0), (16, 16, 3, 4, 2, 0, 1, 0),
    (16, 16, 3, 2, 2, 0, 0, 1)])
def test_schedules(rows, block, stages, groups, programs, rest, lean, held, shape, left, right):
    """Of the columns only half of them and `rest` are multiplied, where it is given. These kernels take a bound on the left where every row
    meets some key: where there are no more rows than keys. `held`: there is room for two tiles of rows, and keys are in registers."""
    B, H, G, L, S = shape
    if left is not None and L > S:
        pytest.skip("some rows meet no key")
    D, rng = 4 + rest or 8, np.random.default_rng(3)
    q, k, v, g = [rng.standard_normal(s) for s in ((B, H, L, D), (B, G, S, D), (B, G, S, D), (B, H, L, D))]
    slopes = rng.random(H) if right == 3 or left == 37 else None
    want = reference(q, k, v, g, slopes, left, right, 0.3)
    out, gq, gk, gv = [np.full_like(x, np.nan) for x in (q, q, k, v)]
    lse, delta = np.full((2, B, H, L), np.nan)
    stride, tiles = (H * L, L, 1), functools.partial(tiles_of, 8)
    sizes, scale = (B, H, H // G, L, S), 0.3 * np.log2(np.e)
    options = {"RIGHT": right is not None, "PROGRAMS": programs, "ROWS": rows, "BLOCK_D": 8, "STAGES": stages,
               "REST": rest, "DROPOUT": False, "WIDE": False}

    run("attention_gluon_kernel", FORWARD, *tiles(rows, out), Pointer(lse), *[None] * 3, slopes if slopes is None else Pointer(slopes),
        None, *tiles(rows, q), *tiles(block, k, v), stride, None, None, (0, 1), *sizes, left or 0, right or 0, scale, *[None] * 4,
        LEFT=left is not None, MASK=0, BLOCK_N=block, GROUPS=groups, HALVES=block == 2 * rows, LEAN=lean,
        **options)
    for mine, other in zip((out, lse), want):
        np.testing.assert_allclose(mine, other, atol=1e-9)
    if left is not None:
        return
    run("attention_backward_q_gluon_kernel", BACKWARD, *tiles(rows, gq), Pointer(delta), *[None] * 4, *tiles(rows, g, q),
        *tiles(block, k, v), *tiles(rows, out), Pointer(lse), stride, stride, (0,) * 4, None, *sizes, right or 0, scale, *[None] * 4,
        BLOCK_N=block, KEPT=1 + held, **options)
    run("attention_backward_kv_gluon_kernel", BACKWARD, *tiles(rows, gk, gv), *[None] * 4, *tiles(block, g, q), *tiles(rows, k, v),
        Pointer(lse), Pointer(delta), stride, stride, (0,) * 4, None, *sizes, right or 0, scale, *[None] * 4, BLOCK_M=block, HELD=held,
        **options)
    shared = [x.reshape(B, G, H // G, S, D).sum(2) for x in want[3:]]
    for mine, other in zip((gq, gk, gv), (want[2], *shared)):
        np.testing.assert_allclose(mine, other, atol=1e-9)


@pytest.mark.parametrize("length", [257, 640, 1024, 1408])
def test_programs_share_the_blocks(length):
    """An odd number of blocks leaves one without a partner, and it is not always the same programs that have it."""
    counts, sizes = [], (16, 1024, tensor(length))
    for program in range(132):
        names = language(program, 4)
        for family in FORWARD:
            exec(code_of(family), names)
        items = names["pairs_of"](sizes, 128)[1]
        counts.append(sum(int(names["tiles_in"](names["item_of"](cycle, 132), sizes, 128)) for cycle in range(-(-int(items) // 132))))
    assert sum(counts) == 1024 * -(-length // 128) and max(counts) - min(counts) <= 3


@pytest.mark.parametrize("left, right", [(None, None), (None, 0), (None, 17), (40, 0), (0, 3), (61, None)])
@pytest.mark.parametrize("shape", [(1, 2, 1, 40, 40), (1, 4, 2, 70, 110), (2, 1, 1, 20, 200), (1, 1, 1, 5, 5)])
@pytest.mark.parametrize("by_rows, rows, keys, kept, stages, programs, beside, behind", [
    (False, 16, 32, 2, 2, 3, 0, 0), (True, 32, 32, 1, 3, 2, 3, 0), (False, 16, 64, 1, 2, 5, 0, 1), (True, 32, 32, 2, 2, 3, 2, 1)])
def test_together(by_rows, rows, keys, kept, stages, programs, beside, behind, shape, left, right):
    """However the programs meet: nobody waits for ever, and the bits are the same."""
    B, H, G, L, S = shape
    D, rng = 16, np.random.default_rng(3)
    q, k, v, g = [rng.standard_normal(s) for s in ((B, H, L, D), (B, G, S, D), (B, G, S, D), (B, H, L, D))]
    slopes = rng.random(H) if right == 3 or left == 61 else None
    out, lse, *want = reference(q, k, v, g, slopes, left, right, 0.3)
    want[1:] = [x.reshape(B, G, H // G, S, D).sum(2) for x in want[1:]]
    delta, stride, before = (g * out).sum(-1), (H * L, L, 1), None
    for _ in range(2):
        found = [np.full_like(x, np.nan) for x in (q, k, v)]
        blocks = -(-L // rows) * B * H
        sums, turns = np.full((blocks, rows, D), np.nan), np.zeros(1 + blocks, int)
        run("attention_together_gluon_kernel", TOGETHER, *tiles(keys // 2, *found[1:]), *map(Pointer, (found[0], sums, turns)),
            *tiles(rows, g, q), *tiles(keys // 2, k, v), Pointer(lse), Pointer(delta), None, slopes if slopes is None else Pointer(slopes),
            None, (H * L * D, L * D, D, 1), stride, stride, None, (0, 1), beside, B, H, H // G, L, S, left or 0, right or 0,
            0.3 * np.log2(np.e), *[None] * 4, E=D, LEFT=left is not None, RIGHT=right is not None, MASK=0, DROPOUT=False, BY_ROWS=by_rows,
            BLOCK_M=rows, BLOCK_N=keys, BLOCK_D=D, KEPT=kept, STAGES=stages, BESIDE=beside > 0, BEHIND=behind, PROGRAMS=programs,
            WIDE=False, at_once=True)
        for mine, other in zip(found, want):
            np.testing.assert_allclose(mine, other, atol=1e-9)
        assert before is None or all((a == b).all() for a, b in zip(before, found))
        before = found


@pytest.mark.parametrize("p, kind", [(0.3, None), (0.0, "added"), (0.3, "padding")])
@pytest.mark.parametrize("right, groups, programs", [(None, 2, 2), (0, 3, 3)])
def test_dropout_and_masks(p, kind, right, groups, programs):
    """The bits are those of the CPU; one sequence has no key at all, and nothing but zeros comes of it. Blocks of keys behind the last that
    is seen are not read forward, and not multiplied backward."""
    (B, H, L, S), D, rng = (2, 2, 150, 200), 16, np.random.default_rng(3)
    q, k, v, g = [rng.standard_normal((B, H, n, D)) for n in (L, S, S, L)]
    mask, added = rng.standard_normal((B, 1, 1, S)), 0.0
    mask[0, ..., 60:] = mask[1] = -np.inf
    if kind is not None:
        mask = mask if kind == "added" else np.isfinite(mask)
        added = mask if kind == "added" else np.where(mask, 0, -np.inf)
    seed, offset, keep = 5, (1 << 32) - 2000, 1.0
    if p:
        keep = np.array([attention_cpu.kept(seed, offset, n, slice(0, L), L, S, p, np.dtype("f8")) for n in range(B * H)])
        keep = keep.reshape(B, H, L, S)
    with np.errstate(invalid="ignore"):
        want = [np.nan_to_num(x, nan=0.0) for x in reference(q, k, v, g, None, None, right, 0.3, added, keep)]
    want[1][1 if kind else B:] = -np.inf
    stride, step, masks = (H * L, L, 1), (S, 0, None, 1), Pointer(mask) if kind else None
    numbers = (B, H, 1, L, S, 0, right or 0, 0.3 * np.log2(np.e), tensor(attention_cpu.threshold(p)), attention_cpu.keep_scale(p),
               tensor(seed), tensor(offset))
    known = {"LEFT": False, "RIGHT": right is not None, "MASK": {"padding": 1, "added": 2}.get(kind, 0), "DROPOUT": p > 0,
             "PROGRAMS": programs, "BLOCK_D": D}
    out, gq, gk, gv = [np.full_like(x, np.nan) for x in (q, q, k, v)]
    lse = np.full((B, H, L), np.nan)
    near, others = [[np.where(np.arange(S)[:, None] < (end if kind else S), x, np.nan) for x in (k, v)] for end in (64, 128)]
    run("attention_gluon_kernel", FORWARD, *tiles(64, out), Pointer(lse), masks, *[None] * 4, *tiles(64, q, *near), stride, step, None,
        None, *numbers, GROUPS=groups, ROWS=64, BLOCK_N=64, REST=0, STAGES=2, HALVES=0, LEAN=int(groups == 2), WIDE=False,
        **known)
    delta, turns = (g * out).sum(-1), np.zeros(1 + 2 * B * H, int)
    run("attention_together_gluon_kernel", TOGETHER, *tiles(64, gk, gv), *map(Pointer, (gq, np.full((2 * B * H, 128, D), np.nan), turns)),
        *tiles(128, g, q), *tiles(64, *others), Pointer(lse), Pointer(delta), masks, None, None, (H * L * D, L * D, D, 1), stride, stride,
        step, None, groups, *numbers, E=D, BY_ROWS=True, BLOCK_M=128, BLOCK_N=128, KEPT=2, STAGES=2, BESIDE=groups - 2, BEHIND=groups - 2,
        WIDE=False, at_once=True, **known)
    for mine, other in zip((out, lse, gq, gk, gv), want):
        np.testing.assert_allclose(mine, other, atol=1e-9)


@pytest.mark.parametrize("left, right", [(None, None), (None, 0), (None, 17), (20, 0), (0, 3), (37, None)])
@pytest.mark.parametrize("rows, block, stages, programs, shape", [(16, 32, 2, 2, (1, 2, 2, 40, 40)), (16, 16, 3, 3, (1, 4, 2, 33, 90)),
                                                                  (32, 16, 2, 1, (2, 2, 1, 70, 33)), (32, 32, 2, 2, (1, 1, 1, 130, 130)),
                                                                  (16, 16, 2, 1, (1, 1, 1, 5, 5))])
def test_wide(rows, block, stages, programs, shape, left, right):
    """Gradients of heads that fill shared memory: the groups of the second kernel hand over weights."""
    B, H, G, L, S = shape
    if left is not None and L > S:
        pytest.skip("some rows meet no key")
    D, rng = 16, np.random.default_rng(3)
    q, k, v, g = [rng.standard_normal(s) for s in ((B, H, L, D), (B, G, S, D), (B, G, S, D), (B, H, L, D))]
    out, lse, *want = reference(q, k, v, g, None, left, right, 0.3)
    gq, gk, gv, delta = [np.full_like(x, np.nan) for x in (q, k, v, lse)]
    stride, numbers = (H * L, L, 1), (B, H, H // G, L, S, left or 0, right or 0, 0.3 * np.log2(np.e))
    options = {"LEFT": left is not None, "RIGHT": right is not None, "PROGRAMS": programs, "ROWS": rows, "BLOCK_D": D, "STAGES": stages}
    run("attention_backward_wide_q_gluon_kernel", WIDE, *tiles(rows, gq), Pointer(delta), *tiles(rows, g, q), *tiles(block, k, v),
        Pointer(out), Pointer(lse), (H * L * D, L * D, D, 1), stride, stride, *numbers, BLOCK_N=block, EV=D, **options)
    run("attention_backward_wide_kv_gluon_kernel", WIDE, *tiles(rows, gk, gv), *tiles(block, g, q), *tiles(rows, k, v), Pointer(lse),
        Pointer(delta), stride, stride, *numbers, GROUPS=1, BLOCK_M=block, **options)
    shared = [x.reshape(B, G, H // G, S, D).sum(2) for x in want[1:]]
    for mine, other in zip((delta, gq, gk, gv), ((g * out).sum(-1), want[0], *shared)):
        np.testing.assert_allclose(mine, other, atol=1e-9)
