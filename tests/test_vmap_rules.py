"""vmap of functions and operators of the user's: autograd.Function, custom operators, and rules of both."""
import gc
import weakref

import pytest
from both import both
from vmap_programs import by_loop, near, values

import tritorch


def cube(torch, generate=True):
    class Cube(torch.autograd.Function):
        generate_vmap_rule = generate

        @staticmethod
        def forward(x):
            return x ** 3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return g * 3 * ctx.saved_tensors[0] ** 2 + 100 * g           # which tells that this is asked

    return Cube.apply


@both
def test_functions_without_a_rule(torch):
    func, f, x, w = torch.func, cube(torch), values(torch, 2, 3).requires_grad_(), values(torch, 3).requires_grad_()
    grad = torch.autograd.grad
    product = func.vmap(lambda r, s: f(r) * f(s), (0, None))(x, w)
    inside = func.vmap(func.grad(lambda r: f(r).sum()))(x)
    nested = func.vmap(lambda r: func.vmap(lambda s, t: f(s * t), (0, None))(r, w[0]))(x)
    (g,) = grad(func.vmap(lambda r: f(r).sin())(x).sum(), x, create_graph=True)
    return (product, grad(product.sin().sum(), [x, w]), inside, grad(inside.sum(), x), nested, grad(nested.sum(), [x, w]), g,
            grad(g.sum(), x))


class Mixed(tritorch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, n):
        ctx.save_for_backward(x, w)
        ctx.n, ctx.seen = n, x * 1
        steps = (x > 0).double()
        ctx.mark_non_differentiable(steps)
        return x, x[1:], w * n, x @ w, steps

    @staticmethod
    def backward(ctx, a, b, c, d, _):
        x, w = ctx.saved_tensors
        return a + tritorch.cat([b[:1] * 0, b]) + d * w + ctx.seen, ctx.n * c + d * x, None


class Doubled(tritorch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g + 1


def test_functions_of_several_kinds():
    """Outputs that are inputs, views, the same for all samples or without a gradient, and inputs that are written."""
    torch = tritorch

    def mixed(x, w):
        a, b, c, d, steps = Mixed.apply(x, w, 3.0)
        assert not steps.requires_grad
        return a.sin(), b.sin(), c.sin(), d.sin()

    def doubled(x, w):
        z = x * 3
        Doubled.apply(z)
        return z * w

    x, w = values(torch, 2, 3).requires_grad_(), values(torch, 3).requires_grad_()
    for f in (mixed, doubled):
        made, want = torch.vmap(f, (0, None))(x, w), by_loop(torch, f, (0, None), x, w)
        near(made, want)
        total = [sum(o.cos().sum() for o in (v if type(v) is tuple else (v,))) for v in (made, want)]
        near(torch.autograd.grad(total[0], [x, w]), torch.autograd.grad(total[1], [x, w]))


class Exp(tritorch.autograd.Function):
    """It saves what it returns."""

    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


def test_functions_that_save_an_output():
    torch, x, grad, vmap = tritorch, values(tritorch, 2, 3).requires_grad_(), tritorch.autograd.grad, tritorch.vmap
    inner = lambda f: torch.func.grad(lambda r: f(r).sum())  # noqa: E731

    def results(f):
        (deep,) = grad(vmap(f)(x).sin().sum(), x, create_graph=True)
        twice = vmap(lambda r: vmap(f)(r * 2))(x)
        (deeper,) = grad(twice.sin().sum(), x, create_graph=True)
        return (grad(deep.sin().sum(), x), grad(vmap(inner(f))(x).sin().sum(), x), deeper, grad(deeper.sin().sum(), x),
                grad(vmap(vmap(inner(f)))(x.unsqueeze(-1)).sin().sum(), x), torch.func.hessian(lambda v: vmap(f)(v).sin().sum())(x.detach()))

    near(results(Exp.apply), results(torch.exp))


def test_they_die_by_reference_count():
    x = values(tritorch, 2, 3).requires_grad_()
    gc.collect()
    gc.disable()
    try:
        y = tritorch.vmap(Exp.apply)(x * 1)
        alive = weakref.ref(y.grad_fn)
        del y
        assert alive() is None
    finally:
        gc.enable()


@both
def test_functions_with_a_rule(torch):
    seen = []

    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(x, w, n):
            return x * w + n, x.sum(-1)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0], inputs[1])

        @staticmethod
        def backward(ctx, g, h):
            x, w = ctx.saved_tensors
            return g * w + h.unsqueeze(-1) + 10, g * x, None

        @staticmethod
        def vmap(info, in_dims, x, w, n):
            seen.append((info.batch_size, info.randomness, in_dims[1], in_dims[2]))
            a, b = Rule.apply(x.movedim(in_dims[0], 0), w, n)
            return (a.movedim(0, -1), b), (-1, 0)

    func, x, w = torch.func, values(torch, 2, 3).requires_grad_(), values(torch, 3).requires_grad_()
    f = lambda r, s: Rule.apply(r, s, 2)  # noqa: E731
    a, b = func.vmap(f, (0, None))(x, w)
    out = [a, b, torch.autograd.grad(a.sin().sum() + b.sum(), [x, w]), func.vmap(f, (1, None), (1, 0), "same")(x, w[:2]),
           func.vmap(func.grad(lambda r, s: sum(t.sum() for t in f(r, s)), argnums=(0, 1)), (0, None))(x, w)]
    assert seen == [(2, "error", None, None), (3, "same", None, None), (2, "error", None, None)]
    return out


