"""Calls that programs seldom make: what PyTorch does of them, written down as numbers."""
import math

import pytest

import tritorch as torch
from tritorch.nn import functional as F


def test_tuples_inside_a_key_are_lists():
    x = torch.arange(6.0).view(2, 3)
    assert x[:, (0, 2)].tolist() == [[0.0, 2.0], [3.0, 5.0]]
    assert x[((0, 1), (2, 0))].tolist() == [2.0, 3.0]
    x[:, (True, False, True)] = torch.tensor(9.0, dtype=torch.float64)
    assert x.tolist() == [[9.0, 1.0, 9.0], [9.0, 4.0, 9.0]]


def test_clamp_in_place_between_tensors():
    x, low = torch.tensor([-2.0, 0.5, 3.0], requires_grad=True), torch.zeros(3, requires_grad=True)
    y = x * 1
    y.clamp_(low, torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64))
    y.sum().backward()
    assert y.tolist() == [0.0, 0.5, 2.0] and x.grad.tolist() == [0.0, 1.0, 0.0] and low.grad.tolist() == [1.0, 0.0, 0.0]
    assert torch.tensor([3, 200], dtype=torch.uint8).clamp_max_(torch.tensor([5, 7], dtype=torch.int16)).tolist() == [3, 7]
    assert torch.clamp(torch.tensor([3, 9]), torch.tensor(5), out=torch.zeros(2)).tolist() == [5.0, 9.0]


def test_clamp_refuses_destinations():
    with pytest.raises(RuntimeError, match="can be cast to"):
        torch.tensor([1, 2]).clamp_(torch.tensor(0.5))
    with pytest.raises(RuntimeError, match="nothing requires grad"):
        torch.clamp(torch.ones(2, requires_grad=True), torch.zeros(2), out=torch.zeros(2))
    with pytest.raises(RuntimeError, match="a result of shape"):
        torch.zeros(0, 1).clamp_(torch.zeros(0, 4))


@pytest.mark.parametrize("name, arguments", [
    ("scatter_reduce_", lambda v: (0, torch.tensor([0, 0]), v, "prod")),
    ("index_reduce_", lambda v: (0, torch.tensor([0, 0]), v, "mean")),
    ("ldexp_", lambda v: (v.repeat(2)[:3],)),
])
def test_what_several_operators_write_in_place_has_gradients(name, arguments):
    def gradients(plain):
        x, v = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor([4.0, 0.5], requires_grad=True)
        made = getattr(x * 1, name.rstrip("_") if plain else name)(*arguments(v))
        return [g.tolist() for g in torch.autograd.grad((made * torch.tensor([1.0, 2.0, 3.0])).sum(), [x, v])]

    assert gradients(False) == gradients(True)


def test_cumprod_of_another_dtype_has_gradients():
    x = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    x.cumprod(0, dtype=torch.float32).sum().backward()
    assert x.grad.tolist() == [4.0, 2.0] and x.grad.dtype is torch.float64


def test_a_negative_zero_stays_one():
    nothing, ones = torch.tensor([False]), torch.ones(1)
    assert math.copysign(1, torch.where(nothing, ones, -0.0).item()) == -1
    assert math.copysign(1, ones.masked_fill(~nothing, -0.0).item()) == -1
    assert math.copysign(1, torch.where(nothing, ones, 0.0).item()) == 1


def test_empty_batches():
    norm = torch.nn.BatchNorm1d(2)
    norm(torch.zeros(0, 2, 3))
    assert norm.running_mean.tolist() == [0.0, 0.0] and norm.running_var.tolist() == [1.0, 1.0]
    x, weight = torch.zeros(0, 2, requires_grad=True), torch.ones(2, requires_grad=True)
    x_grad, = torch.autograd.grad(F.group_norm(x, 1, weight).sum(), x, create_graph=True)
    assert torch.autograd.grad(x_grad.sum(), weight)[0].tolist() == [0.0, 0.0]


def test_the_order_of_nothing():
    assert torch.tensor([], dtype=torch.int32).median().item() == -2 ** 31 and math.isnan(torch.tensor([]).nanmedian().item())
    for f in torch.unique, torch.unique_consecutive:
        assert [tuple(t.shape) for t in f(torch.zeros(0, 3), dim=0, return_inverse=True, return_counts=True)] == [(0, 3), (0,), (0,)]
        with pytest.raises(RuntimeError, match="slices that are not empty"):
            f(torch.zeros(2, 0), dim=0)
    assert torch.searchsorted(torch.zeros(0, 0), torch.zeros(0, 0)).shape == (0, 0)
    with pytest.raises(IndexError, match="a dim that is not empty"):
        torch.zeros(2, 0).kthvalue(1)
    with pytest.raises(IndexError, match="at least one element"):
        torch.zeros(2, 0).aminmax(dim=1)


