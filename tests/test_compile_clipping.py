"""tritorch.compile: clipping that the optimizer's step does, where nobody else looks at the gradients."""
import numpy as np
import pytest
from models import seeded
from test_compile import captured, same, state_of

import tritorch as torch
from tritorch import nn
from tritorch.ops import optimize
from tritorch.ops.optimize import Recipe

NAME = "clip_grad_norm_ + optimizer step"


class Two(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False))


def folded(step):
    assert captured(step) == 1
    (kind,) = step.kinds.values()
    return [match.places for match in kind.recordings[0].fused if match.pattern.name == NAME]


def train(compile, device, optimizer, inside=lambda model: None, forget=True, dtype=torch.float32, calls=7):
    model = seeded(Two, device).to(dtype)
    optimizer = optimizer([{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": 0.1}])

    @compile
    def step(x):
        if not forget:
            optimizer.zero_grad()
        model(x).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        more = inside(model)
        if forget:
            optimizer.zero_grad()
        return norm, more

    rng = np.random.default_rng(0)
    inputs = [torch.tensor(rng.standard_normal((4, 5)).astype("f4") * scale).to(device).to(dtype) for scale in (1, 3, 1, 0.01, 2, 1, 3)]
    norms = [step(x)[0] for x in inputs[:calls]]
    return step, state_of(model.float(), *[norm.float() for norm in norms])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", [lambda p: torch.optim.AdamW(p, lr=0.05), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_the_step_clips_and_changes_no_bit(cuda, optimizer, dtype):
    step, compiled = train(torch.compile, cuda, optimizer, dtype=dtype)
    ((clip, first, second),) = folded(step)
    assert clip < first < second and NAME in step.report()
    same(train(lambda f: f, cuda, optimizer, dtype=dtype)[1], compiled)


@pytest.mark.parametrize("options", [dict(forget=False), dict(inside=lambda model: model[0].weight.grad.sum())])
def test_gradients_that_somebody_reads_are_clipped(cuda, options):
    step, compiled = train(torch.compile, cuda, torch.optim.SGD, **options)
    assert folded(step) == []
    same(train(lambda f: f, cuda, torch.optim.SGD, **options)[1], compiled)


@pytest.mark.parametrize("other", [3, 4])                                # the call that tries it, the one that is captured
def test_a_call_that_looks_after_all_finds_clipped_gradients(cuda, other):
    def look(calls, found):
        def inside(model):
            calls.append(None)
            if len(calls) == other:
                found.append(model[0].weight.grad.tolist())
        return inside

    plain, seen = [], []
    eager = train(lambda f: f, cuda, torch.optim.SGD, look([], plain))[1]
    with pytest.warns(UserWarning, match="tolist at"):
        same(eager, train(torch.compile, cuda, torch.optim.SGD, look([], seen))[1])
    assert plain == seen


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("norm", [2.0, 0.1, float("nan")])
def test_a_step_with_clip_is_clipping_and_a_step(cuda, dtype, norm):
    kind = getattr(torch, dtype)
    for device in ("cpu", cuda):
        found = []
        for apart in (False, True):
            p, g, m = [torch.linspace(k, 2 + k, 40, device=device).to(kind) for k in range(3)]
            clip = torch.tensor(norm, device=device), 0.3
            if apart:
                optimize.clip_by_norm([g], *clip)
            optimize.update([p], [g], [m], None, None, None, None, None, 0.5, (0.0, 0.0, 0.0), Recipe("sgd", (0.9, 1.0), "momentum"), None,
                            *([] if apart else [clip]))
            found.append((p.cpu().float().numpy(), m.cpu().float().numpy()))
        np.testing.assert_array_equal(*found)
        assert np.isnan(found[0]).all() == np.isnan(norm)