def test_rules_that_are_wrong():
    class Two(tritorch.autograd.Function):
        generate_vmap_rule = True
        forward, setup_context = staticmethod(lambda x: x * 2), staticmethod(lambda ctx, inputs, output: None)
        vmap = staticmethod(lambda info, in_dims, x: (x * 2, 0))

    class One(Two):
        generate_vmap_rule = False

    x = tritorch.ones(3, 2)
    with pytest.raises(RuntimeError, match="Two: expected generate_vmap_rule or a static method vmap"):
        tritorch.vmap(Two.apply)(x)
    for made, text in ((x, r"returns \(results, dims\)"), ((x, (0, 0)), "dims of 1 results"), ((x, 1), "3 samples along them, got 1")):
        One.vmap = staticmethod(lambda info, in_dims, x, made=made: made)
        with pytest.raises(RuntimeError, match=text):
            tritorch.vmap(One.apply)(x)


def test_custom_operators():
    torch = tritorch

    @torch.library.custom_op("test_vmap::scaled", mutates_args=())
    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tensor(float(x.numpy().sum()), dtype=x.dtype) * w

    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (g * w).sum() * torch.ones_like(x), g * x.sum()

    scaled.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    x, w, seen = values(torch, 2, 3).requires_grad_(), values(torch, 2).requires_grad_(), []

    def results():
        y = torch.vmap(scaled, (0, None))(x, w)
        return (y, torch.vmap(scaled, (1, None))(x, w), torch.autograd.grad(y.sin().sum(), [x, w]),
                torch.vmap(torch.func.grad(lambda a, b: scaled(a, b).sin().sum(), argnums=(0, 1)), (0, None))(x, w))

    want = results()

    @scaled.register_vmap
    def _(info, in_dims, x, w):
        seen.append((info.batch_size, in_dims))
        return x.movedim(in_dims[0], 0).sum(1, keepdim=True) * w, 0

    near(results(), want)
    assert seen == [(2, (0, None)), (3, (0, None)), (2, (0, None))]


def test_rules_of_operators():
    torch, seen = tritorch, []

    @torch.dispatch.op
    def total_of_rows(x, scale=1.0):
        return x.shape[:-1], x.dtype, x.device

    @total_of_rows.impl("cpu")
    def _(out, x, scale):
        seen.append(x.shape)
        out[...] = x.sum(-1) * scale

    @total_of_rows.grad("x")
    def _(g, x_shape, scale):
        return (g * scale).unsqueeze(-1).expand(x_shape)

    try:
        x = values(torch, 3, 2, 4)
        near(torch.vmap(total_of_rows)(x), x.sum(-1))
        assert seen == [(2, 4)] * 3                                      # without a rule a call for each
        del seen[:]

        @total_of_rows.batch
        def _(call):
            assert call.given[0].shape == (2, 4) and call.size == 3 and call.differs("x")
            return call.run(call["x"], call["scale"])

        near(torch.vmap(lambda v: total_of_rows(v, 2.0))(x), 2 * x.sum(-1))
        near(torch.vmap(torch.func.grad(lambda v: total_of_rows(v, 2.0).sum()))(x), torch.full_like(x, 2.0))
        assert seen == [(3, 2, 4)] * 2
    finally:
        del torch.dispatch.registry["total_of_rows"]
