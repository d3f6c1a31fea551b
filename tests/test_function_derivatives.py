"""autograd.Function under gradcheck and in forward mode."""
import pytest
from both import both, leaf
from test_function import cube


@both
def test_gradcheck(torch):
    f = cube(torch).apply
    x = leaf(torch, 1.0, 2.0)
    wrong = cube(torch, backward=staticmethod(lambda ctx, g: g * 3 * ctx.saved_tensors[0])).apply
    assert torch.autograd.gradcheck(f, x) and torch.autograd.gradgradcheck(f, x) and torch.autograd.gradcheck(f, x, fast_mode=True)
    assert not torch.autograd.gradcheck(wrong, x, raise_exception=False)
    from importlib import import_module

    error = import_module(torch.__name__ + ".autograd.gradcheck").GradcheckError
    with pytest.raises(error):
        torch.autograd.gradcheck(wrong, x)


@both
def test_gradcheck_takes_what_lies_apart_and_what_looks_at_the_mode(torch):
    a, b = leaf(torch, 1.0, 2.0, 3.0), torch.randn(3, dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, y: torch.stack([x, y], 1)[:, 1], (a, b), check_forward_ad=True)

    def looking(r):
        x = torch.ones(3, dtype=torch.float64)
        row = x[1]
        x.add_(r)
        assert row.requires_grad
        return row

    assert torch.autograd.gradgradcheck(looking, leaf(torch, 2.0))


@both
def test_gradcheck_moves_the_input_itself(torch):
    """A function may know an input by another way than its argument, as a module knows its parameters."""
    layer = torch.nn.Linear(2, 3).double()
    x = leaf(torch, [1.0, 2.0])
    before = [p.tolist() for p in (x, *layer.parameters())]
    for fast in (False, True):
        assert torch.autograd.gradcheck(lambda *args: layer(x).sin(), (x, *layer.parameters()), fast_mode=fast)
    assert [p.tolist() for p in (x, *layer.parameters())] == before
    return x


# ------------------------------------------------------------------ forward mode
@both
def test_jvp_gets_zeros_for_what_does_not_move(torch):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(x, y, k):
            return x * y * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs[:2])
            ctx.k = inputs[2]

        @staticmethod
        def jvp(ctx, x_t, y_t, k_t):
            x, y = ctx.saved_tensors
            assert k_t is None
            return (x * y_t + y * x_t) * ctx.k

    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    with torch.autograd.forward_ad.dual_level():
        made = Scaled.apply(torch.autograd.forward_ad.make_dual(x, y), y, 2.0)
        return torch.autograd.forward_ad.unpack_dual(made).tangent


@both
def test_jvp(torch):
    seen = []

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(x, y):
            return x.sin() * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs)
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * x.cos() * y, g * x.sin()

        @staticmethod
        def jvp(ctx, tx, ty):
            x, y = ctx.saved_tensors
            seen.append(ty is None)
            return tx * x.cos() * y + (0 if ty is None else ty * x.sin())

    import_module = __import__("importlib").import_module
    ad = import_module(torch.__name__ + ".autograd.forward_ad")
    x, y = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([3.0, 5.0], dtype=torch.float64)
    with ad.dual_level():
        a, b = ad.make_dual(x, torch.ones_like(x)), ad.make_dual(y, torch.ones_like(y) * 2)
        first = ad.unpack_dual(Sine.apply(a, b))
        second = ad.unpack_dual(Sine.apply(a, y) * 2)
        plain = ad.unpack_dual(x)
    assert plain.tangent is None
    return [first.primal, first.tangent, second.primal, second.tangent]


def test_forward_mode_without_a_jvp_rule_transposes_backward():
    import tritorch as torch

    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    value, tangent = torch.func.jvp(cube(torch).apply, (x,), (torch.tensor([1.0, 10.0], dtype=torch.float64),))
    assert value.tolist() == [1.0, 8.0] and tangent.tolist() == [3.0, 120.0]
    _, second = torch.func.jvp(lambda v: torch.func.jvp(cube(torch).apply, (v,), (torch.ones_like(v),))[1], (x,), (torch.ones_like(x),))
    assert second.tolist() == [6.0, 12.0]


@both
def test_forward_over_reverse_through_a_saved_output(torch):
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.exp()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)
            ctx.save_for_forward(output)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

        @staticmethod
        def jvp(ctx, t):
            return t * ctx.saved_tensors[0]

    x = torch.tensor([0.3, -0.5], dtype=torch.float64)
    return torch.func.jvp(torch.func.grad(lambda v: Exp.apply(v).sin().sum()), (x,), (x,))
