"""float32 products from bfloat16 parts: as accurate as float32 itself, IEEE's infinities, NaN, overflow and denormals."""
import functools

import ml_dtypes
import numpy as np
import pytest
from arrays import draw
from pytorch_numbers import in_turn

import tritorch as T
from tritorch.cuda import tuner
from tritorch.ops import gemm_choice as choice
from tritorch.ops import products
from tritorch.tensor import from_array
from tritorch.testing.ptx.matrices import product, units_of

H200 = (132, 232448, 9)
CANDIDATES = [c for _, c in choice.exact(4096, 4096, 4096, 1, H200)]
HOPPER = [c for _, c in choice.exact(4096, 4096, 4096, 1, H200, True)]
IN_REGISTERS = [c for batch in (1, 64) for _, c in choice.plain("parts", 131, 149, 270, batch, 4, H200)
                if c["splits"] < 3 and (batch == 1 or c["num_warps"] == 1)]
LEASTS = [choice.LEAST_EXACT, choice.CAREFUL, 2 * choice.CAREFUL, 4 * choice.CAREFUL, 4099]
KERNELS = [pytest.param(c, id=c["kernel"], marks=[pytest.mark.gpu] * (c is HOPPER[0])) for c in (CANDIDATES[0], HOPPER[0], IN_REGISTERS[0])]


# ------------------------------------------------------------------ what the hardware makes of it (ptx/matrices.py)
def parts(x):
    high = x * np.float32(65537) - x * np.float32(65536)
    rest = x - high
    middle = (rest.view(np.int32) & -0x10000).view(np.float32)
    found = high, middle, rest - middle
    assert all((part == part.astype(ml_dtypes.bfloat16)).all() for part in found)
    return found


def by_parts(a, b, block, arch, careful=False):
    """Sums of blocks of K, all blocks at once, and then their sum in turn; `careful`: with what is lost there."""
    rest, (m, k), n = -a.shape[1] % block, a.shape, b.shape[1]
    a_parts = [x.reshape(m, -1, block).swapaxes(0, 1) for x in parts(np.pad(a, ((0, 0), (0, rest))))]
    b_parts = [x.reshape(-1, block, n) for x in parts(np.pad(b, ((0, rest), (0, 0))))]
    some, units = np.zeros(((k + rest) // block, m, n), np.float32), units_of("bf16", arch, arch == 90)
    for i, j in ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)):
        for k in range(0, block, 16):
            some = product("bf16", "f32", a_parts[i][:, :, k:k + 16], b_parts[j][:, k:k + 16], some, units)
    if not careful:
        return functools.reduce(np.add, some)
    total, lost = some[0], np.zeros_like(some[0])
    for x in some[1:]:                                                   # Kahan's sum
        before, x = total, x + lost
        total = before + x
        lost = x - (total - before)
    return total + lost


DRAWS = {
    "normal": lambda rng, *s: rng.standard_normal(s), "positive": lambda rng, *s: rng.random(s),
    "badly scaled": lambda rng, *s: rng.standard_normal(s) * np.exp2(rng.integers(-30, 30, s)),
    "tiny": lambda rng, *s: rng.standard_normal(s) * 2.0 ** -60,
    "powers": lambda rng, *s: np.exp2(rng.integers(-8, 8, s)) * (1 + 2.0 ** -23),
}


@functools.cache
def problem(name, k):
    """(a, b, a @ b in float64, |a| @ |b|, what the errors of float32 units are of the latter)."""
    rng = np.random.default_rng([k, len(name)])
    draw = DRAWS.get(name, DRAWS["normal"])
    m, n = (43, 45) if k <= 4 * choice.CAREFUL else (11, 13)         # badly scaled numbers and powers come near to float32 there
    a, b = draw(rng, m, k).astype(np.float32), draw(rng, k, n).astype(np.float32)
    if name == "cancelling":                                             # the second half takes away what the first gave, but a few bits
        half = k // 2
        a[:, half:2 * half], b[half:2 * half] = -a[:, :half] * np.float32(1 + 2.0 ** -20), b[:half]
    exact, size = a.astype(np.float64) @ b.astype(np.float64), np.abs(a).astype(np.float64) @ np.abs(b)
    return a, b, exact, size, (in_turn(a, b) - exact) / size


