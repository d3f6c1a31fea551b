"""What is legal and mostly a mistake is said in a warning that names the user's line, as in PyTorch."""
import warnings

import pytest

import tritorch as torch
from tritorch.nn import functional as F


def said(f):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        f()
    assert all(w.filename == __file__ for w in found)
    return [str(w.message) for w in found]


@pytest.mark.parametrize("f, words", [
    (lambda: torch.ones(1).std(), "no degrees of freedom"),
    (lambda: torch.var(torch.ones(3, 1), 1, correction=2), "no degrees of freedom"),
    (lambda: torch.std_mean(torch.ones(3, 1), 1), "no degrees of freedom"),
    (lambda: torch.var_mean(torch.ones(1)), "no degrees of freedom"),
    (lambda: F.kl_div(torch.zeros(2), torch.ones(2)), "'batchmean'"),
    (lambda: torch.nn.KLDivLoss()(torch.zeros(2), torch.ones(2)), "'batchmean'"),
    (lambda: F.dropout2d(torch.ones(2, 3, 4)), "the second is taken for the channels"),
    (lambda: F.dropout3d(torch.ones(2, 3, 4)), "the second is taken for the channels"),
    (lambda: (torch.ones(1, requires_grad=True) * 2).grad, "not a leaf"),
])
def test_mistakes(f, words):
    message, = said(f)
    assert words in message


def kept():
    y = torch.ones(1, requires_grad=True) * 2
    y.retain_grad()
    return y.grad


@pytest.mark.parametrize("f", [
    lambda: torch.ones(2).std(), lambda: torch.ones(1).var(correction=0), lambda: torch.ones(1, requires_grad=True).grad,
    lambda: torch.ones(1).grad, kept, lambda: F.kl_div(torch.zeros(2, 1), torch.ones(2, 1), reduction="batchmean"),
    lambda: F.dropout2d(torch.ones(2, 3, 4, 5)), lambda: F.dropout3d(torch.ones(2, 3, 4, 5)),
])
def test_no_mistakes(f):
    assert said(f) == []
