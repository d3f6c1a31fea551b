"""allow_mutation_on_saved_tensors: gradients are those of the values that were saved, whoever wrote them since, and however."""
import gc

import pytest

import tritorch as torch
from tritorch.autograd.graph import allow_mutation_on_saved_tensors

CHANGES = {
    "sin_": lambda b: b.sin_(), "a slice": lambda b: b[0].fill_(7.0), "setitem": lambda b: b.__setitem__(1, 5.0),
    "out=": lambda b: torch.exp(torch.ones(2, 3, device=b.device), out=b.detach()), "random": lambda b: b.detach().uniform_(),
    "zero_": lambda b: b.zero_(),
    "copy_": lambda b: b.copy_(b * 2), "a list": lambda b: torch._foreach_mul_([b.detach()], 3.0), "a view": lambda b: b.t().mul_(2),
    "twice": lambda b: b.mul_(2).sin_(), "data": lambda b: b.data.add_(1),
}


@pytest.fixture(params=["cpu", "cuda"])
def device(request, cuda):
    return cuda if request.param == "cuda" else "cpu"


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_saved_stays(name, device):
    x = torch.arange(6.0, device=device).reshape(2, 3).requires_grad_()
    with allow_mutation_on_saved_tensors():
        b = x.clone()
        out = (b ** 2).sum() + (b.t() * b.t()).sum() + (b[0] ** 3).sum()
        CHANGES[name](b)
        out.backward()
    want = 4 * x.detach()
    want[0] += 3 * x.detach()[0] ** 2
    assert x.grad.tolist() == want.tolist() and not torch.equal(b.detach(), x.detach())


def test_the_tensor_that_was_written_has_its_own_gradient():
    x = torch.ones(2, requires_grad=True)
    with allow_mutation_on_saved_tensors():
        b = x * 2
        first = (b * b).sum()
        b.mul_(3)
        (first + (b * b).sum()).backward()
    assert x.grad.tolist() == [2 * 4 + 2 * 36.0] * 2


def test_optimizers_write_what_was_saved(cuda):
    for device in ("cpu", cuda):
        w = torch.ones(3, device=device, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.5)
        with allow_mutation_on_saved_tensors():
            loss = (w * w).sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            loss.backward()
        assert w.grad.tolist() == [4.0] * 3 and w.tolist() == [0.0] * 3


def test_only_what_is_written_is_copied():
    with allow_mutation_on_saved_tensors() as saves:
        x = torch.ones(2, requires_grad=True)
        b, c = x.clone(), x.clone()
        out = b * b + c * c
        kept = list(saves.by_place.values())
        assert len(kept) == 2
        b.add_(1)
        assert [k.copied for k in kept] == [True, False] and kept[0].tensor.tolist() == [1.0, 1.0]
        del out, kept
        gc.collect()
        assert not len(saves.by_place)
        b.add_(1)


def test_where_it_is_refused():
    x = torch.ones(2, requires_grad=True)
    with allow_mutation_on_saved_tensors():
        out = (x * x).sum()
        with pytest.raises(RuntimeError, match="not nested"):
            with allow_mutation_on_saved_tensors():
                pass
    with pytest.raises(AssertionError, match="outside of it"):
        out.backward()
    with allow_mutation_on_saved_tensors():
        pass
    b = x.clone()
    out = (b * b).sum()
    b.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        out.backward()
