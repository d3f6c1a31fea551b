"""Batch norm over several batches by its steps, against batch norm of their union, and a few views as copies."""
import numpy as np
import pytest

import tritorch as torch


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_steps_are_batch_norm_of_the_union(cuda, dtype):
    kind, eps = getattr(torch, dtype), 1e-3
    tolerance = {"float32": 1e-5, "float64": 1e-11, "bfloat16": 3e-2}[dtype]
    r = np.random.default_rng(0)
    for device in ("cpu", cuda):
        def drawn(*shape):
            return torch.tensor(r.standard_normal(shape), dtype=kind, device=device)  # noqa: B023

        whole = (drawn(5, 3, 4) + 1).requires_grad_()
        weight, bias, g = drawn(3).requires_grad_(), drawn(3).requires_grad_(), drawn(5, 3, 4)
        wide = torch.float64 if dtype == "float64" else torch.float32
        running = [torch.zeros(3, device=device, dtype=wide), torch.ones(3, device=device, dtype=wide)]
        kept = [t.clone() for t in running]
        y = torch.nn.functional.batch_norm(whole.to(wide), *kept, weight.to(wide), bias.to(wide), True, 0.3, eps)
        expected = y, *torch.autograd.grad(y, (whole, weight, bias), g.to(wide))
        batches, grads = whole.detach().split([2, 3]), g.split([2, 3])
        mean, invstd = (torch.stack(of) for of in zip(*[torch.batch_norm_stats(x, eps) for x in batches]))
        counts = torch.tensor([8, 12], dtype=torch.int32, device=device)
        mean, invstd = torch.batch_norm_gather_stats_with_counts(batches[0], mean, invstd, *running, 0.3, eps, counts)
        made = torch.cat([torch.batch_norm_elemt(x, weight, bias, mean, invstd, eps) for x in batches])
        sums = [torch.batch_norm_backward_reduce(a, x, mean, invstd, weight, True, True, True) for a, x in zip(grads, batches)]
        total = [sum(of) for of in zip(*sums)]
        slopes = torch.cat([torch.batch_norm_backward_elemt(a, x, mean, invstd, weight, total[0], total[1], counts)
                            for a, x in zip(grads, batches)])
        assert made.dtype is slopes.dtype is kind and mean.dtype is wide
        for a, b in zip((made, slopes, total[2], total[3], *running), (*expected, *kept)):
            torch.testing.assert_close(a.to(wide), b.to(wide).detach(), rtol=tolerance, atol=tolerance * 2)


def test_batches_of_one_size_and_what_is_not_asked_for():
    x = torch.arange(12.0).reshape(4, 3)
    parts = [torch.batch_norm_stats(p, 0.0) for p in x.split(2)]
    mean, invstd = (torch.stack(of) for of in zip(*parts))
    one, other = (f(x, mean, invstd, None, None, 0.1, 0.0, c) for f, c in (
        (torch.batch_norm_gather_stats, 2), (torch.batch_norm_gather_stats_with_counts, torch.tensor([2, 2]))))
    assert torch.equal(one[1], other[1]) and torch.allclose(one[0], x.mean(0))
    assert torch.allclose(one[1], 1 / x.var(0, unbiased=False).sqrt())
    running = torch.zeros(3), torch.ones(3)
    mean, var = torch.batch_norm_update_stats(x, *running, 0.5)
    assert torch.allclose(var, x.var(0, unbiased=False)) and torch.allclose(running[1], 0.5 + 0.5 * x.var(0))
    assert torch.batch_norm_backward_reduce(x, x, mean, var.rsqrt(), None, False, True, False)[::3] == (None, None)
    with pytest.raises(RuntimeError, match="a count of each batch"):
        torch.batch_norm_gather_stats_with_counts(x, mean, var, None, None, 0.1, 0.0, torch.tensor([2]))


def test_complex_views_as_copies_and_functions_as_they_are():
    z = torch.tensor([1 + 2j], requires_grad=True)
    pair = torch.view_as_real_copy(z)
    assert pair._base is None and torch.view_as_complex_copy(pair).tolist() == [1 + 2j]
    pair.sum().backward()
    assert z.grad.tolist() == [1 + 1j]
    x = torch.zeros(2)
    assert torch.func.functionalize(lambda x: x.add_(1) * 2)(x).tolist() == [2, 2] and x.tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="functionalize"):
        torch.func.functionalize(abs, remove="all")
    assert torch.quantization.QuantStub is torch.ao.quantization.QuantStub
    assert torch.nn.quantized.FloatFunctional is torch.ao.nn.quantized.FloatFunctional
