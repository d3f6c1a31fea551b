"""Dropout and masks in every kernel that attention may choose, in the tiles of a GPU, against float64.

Sizes are odd and NaN lies where results go. What the simulated GPU cannot run is left to -m gpu, which also is for the GPU made of PTX.
"""
import functools
import itertools

import numpy as np
import pytest
from arrays import draw
from pytorch_numbers import rounded, size_of_error
from test_error_ratio import gluon, heads_in_memory, number, settled, ways

import tritorch as T
from tritorch.cuda import driver
from tritorch.ops import attention_cpu, attention_cuda
from tritorch.philox import block
from tritorch.tensor import from_array

B, G, L, S = 2, 2, 133, 151
SCALE, PLACE = 0.2, (-77, (1 << 32) - 3000)                              # the counters' lower halves overflow on the way
# name: query heads of a key head, window, p, mask
ASKED = {"dropout": (2, (None, 0), 0.3, None), "padding and dropout": (2, (None, None), 0.1, "padding"),
         "lowest and dropout": (1, (40, 0), 0.3, "added"), "padding": (1, (None, None), 0.0, "padding"),
         "added": (1, (None, 0), 0.0, "added")}
BESIDE = {"window": (2, (40, 0), 0.0, None), "causal": (2, (None, 0), 0.0, None), "of rows": (2, (None, None), 0.0, "rows"),
          "of rows, dropout": (1, (None, None), 0.3, "rows"), "lowest of rows": (1, (None, None), 0.0, "rows lowest"),
          "numbers of rows": (2, (None, None), 0.3, "rows numbers")}


def mask_of(kind, heads):
    """`padding`: keys behind the last of each sequence, one of which has none. `added`: numbers of each head, among them -inf and such
    that hide a key from rows that see others; one head has no others. `rows`: keys before each row, and of one sequence neither the first
    keys nor the last; added to all heads alike, as 0 and the lowest number, or with other numbers."""
    if kind.startswith("rows"):
        seen = np.tri(L, S, S - L, dtype=bool) & np.ones((B, 1, 1, 1), bool)
        seen[0, ..., :30] = seen[0, ..., 140:] = False
        added = np.where(seen, draw(B, 1, L, S) if "numbers" in kind else 0, np.finfo(np.float32).min).astype(np.float32)
        return seen if kind == "rows" else added
    if kind == "padding":
        return np.arange(S) < np.array([0, 70])[:, None, None, None]
    added = draw(B, heads, 1, S)
    added[..., ::7], added[..., 1::7] = -np.inf, np.finfo(np.float32).min
    added[0, 0] = np.finfo(np.float32).min
    return added


@functools.cache
def attended(name, size):
    """(operands, mask, results in float64, and as they are where weights and slopes are rounded)"""
    group, (left, right), p, kind = (ASKED | BESIDE)[name]
    shapes = (B, G * group, L, size), (B, G, S, size), (B, G, S, size), (B, G * group, L, size)
    arrays = [rounded(draw(*shape, dtype=np.float32, seed=seed), "bfloat16") for seed, shape in enumerate(shapes)]
    mask = None if kind is None else mask_of(kind, G * group)
    mask = mask if mask is None or mask.dtype == bool else rounded(mask, "bfloat16")
    away = np.arange(S) - np.arange(L)[:, None]
    bias = np.where((away >= (-S if left is None else -left)) & (away <= (S if right is None else right)), 0, -np.inf)
    added = np.zeros(1) if mask is None else np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
    keep = np.ones((B, G * group, L, S))
    if p:
        heads = range(B * G * group)
        keep = np.array([attention_cpu.kept(*PLACE, n, slice(0, L), L, S, p, np.dtype("f8")) for n in heads]).reshape(keep.shape)
    roundings = np.asarray, lambda x: rounded(x, "bfloat16")
    return arrays, mask, *[results(*arrays, bias, added, keep, group, as_it_is) for as_it_is in roundings]


def results(q, k, v, g, bias, added, keep, group, as_it_is):
    k, v = [np.repeat(x, group, 1).astype(np.float64) for x in (k, v)]
    s = q @ k.swapaxes(-1, -2) * SCALE
    s = np.maximum(s + added, np.where(added == -np.inf, added, attention_cpu.FLOOR[np.float32])) + bias
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(top == -np.inf, 0, top))
    total = p.sum(-1, keepdims=True)
    p /= np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    out = as_it_is((as_it_is(p * keep) @ v).astype(np.float32))
    slopes = as_it_is((p * (g @ v.swapaxes(-1, -2) * keep - (g * out).sum(-1, keepdims=True))).astype(np.float32))
    gk, gv = slopes.swapaxes(-1, -2) @ q * SCALE, as_it_is(p * keep).swapaxes(-1, -2) @ g
    return out, lse, slopes @ k * SCALE, *[x.reshape(B, -1, group, *x.shape[2:]).sum(2) for x in (gk, gv)]


def heads(x, device):
    return T.cat([heads_in_memory(one, T.bfloat16, device) for one in x])


