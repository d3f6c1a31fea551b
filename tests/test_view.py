"""Views against PyTorch: shapes, strides, offsets, shared memory, gradients, error types."""
import numpy as np
import pytest
from oracle import agree, draw

import tritorch as torch

X = draw(2, 3, 4)


def layout(x):
    return tuple(x.shape), (x.stride(), x.storage_offset()) if x.numel() else None


def views(f, x=X, **keywords):
    """The same values, strides and gradients; a write through the view is seen in the tensor."""
    agree(lambda lib, x: f(x), x, grad=x.dtype.kind == "f", what=f.__code__.co_name, **keywords)
    agree(lambda lib, x: layout(f(x)), x)

    def write(lib, x):
        out = f(x)
        for part in out if isinstance(out, tuple) else (out,):
            part.fill_(7)
        return x

    agree(write, x)


def test_shapes():
    for f in (lambda x: x.view(6, 4), lambda x: x.view(-1), lambda x: x.view((4, 6)), lambda x: x.view(2, -1, 2),
              lambda x: x.view(1, 24, 1),
              lambda x: x.view_as(x.reshape(24)), lambda x: x.permute(2, 0, 1), lambda x: x.permute((-1, 0, 1)),
              lambda x: x.transpose(0, -1),
              lambda x: x.swapaxes(0, 1), lambda x: x.unsqueeze(0), lambda x: x.unsqueeze(-1), lambda x: x.unsqueeze(2),
              lambda x: x.movedim(0, 2),
              lambda x: x.movedim((0, 1), (2, 0)), lambda x: x.moveaxis(-1, 0), lambda x: x.flatten(), lambda x: x.flatten(1),
              lambda x: x.flatten(0, 1),
              lambda x: x.unflatten(2, (2, 2)), lambda x: x.unflatten(-1, (-1, 2)), lambda x: x.mT, lambda x: x.adjoint(),
              lambda x: x[:, :1].squeeze(1),
              lambda x: x[:1, :, :1].squeeze(), lambda x: x[:1, :, :1].squeeze((0, 2)), lambda x: x.squeeze(1), lambda x: x.reshape(3, 8),
              lambda x: x[0].t(),
              lambda x: x[0].T, lambda x: x[0, 0].t(), lambda x: x.flatten(1, 1), lambda x: x.reshape_as(x)):
        views(f)
    for f in (lambda x: x.expand(5, 3, 4), lambda x: x.expand(-1, -1, 4), lambda x: x.expand(2, 5, 3, 4),
              lambda x: x.broadcast_to((5, 3, 4)),
              lambda x: x.expand_as(x.new_zeros(5, 3, 4)), lambda x: x.expand(0, 3, 4)):
        agree(lambda lib, x, f=f: f(x), draw(1, 3, 4), grad=True)
        agree(lambda lib, x, f=f: layout(f(x)), draw(1, 3, 4))


def test_parts():
    for f in (lambda x: x.select(1, -1), lambda x: x.narrow(2, 1, 2), lambda x: x.narrow(2, -2, 2), lambda x: x.diagonal(),
              lambda x: x.diagonal(1, 1, 2),
              lambda x: x.diagonal(-1, -1, 0), lambda x: x.diagonal(9), lambda x: x.unfold(2, 2, 1), lambda x: x.unfold(2, 3, 2),
              lambda x: x.unfold(1, 1, 5),
              lambda x: x.unbind(), lambda x: x.unbind(-1), lambda x: x.split(2, 2), lambda x: x.split([1, 3], -1), lambda x: x.split(5, 1),
              lambda x: x.chunk(3, 2), lambda x: x.chunk(2, 1), lambda x: x.tensor_split(3, 2), lambda x: x.tensor_split((1, 3), 2),
              lambda x: x.tensor_split([-1], 2),
              lambda x: x.tensor_split([3, 1], 2), lambda x: x.as_strided((2, 2), (4, 1)), lambda x: x.as_strided((3,), (2,), 5),
              lambda x: x[1].as_strided((2,), (1,)),
              lambda x: x[:, 1].as_strided((2, 2), (1, 3))):
        agree(lambda lib, x, f=f: f(x), X, grad=True)
        agree(lambda lib, x, f=f: [layout(v) for v in (lambda o: o if isinstance(o, tuple) else (o,))(f(x))], X)
        if "unfold" not in f.__code__.co_names:                              # overlapping writes have no order
            agree(lambda lib, x, f=f: [v.mul_(2) for v in (lambda o: o if isinstance(o, tuple) else (o,))(f(x))] and x, X)
    agree(lambda lib, x: x.as_strided((4, 3), (2, 1)), draw(9), grad=True)
    agree(lambda lib, x: x.unfold(0, 3, 1), draw(7), grad=True)
    agree(lambda lib, x: (x.unfold(0, 1, 1), x.unsqueeze(0).unfold(0, 1, 2)), draw())


def test_other_dtypes():
    for f in (lambda lib, x: x.view(lib.int32), lambda lib, x: x.view(dtype=lib.int32), lambda lib, x: x.view(lib.int16),
              lambda lib, x: x.view(lib.uint8), lambda lib, x: x.view(lib.float64),
              lambda lib, x: x[:, 1:].view(lib.float64), lambda lib, x: x.t().view(lib.int16), lambda lib, x: x.t().view(lib.int32),
              lambda lib, x: x[:, :3].view(lib.int64), lambda lib, x: x[0, 0].view(lib.int32), lambda lib, x: x[0, 0].view(lib.int16)):
        agree(f, draw(4, 4))


