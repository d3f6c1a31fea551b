"""Kernels whose programs find their matrix, row, group or phase by division, and products of float64, as machine code."""
import os

import numpy as np
import pytest

pytest.importorskip("triton")
import tritorch as torch  # noqa: E402
import tritorch.nn.functional as F  # noqa: E402
from tritorch.ops import ordering, selection  # noqa: E402
from tritorch.testing.ptx.device import simulate  # noqa: E402


@pytest.fixture(scope="module", params=[80, 90])
def gpu(request):
    if os.environ.get("TRITORCH_PTX"):
        pytest.skip("the whole suite runs on it")
    with simulate(request.param) as gpu:
        yield gpu


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()


def agree(function, *inputs, tolerance=1e-5):
    """The same result and gradients as on the CPU."""
    found = []
    for device in ("cpu", "cuda"):
        args = [x.detach().to(device).requires_grad_(x.requires_grad) for x in inputs]
        out = function(*args)
        weights = torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape).sin().to(device)
        grads = torch.autograd.grad(out, [x for x in args if x.requires_grad], weights)
        found.append([x.detach().cpu().double().numpy() for x in (out, *grads)])
    for want, have in zip(*found):
        np.testing.assert_allclose(have, want, atol=tolerance * max(abs(want).max(), 1))


@pytest.mark.parametrize("mask", [None, [[1, 1, 0], [0, 0, 0], [1, 1, 1]]])
def test_float64_attention(gpu, mask):
    q, k, v = draw(2, 4, 3, 5, dtype=torch.float64), draw(2, 2, 3, 5, dtype=torch.float64), draw(2, 2, 3, 5, dtype=torch.float64)
    if mask is None:
        slopes = torch.tensor([0.5, 0.25, 0.1, 1.0], dtype=torch.float64).requires_grad_()
        agree(lambda q, k, v, s: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, alibi_slopes=s), q, k, v, slopes, tolerance=1e-13)
    else:
        mask = torch.tensor(mask, dtype=torch.bool)
        agree(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True), q, k, v, mask, tolerance=1e-13)


@pytest.mark.parametrize("shape, weight, options", [
    ((2, 6, 7, 5), (4, 3, 3, 2), {"groups": 2, "stride": (2, 3), "padding": 1}), ((2, 3, 6, 5), (6, 1, 2, 3), {"groups": 3, "stride": 2})])
def test_convolutions_of_groups_and_phases(gpu, shape, weight, options):
    agree(lambda x, w: F.conv2d(x, w, **options), draw(*shape), draw(*weight), tolerance=1e-3)


def test_batches_of_triangles_and_rows(gpu):
    agree(lambda x: x.triu(1), draw(3, 70, 5))
    agree(lambda x: x[:, torch.tensor([4, 0, 4, -2], device=x.device)], draw(5, 9, 3))
    ends = torch.tensor([3, 3, 7], dtype=torch.int32)
    agree(lambda a, b: F.grouped_mm(a, b.mT, offs=ends.to(a.device)), draw(7, 5), draw(3, 19, 5), tolerance=1e-3)


@pytest.mark.parametrize("few, piece", [(0, 2), (0, 256), (64, 256)])
def test_long_rows_in_order(gpu, few, piece, monkeypatch):
    """Three tiles a row, in two pieces or one, or so few that each program adds up their counts; the last is odd."""
    monkeypatch.setattr(ordering, "FEW", few)
    monkeypatch.setattr(ordering, "PIECE", piece)
    x = np.random.randint(-9, 9, (3, 601)).astype(np.int8)
    rows = torch.from_numpy(x).cuda()
    values, indices = torch.empty(3, 601, dtype=torch.int8, device="cuda"), torch.empty(3, 601, dtype=torch.int64, device="cuda")
    choice = {"LOG": 8, "DIGIT": 4, "RB": 3, "REGISTERS": 48, "FLOAT": piece == 256, "WARPS": 4}
    ordering._passes(values, indices, rows, 3, 601, 8, choice, {"FALLING": False, "RAW": False})
    order = np.argsort(x, axis=1, kind="stable")
    np.testing.assert_array_equal(indices.cpu().numpy(), order)
    np.testing.assert_array_equal(values.cpu().numpy(), np.take_along_axis(x, order, 1))


def test_the_first_of_long_rows(gpu, monkeypatch):
    """In chunks of 256, the last of which is odd, and then of what they leave."""
    monkeypatch.setattr(selection, "longest", lambda: 256)
    x = np.random.permutation(3 * 601).reshape(3, 601).astype("f4")
    values, indices = torch.empty(3, 5, device="cuda"), torch.empty(3, 5, dtype=torch.int64, device="cuda")
    selection.first_of_rows(values, indices, torch.from_numpy(x).cuda(), True)
    order = np.argsort(-x, axis=1)[:, :5]
    np.testing.assert_array_equal(indices.cpu().numpy(), order)
    np.testing.assert_array_equal(values.cpu().numpy(), np.take_along_axis(x, order, 1))
