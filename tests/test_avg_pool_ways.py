"""Every way that the tuner may choose for means of windows gives what float64 gives, forward and backward, whatever the layout."""
import numpy as np
import pytest

import tritorch
from tritorch.cuda import driver, tuner
from tritorch.ops.avg_pooling import avg_pool, avg_pool_input

LAYOUTS = {"plain": lambda x: x, "last": lambda x: x.contiguous(memory_format=tritorch.channels_last),
           "gapped": lambda x: tritorch.cat((x[..., :3], x, x), 3)[..., 3:3 + x.shape[3]], "turned": lambda x: x.mT.contiguous().mT,
           "expanded": lambda x: x[:, :1].expand(x.shape)}
ROUNDING = {"bfloat16": 2 ** -8, "float32": 2 ** -21, "float64": 1e-15}


def ways(call):
    """The candidates of the one family of kernels that a call asks for: one of each form, and the last."""
    found = []

    def measure(family, key, candidates, run, known):
        found.extend([(family, c) for c in (*{c.get("ROWS"): c for c in candidates}.values(), candidates[0])])
        return None

    with tuner.measuring(measure):
        call()
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind, shape, window", [
    ("bfloat16", (2, 3, 16, 24), ((3, 3), (1, 1), (1, 1))), ("float32", (1, 2, 13, 8), ((3, 3), (2, 2), (1, 1), False)),
    ("bfloat16", (1, 2, 10, 16), ((2, 2), (2, 2), (0, 0), True, 3)), ("float64", (2, 1, 9, 11), ((5, 4), (1, 2), (2, 1), False)),
    ("float32", (1, 3, 12, 16), ((4, 4), (4, 4), (0, 0))), ("float16", (1, 2, 9, 10), ((2, 1), (3, 2), (1, 0)))])
def test_all_ways_agree(kind, shape, window, layout, cuda, monkeypatch):
    if driver.current().name == "simulated":
        monkeypatch.setattr(driver, "hardware_tiles", True)
    kernel, stride, padding, *rest = window
    size = tuple(-(-(n + 2 * p - k) // s) + 1 for n, k, s, p in zip(shape[2:], kernel, stride, padding))            # ceil_mode
    size = tuple(n - ((n - 1) * s >= w + p) for n, s, w, p in zip(size, stride, shape[2:], padding))
    rng, dtype = np.random.default_rng(0), getattr(tritorch, kind)
    x, g = [tritorch.tensor(rng.standard_normal(s) + 9).to(dtype) for s in (shape, (*shape[:2], *size))]
    x, g = [t[:, :1].expand(t.shape) if layout == "expanded" else t for t in (x, g)]
    near, x_on, g_on = ROUNDING.get(kind, 2 ** -10), LAYOUTS[layout](x.to(cuda)), LAYOUTS[layout](g.to(cuda))
    for call, want in ((lambda: avg_pool(x_on, size, *window), avg_pool(x.double(), size, *window)),
                       (lambda: avg_pool_input(g_on, shape[2:], *window), avg_pool_input(g.double(), shape[2:], *window))):
        most = want.abs().amax().item()
        for family, way in ways(call):
            with tuner.forcing(family, way):
                found = call()
            assert found.dtype is dtype
            np.testing.assert_allclose(found.cpu().double().numpy(), want.numpy(), rtol=near, atol=near * most / 64, err_msg=str(way))


def test_one_window_is_a_mean(cuda):
    """A window as large as the image is spread over many threads: as the mean, it has its gradient and its layout."""
    x = tritorch.randn(2, 5, 7, 7, device=cuda).contiguous(memory_format=tritorch.channels_last).requires_grad_()
    y = tritorch.nn.functional.avg_pool2d(x, 7)
    assert y.shape == (2, 5, 1, 1)
    np.testing.assert_allclose(y.detach().cpu().numpy(), x.detach().cpu().numpy().mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-6)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.cpu().numpy(), np.full(x.shape, 1 / 49, np.float32), rtol=1e-6)
    assert tritorch.nn.functional.avg_pool1d(x.detach()[0, :, 0], 7).shape == (5, 1)
