"""Kernels of small products on Hopper: every layout, pieces of K, rings that are filled once or again, what parts cannot say."""
import numpy as np
import pytest
from arrays import draw
from test_exact import BAD, DRAWS, no_less_accurate, problem

import tritorch as T
from tritorch.cuda import tuner
from tritorch.ops import gemm_choice as choice
from tritorch.ops import gemm_run, products
from tritorch.ops.linear import linear
from tritorch.tensor import from_array

pytestmark = pytest.mark.gpu
TURNS = [(False, False), (True, False), (False, True), (True, True)]


def small(block_m, block_n, block_k, warps, stages, splits=1, **more):
    return dict(kernel="small", BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps, STAGES=stages, splits=splits, **more)


def parts(*blocks):
    return {**small(*blocks), "kernel": "parts_gluon"}


def groups(block_m, block_n, block_k, stages, count, splits=1, warps=4, **more):
    return {**small(block_m, block_n, block_k, warps, stages, splits), "kernel": "groups", "GROUPS": count, **more}


def on(x, device, turned=False, dtype=T.float32):
    x = from_array(x).to(dtype).to(device)
    return x.mT.contiguous().mT if turned else x


def number(x):
    return x.cpu().to(T.float32).array


@pytest.mark.parametrize("turned", TURNS)
@pytest.mark.parametrize("candidate", [small(64, 32, 64, 4, 8), small(64, 64, 64, 4, 2), small(128, 32, 32, 8, 3, 2),
                                       small(64, 16, 128, 4, 2, SWAPPED=True)], ids=lambda c: f"{c['BLOCK_M']}-{c['BLOCK_N']}")
