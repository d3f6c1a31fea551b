"""Writes in place that repeat: done without their checks only where these would pass again."""
import numpy as np
import pytest

import tritorch as torch
from tritorch import repeat
from tritorch.cuda import ahead
from tritorch.dispatch import registry


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


def test_repeated_writes_through_views_of_what_has_no_history_yet(cuda):
    for device in ("cpu", *["cuda"] * 3):
        x, w = torch.ones(3, 4, device=device), torch.full((3, 4), 2.0, device=device).requires_grad_()
        row = x[1]
        x[0] = 5.0
        row.mul_(3.0)
        x[:, 1:3] = 7.0
        assert x._version == 3 and not x.requires_grad and x.tolist() == [[5, 7, 7, 5], [3, 7, 7, 3], [1, 7, 7, 1]]
        x.mul_(w)                                                        # now it has one, and so has the view that was made before
        row.mul_(10.0)
        assert x.requires_grad and row.grad_fn is not None
        x.sum().backward()
        assert w.grad.tolist() == [[5, 7, 7, 5], [30, 70, 70, 30], [1, 7, 7, 1]]
        y = torch.zeros(3, device=device)
        with torch.no_grad():
            part = y[:2]
        part.add_(1.0)
        y.add_(w.detach()[0, :3].requires_grad_())
        with pytest.raises(RuntimeError, match="no_grad mode"):
            part.add_(1.0)


def test_repeated_writes_of_two_outputs(cuda):
    statistics, batch = (draw(5), draw(5)), (draw(5), draw(5))
    want, update = [s.cpu() for s in statistics], registry["running_statistics"]
    for k in range(1, 4):
        update.into(statistics, *statistics, *batch, 0.25, 1.0)
        want = [0.75 * w + 0.25 * b.cpu() for w, b in zip(want, batch)]
        assert [s._version for s in statistics] == [k, k]
        assert all(torch.allclose(s.cpu(), w, atol=1e-6) for s, w in zip(statistics, want))
    assert update.rewrite(statistics, (*statistics, *batch, 0.25, 1.0))  # nothing else was asked
    leaf = draw(5).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable|requires grad"):
        update.into((leaf, statistics[1]), leaf, statistics[1], *batch, 0.25, 1.0)