def holds(name, size, device, **candidates):
    """Forward where its candidate is given, else backward; the errors are those of what is rounded."""
    arrays, mask, want, rounded_ones = attended(name, size)
    _, window, p, _ = (ASKED | BESIDE)[name]
    settings = None, None, None, window, SCALE, (p, *PLACE), None
    q, k, v, g, out = [heads(x, device) for x in (*arrays, rounded(rounded_ones[0].astype(np.float32), "bfloat16"))]
    lse = from_array(want[1]).to(device).float()
    if mask is not None:
        mask = from_array(mask).to(device) if mask.dtype == bool else from_array(mask).to(device).bfloat16()
    with settled("highest", **candidates):
        if "attention_forward" in candidates:
            found, first = (T.full_like(out, float("nan")), T.full_like(lse, float("nan"))), 0
            attention_cuda.forward(*found, q, k, v, mask, None, *settings)
        else:
            found, first = [T.full_like(x, float("nan")) for x in (q, k, v)], 2
            attention_cuda.backward(*found, g, q, k, v, mask, None, out, lse, *settings)
    for place, got in enumerate(found, first):
        if place == 1:
            np.testing.assert_allclose(number(got), want[1], rtol=1e-5, atol=1e-5)
        else:
            error, allowed = [size_of_error(x, want[place]) for x in (number(got), rounded_ones[place])]
            assert error <= 1.3 * allowed + 0.002, f"result {place}: {error:.4f}, {allowed:.4f} would be by rounding"


def cases():
    """Of the kernels that the simulated GPU runs the first for each type of heads; all of those that it does not run."""
    for size in (64, 128):
        for which in ("forward", "backward"):
            found = [(next(iter(ways(which, "half", size))), ())] + [(way, pytest.mark.gpu) for way in gluon(which, size)]
            for way, marks in found:
                for name in ASKED:
                    yield pytest.param(name, size, {f"attention_{which}": way}, marks=marks,
                                       id="-".join([name, str(size), which, *[str(v) for v in way.values()]]))
    apart = {f"attention_backward_{which}": next(iter(ways(f"backward_{which}", "half", 64))) for which in ("q", "kv")}
    for name in ASKED:
        yield pytest.param(name, 64, {"attention_backward": {"kernel": "apart"}, **apart}, id=f"{name}-apart")
    for name, way in itertools.product(("padding and dropout", "lowest and dropout"), gluon("forward", 256)):
        yield pytest.param(name, 256, {"attention_forward": way}, marks=pytest.mark.gpu, id=f"{name}-256-forward")
    apart = {f"attention_backward_{which}": gluon(f"backward_{which}", 256)[0] for which in ("q", "kv")}
    for size, name in [*itertools.product((32, 64, 128, 256), [name for name in BESIDE if "rows" in name]), (80, "of rows")]:
        found = {which: [{"kernel": "gluon", **way, "num_warps": 4} for way in table.get(128 if size == 80 else size, ())]
                 for which, table in attention_cuda.DENSE.items()}
        settings = [{"attention_forward": way} for way in found["forward"]]
        settings += [{"attention_backward": {"kernel": "apart"}, "attention_backward_q": q, "attention_backward_kv": kv}
                     for q, kv in zip(found["backward_q"], found["backward_kv"])]
        for one in settings:
            yield pytest.param(name, size, one, marks=pytest.mark.gpu, id=f"{name}-{size}-{'forward' if len(one) == 1 else 'apart'}")
    for size, bound in ((72, 128), (96, 128), (160, 256)):               # of the columns filled up some are not multiplied
        yield pytest.param("causal", size, {"attention_forward": gluon("forward", bound)[0]}, marks=pytest.mark.gpu, id=f"causal-{size}")
        apart = {f"attention_backward_{which}": gluon(f"backward_{which}", bound)[0] for which in ("q", "kv")}
        yield pytest.param("causal", size, {"attention_backward": {"kernel": "apart"}, **apart}, marks=pytest.mark.gpu,
                           id=f"causal-{size}-apart")
    yield pytest.param("window", 256, {"attention_backward": {"kernel": "apart"}, **apart}, marks=pytest.mark.gpu, id="window-256-apart")


@pytest.mark.parametrize("name, size, candidates", list(cases()))
def test_every_kernel(name, size, candidates, cuda, monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    if "gluon" in str(candidates) and driver.current().device_properties(0).major != 9:
        pytest.skip("these multiply as Hopper does alone")
    holds(name, size, cuda, **candidates)


def test_the_bits_of_a_score():
    """As the docstring of `kept` in triton_kernels/attention.py says."""
    matrix, length, keys, seed, offset = 3, 40, 35, 5, 11
    keep = attention_cpu.kept(seed, offset, matrix, slice(0, length), length, keys, 0.5, np.dtype("f4"))
    for i, j in [(0, 0), (7, 34), (8, 1), (24, 9), (39, 34), (17, 22)]:
        pair, quad = matrix * 24 + i // 16 * 8 + i % 8, j // 16 * 4 + j % 8 // 2
        word = block(seed, offset + pair * 12 + quad, 0, rounds=7)[2 * (i // 8 % 2) + j // 8 % 2]
        assert keep[i, j] == 2 * ((word >> 16 * (j % 2) & 0x7FFF) >= 1 << 14)
    rows = attention_cpu.kept(seed, offset, matrix, slice(9, 37), length, keys, 0.5, np.dtype("f4"))
    assert (rows == keep[9:37]).all()