def no_less_accurate(found, exact, size, plain):
    """Root mean square and largest error against float64, relative to Σ |a| |b|."""
    ours = (found - exact) / size
    assert np.sqrt((ours ** 2).mean()) <= np.sqrt((plain ** 2).mean()) and np.abs(ours).max() <= np.abs(plain).max()


@pytest.mark.parametrize("name", [*DRAWS, "cancelling"])
@pytest.mark.parametrize("arch, k", [*[(80, k) for k in LEASTS[1:]], *[(90, k) for k in LEASTS]])
def test_no_less_accurate_than_float32(arch, name, k):
    a, b, *rest = problem(name, k)
    found = choice.plain("parts", 131, 149, k, 1, 4, H200) + choice.exact(131, 149, k, 1, H200)
    blocks = sorted({c["BLOCK_K"] for _, c in found})
    assert blocks == [16, 32, 64][:max(LEASTS.index(k), 1)]
    for block in blocks:
        no_less_accurate(by_parts(a, b, block, arch, k < choice.CAREFUL), *rest)


def test_three_parts_hold_a_number():
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    for scale in (1.0, 2.0 ** 100, 2.0 ** -107):
        scaled = (x[np.abs(x) > 0.5] * scale).astype(np.float32).astype(np.float64)
        np.testing.assert_array_equal(sum(p.astype(np.float64) for p in parts(scaled.astype(np.float32))), scaled)


# ------------------------------------------------------------------ the kernels
@pytest.fixture
def hardware_tiles(monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)


def on(x, device, turned=False):
    x = from_array(x).to(device)
    return x.mT.contiguous().mT if turned else x


def candidates_in_layouts():
    """Each candidate with each operand straight and turned; of the four pairs of layouts each neighbour has the two that the other lacks,
    so that each kernel has all four. A layout is strides to these kernels: what differs between tiles does not go by both."""
    for place, candidate in enumerate(CANDIDATES + IN_REGISTERS):
        for turned in (False, True):
            layouts = (turned, turned != bool(place % 2))
            yield pytest.param(candidate, layouts, id="-".join(map(str, (*candidate.values(), *layouts))))


@pytest.mark.parametrize("candidate, turned", list(candidates_in_layouts()))
def test_every_candidate_in_every_layout(candidate, turned, cuda, hardware_tiles):
    x, y, z = draw(131, 270), draw(270, 149), draw(149)
    want = x.astype(np.float64) @ y + z
    with tuner.forcing("matmul", candidate):
        out = products.addmm(on(z, cuda), on(x, cuda, turned[0]), on(y, cuda, turned[1])).cpu().array
    assert np.abs(out - want).max() <= 2.0 ** -22 * (np.abs(x) @ np.abs(y)).max()


@pytest.mark.parametrize("name", [*DRAWS, "cancelling"])
@pytest.mark.parametrize("candidate", KERNELS)
def test_kernels_are_no_less_accurate_than_float32(candidate, name, cuda, hardware_tiles):
    a, b, *rest = problem(name, 2051)
    with tuner.forcing("matmul", candidate):
        no_less_accurate(products.matmul(on(a, cuda), on(b, cuda)).cpu().array, *rest)


@pytest.mark.parametrize("name", [*DRAWS, "cancelling"])
@pytest.mark.parametrize("turned", [False, True])
def test_short_sums_are_no_less_accurate_than_float32(name, turned, cuda, hardware_tiles):
    """Which needs what is lost where blocks of K are added up."""
    a, b, *rest = problem(name, choice.LEAST_EXACT + 3)
    candidate = choice.plain("parts", len(a), b.shape[1], len(b), 1, 4, H200)[0][1] | {"splits": 1}
    with tuner.forcing("matmul", candidate):
        no_less_accurate(products.matmul(on(a, cuda), on(b, cuda, turned)).cpu().array, *rest)


