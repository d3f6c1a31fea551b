"""Rows whose length 16 does not divide: as many elements at once as start at even addresses, and the same numbers."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.nn import functional as F
from tritorch.ops.normalize import layer_norm_backward
from tritorch.ops.rows import lanes_of, rows, vector_of

DTYPES = torch.float32, torch.bfloat16
CALLS = {
    "softmax": lambda x: x.softmax(1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "RMS norm of a sum": lambda x: F.dropout_add_layer_norm(x, x, x.shape[1:])[0],
    "cross entropy": lambda x: F.cross_entropy(x, torch.arange(x.shape[0], device=x.device) % x.shape[1], reduction="none"),
    "sum": lambda x: x.sum(1),
    "variance over two dims": lambda x: x.unflatten(0, (3, -1)).var((0, 2)),
}


def padded(columns, step, dtype, place, seed=0):
    """Rows of so many columns, `step` apart, with NaN between them."""
    x = np.full((51, step), np.nan, np.float32)
    x[:, :columns] = np.random.default_rng(seed).standard_normal((51, columns))
    return torch.from_numpy(x).to(dtype).to(place)[:, :columns].detach()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("columns", "step"), [(100, 100), (10, 12), (40, 48), (18, 19), (1000, 1002)])
@pytest.mark.parametrize("name", CALLS)
def test_rows_of_any_alignment(name, columns, step, dtype, cuda):
    got, want = [], []
    for results, place in ((got, cuda), (want, "cpu")):
        x = padded(columns, step, dtype, place).requires_grad_()
        out = CALLS[name](x)
        g = padded(columns, columns, dtype, place, 1) if out.ndim > 1 else torch.linspace(-1, 1, len(out), device=place).to(out.dtype)
        results += [out, *torch.autograd.grad(out, [x], g)]
    for a, b in zip(got, want):
        bound = (2e-2 if dtype is torch.bfloat16 else 1e-5) * float(b.abs().max())
        np.testing.assert_allclose(a.detach().cpu().float().numpy(), b.detach().float().numpy(), rtol=0, atol=bound)


@pytest.mark.parametrize(("columns", "step", "align"), [
    (100, 100, 4), (1000, 1000, 8), (1000, 1002, 2), (7, 8, 1), (64, 64, 16), (64, 72, 8)])
def test_alignment_is_that_of_all_rows(columns, step, align):
    geometry = rows((50, columns), (1,), (columns, 1), (step, 1), (1,))
    assert geometry.align == align
    assert [vector_of(geometry, size) for size in (4, 2)] == [min(4, align), min(8, align)]


def test_what_lies_apart_has_no_alignment():
    assert rows((50, 100), (1,), (200, 2)).align == rows((50, 100), (0,), (100, 1)).align == 1
    assert rows((6, 50, 100), (0, 2), (5000, 100, 1)).align == 4


def test_threads_of_a_row():
    assert lanes_of(1, 4096, 8, False, 8) == 256 and lanes_of(16, 128, 4, False, 4) == 32 and lanes_of(64, 32, 4, True, 1) == 16


@pytest.mark.parametrize("name", CALLS)
def test_rows_of_100_are_loaded_four_at_a_time(name):
    pytest.importorskip("triton")
    from tritorch.cuda import compiler, driver
    from tritorch.cuda.dry import DryDriver

    with driver.using(DryDriver(90)), compiler.recording() as record:
        CALLS[name](torch.empty(300, 100, device="cuda"))
    kernels = "softmax_kernel", "norm_kernel", "residual_norm_kernel", "cross_entropy_kernel", "reduce_kernel"
    specs = [s for s in record.values() if s.kernel.__name__ in kernels]
    assert specs and all("ld.global.v4.b32" in compiler.compile_here(spec, 90).ptx for spec in specs)


@pytest.mark.parametrize(("name", "most"), [("layer norm", 7), ("RMS norm of a sum", 7), ("gradient", 20)])
def test_weights_of_short_rows_lie_as_the_rows_do(name, most):
    """A line of weights over all threads would move each tile through shared memory, and back: barriers in every round."""
    pytest.importorskip("triton")
    from tritorch.cuda import compiler, driver
    from tritorch.cuda.dry import DryDriver

    with driver.using(DryDriver(90)), compiler.recording() as record:
        x, w = [torch.empty(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((300, 96), (96,))]
        if name == "gradient":
            layer_norm_backward(x, x, torch.empty(2, 300, device="cuda"), w)
        elif name == "layer norm":
            F.layer_norm(x, (96,), w, w)
        else:
            F.dropout_add_layer_norm(x, x, (96,), w, w)
    spec, = [s for s in record.values() if s.kernel.__name__ in ("norm_kernel", "residual_norm_kernel", "norm_backward_kernel")]
    assert compiler.compile_here(spec, 90).ptx.count("bar.sync") <= most


@pytest.mark.parametrize("columns", [96, 100, 384, 700])
def test_weights_of_another_width_beside_short_rows(columns, cuda, monkeypatch):
    from tritorch.cuda import driver

    monkeypatch.setattr(driver, "hardware_tiles", True)
    for kinds in (torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16):
        results = []
        for place in (cuda, "cpu"):
            x = padded(columns, columns + 4, kinds[0], place).requires_grad_()
            w, b = [(padded(columns, columns, kinds[1], place, seed)[0]).detach().requires_grad_() for seed in (1, 2)]
            wide = kinds[1] is torch.float32                             # narrower than the rows they are refused by layer_norm
            out, inputs = (F.layer_norm(x, (columns,), w, b), [x, w, b]) if wide else (F.rms_norm(x, (columns,), w), [x, w])
            results.append([out, *torch.autograd.grad(out, inputs, padded(columns, columns, out.dtype, place, 3))])
        for a, b in zip(*results):
            want = b.detach().float().numpy()
            np.testing.assert_allclose(a.detach().cpu().float().numpy(), want, rtol=0, atol=2e-2 * float(np.abs(want).max()))
