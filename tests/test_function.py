"""autograd.Function: what forward may say, what backward gets, and what is refused."""
import pytest
from both import both, leaf

import tritorch


def cube(torch, **members):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x ** 2

    return type("Cube", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward), **members})


@both
def test_a_function(torch):
    x = leaf(torch, 1.0, 2.0)
    y = cube(torch).apply(x)
    y.sum().backward()
    assert y.grad_fn.name() == "CubeBackward" and isinstance(y.grad_fn, torch.autograd.graph.Node)
    return y, x.grad


@both
def test_twice(torch):
    x = leaf(torch, 1.0, 2.0)
    (g,) = torch.autograd.grad(cube(torch).apply(x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    return g, h, torch.autograd.grad(h.sum(), x)


@both
def test_saved_tensors_are_freed(torch):
    x = leaf(torch, 2.0)
    y = cube(torch).apply(x)
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.backward()
    return x.grad


@both
def test_setup_context(torch):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(x, factor):
            return x * factor, factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]
            ctx.outs = len(output)

        @staticmethod
        def backward(ctx, g, _):
            return g * ctx.factor * ctx.outs, None

    x = leaf(torch, 1.0, 2.0)
    y, factor = Scale.apply(x, 5)
    y.sum().backward()
    return y, factor, x.grad


@both
def test_needs_input_grad(torch):
    seen = []

    class Mul(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b, c):
            ctx.save_for_backward(a, b)
            seen.append(ctx.needs_input_grad)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            seen.append(ctx.needs_input_grad)
            return g * b if ctx.needs_input_grad[0] else None, g * a if ctx.needs_input_grad[1] else None, None

    x, c = leaf(torch, 2.0), torch.tensor(3.0, dtype=torch.float64)
    y = Mul.apply(x, c, "word")
    y.backward()
    z = Mul.apply(c, c, None)
    assert not z.requires_grad
    with torch.no_grad():
        assert not Mul.apply(x, x, 0).requires_grad
    return seen, x.grad


@both
def test_several_outputs_and_missing_gradients(torch):
    seen = []

    def both_ways(materialize):
        class Two(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.set_materialize_grads(materialize)
                return x * 2, x * 3

            @staticmethod
            def backward(ctx, a, b):
                seen.append([None if g is None else g.tolist() for g in (a, b)])
                return sum(g * k for g, k in ((a, 2), (b, 3)) if g is not None)

        return Two

    x = leaf(torch, 1.0, 2.0)
    for materialize in (True, False):
        a, b = both_ways(materialize).apply(x)
        b.sum().backward()
    return seen, x.grad


@both
def test_non_differentiable_outputs(torch):
    class Sort(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            values, places = x.sort()
            flags = x > 0
            rest = x * 2
            ctx.mark_non_differentiable(rest, places)
            ctx.save_for_backward(places)
            return values, places, flags, rest

        @staticmethod
        def backward(ctx, g, *others):
            (places,) = ctx.saved_tensors
            return torch.zeros(3, dtype=torch.float64).index_add(0, places, g)

    x = leaf(torch, 3.0, 1.0, 2.0)
    made = Sort.apply(x)
    (made[0] * torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)).sum().backward()
    return [m.requires_grad for m in made], x.grad


@both
def test_saved_outputs(torch):
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y, None)
            return y

        @staticmethod
        def backward(ctx, g):
            y, nothing = ctx.saved_tensors
            assert nothing is None
            return g * y

    x = leaf(torch, 1.0, 2.0)
    y = Exp.apply(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    z = Exp.apply(x)
    z.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    return g, h


@both
def test_saved_inputs_that_were_written(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 1
    z = cube(torch).apply(y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


# ------------------------------------------------------------------ errors
@both
def test_wrong_number_of_gradients(torch):
    x = leaf(torch, 1.0, 2.0)
    few = cube(torch, forward=staticmethod(lambda ctx, a, b: a * b), backward=staticmethod(lambda ctx, g: g))
    with pytest.raises(RuntimeError, match="gradients"):
        few.apply(x, x).sum().backward()
    many = cube(torch, forward=staticmethod(lambda ctx, a: a * 2), backward=staticmethod(lambda ctx, g: (g, g)))
    with pytest.raises(RuntimeError, match="gradients"):
        many.apply(x).sum().backward()
    nones = cube(torch, forward=staticmethod(lambda ctx, a: a * 2), backward=staticmethod(lambda ctx, g: (g, None)))
    nones.apply(x).sum().backward()
    return x.grad


@both
def test_shapes_of_gradients(torch):
    def gradient(made):
        x = leaf(torch, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        given = cube(torch, forward=staticmethod(lambda ctx, a: a * 1), backward=staticmethod(lambda ctx, g: made))
        return torch.autograd.grad(given.apply(x).sum(), x)

    for made in (torch.ones(3), torch.ones(2, 2), torch.ones(3, 2), 5):
        with pytest.raises(RuntimeError):
            gradient(made)
    return [gradient(torch.ones(shape, dtype=torch.float64)) for shape in ((2, 3), (4, 2, 3))]


@both
def test_broadcast_gradients_are_summed(torch):
    add = cube(torch, forward=staticmethod(lambda ctx, a, b: a + b), backward=staticmethod(lambda ctx, g: (g, g)))
    a, b = leaf(torch, 1.0, 2.0), leaf(torch, 3.0)
    add.apply(a, b).sum().backward()
    return a.grad, b.grad


@both
def test_errors(torch):
    x = leaf(torch, 1.0, 2.0)
    with pytest.raises(TypeError):
        cube(torch, forward=staticmethod(lambda ctx, a: ctx.save_for_backward(5))).apply(x)
    with pytest.raises(NotImplementedError):
        torch.autograd.Function.apply(x)
    with pytest.raises(NotImplementedError):
        type("NoBackward", (torch.autograd.Function,), {"forward": staticmethod(lambda ctx, a: a * 2)}).apply(x).sum().backward()
    with pytest.raises(RuntimeError):
        cube(torch)()(x)
    with pytest.raises(ZeroDivisionError):
        cube(torch, backward=staticmethod(lambda ctx, g: 1 / 0)).apply(x).sum().backward()


@both
def test_once_differentiable(torch):
    from importlib import import_module

    once = import_module(torch.__name__ + ".autograd.function").once_differentiable

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            assert not torch.is_grad_enabled()
            return g * 2 * x

    x = leaf(torch, 1.0, 2.0)
    y = Square.apply(x)
    (g,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (h,) = torch.autograd.grad((y * x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        h.sum().backward()
    return g, h


@both
def test_vjp_as_the_name_of_backward(torch):
    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def vjp(ctx, g):
            return g * 3

    x = leaf(torch, 1.0, 2.0)
    Triple.apply(x).sum().backward()
    return x.grad


@both
def test_gradients_inside_of_forward_and_backward(torch):
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = (ctx.x ** 3).sum()
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                return g * torch.autograd.grad(ctx.y, ctx.x)[0]

    x = leaf(torch, 1.0, 2.0)
    Inner.apply(x * 2).backward()
    return x.grad


def test_arguments_by_name():
    """They are taken as if they stood in their places, as in PyTorch."""
    class Power(tritorch.autograd.Function):
        @staticmethod
        def forward(ctx, x, n=2, times=1):
            ctx.save_for_backward(x)
            ctx.n = n
            return x ** n * times

        @staticmethod
        def backward(ctx, g):
            return g * ctx.n * ctx.saved_tensors[0] ** (ctx.n - 1), None, None

    class Twice(tritorch.autograd.Function):
        @staticmethod
        def forward(x, times):
            return x * times

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.times = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.times, None

    x = tritorch.tensor([2.0], requires_grad=True)
    Power.apply(x, n=3).backward()
    Twice.apply(times=5, x=x).backward()
    assert x.grad.tolist() == [17]
    for bad in (lambda: Power.apply(x, times=3), lambda: Power.apply(x, m=3), lambda: Power.apply(x, 2, n=3)):
        with pytest.raises(TypeError):
            bad()


@both
def test_setup_context_sees_defaults(torch):
    class Power(torch.autograd.Function):
        @staticmethod
        def forward(x, n=3):
            return x ** n

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.n = inputs
            ctx.save_for_backward(x)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.n * ctx.saved_tensors[0] ** (ctx.n - 1), None

    x = leaf(torch, 2.0, 3.0)
    (Power.apply(x) + Power.apply(x, 2)).sum().backward()
    return x.grad


@both
def test_variable(torch):
    made = torch.autograd.Variable
    x = torch.ones(2)
    y, z = made(x * 2, requires_grad=True), made(leaf(torch, 1.0) * 3)
    assert isinstance(x, made) and isinstance(torch.nn.Parameter(x), made) and y.is_leaf and y.requires_grad and not z.requires_grad
    (y * y).sum().backward()
    made(x).mul_(5)
    with pytest.raises(TypeError):
        made([1.0])
    with pytest.warns(UserWarning, match="volatile"):
        made(x, volatile=True)
    return x, y.grad, made()