@pytest.mark.parametrize("candidate", [CANDIDATES[0], IN_REGISTERS[0]], ids=lambda c: c["kernel"])
@pytest.mark.parametrize("shapes", [((2, 70, 260), (2, 260, 40)), ((2, 70, 260), (1, 260, 40)), ((1, 70, 260), (3, 260, 40))])
def test_batches(shapes, candidate, cuda, hardware_tiles):
    x, y = [draw(*s, seed=k) for k, s in enumerate(shapes)]
    with tuner.forcing("matmul", candidate):
        out = products.matmul(on(x, cuda), on(y, cuda)).cpu().array
    np.testing.assert_allclose(out, x.astype(np.float64) @ y, atol=1e-4)


@pytest.mark.parametrize("turned", [(False, False), (True, True)])
@pytest.mark.parametrize("even, step", [(4, 4), (4, 2), (8, 8), (2, 1)])
def test_rows_that_a_power_of_two_divides(even, step, turned, cuda, hardware_tiles):
    """Their parts are stored several at a time; `step` divides how far rows are apart."""
    x, y = draw(40 + even, 256 + even), draw(256 + even, 48 + even)
    a, b = [on(np.pad(v, ((0, step), (0, step))), cuda, turn)[:-step, :-step] for v, turn in zip((x, y), turned)]
    with tuner.forcing("matmul", CANDIDATES[0]):
        out = products.matmul(a, b).cpu().array
    np.testing.assert_allclose(out, x.astype(np.float64) @ y, atol=1e-4)


BAD = [np.inf, -np.inf, np.nan, np.float32(3.4e38), np.float32(2.0 ** 112), np.float32(1e-40), np.float32(2.0 ** -110)]


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("candidate", IN_REGISTERS[:2], ids=lambda c: str(c["splits"]))
def test_tiles_of_which_parts_cannot_say_all(bad, where, candidate, cuda, hardware_tiles):
    """These are left to float32, tile by tile: the tile of a bad number has the bits of the kernel that knows nothing of parts."""
    x, y = draw(40, 260), draw(260, 48)
    (x, y)[where][7, 9] = bad
    same_but = {**candidate, "kernel": "plain", "BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}
    results = []
    for c in ({**same_but, "kernel": "parts"}, same_but):
        with tuner.forcing("matmul", c), np.errstate(all="ignore"):
            results.append(products.matmul(on(x, cuda), on(y, cuda)).cpu().array)
    with np.errstate(all="ignore"):
        want = x.astype(np.float64) @ y
        if candidate["splits"] == 1:
            np.testing.assert_array_equal(*results)
        np.testing.assert_allclose(results[0], want.astype(np.float32), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("where", [0, 1])
def test_what_parts_cannot_say_is_left_to_float32(bad, where, cuda, hardware_tiles):
    """Bit for bit what the tiled kernel makes, which multiplies as IEEE says."""
    x, y = draw(40, 260), draw(260, 48)
    (x, y)[where][7, 9] = bad
    y[:, 3] = 0.5                                                        # exactly representable: has no middle part
    results = []
    for candidate in (CANDIDATES[0], dict(kernel="plain", splits=1, **choice.FALLBACK)):
        with tuner.forcing("matmul", candidate), np.errstate(all="ignore"):
            results.append(products.matmul(on(x, cuda), on(y, cuda)).cpu().array)
    np.testing.assert_array_equal(*results)
    with np.errstate(all="ignore"):
        want = x @ y
    assert (np.isnan(results[0]) == np.isnan(want)).all() and (np.isinf(results[0]) == np.isinf(want)).all()


def test_sums_that_may_overflow_are_left_to_float32(cuda, hardware_tiles):
    x, y = np.full((20, 256), 2.0 ** 62, np.float32), np.full((256, 20), 2.0 ** 60, np.float32)
    y[1::2] *= -1
    with tuner.forcing("matmul", CANDIDATES[0]):
        assert (products.matmul(on(x, cuda), on(y, cuda)).cpu().array == 0).all()
