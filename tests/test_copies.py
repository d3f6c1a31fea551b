"""Views as copies: the values of the view of their name in memory of their own, gradients, destinations; pieces; resizing."""
import numpy as np
import pytest

import tritorch as torch

X = torch.tensor(np.random.default_rng(0).standard_normal((3, 4)))
ONE = {
    "alias_copy": ((), lambda x: x), "as_strided_copy": (((2, 2), (1, 2), 1), lambda x: x.as_strided((2, 2), (1, 2), 1)),
    "diagonal_copy": ((1,), lambda x: x.diagonal(1)), "expand_copy": (((2, 3, 4),), lambda x: x.expand(2, 3, 4)),
    "narrow_copy": ((1, 1, 2), lambda x: x[:, 1:3]), "permute_copy": (((1, 0),), lambda x: x.t()),
    "select_copy": ((1, -1), lambda x: x[:, -1]),
    "slice_copy": ((-1, 0, None, 3), lambda x: x[:, ::3]), "t_copy": ((), lambda x: x.t()), "transpose_copy": ((0, 1), lambda x: x.t()),
    "unfold_copy": ((1, 2, 2), lambda x: x.unfold(1, 2, 2)), "unsqueeze_copy": ((1,), lambda x: x[:, None]),
    "view_copy": (((2, 6),), lambda x: x.reshape(2, 6)), "detach_copy": ((), lambda x: x),
}
SEVERAL = {
    "unbind_copy": ((1,), lambda x: x.unbind(1)), "split_copy": ((3, 1), lambda x: x.split(3, 1)),
    "split_with_sizes_copy": (([1, 3], 1), lambda x: x.split([1, 3], 1)),
}


@pytest.mark.parametrize("where", ["cpu", "simulated"])
@pytest.mark.parametrize("name", ONE)
def test_one(cuda, name, where):
    args, seen = ONE[name]
    for x in (X, X.t().clone().t()):
        leaf = x.to("cpu" if where == "cpu" else cuda).detach().requires_grad_()
        got, want = getattr(torch, name)(leaf, *args), seen(leaf)
        assert torch.equal(got, want) and got.is_contiguous() and got.data_ptr() != leaf.data_ptr()
        assert got.requires_grad is (name != "detach_copy")
        if got.requires_grad:
            weights = torch.arange(got.numel(), device=got.device).reshape(got.shape) + 1.0
            assert torch.equal(*[torch.autograd.grad((y * weights).sum(), leaf)[0] for y in (got, want)])
        out = torch.empty(0, dtype=x.dtype, device=got.device)
        assert getattr(torch, name)(leaf.detach(), *args, out=out) is out and torch.equal(out, want)


@pytest.mark.parametrize("name", SEVERAL)
def test_several(name):
    args, seen = SEVERAL[name]
    want, got = seen(X), getattr(torch, name)(X, *args)
    assert type(got) is tuple and all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(got, want, strict=True))
    out = [torch.empty(0, dtype=X.dtype) for _ in want]
    assert getattr(torch, name)(X, *args, out=out) is None and all(map(torch.equal, out, want))
    with pytest.raises(RuntimeError, match="tensors as destinations"):
        getattr(torch, name)(X, *args, out=out[1:])


def test_others():
    assert torch.squeeze_copy(X[None]).shape == (3, 4) and torch.squeeze_copy(X[None], (0, 1)).shape == (3, 4)
    for bits in (torch.view_copy(X, torch.int64), torch.view_copy(X, dtype=torch.int64)):
        assert torch.equal(bits, X.view(torch.int64))
    assert torch.fill(X, torch.tensor(2)).tolist() == [[2.0] * 4] * 3 and torch.fill(torch.tensor([1]), 2.5).tolist() == [2]
    for bad, kind in ((lambda: torch.fill(X, X), RuntimeError), (lambda: torch.slice_copy(X, 0, 0, None, 0), RuntimeError),
                      (lambda: torch.split_copy(X, [1, 2]), TypeError), (lambda: torch.narrow_copy(X, 0, 2, 2), RuntimeError)):
        with pytest.raises(kind):
            bad()


def test_unsafe_pieces_are_written_alone():
    """A piece in place is no write to the others, of which a safe split would be told."""
    leaf = X.clone().requires_grad_()
    for pieces in ((leaf * 2).unsafe_chunk(2, 1), torch.unsafe_split(leaf * 2, 2, 1), torch.unsafe_split_with_sizes(leaf * 2, [2, 2], 1)):
        first, second = pieces
        second.mul_(3)
        assert first._base is None and first.tolist() == (2 * X)[:, :2].tolist()
        g, = torch.autograd.grad((first + second).sum(), leaf)
        assert g.tolist() == [[2, 2, 6, 6]] * 3


@pytest.mark.parametrize("where", ["cpu", "simulated"])
def test_resize(cuda, where):
    device = torch.device("cpu") if where == "cpu" else cuda
    x = torch.arange(6.0, device=device)
    y = x.view(2, 3)
    assert y.resize_(2, 2) is y and y.tolist() == [[0, 1], [2, 3]] and y.data_ptr() == x.data_ptr()
    assert x.resize_((4, 2))[:3].tolist() == [[0, 1], [2, 3], [4, 5]] and x.numel() == 8
    assert x.resize_(4, 2).t().resize_(2, 4).stride() == (1, 2)          # of its own sizes it stays as it is
    assert torch.empty(0).resize_(2, 2, 1, 3, memory_format=torch.channels_last).stride() == (6, 1, 6, 2)
    image = torch.empty(1, 3, 2, 2).to(memory_format=torch.channels_last)
    assert torch.empty(0).resize_as_(image).is_contiguous()
    assert torch.empty(0).resize_as_(image, memory_format=torch.preserve_format).stride() == image.stride()
    tail = torch.arange(6, device=device)[4:].resize_(3)
    assert tail[:2].tolist() == [4, 5]
    for bad, kind in ((lambda: x.resize_(-1), RuntimeError), (lambda: x.resize_(), TypeError),
                      (lambda: X.clone().requires_grad_().resize_(2), RuntimeError)):
        with pytest.raises(kind):
            bad()
