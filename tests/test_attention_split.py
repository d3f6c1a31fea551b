"""Attention of few rows to many keys, which are cut into pieces: every form of it, how many pieces, errors beside the plain kernel's."""
import numpy as np
import pytest

import tritorch as T
from tritorch.cuda import driver, tuner
from tritorch.cuda.dry import DryDriver
from tritorch.ops import attention_cuda
from tritorch.ops.attention import attention, scaled_dot_product_attention
from tritorch.tensor import from_array

SHAPES = [(2, 8, 2, 1, 300), (1, 6, 6, 5, 333), (1, 4, 1, 3, 517), (3, 2, 2, 1, 256), (1, 8, 4, 33, 290)]


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def operands(B, H, G, L, S, E=24, EV=17, dtype=T.float64):
    """Rows of heads that lie beside each other in memory, as a projection gives them."""
    shapes = (B, L, H, E), (B, S, G, E), (B, S, G, EV)
    return [from_array(draw(*shape, seed=k)).to(dtype).transpose(1, 2) for k, shape in enumerate(shapes)]


@pytest.fixture
def cut(monkeypatch):
    """What `pieces` answers, call by call."""
    found, pieces = [], attention_cuda.Problem.pieces

    def watched(*args):
        found.append(pieces(*args))
        return found[-1]

    monkeypatch.setattr(attention_cuda.Problem, "pieces", watched)
    driver.forget_calls()                                                # or a call of the same shapes would be repeated, not run
    return found


def check(device, tensors, window=(None, None), dropout=(0.0, 0, 0), longest=None, base=None, atol=1e-12):
    """Result and lse on the device are those of the CPU."""
    found = []
    for place in ("cpu", device):
        moved = [None if x is None else x.to(place) for x in tensors]
        found.append([x.cpu().array for x in attention(*moved, longest, window, 0.3, dropout, base)])
    for want, got in zip(*found):
        np.testing.assert_allclose(got, want, atol=atol)


@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
@pytest.mark.parametrize("window", [(None, None), (None, 200), (7, 260), (None, -3)])
@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_are_the_whole(shape, window, tiles, cuda, cut, monkeypatch):
    monkeypatch.setattr(driver, "hardware_tiles", tiles == "hardware")
    check(cuda, [*operands(*shape), *[None] * 4], window)
    assert cut[-1] > 1 or window[1] is not None


def test_keys_in_one_piece(cuda):
    """Where heads are as many as processors, it is among the ways; it starts one kernel."""
    with tuner.forcing("attention_split", {**attention_cuda.candidate("plain", False, 16, 64, 4, 1), "PIECES": 1}):
        check(cuda, [*operands(*SHAPES[0]), *[None] * 4], (None, None))
    for heads, ways in ((8, 2), (4, 0)):
        with driver.using(DryDriver(90)), tuner.trying_all() as met:
            q, k, v = [T.empty(16, h, n, 128, dtype=T.bfloat16, device="cuda") for h, n in ((4 * heads, 1), (heads, 4096), (heads, 4096))]
            scaled_dot_product_attention(q, k, v, enable_gqa=True)
        assert [way.get("PIECES", 0) for way in met[0][2]].count(1) == ways


@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_masks_distances_and_dropout(shape, tiles, cuda, cut, monkeypatch):
    """Each row of a tile has the mask, the slope and the random numbers of its own head; some rows and some pieces may meet nothing."""
    monkeypatch.setattr(driver, "hardware_tiles", tiles == "hardware")
    B, H, _, L, S = shape
    seen, slopes = draw(B, H, L, S, seed=4) > 0, from_array(draw(B, H, seed=5) ** 2)
    seen[:, :, :, :256], seen[:, 1] = False, False
    padding = from_array(draw(B, 1, 1, S, seed=6) > 0)
    for mask in (from_array(seen), padding, from_array(np.where(seen, draw(B, H, L, S, seed=7), -np.inf))):
        check(cuda, [*operands(*shape), mask, slopes, None, None])
    check(cuda, [*operands(*shape), None, slopes[0], None, None], window=(None, S - 40), dropout=(0.3, 5, 1 << 33))
    check(cuda, [*operands(*shape), None, None, None, None], dropout=(0.3, 0, 2), base=None)
    assert min(cut) > 1


