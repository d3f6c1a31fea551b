"""autograd.Function that writes its inputs, or returns them, or views of them."""
import pytest
from both import both, leaf


# ------------------------------------------------------------------ in place
def doubler(torch):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.no_grad():
                x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    return Double


@both
def test_dirty_inputs(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 1
    before = y._version
    z = doubler(torch).apply(y)
    assert z is y and y._version > before
    z = doubler(torch).apply(y)
    (y * torch.tensor([1.0, 10.0], dtype=torch.float64)).sum().backward()
    return y, x.grad


@both
def test_dirty_inputs_are_returned(torch):
    class Lost(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.raises(RuntimeError):
        Lost.apply(leaf(torch, 1.0) * 1)


@both
def test_dirty_views(torch):
    x = leaf(torch, 1.0, 2.0, 3.0)
    y = x * 1
    v = y[1:]
    doubler(torch).apply(v)
    (y * torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)).sum().backward()
    return y, x.grad


@both
def test_dirty_leaves(torch):
    x = leaf(torch, 1.0, 2.0)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        doubler(torch).apply(x)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        doubler(torch).apply(x[:1])


@both
def test_dirty_inputs_that_saw_no_gradient(torch):
    x, c = leaf(torch, 1.0, 2.0), torch.ones(2, dtype=torch.float64)

    class Into(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            a.add_(b)
            ctx.mark_dirty(a)
            return a

        @staticmethod
        def backward(ctx, g):
            return g, g * 5

    y = Into.apply(c, x)
    assert y is c and c.requires_grad
    (c * c).sum().backward()
    return c, x.grad


# ------------------------------------------------------------------ outputs that are inputs or views
@both
def test_an_input_returned(torch):
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 7

    x = leaf(torch, 1.0, 2.0)
    y = Same.apply(x)
    assert y is not x and x.is_leaf and y.data_ptr() == x.data_ptr() and not y.is_leaf
    y.sum().backward()
    return x.grad


@both
def test_views_of_inputs_cannot_be_written(torch):
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[:1]

        @staticmethod
        def backward(ctx, g):
            return torch.cat([g, torch.zeros(1, dtype=torch.float64)])

    x = leaf(torch, 1.0, 2.0)
    a = x * 1
    y = First.apply(a)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="inplace"):
        First.apply(x * 1).mul_(2)
    return y, x.grad
