"""Products of groups: what the cards cannot know. A GPU's tiles, groups of any size, gradients of every pairing of ranks."""
import numpy as np
import pytest
from arrays import draw

import tritorch as T
from tritorch.cuda import compiler, driver, tuner
from tritorch.cuda.dry import DryDriver
from tritorch.ops import grouped
from tritorch.ops.grouped import grouped_rows, grouped_sums
from tritorch.tensor import from_array

ENDS = [0, 70, 70, 203]                                                  # an empty group, one larger than a tile, rows behind the last


def by_hand(a, b, ends):
    starts = [0, *ends[:-1]]
    if a.ndim == 2 and b.ndim == 3:
        out = np.zeros((len(a), b.shape[2]), a.dtype)
        for s, e, m in zip(starts, ends, b):
            out[s:e] = a[s:e] @ m
        return out
    if a.ndim == 3:
        return by_hand(b.T, a.transpose(0, 2, 1), ends).T
    return np.stack([a[:, s:e] @ b[s:e] for s, e in zip(starts, ends)])


SHAPES = [((215, 45), (4, 45, 77)), ((77, 215), (215, 45)), ((4, 77, 45), (45, 215))]


@pytest.mark.parametrize("a, b", SHAPES)
@pytest.mark.parametrize("size, tile", [(2, tile) for tile in grouped.TILES[2]] + [(4, tile) for tile in grouped.TILES[4]], ids=str)
def test_every_tile(a, b, size, tile, cuda, monkeypatch):
    """In the dtype whose tile it is: of wider numbers it may not fit in shared memory."""
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    dtype, rounding = {2: (np.float16, 2.0 ** -11), 4: (np.float32, 0)}[size]
    x, y = draw(*a).astype(dtype), draw(*b).astype(dtype)
    candidate = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"), tile))
    with tuner.forcing("grouped", candidate):
        out = T.nn.functional.grouped_mm(from_array(x).to(cuda), from_array(y).to(cuda), offs=T.tensor(ENDS, dtype=T.int32, device=cuda))
    want = by_hand(x.astype(np.float64), y.astype(np.float64), ENDS)
    np.testing.assert_allclose(out.cpu().array, want, atol=1e-4, rtol=rounding)


@pytest.mark.records
@pytest.mark.parametrize("arch", [86, 90])
def test_tiles_fit_in_shared_memory(arch):
    import machine_code

    with driver.using(DryDriver(arch)) as device, compiler.recording() as record, tuner.trying_all():
        for dtype in (T.float16, T.float32, T.float64):
            x, y = T.empty(215, 48, dtype=dtype, device="cuda"), T.empty(4, 48, 80, dtype=dtype, device="cuda")
            T.nn.functional.grouped_mm(x, y, offs=T.zeros(4, dtype=T.int32, device="cuda"))
        most = device.properties.shared_memory_per_block_optin
    specs = [s for s in record.values() if s.kernel.__name__ == "grouped_rows_kernel"]
    assert len(specs) >= 4 and all(code["shared"] <= most for code in machine_code.used(specs, arch))


@pytest.mark.parametrize("a, b", [((7, 3), (3, 3, 4)), ((4, 7), (7, 3)), ((3, 4, 3), (3, 7))])
def test_gradients_of_every_pairing(a, b):
    ends = [2, 2, 6]
    x, y, weights = draw(*a, dtype=np.float64), draw(*b, dtype=np.float64), draw(*by_hand(draw(*a), draw(*b), ends).shape, dtype=np.float64)
    p, q = [from_array(v).requires_grad_() for v in (x, y)]
    out = T.nn.functional.grouped_mm(p, q, offs=T.tensor(ends, dtype=T.int32))
    (out * from_array(weights)).sum().backward()
    for leaf, values in ((p, x), (q, y)):
        for place in list(np.ndindex(values.shape))[::3]:
            kept, sides = values[place], []
            for step in (1e-6, -1e-6):
                values[place] = kept + step
                sides.append((by_hand(x, y, ends) * weights).sum())
            values[place] = kept
            assert abs((sides[0] - sides[1]) / 2e-6 - leaf.grad.array[place]) < 1e-6


def test_misfits_raise_one_sentence():
    x, ends = from_array(draw(4, 3)), T.tensor([2, 4], dtype=T.int32)
    for arguments, sentence in (((x, x, ends, x), "no bias"), ((x, x.unsqueeze(0)), "offs unless both have 3 dims")):
        with pytest.raises(RuntimeError, match=f"grouped_mm: expected {sentence}"):
            T.nn.functional.grouped_mm(*arguments[:2], **dict(zip(("offs", "bias"), arguments[2:])))


@pytest.mark.parametrize("ends, got", [([2, 4, 9], 9), ([4, 2, 8], 2), ([-1, 3, 8], -1), ([2, 1 << 30, 1 << 30], 1 << 30)])
def test_ends_that_do_not_ascend_are_reported(ends, got, cuda):
    """And nothing outside of the result is written: it lies in the middle of memory that stays as it is."""
    for device in ("cpu", cuda):
        offs, memory = T.tensor(ends, dtype=T.int32, device=device), T.ones(24, 16, device=device)
        x, y = T.ones(8, 16, device=device), T.ones(3, 16, 16, device=device)
        for operator, args in ((grouped_rows, (x, y, offs)), (grouped_sums, (x.mT, x, offs))):
            out = memory[8:16] if operator is grouped_rows else None
            with pytest.raises(RuntimeError, match=f"grouped_mm: expected offs that ascend from 0 to at most .*, got {got}"):
                (operator(*args) if out is None else operator.into(out, *args)).cpu()
        assert (memory[:8] == 1).all() and (memory[16:] == 1).all()