def test_a_row_of_lowest_numbers_is_a_mean_of_values(cuda, cut):
    q, k, v = operands(1, 4, 2, 2, 400, dtype=T.float32)
    mask = T.full((2, 400), float(np.finfo(np.float32).min))
    out = scaled_dot_product_attention(*[x.to(cuda) for x in (q, k, v, mask)], enable_gqa=True)
    np.testing.assert_allclose(out.cpu().array[0, ::2, 0], v.array[0].mean(1), atol=1e-6)
    assert cut[-1] > 1


@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
@pytest.mark.parametrize("window", [(None, None), (None, 0), (270, 0)])
def test_packed_sequences(window, tiles, cuda, cut, monkeypatch):
    """One row stands at the last key of each; a sequence may have no row, no key, or fewer keys than there are pieces."""
    monkeypatch.setattr(driver, "hardware_tiles", tiles == "hardware")
    cu_q, cu_k = [from_array(np.array(places)) for places in ([0, 1, 1, 2, 3, 6], [0, 300, 310, 310, 317, 600])]
    q, k, v = operands(1, 6, 2, 8, 605)                                  # two rows and some keys are of no sequence
    check(cuda, [q, k, v, None, from_array(draw(6) ** 2), cu_q, cu_k], window, longest=(3, 300))
    assert cut[-1] > 1


def test_gradients_follow_from_its_lse(cuda, cut):
    found = []
    for place in ("cpu", cuda):
        x = [t.to(place).detach().requires_grad_() for t in operands(1, 6, 2, 3, 300)]
        out = scaled_dot_product_attention(*x, enable_gqa=True)
        out.backward(from_array(draw(*out.shape, seed=9)).to(place))
        found.append([t.grad.cpu().array for t in x])
    for want, got in zip(*found):
        np.testing.assert_allclose(got, want, atol=1e-12)
    assert cut[-1] > 1


def test_a_captured_call_runs_again(cuda):
    x = [t.to(cuda) for t in operands(2, 4, 2, 1, 300, dtype=T.float32)]
    want, graph = scaled_dot_product_attention(*x, enable_gqa=True), T.cuda.CUDAGraph()
    with T.cuda.graph(graph):
        out = scaled_dot_product_attention(*x, enable_gqa=True)
    for _ in range(2):
        out.zero_()
        graph.replay()
        assert (out == want).all().item()


@pytest.mark.parametrize("dtype", [T.bfloat16, T.float16, T.float32])
@pytest.mark.parametrize("E", [40, 128])
def test_error_beside_the_plain_kernel(E, dtype, cuda, monkeypatch):
    x = operands(1, 8, 2, 4, 1000, E, E, dtype=dtype)
    q, k, v = [t.double() for t in x]
    want, errors = scaled_dot_product_attention(q, k, v, enable_gqa=True).array, []
    for pieces in (attention_cuda.Problem.pieces, lambda *args: 0):
        monkeypatch.setattr(attention_cuda.Problem, "pieces", pieces)
        driver.forget_calls()
        out = scaled_dot_product_attention(*[t.to(cuda) for t in x], enable_gqa=True)
        errors.append(np.sqrt(np.square(out.cpu().double().array - want).mean()))
    assert errors[0] <= 1.1 * errors[1]


@pytest.mark.parametrize("B, H, G, L, S, window, pieces", [
    (1, 32, 8, 1, 2048, (-1, -1), 16), (1, 32, 8, 16, 65536, (-1, -1), 33), (8, 32, 8, 1, 8192, (-1, -1), 4),
    (64, 32, 8, 1, 8192, (-1, -1), 1), (1, 32, 8, 1, 8192, (-1, 0), 0), (1, 32, 8, 1, 8192, (-1, 4096), 32),
    (1, 8, 8, 128, 4096, (-1, -1), 16), (4, 32, 32, 1024, 1024, (-1, 0), 0), (1, 32, 8, 1, 255, (-1, -1), 0),
    (0, 32, 8, 1, 8192, (-1, -1), 0)])
def test_how_many_pieces(B, H, G, L, S, window, pieces, cut):
    """Two programs for a multiprocessor, but 128 keys a piece; where rows or programs are many, or keys few, the plain kernel."""
    with driver.using(DryDriver(90)):
        q, k, v = [T.empty(B, h, n, 128, dtype=T.bfloat16, device="cuda") for h, n in ((H, L), (G, S), (G, S))]
        scaled_dot_product_attention(q, k, v, enable_gqa=True, window_size=window)
    assert cut == [pieces]