def test_16_bits(candidate, turned, cuda):
    """With tails in every dim, a bias, and a batch of which one operand is the same for all."""
    m, n, k = 136, 72, 328
    a, b = [on(draw(*s), cuda, turn, T.bfloat16) for s, turn in zip(((m, k), (k, n)), turned)]
    many, bias = on(draw(2, m, k, seed=5), cuda, turned[0], T.bfloat16), on(draw(n), cuda, dtype=T.bfloat16)
    with tuner.forcing("matmul", candidate):
        out, both = products.addmm(bias, a, b), products.matmul(many, b)
    for got, x, rest in ((out, a, number(bias)), (both, many, 0)):
        np.testing.assert_allclose(number(got), number(x) @ number(b) + rest, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("turned", TURNS)
@pytest.mark.parametrize("candidate", [parts(128, 64, 32, 8, 3), parts(64, 32, 64, 4, 2, 2), parts(64, 64, 16, 4, 4),
                                       groups(128, 64, 32, 4, 2, warps=8), groups(64, 16, 64, 3, 3), groups(64, 32, 32, 4, 4, 2),
                                       groups(64, 16, 64, 2, 2, SWAPPED=True)],
                         ids=lambda c: f"{c['kernel']}-{c['BLOCK_M']}-{c['BLOCK_N']}-{c['BLOCK_K']}")
def test_float32_in_every_layout(candidate, turned, cuda):
    x, y, z = draw(132, 268), draw(268, 76), draw(76)
    want = x.astype(np.float64) @ y + z
    with tuner.forcing("matmul", candidate):
        out = products.addmm(on(z, cuda), on(x, cuda, turned[0]), on(y, cuda, turned[1])).cpu().array
    assert np.abs(out - want).max() <= 2.0 ** -22 * (np.abs(x) @ np.abs(y)).max()


@pytest.mark.parametrize("name", [*DRAWS, "cancelling"])
@pytest.mark.parametrize("candidate, k", [(parts(64, 32, 64, 4, 3), 1028), (parts(64, 64, 16, 4, 4), 68), (groups(64, 32, 64, 3, 3), 1028),
                                          (groups(64, 64, 16, 4, 4), 68), (groups(128, 64, 16, 4, 2), 68)],
                         ids=["long", "short", "groups", "short groups", "two groups"])
def test_float32_is_no_less_accurate_than_float32(candidate, k, name, cuda):
    a, b, *rest = problem(name, k)
    a, b = a[:40], np.pad(b, ((0, 0), (0, -b.shape[1] % 4)))
    rest = [x[:40] for x in rest]
    with tuner.forcing("matmul", candidate):
        no_less_accurate(products.matmul(on(a, cuda), on(b, cuda)).cpu().array[:, :rest[0].shape[1]], *rest)


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("candidate", [parts(64, 32, 16, 4, 3), groups(64, 32, 16, 4, 2)], ids=lambda c: c["kernel"])
def test_tiles_of_which_parts_cannot_say_all(candidate, bad, where, cuda):
    x, y = draw(40, 68), draw(68, 48)
    (x, y)[where][7, 9] = bad
    with tuner.forcing("matmul", candidate):
        out = linear(on(x, cuda), on(y, cuda, True).mT).cpu().array
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(out, (x.astype(np.float64) @ y).astype(np.float32), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("candidate", [parts(64, 64, 16, 4, 4), parts(128, 64, 32, 8, 3, 2), small(64, 32, 64, 4, 2),
                                       groups(64, 32, 32, 4, 4), groups(64, 16, 32, 4, 2, SWAPPED=True)],
                         ids=lambda c: f"{c['kernel']}-{c['BLOCK_M']}")
@pytest.mark.parametrize("shapes", [((2, 68, 132), (2, 132, 40)), ((1, 68, 132), (3, 132, 40))])
def test_batches(shapes, candidate, cuda):
    """Also of one a for many b."""
    dtype = T.bfloat16 if candidate["kernel"] == "small" else T.float32
    x, y = [draw(*s, seed=k) for k, s in enumerate(shapes)]
    if dtype is T.bfloat16:
        x, y = np.pad(x, ((0, 0), (0, 0), (0, 4))), np.pad(y, ((0, 0), (0, 4), (0, 0)))
    a, b = on(x, cuda, dtype=dtype), on(y, cuda, dtype=dtype)
    with tuner.forcing("matmul", candidate):
        out = number(products.matmul(a, b))
    bound = 1e-2 if dtype is T.bfloat16 else 1e-4
    np.testing.assert_allclose(out, number(a).astype(np.float64) @ number(b), rtol=bound, atol=bound)


@pytest.mark.parametrize("swapped, shape", [({}, (76, 12, 268)), (dict(SWAPPED=True), (12, 76, 268))])
@pytest.mark.parametrize("form", ["row", "column", "tile"])
def test_groups_of_few_columns(form, swapped, shape, cuda):
    """The narrow operand lies along K; something is added, and one program has several tiles."""
    m, n, k = shape
    x, y, z = draw(m, k), draw(k, n), draw(*{"row": (n,), "column": (m, 1), "tile": (m, n)}[form])
    with tuner.forcing("matmul", groups(64, 8, 64, 4, 2, **swapped)):
        out = products.addmm(on(z, cuda), on(x, cuda), on(y, cuda, True), beta=0.5, alpha=2).cpu().array
    assert np.abs(out - (2 * (x.astype(np.float64) @ y) + z / 2)).max() <= 2.0 ** -21 * (np.abs(x) @ np.abs(y)).max()


@pytest.mark.parametrize("candidate", [groups(64, 64, 16, 4, 4), groups(64, 32, 16, 3, 1), groups(128, 64, 16, 2, 2, 2)],
                         ids=lambda c: str(c["GROUPS"]))
def test_programs_with_several_tiles(candidate, cuda, monkeypatch):
    monkeypatch.setattr(gemm_run, "sm_count", lambda: 2)
    x, y = draw(2, 136, 68), draw(2, 68, 72, seed=1)
    with tuner.forcing("matmul", candidate):
        out = products.matmul(on(x, cuda), on(y, cuda)).cpu().array
    np.testing.assert_allclose(out, x.astype(np.float64) @ y, atol=1e-4)


@pytest.mark.parametrize("turned", TURNS)
def test_tma_fills_short_sums_with_zeros(turned, cuda, monkeypatch):
    monkeypatch.setattr(choice, "STORING", 1)
    m, n, k = 200, 264, 24
    a, b = [on(draw(*s), cuda, turn, T.bfloat16) for s, turn in zip(((m, k), (k, n)), turned)]
    with tuner.forcing("matmul", dict(kernel="gluon", BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=4, STAGES=5, PIECES=2, CONSUMERS=2,
                                      PARTS=1, STREAM=False)):
        out = products.matmul(a, b)
    np.testing.assert_allclose(number(out), number(a) @ number(b), rtol=1e-2, atol=1e-2)
