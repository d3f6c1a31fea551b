"""softmax and log-softmax of a few long rows, in pieces that many programs have, and their gradients."""
import numpy as np
import pytest
from arrays import draw
from oracle import torch

import tritorch
from tritorch.cuda import compiler, driver
from tritorch.cuda.dry import DryDriver
from tritorch.ops.softmax import LONG

NAMES = ["softmax", "log_softmax"]


def launched(shape, dim):
    pytest.importorskip("triton")
    with driver.using(DryDriver(90)), compiler.recording() as record:
        x = tritorch.empty(shape, device="cuda", requires_grad=True)
        x.softmax(dim).backward(tritorch.empty(shape, device="cuda"))
    return {spec.kernel.__name__ for spec in record.values()}


@pytest.mark.parametrize("shape, dim", [((8, 1_000_000), 1), ((1_000_000, 64), 0), ((9_000_000,), 0)])
def test_few_long_rows_are_cut(shape, dim):
    assert {"softmax_long_kernel", "softmax_backward_long_kernel"} < launched(shape, dim)


@pytest.mark.parametrize("shape, dim", [((200, 300_000), 1), ((2, LONG), 1), ((70_000, 20_000), 0)])
def test_many_rows_and_short_ones_are_not(shape, dim):
    assert launched(shape, dim) == {"softmax_kernel", "softmax_backward_kernel"}


@pytest.mark.parametrize("shape, dim", [((2, LONG + 5), 1), ((LONG + 1, 3), 0), ((LONG + 1,), 0), ((2, LONG + 3, 2), -2)])
@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients(name, shape, dim, cuda, tiles):
    a, w = draw(*shape), draw(*shape, seed=1)
    z = torch.tensor(a).double().requires_grad_()
    want = getattr(torch, name)(z, dim)
    slope, = torch.autograd.grad(want, z, torch.tensor(w).double())
    tall, incoming = tritorch.tensor(np.repeat(a, 2, axis=-1)).to(cuda)[..., ::2], tritorch.tensor(w).to(cuda)
    flipped = tritorch.tensor(np.ascontiguousarray(a.T)).to(cuda).permute(*reversed(range(a.ndim)))
    gapped = tritorch.tensor(np.repeat(w, 2, axis=0)).to(cuda)[::2]
    for x, g in ((tritorch.tensor(a).to(cuda), incoming), (tall, incoming), (flipped, gapped)):
        x = x.detach().requires_grad_()
        y = getattr(tritorch, name)(x, dim)
        gx, = tritorch.autograd.grad(y, x, g)
        for got, exact in ((y.detach(), want.detach().numpy()), (gx, slope.numpy())):
            np.testing.assert_allclose(got.cpu().array, exact, rtol=1e-5, atol=2e-6 * np.abs(exact).max())
        assert (getattr(tritorch, name)(x, dim) == y).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_gradient_for_all_and_half_types(name, cuda):
    """A gradient of stride 0, and operands of 16 bits, which are added up in float32."""
    a = draw(2, LONG + 9)
    x = tritorch.tensor(a).to(tritorch.bfloat16)
    z = torch.tensor(x.float().array).double().requires_grad_()
    want = getattr(torch, name)(z, 1)
    slope, = torch.autograd.grad(want.sum(), z)
    x = x.to(cuda).requires_grad_()
    y = getattr(tritorch, name)(x, 1)
    gx, = tritorch.autograd.grad(y.sum(), x)
    np.testing.assert_allclose(y.detach().cpu().float().array, want.detach().numpy(), rtol=2 ** -8)
    bound = 2 ** -8 * np.abs(slope.numpy()).max() if name == "log_softmax" else 2 ** -8 * want.max().item()
    np.testing.assert_allclose(gx.cpu().float().array, slope.numpy(), atol=4 * bound)


@pytest.mark.parametrize("name", NAMES)
def test_infinities_and_nan(name, cuda, tiles):
    """A row of -inf alone, one that begins and one that ends with pieces of them, one with inf and one with nan."""
    a = draw(6, LONG + 7)
    a[0], a[1, :40_000], a[2, 20_000:], a[3, 65_000], a[4, 7], a[5, 30_000:50_000] = -np.inf, -np.inf, -np.inf, np.inf, np.nan, -np.inf
    want = getattr(torch, name)(torch.tensor(a).double(), 1).numpy()
    got = getattr(tritorch, name)(tritorch.tensor(a).to(cuda), 1).cpu().array
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-9)
    assert np.isnan(got[[0, 3, 4]]).all() and np.isfinite(np.exp(got[[1, 2, 5]])).all()
