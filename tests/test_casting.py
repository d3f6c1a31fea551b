"""The weights that a block under autocast needs are cast by one kernel, if the block before told which they are."""
import numpy as np
import pytest
from calls import Calls

import tritorch
from tritorch import nn
from tritorch.amp import autocast, autocast_mode
from tritorch.ops.casting import cast_all


def gradients(layers, x, **options):
    """(names of the operators forward, output, gradients) of a block under autocast."""
    for p in (p for layer in layers for p in layer.parameters()):
        p.grad = None
    with Calls() as calls, autocast(x.device.type, tritorch.bfloat16, **options):
        out = x
        for layer in layers:
            out = layer(out)
    if out.requires_grad:
        out.float().square().sum().backward()
    return calls.names, [out.detach().cpu().float().numpy(), *[p.grad.cpu().numpy() for layer in layers for p in layer.parameters()
                                                               if p.grad is not None]]


def test_a_block_casts_the_weights_that_the_last_one_used_by_one_kernel(cuda):
    layers, x = [nn.Linear(5, 5, bias=k > 1).to(cuda) for k in range(4)], tritorch.randn(3, 5, device=cuda)
    one_by_one, expected = gradients(layers, x, cache_enabled=False)
    assert one_by_one.count("copy_to") == 5
    for names in (["copy_to"] * 5, ["copy_to", "cast_all"], ["copy_to", "cast_all"]):
        found, values = gradients(layers, x)
        assert sorted(n for n in found if n in ("copy_to", "cast_all")) == sorted(names)
        for a, b in zip(values, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    with tritorch.no_grad():                                             # another kind of block: its casts have no history
        assert [gradients(layers, x)[0].count("cast_all") for _ in range(2)] == [0, 1]
    names, _ = gradients(layers[:2], x)                                  # less is needed: casts in vain, once
    assert names.count("cast_all") == 1
    layers = layers[:1] + layers[2:]                                     # one is gone, another one comes
    for cast, single in ((0, 4), (1, 1)):
        names, _ = gradients([layers[0], layers[2], layers[1]], x)
        assert (names.count("cast_all"), names.count("copy_to")) == (cast, single)


def test_what_was_not_used_for_long_is_forgotten_first(cuda, monkeypatch):
    monkeypatch.setattr(autocast_mode, "KEPT", 2)
    monkeypatch.setattr(autocast_mode._local, "before", {})
    blocks, x = [[nn.Linear(5, 5).to(cuda) for _ in range(2)] for _ in range(3)], tritorch.randn(3, 5, device=cuda)
    for k, known in ((0, 0), (1, 0), (0, 1), (2, 0), (0, 1), (1, 0)):
        assert gradients(blocks[k], x)[0].count("cast_all") == known, k


def test_casts_ahead_hold_what_the_weights_hold(cuda):
    """A weight that is written after the cast is cast again; what no longer needs a gradient is left to itself."""
    first, second = [nn.Linear(4, 4, bias=False).to(cuda) for _ in range(2)]
    x = tritorch.randn(3, 4, device=cuda)
    gradients([first, second], x)
    with autocast("cuda", tritorch.bfloat16):
        hidden = first(x)
        with tritorch.no_grad():
            second.weight.fill_(2.0)
        out = second(hidden)
    rows = 2 * hidden.float().detach().cpu().numpy().sum(1, keepdims=True)
    np.testing.assert_allclose(out.float().detach().cpu(), np.broadcast_to(rows, (3, 4)), rtol=2e-2, atol=2e-2)
    second.weight.requires_grad_(False)
    names, _ = gradients([first, second], x)
    assert "cast_all" not in names and first.weight.grad is not None and second.weight.grad is None


def test_cast_all(cuda):
    values = [np.random.default_rng(k).standard_normal(shape).astype("f4") for k, shape in enumerate(((3, 5), (), (0,), (4099,)))]
    values[3][:3] = np.nan, np.inf, 3e38
    for device in ("cpu", cuda):
        xs = [tritorch.tensor(v, device=device) for v in values]
        for dtype in (tritorch.bfloat16, tritorch.float16, tritorch.float64):
            outs = [tritorch.full(x.shape, 7.0, dtype=dtype, device=device) for x in xs]
            cast_all(outs, xs)
            for out, x in zip(outs, xs):
                np.testing.assert_array_equal(out.double().cpu().numpy(), x.to(dtype).double().cpu().numpy())
                assert out._version == 1
    with pytest.raises(RuntimeError, match="contiguous tensors in pairs"):
        cast_all([tritorch.empty(3, 2)], [tritorch.empty(2, 3).mT])
