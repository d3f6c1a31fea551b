"""Writes in place that repeat: done without their checks only where these would pass again."""
import numpy as np
import pytest

import tritorch as torch
from tritorch import repeat
from tritorch.cuda import ahead


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """As in test_repeat.py: operators remember their calls, whatever other tests called before."""
    monkeypatch.setattr(repeat, "PATIENCE", 1 << 30)
    with ahead.staying():
        yield


def draw(*shape):
    return torch.tensor(np.random.default_rng().standard_normal(shape), dtype=torch.float32, device="cuda")


def test_repeated_writes_in_place_are_computed_counted_and_placed(cuda):
    x, y, z = draw(3, 4), draw(3, 4), draw(3, 4)
    want = x.cpu()
    for k in range(1, 5):
        x.add_(y, alpha=2).mul_(0.5)
        torch.sub(x, y, out=z).copy_(x)
        want = (want + 2 * y.cpu()) * 0.5
        assert torch.allclose(x.cpu(), want) and torch.equal(z, x) and (x._version, z._version) == (2 * k, 2 * k)
    w = draw(3, 4).requires_grad_()
    loss = (w * x).sum()
    x.mul_(0.5)
    with pytest.raises(RuntimeError, match=r"_writes\.py:\d+ \(version 8\).*last at .*_writes\.py:\d+ \(now at version 9\)"):
        loss.backward()


def test_repeated_writes_in_place_are_refused_as_before(cuda):
    x, y, w = draw(3, 4), draw(3, 4), draw(3, 4).requires_grad_()
    for _ in range(3):
        x.add_(y)
        with torch.no_grad():
            w.add_(y)                                                    # known from here on
        with pytest.raises(RuntimeError, match="leaf Variable"):
            w.add_(y)
        with torch.inference_mode():
            inferred = draw(3, 4)
            inferred.add_(y)
        with pytest.raises(RuntimeError, match="inference tensor"):
            inferred.add_(y)
        with pytest.raises(RuntimeError, match="memory of their own"):
            draw(1, 4).expand(3, 4).add_(y)
        with pytest.raises(RuntimeError, match="can be cast"):
            torch.arange(12, device="cuda").view(3, 4).add_(y)
        made = draw(3, 4)
        made.add_(w)
        assert made.grad_fn is not None and made[1:].add_(y[1:]).grad_fn is not None


def test_repeated_writes_in_place_over_what_is_still_to_be_read(cuda):
    for _ in range(3):
        x = draw(4, 4)
        want = x.cpu() + x.cpu().t()
        assert torch.allclose(x.add_(x.t()).cpu(), want)
        x = draw(9)
        want = torch.cat([x[:1].cpu(), x[1:].cpu() + x[:-1].cpu()])
        x[1:].add_(x[:-1])
        assert torch.allclose(x.cpu(), want)
        x = draw(5, 5)
        want = x.cpu() @ x.cpu()
        assert torch.allclose(torch.matmul(x, x, out=x).cpu(), want, atol=1e-5)
