"""Variances, deviations and means of one pass against float64, of numbers that are hard on sums of squares, in any layout."""
import numpy as np
import pytest

import tritorch
from bench import launches
from tritorch.cuda import driver, tuner

RNG = np.random.default_rng(0)
SHAPE = 6, 5, 13, 21


def hostile(kind):
    x = RNG.standard_normal(SHAPE)
    if kind == "far":
        x += 3e4
    elif kind == "sorted":
        x = np.sort(x.ravel()).reshape(SHAPE) * 100
    elif kind == "outlier":                                              # the first element tells nothing of the others
        x[0], x[:, 0] = 1e4, -1e4
    elif kind == "step":
        x[:3] *= 1e-3
        x[3:] += 1e3
    elif kind == "constant":
        x[...] = 1e4 / 3
    return x.astype(np.float32)


LAYOUTS = {"plain": lambda x: x, "last": lambda x: x.contiguous(memory_format=tritorch.channels_last),
           "turned": lambda x: x.mT.contiguous().mT,
           "gapped": lambda x: tritorch.cat((x[..., :3], x, x), 3)[..., 3:3 + x.shape[3]], "whole": lambda x: x.flatten(2).contiguous()}


@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["far", "sorted", "outlier", "step", "constant"])
def test_against_float64(kind, layout, tiles, cuda, monkeypatch):
    if driver.current().name == "simulated":
        monkeypatch.setattr(driver, "hardware_tiles", tiles == "hardware")
    elif tiles == "simulated":
        pytest.skip("has its own tiles")
    x = hostile(kind)
    on = LAYOUTS[layout](tritorch.tensor(x).to(cuda))
    exact = x.astype(np.float64).reshape(on.shape)
    for dims in ((0, 2, 3) if on.ndim == 4 else (0, 2), 0, 1, -1, tuple(range(on.ndim))):
        var, mean = tritorch.var_mean(on, dims)
        size = np.abs(exact).max()
        np.testing.assert_allclose(mean.cpu().numpy(), exact.mean(dims), rtol=1e-6, atol=1e-7 * size)
        np.testing.assert_allclose(var.cpu().numpy(), exact.var(dims, ddof=1), rtol=3e-6, atol=(1e-7 * size) ** 2)
        if kind == "far":                                                # one kernel for all four: of which numbers tells nothing more
            assert on.var(dims).cpu().tolist() == var.cpu().tolist()
            std = on.std(dims).cpu()
            np.testing.assert_allclose(std.numpy(), exact.std(dims, ddof=1), rtol=2e-6, atol=1e-7 * size)
            assert tritorch.std_mean(on, dims)[0].cpu().tolist() == std.tolist()


def test_every_way_agrees(cuda, monkeypatch):
    """Rows of which some threads have nothing, and pieces that end within a tile."""
    if driver.current().name == "simulated":
        monkeypatch.setattr(driver, "hardware_tiles", True)
    for shape, dim in (((3, 5, 200), (0, 2)), ((40, 700), 1), ((700, 40), 0), ((2, 9, 331), (0, 2))):
        x = RNG.standard_normal(shape) + 100
        for dtype, near in ((tritorch.float32, 1e-5), (tritorch.bfloat16, 1e-2), (tritorch.float64, 1e-12)):
            on = tritorch.tensor(x).to(dtype).to(cuda)
            want = on.cpu().double().numpy().var(dim, ddof=1)
            with tuner.trying_all() as met:
                on.var(dim)
            for way in next(candidates for family, _, candidates in met if family == "reduce")[:4]:
                with tuner.forcing("reduce", way):
                    np.testing.assert_allclose(on.var(dim).cpu().double().numpy(), want, rtol=near, err_msg=f"{shape} {dtype} {way}")


@pytest.mark.filterwarnings("ignore:(var|std)_mean")                      # no degrees of freedom
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_of_nothing_all_is_nan(dtype, cuda):
    for shape, dim in ((3, 0), 1), ((0, 5), 0), ((0, 5), None):
        x = tritorch.zeros(shape, dtype=getattr(tritorch, dtype), device=cuda)
        for both in tritorch.var_mean(x, dim), tritorch.std_mean(x, dim):
            assert all(part.isnan().all().item() for part in both), f"{shape} {dim} {both}"


def test_both_are_one_launch():
    with launches.accounting() as account:
        x = tritorch.ones(64, 512, device="cuda")
        account.launches.clear()
        tritorch.var_mean(x, 1)
        tritorch.std_mean(x, 1)
        assert [launch.kernel for launch in account.launches] == ["reduce.reduce_kernel"] * 2


def test_gradients_of_both():
    x = tritorch.tensor(RNG.standard_normal((4, 5)), requires_grad=True)
    for both, spread in (tritorch.var_mean, tritorch.var), (tritorch.std_mean, tritorch.std):
        pair = both(x, 1, keepdim=True)
        assert isinstance(pair, tuple)
        (got,) = tritorch.autograd.grad((pair[0] * 3 + pair[1] ** 2).sum(), [x])
        (want,) = tritorch.autograd.grad((spread(x, 1, keepdim=True) * 3 + x.mean(1, keepdim=True) ** 2).sum(), [x])
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12)
        (only,) = tritorch.autograd.grad(both(x, 1)[1].sum(), [x])
        np.testing.assert_allclose(only.numpy(), 0.2)


@pytest.mark.parametrize("p", [0.5, 1.5, 2.5, 3, 4, 5, 7.25, -1, -2.5])
def test_norms_of_any_order(p, cuda):
    """|x|^p by way of the logarithm: within the digits that it has at 1e±9; zeros, infinities and NaN as powers have them."""
    x = (RNG.standard_normal((7, 300)) * 10.0 ** (np.arange(-9, 12, 3)[:, None] * (1 if abs(p) < 4 else 0.3))).astype(np.float32)
    x[1, 3], x[2, 5], x[3, 7] = 0, np.inf, np.nan
    with np.errstate(divide="ignore"):
        want = (np.abs(x.astype(np.float64)) ** p).sum(1) ** (1 / p)
    for on in (tritorch.tensor(x).to(cuda), tritorch.tensor(x.T.copy()).to(cuda).T):
        np.testing.assert_allclose(tritorch.linalg.vector_norm(on, p, 1).cpu().numpy(), want, rtol=1e-5)
        np.testing.assert_allclose(tritorch.linalg.vector_norm(on.double(), p, 1).cpu().numpy(), want, rtol=1e-12)
