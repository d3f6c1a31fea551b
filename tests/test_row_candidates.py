"""Every way that the tuner may choose for kernels over rows gives what the CPU gives."""
import contextlib

import numpy as np
import pytest

import tritorch as torch
from tritorch.cuda import driver, tuner
from tritorch.cuda.dry import DryDriver
from tritorch.nn import functional as F
from tritorch.ops.rows import sum_lines

FAMILIES = """softmax softmax_backward layer_norm rms_norm norm_backward layer_norm_sums rms_norm_sums residual_norm residual_norm_sums
    residual_norm_backward batch_norm batch_norm_moments batch_norm_sums batch_norm_slopes cross_entropy cross_entropy_backward
    rotary_embedding""".split()


def values(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def classes(n, *shape):
    return torch.tensor(np.random.default_rng(5).integers(0, n, shape))


def residual(x, w):
    generator = torch.Generator(x.device).manual_seed(2)
    return sum(F.dropout_add_layer_norm(x, x * 0.5, w.shape, w, w, 0.3, generator=generator))


def cross_entropy(x):
    return F.cross_entropy(x, classes(x.shape[1], x.shape[0], *x.shape[2:]).to(x.device))


def batch_norm(x, w):
    return F.batch_norm(x, None, None, w, training=True)


CALLS = {                                                                # a function and the shapes of what it takes
    "softmax, short": (lambda x: x.softmax(1), (37, 70)),
    "softmax, 4096": (lambda x: x.softmax(1), (3, 4096)),
    "softmax, 16384": (lambda x: x.log_softmax(1), (2, 12000)),
    "softmax, long": (lambda x: x.softmax(1), (2, 40000)),
    "softmax, across": (lambda x: x.softmax(1), (2, 200, 70)),
    "softmax, across and long": (lambda x: x.log_softmax(1), (2, 700, 35)),
    "layer norm": (lambda x, w: F.layer_norm(x, w.shape, w, w), (70, 200), (200,)),
    "layer norm, wide": (lambda x, w: F.layer_norm(x, w.shape, w), (3, 12000), (12000,)),
    "layer norm, long": (lambda x, w: F.layer_norm(x, w.shape, w, w), (2, 33000), (33000,)),
    "RMS norm": (lambda x, w: F.rms_norm(x, w.shape, w), (70, 200), (200,)),
    "residual": (residual, (70, 200), (200,)),
    "residual, wide": (residual, (2, 9000), (9000,)),
    "group norm": (lambda x, w: F.group_norm(x, 2, w), (2, 8, 40, 30), (8,)),
    "batch norm": (batch_norm, (5, 70, 9, 7), (70,)),
    "batch norm, whole tiles": (batch_norm, (2, 7, 64, 64), (7,)),
    "batch norm, channels last": (lambda x, w: batch_norm(x.permute(0, 3, 1, 2), w), (5, 9, 7, 70), (70,)),
    "cross entropy": (cross_entropy, (9, 5000)),
    "cross entropy, short": (cross_entropy, (90, 70)),
    "cross entropy, across": (cross_entropy, (2, 70, 65)),
    "rotary": (lambda x: F.rotary_embedding(x, *values(2, 3, 5).to(x.device)), (5, 3, 12)),
}


def results(name, place):
    """The result of a call and the gradients of what it took."""
    f, *shapes = CALLS[name]
    leaves = [values(*shape, seed=k).to(place).requires_grad_() for k, shape in enumerate(shapes)]
    out = f(*leaves)
    return [t.detach().cpu().array for t in (out, *torch.autograd.grad(out, leaves, values(*out.shape, seed=9).to(place)))]


@pytest.mark.parametrize("name", CALLS)
def test_every_candidate_agrees_with_the_cpu(name, cuda, monkeypatch):
    """Each way of each family once: a call's families, such as its forward and its backward, take their next way together, as there is no
    telling which of them a tuner puts beside each other."""
    monkeypatch.setattr(driver, "hardware_tiles", True)
    want = results(name, "cpu")
    with tuner.trying_all() as met:
        results(name, cuda)
    ways = {}
    for family, _, candidates in met:
        if family in FAMILIES:
            found = ways.setdefault(family, [])
            found += [c for c in candidates if c not in found]
    assert ways and all(ways.values())
    for turn in range(max(map(len, ways.values()))):
        forced = {family: candidates[turn % len(candidates)] for family, candidates in ways.items()}
        with contextlib.ExitStack() as stack:
            for family, candidate in forced.items():
                stack.enter_context(tuner.forcing(family, candidate))
            for got, expect in zip(results(name, cuda), want):
                bound = 1e-3 * max(np.abs(expect).max(), 1e-3)
                np.testing.assert_allclose(got, expect, rtol=1e-3, atol=bound, err_msg=str(forced))


def test_what_was_quickest_on_a_gpu_comes_first():
    """Where forms were added that read twice, or go along other rows."""
    with driver.using(DryDriver(90)), tuner.trying_all() as met:
        wide_rows()
    first = {family: ways[0] for family, _, ways in met}
    assert (first["layer_norm_sums"]["kernel"], first["rms_norm_sums"]["TWICE"], first["rms_norm_sums"]["STAGES"]) == ("gluon", 0, 1)
    assert not first["rotary_embedding"]["ALONG_M"]


def wide_rows():
    x, w = (torch.empty(*shape, dtype=torch.bfloat16, device="cuda").requires_grad_() for shape in ((512, 16384), (16384,)))
    table = torch.empty(4096, 64, device="cuda")
    for out in (F.layer_norm(x, w.shape, w, w), F.rms_norm(x, w.shape, w)):
        out.backward(torch.empty_like(x))
    F.rotary_embedding(torch.empty(4, 32, 4096, 128, dtype=torch.bfloat16, device="cuda"), table, table)


@pytest.mark.parametrize(("lines", "columns"), [(132, 4100), (1, 4096), (129, 4097), (600, 40), (7, 33)])
def test_lines_of_partial_sums_add_up(cuda, lines, columns):
    arrays = [np.random.default_rng(k).standard_normal((lines, columns)).astype(np.float32) for k in range(2)]
    sums = [torch.full((columns,), float("nan"), device=cuda) for _ in arrays]
    sum_lines(sums, [torch.from_numpy(a).to(cuda) for a in arrays])
    for total, a in zip(sums, arrays):
        np.testing.assert_allclose(total.cpu().numpy(), a.astype(np.float64).sum(0), atol=1e-6 * lines)


def test_columns_of_which_the_last_is_just_below_what_a_product_tells(cuda):
    """256000 of them in rows of 16000: their product is 0.95 · 2³², so a quotient is the high half of a product."""
    x = values(16, 1, 125, 128).to(cuda)
    want = batch_norm(x.cpu(), torch.ones(1))
    got = batch_norm(x, torch.ones(1).to(cuda)).cpu()
    np.testing.assert_allclose(got.array, want.array, atol=1e-5)
