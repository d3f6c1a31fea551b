"""What PyTorch refuses is refused, by its exception types, and what it takes is taken."""
import pytest

import tritorch as torch
from tritorch.nn import functional as F

ones, rows = torch.ones, torch.ones(4, 2)
CLASSES = torch.tensor([0, 1, 0, 1, 0])
NOTHING = torch.ones(5, 0, 5)

REFUSED = (
    (RuntimeError, "at least one tensor", lambda: torch.hstack([])),
    (RuntimeError, "at least one tensor", lambda: torch.vstack([])),
    (RuntimeError, "at least one tensor", lambda: torch.dstack([])),
    (RuntimeError, "at least one tensor", lambda: torch.column_stack([])),
    (RuntimeError, "dims of at least one element", lambda: torch.aminmax(NOTHING)),
    (IndexError, "dims of at least one element", lambda: torch.aminmax(NOTHING, dim=1)),
    (RuntimeError, "at most 64 dims", lambda: ones([1] * 65)),
    (ValueError, "3 or 4 dims", lambda: F.adaptive_avg_pool2d(rows, (2, None))),
    (ValueError, "4 or 5 dims", lambda: F.adaptive_max_pool3d(ones(2, 2, 2), (2, None, 1))),
    (RuntimeError, "3 or 4 dims", lambda: F.adaptive_avg_pool2d(rows, 2)),
    (RuntimeError, "a 0-dim tensor of one as start", lambda: rows.narrow(0, torch.tensor(True), 1)),
    (RuntimeError, "a 0-dim tensor of one as start", lambda: rows.narrow(0, torch.tensor([1]), 1)),
    (RuntimeError, "a destination of tritorch.complex64", lambda: torch.complex(rows, rows, out=rows.to(torch.complex128))),
    (RuntimeError, "a destination of tritorch.complex64", lambda: torch.polar(rows, rows, out=rows.to(torch.complex128))),
    (RuntimeError, "a destination of tritorch.int64", lambda: torch.multinomial(ones(3), 2, out=torch.empty(2))),
    (TypeError, "a tensor as input", lambda: torch.rsub(2, rows)),
    (ValueError, "eps >= 0", lambda: F.batch_norm(rows, ones(2), ones(2), eps=-1.0)),
    (ValueError, "eps > 0 in training", lambda: F.batch_norm(rows, ones(2), ones(2), training=True, eps=0.0)),
    (ValueError, "none, mean or sum", lambda: F.multi_margin_loss(rows, ones(4), reduction="median")),
    (ValueError, "none, mean or sum", lambda: F.multilabel_margin_loss(rows, rows, reduction="median")),
    (RuntimeError, "no ignore_index with class probabilities", lambda: F.cross_entropy(rows, rows, ignore_index=1)),
    (ValueError, "class probabilities of shape (4, 2)", lambda: F.cross_entropy(rows, ones(5, 2))),
    (RuntimeError, "class probabilities of shape (4, 2)", lambda: F.cross_entropy(rows, ones(4, 3))),
    (ValueError, "targets of shape (4,)", lambda: F.linear_cross_entropy(rows, ones(3, 2), CLASSES)),
    (RuntimeError, "a batch of inputs", lambda: F.linear_cross_entropy(ones(3), ones(2, 4, 3), ones(2, 4))),
    (RuntimeError, "weights that do not sum to zero", lambda: torch.cov(rows, aweights=torch.zeros(2))),
    (torch.linalg.LinAlgError, "no zeros on the diagonal", lambda: torch.cholesky_inverse(torch.zeros(2, 2))),
    (RuntimeError, "a destination of shape (4, 2)", lambda: torch.cat((empty := torch.empty(0), rows), out=empty)),
)


@pytest.mark.parametrize("error, sentence, call", REFUSED, ids=[sentence for _, sentence, _ in REFUSED])
def test_refused(error, sentence, call):
    with pytest.raises(error, match="expected") as raised:
        call()
    assert sentence in str(raised.value)
    assert issubclass(error, RuntimeError) or not isinstance(raised.value, RuntimeError)


def test_an_unfit_destination_stays_what_it_was():
    empty = torch.empty(0)
    with pytest.raises(RuntimeError, match="a destination of shape"):
        torch.cat((empty, rows), out=empty)
    assert empty.shape == (0,)


def test_nothing_to_join():
    assert torch.block_diag().shape == (1, 0)
    assert torch.broadcast_tensors() == ()
    assert F.cross_entropy(rows, rows, ignore_index=-1).item() == F.cross_entropy(rows, rows).item()
