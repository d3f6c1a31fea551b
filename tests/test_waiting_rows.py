"""Gradients of norms whose rows wait in shared memory, on the GPU made of PTX: the interpreter knows no shared memory."""
import os

import numpy as np
import pytest

pytest.importorskip("triton")

import tritorch as torch  # noqa: E402
from tritorch.cuda.launch import kernels, launch  # noqa: E402
from tritorch.testing.ptx.device import simulate  # noqa: E402


@pytest.fixture(scope="module")
def gpu():
    if os.environ.get("TRITORCH_PTX"):
        pytest.skip("the whole suite runs on it")
    with simulate(90) as gpu:
        yield gpu


@pytest.mark.parametrize("center, weighted, stages", [(True, True, 3), (False, True, 2), (True, False, 3)])
def test_as_many_rows_as_there_are_wait_their_turn(gpu, center, weighted, stages):
    M, N, gap, programs = 7, 1208, 24, 2                                 # the last of three tiles is not whole, rows have gaps
    rng = np.random.default_rng(0)
    g, x, w = (rng.standard_normal(shape) for shape in ((M, N + gap), (M, N + gap), N))
    g, x, w = (torch.tensor(a, dtype=torch.bfloat16, device="cuda") for a in (g, x, w))
    exact = [t.cpu().double().numpy() for t in (g[:, :N], x[:, :N], w)]
    mean = exact[1].mean(1) * center
    rstd = 1 / np.sqrt(((exact[1] - mean[:, None]) ** 2).mean(1))
    mean, rstd = (torch.tensor(a, dtype=torch.float32, device="cuda") for a in (mean, rstd))
    gx, lines = torch.empty(M, N, dtype=torch.bfloat16, device="cuda"), [torch.empty(programs, N, device="cuda") for _ in range(1 + center)]
    launch(kernels("normalize_gluon").norm_backward_gluon_kernel, (programs,), gx, lines[0], lines[1] if center else None, g, x,
           mean if center else None, rstd, w if weighted else None, (M,), (N, N + gap, N + gap, 1, 1), M, N, CENTER=center, ALIGN=8,
           BLOCK_N=512, HELD=3, STAGES=stages, num_warps=2)
    scaled, normed = exact[0] * (exact[2] if weighted else 1), (exact[1] - mean.cpu().numpy()[:, None]) * rstd.cpu().numpy()[:, None]
    wanted = scaled - normed * (scaled * normed).mean(1, keepdims=True) - center * scaled.mean(1, keepdims=True)
    np.testing.assert_allclose(gx.cpu().float().numpy(), wanted * rstd.cpu().numpy()[:, None], rtol=2e-2, atol=2e-2)
    for line, terms in zip(lines, (exact[0] * normed, exact[0])):
        np.testing.assert_allclose(line.sum(0).cpu().numpy(), terms.sum(0), rtol=1e-4, atol=1e-4)


def test_the_gradients_of_a_wide_layer_norm_are_those_of_the_cpu(gpu):
    rng = np.random.default_rng(1)
    x, w, b, g = (torch.tensor(rng.standard_normal(shape), dtype=torch.bfloat16) for shape in ((2, 8200), 8200, 8200, (2, 8200)))
    found = {}
    for place in "cpu", "cuda":
        leaves = [t.to(place).detach().requires_grad_() for t in (x, w, b)]
        torch.nn.functional.layer_norm(leaves[0], (8200,), *leaves[1:]).backward(g.to(place))
        found[place] = [leaf.grad.cpu().float().numpy() for leaf in leaves]
    for got, expect in zip(found["cuda"], found["cpu"]):
        np.testing.assert_allclose(got, expect, rtol=2e-2, atol=2e-2)
