"""tritorch.compile: norms under autocast, whose results are only cast, and results that are left out while somebody still holds them."""
import numpy as np
import pytest
from test_compile_fusion import replaced, run

import tritorch as torch
from tritorch import nn
from tritorch.compiler.kept import KEEP
from tritorch.nn import functional as F


@torch.no_grad()
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_norm_that_is_only_cast(norm, cuda):
    x, weight = torch.randn(5, 8, device=cuda), torch.randn(8, device=cuda)

    def cast(x):
        return [getattr(F, norm)(x, (8,), weight).bfloat16().float()]

    def read_too(x):
        y = getattr(F, norm)(x, (8,), weight)
        return y.bfloat16().float(), y + 1

    def narrow(x):
        return [getattr(F, norm)(x.half(), (8,)).bfloat16().float()]     # rounded twice: that is what was asked for

    for function, found in (cast, {f"{norm} + cast": 1}), (read_too, {}), (narrow, {}):
        step = run(function, x)
        assert replaced(step) == found
        for a, b in zip(step(x), function(x)):
            np.testing.assert_array_equal(a.cpu(), b.cpu())


@torch.no_grad()
def test_what_is_left_out_may_be_held_as_long_as_it_can_be_made_up_for(cuda):
    x, kept = torch.randn(5, 8, device=cuda), {"y": None}

    def held(x):
        y = F.layer_norm(x, (8,))
        z = (y.bfloat16() + 1).float()
        del y
        return [z * 2]

    def its_input_is_written(x):
        x = x + 0
        y = F.layer_norm(x, (8,))
        z = y.bfloat16().float()
        x.add_(1)
        del y
        return x, z

    def beyond_the_call(x):
        kept["y"] = F.layer_norm(x, (8,))
        return [kept["y"].bfloat16().float()]

    def returned_as_it_is(x):
        y = F.layer_norm(x, (8,))
        z = y.bfloat16().float()
        return z + 1, y.detach()

    for function, found in ((held, {"layer_norm + cast": 1}), (its_input_is_written, {}), (beyond_the_call, {}), (returned_as_it_is, {})):
        assert replaced(run(function, x)) == found


@torch.no_grad()
def test_what_was_left_out_is_made_when_a_call_turns_out_otherwise(cuda):
    """A captured call that keeps what no call before kept: it is computed, and the capture is given up."""
    x, calls, kept = torch.randn(5, 8, device=cuda), [], {"y": None}

    def function(x):
        calls.append(None)
        y = F.layer_norm(x, (8,))
        z = y.bfloat16().float()
        if len(calls) > 3:
            kept["y"] = y
        del y
        return z * 2 + 1

    step = torch.compile(function)
    for _ in range(5):
        np.testing.assert_array_equal(step(x).cpu(), (F.layer_norm(x, (8,)).bfloat16().float() * 2 + 1).cpu())
    np.testing.assert_allclose(kept["y"].cpu(), F.layer_norm(x, (8,)).cpu(), rtol=1e-6)


class Block(nn.Module):
    """Two residual branches, as PyTorch's users write them."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.second = norm(8), norm(8)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = x + self.a(self.first(x))
        return x + self.b(self.second(x))


def training(norm, compile, device):
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(norm) for _ in range(2)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step = compile(step)
    x = torch.randn(6, 8, device=device)
    return step, [step(x).item() for _ in range(8)], [p.detach().cpu().numpy() for p in model.parameters()]


@pytest.mark.parametrize("norm, name", [(nn.LayerNorm, "layer_norm"), (nn.RMSNorm, "rms_norm")])
def test_blocks_under_autocast(norm, name, cuda):
    step, losses, weights = training(norm, torch.compile, cuda)
    _, eager, expected = training(norm, lambda f: f, cuda)
    assert losses == eager
    for a, b in zip(weights, expected):
        np.testing.assert_array_equal(a, b)
    found = replaced(step)
    assert found.pop(KEEP.name) == 1
    assert found[f"{name} + cast"] == 4 and set(found) <= {f"{name} + cast", "gradient of a residual norm + cast"}
    assert name != "layer_norm" or found["gradient of a residual norm + cast"] == 3
    step, losses, weights = training(norm, lambda f: torch.compile(f, mode="max-autotune"), cuda)
    assert replaced(step)[f"add + {name} + cast"] == 3
    for a, b in zip(weights, expected):
        np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-3)