def test_empty_and_scalar():
    for shape in ((0,), (2, 0, 3), (), (1,)):
        for f in (lambda x: x.view(-1), lambda x: x.reshape(x.shape), lambda x: x.flatten(), lambda x: x.squeeze(),
                  lambda x: x.unsqueeze(0), lambda x: x.squeeze(0),
                  lambda x: x.transpose(0, -1), lambda x: x.expand(2, *x.shape), lambda x: x.t(), lambda x: x.chunk(2),
                  lambda x: x.split(1), lambda x: x.unbind(), lambda x: x.select(0, 0), lambda x: x.narrow(0, 0, 0),
                  lambda x: x.movedim(0, -1), lambda x: x.mT,
                  lambda x: x.view(0, 3), lambda x: x.reshape(0, -1), lambda x: x.reshape(3, 0), lambda x: x.tensor_split(2), lambda x: x.T,
                  lambda x: x.H,
                  lambda x: x.adjoint(), lambda x: x.diagonal()):
            agree(lambda lib, x, f=f: f(x), draw(*shape), what=f"{shape} {f.__code__.co_consts} {f.__code__.co_names}")


def test_errors():
    for f in (lambda x: x.view(5), lambda x: x.view(-1, -1), lambda x: x.view(-1, 5), lambda x: x.transpose(0, 1).view(-1),
              lambda x: x.permute(0, 1),
              lambda x: x.permute(0, 1, 1), lambda x: x.permute(0, 1, 3), lambda x: x.transpose(0, 3), lambda x: x.unsqueeze(4),
              lambda x: x.unsqueeze(-5),
              lambda x: x.squeeze(3), lambda x: x.expand(3, 3, 4), lambda x: x.expand(3, 4), lambda x: x.expand(2, 3, -2),
              lambda x: x.expand(-1, 2, 3, 4),
              lambda x: x.select(3, 0), lambda x: x.select(0, 2), lambda x: x.select(0, -3), lambda x: x.narrow(0, 0, 3),
              lambda x: x.narrow(0, 3, 0),
              lambda x: x.narrow(0, 0, -1), lambda x: x.diagonal(0, 1, 1), lambda x: x.diagonal(0, 0, 3), lambda x: x.unfold(2, 5, 1),
              lambda x: x.unfold(2, 2, 0),
              lambda x: x.split(0), lambda x: x.split([1, 2]), lambda x: x.split(-1), lambda x: x.chunk(0), lambda x: x.tensor_split(0),
              lambda x: x.t(),
              lambda x: x.movedim(0, 5), lambda x: x.movedim((0, 1), (0, 0)), lambda x: x.flatten(2, 1), lambda x: x.unflatten(2, (3, 2)),
              lambda x: x.as_strided((30,), (1,)), lambda x: x.as_strided((2,), (1, 1)), lambda x: x.as_strided((2,), (-1,)),
              lambda x: x.reshape(5, 5),
              lambda x: x.reshape(-1, 0), lambda x: x.view("float"), lambda x: x.view(2.0, 12), lambda x: x.size(3), lambda x: x.stride(3),
              lambda x: x.unbind(3)):
        agree(lambda lib, x, f=f: f(x), X, what=f"{f.__code__.co_consts} {f.__code__.co_names}")


def test_chains_of_views_carry_writes_and_gradients():
    def program(lib, x):
        y = x * 1
        part = y.transpose(0, 2)[1:].reshape(3, 6)[:, ::2] if False else y.transpose(0, 2)[1:, :, 0]
        part.mul_(3)
        y[0].t()[2] = 5
        y.diagonal(0, 0, 1).add_(y.select(2, 1).diagonal().unsqueeze(0).clone())
        return y, part

    agree(program, X, grad=True)


def test_on_a_cuda_device(cuda):
    for f in (lambda x: x.view(6, 4) * 1, lambda x: x.permute(2, 0, 1).contiguous(), lambda x: x[:, 1:, ::2].reshape(-1),
              lambda x: x.unfold(2, 3, 1) + 0,
              lambda x: x.diagonal(1, 1, 2) * 2, lambda x: x.as_strided((4, 3), (2, 1)) + 1, lambda x: x[:1].expand(3, 3, 4) * 2):
        agree(lambda lib, x, f=f: f(x), X, grad=True, device=cuda)
    agree(lambda lib, x: x.view(lib.int32), np.float32(X), device=cuda)


def test_what_is_remembered_of_views_goes_by_ints_alone():
    x, n = torch.arange(12.0).view(2, 2, 3), torch.tensor(0)
    for size, dim in ((2, 0), (3, 1), (6, 2)):
        n.fill_(size)
        assert x.view(n, -1).shape == x.reshape(n, -1).shape == (size, 12 // size)
        n.fill_(dim)
        assert x.transpose(n, 2).stride() == x.transpose(dim, 2).stride()
    for call in (lambda k: x.transpose(k, 2), lambda k: x.permute(k, 1, 2), lambda k: x[:0].view(k, 3), lambda k: x[:0].reshape(k, 3)):
        call(0)
        with pytest.raises(TypeError):
            call(0.0)