def test_differences():
    x = torch.tensor([1.0, 4.0])
    same = x.diff(0, prepend=torch.zeros(1))
    same.zero_()
    assert x.tolist() == [1.0, 4.0] and same.shape == (2,)
    assert torch.gradient(torch.tensor([1.0, 4.0, 9.0, 16.0]), spacing=None)[0].tolist() == [3.0, 4.0, 6.0, 7.0]


def test_whole_ramps_begin_and_end_with_whole_numbers():
    assert torch.linspace(4.3, 50, 50, dtype=torch.int64)[:3].tolist() == [4, 4, 5]
    assert torch.logspace(0, 1.2, 2, 5.0, dtype=torch.int64).tolist() == [1, 5]


def test_the_margin_of_one_sample():
    x = torch.tensor([1.0, 2.0, 3.0])
    assert F.multi_margin_loss(x, torch.tensor([1]), reduction="none").shape == (1,)
    assert F.multi_margin_loss(x, torch.tensor(1), reduction="none").shape == ()
    with pytest.raises(RuntimeError):
        F.multi_margin_loss(x, torch.tensor([1, 2]))


def test_sizes_that_do_not_fit():
    for size in (2, 2), (1, 2, 3):
        with pytest.raises(RuntimeError, match="a size that expands to"):
            torch.ones(2, 3).sum_to_size(size)
    with pytest.raises(RuntimeError, match="each dim once"):
        torch.ones(1, 2).squeeze((0, -2))
    with pytest.raises(RuntimeError, match="a vector of weights"):
        F.prelu(torch.ones(2, 4), torch.ones(2, 2))


def test_edges_of_a_histogram_are_its_own():
    edges = torch.tensor([0.0, 1.0, 2.0])
    torch.histogram(torch.tensor([0.5]), edges).bin_edges.zero_()
    assert edges.tolist() == [0.0, 1.0, 2.0]
    assert torch.linalg.vander(torch.tensor(3.0), N=3).tolist() == [[1.0, 3.0, 9.0]]


def test_chained_streams_that_have_no_length():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    loader = torch.utils.data.DataLoader(torch.utils.data.ChainDataset([Stream(), Stream()]), batch_size=4)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 0], [1, 2]]


def test_one_cycle_goes_on_from_a_checkpoint_of_pytorch():
    parameter = torch.nn.Parameter(torch.ones(1))
    schedule = torch.optim.lr_scheduler.OneCycleLR(torch.optim.SGD([parameter], lr=0.1, momentum=0.9), max_lr=0.3, total_steps=10)
    assert schedule.state_dict()["_schedule_phases"] == [
        {"end_step": 2.0, "start_lr": "initial_lr", "end_lr": "max_lr", "start_momentum": "max_momentum", "end_momentum": "base_momentum"},
        {"end_step": 9, "start_lr": "max_lr", "end_lr": "min_lr", "start_momentum": "base_momentum", "end_momentum": "max_momentum"}]


def test_second_names_of_parameters():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.pow(x, exponent=2).tolist() == torch.pow(x1=x, x2=2).tolist() == x.pow(exponent=2).tolist() == [[1.0, 4.0], [9.0, 16.0]]
    assert x.clone().pow_(exponent=1).equal(x) and torch.exp(a=x).equal(x.exp())
    assert torch.heaviside(x - 1, values=torch.tensor(5.0)).tolist() == [[5.0, 1.0], [1.0, 1.0]]
    assert torch.special.legendre_polynomial_p(x=x, n=1).equal(x)
    assert x.swapaxes(axis0=0, axis1=1).equal(x.T) and torch.tile(x, dims=(2,)).shape == (2, 4) == x.tile((2,)).shape
    norms = torch.linalg.norm(input=x), torch.linalg.vector_norm(input=x), torch.linalg.vector_norm(x=x), torch.linalg.matrix_norm(input=x)
    assert [v.item() for v in norms] == [pytest.approx(30 ** 0.5)] * 4
    assert F.one_hot(input=torch.tensor([1])).tolist() == F.one_hot(tensor=torch.tensor([1])).tolist() == [[0, 1]]
    assert torch.tensor_split(x, sections=2)[1].equal(x[1:]) and x.tensor_split(indices=[1])[0].equal(x[:1])
    assert x.resize_(size=(4,)).tolist() == [1.0, 2.0, 3.0, 4.0]
    for call in (lambda: torch.add(x, exponent=2), lambda: torch.pow(x, 2, exponent=2)):
        with pytest.raises(TypeError):
            call()
