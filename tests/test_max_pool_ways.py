"""Every way that the tuner may choose for max pooling gives what the CPU gives: rows of windows together, rows of an image side by side."""
import numpy as np
import pytest

import tritorch
from tritorch.cuda import driver, tuner
from tritorch.nn import functional as F
from tritorch.ops.max_pooling import max_pool, max_pool_input


def ways(call):
    """Of the candidates of each family of kernels that a call asks for, one of each form."""
    found = {}

    def measure(family, key, candidates, run, known):
        found[family] = list({(c["ROWS"], c.get("PHASES")): c for c in candidates}.values())
        return None

    with tuner.measuring(measure):
        call()
    return found


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind, shape, window", [("bfloat16", (2, 3, 16, 24), ((3, 3), (2, 2), (1, 1))),
                                                 ("float32", (1, 2, 13, 8), ((3, 3), (2, 2), (1, 1))),
                                                 ("float16", (1, 3, 28, 16), ((3, 3), (2, 2), (1, 1))),
                                                 ("bfloat16", (1, 2, 10, 16), ((2, 3), (2, 2), (0, 1))),
                                                 ("bfloat16", (1, 2, 9, 16), ((5, 5), (1, 1), (2, 2))),
                                                 ("float32", (1, 2, 7, 9), ((4, 5), (2, 1), (1, 2)))])
def test_all_ways_agree(kind, shape, window, last, cuda, monkeypatch):
    if driver.current().name == "simulated":
        monkeypatch.setattr(driver, "hardware_tiles", True)
    (kernel, stride, padding), rng = window, np.random.default_rng(0)
    size = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(shape[2:], kernel, stride, padding))
    layout = tritorch.channels_last if last else tritorch.contiguous_format
    x, g = [tritorch.tensor(rng.integers(0, 9, s).astype("f4")).to(getattr(tritorch, kind)).contiguous(memory_format=layout)
            for s in (shape, (*shape[:2], *size))]
    values, taps = max_pool(x, size, *window)
    wanted = max_pool_input(g, taps, shape[2:], *window)
    on, g_on = x.to(cuda), g.to(cuda)

    def forward():
        return max_pool(on, size, *window)

    def backward():
        return max_pool_input(g_on, taps.to(cuda), shape[2:], *window)

    for call, family, wants in (forward, "max_pool_kernel", (values, taps)), (backward, "max_pool_cells_kernel", (wanted,)):
        for way in ways(call)[family]:
            with tuner.forcing(family, way):
                found = call()
            for mine, want in zip(found if isinstance(found, tuple) else (found,), wants):
                np.testing.assert_array_equal(mine.cpu().float().numpy(), want.float().numpy(), err_msg=str(way))


@pytest.mark.parametrize("first", range(2))
@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_windows_of_equal_results_are_chosen_for_apart(name, first, cuda):
    """A loop over large windows has other candidates than small ones, whose results have the same size."""
    tuner.forget()
    pool, rng, problems = getattr(F, name), np.random.default_rng(0), [((7, 7), 2), ((12, 12), 4)]
    for shape, size in (*problems[first:], *problems[:first]):
        x = tritorch.tensor(rng.standard_normal((1, 2, *shape)), dtype=tritorch.float32)
        found = []
        for device in ("cpu", cuda):
            y = x.to(device).detach().requires_grad_()
            out = pool(y, size)
            out.square().sum().backward()
            found.append((out.detach().cpu().numpy(), y.grad.cpu().numpy()))
        for ours, wanted in zip(*found):
            np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)
