"""Derivatives of functions: every transformation alone, nested, over nested arguments."""
import pytest
from both import both

import tritorch
import tritorch.nn.functional  # noqa: F401
from tritorch.ops.feed_forward import feed_forward_layers, linear_activation
from tritorch.ops.residual_norm import residual_norm


def values(torch, *v):
    return torch.tensor(list(v) if len(v) != 1 else v[0], dtype=torch.float64)


def f(torch):
    return lambda x: (x ** 3).sin().sum()


@both
def test_grad(torch):
    x, y = values(torch, 1.0, 2.0), values(torch, 3.0, 4.0)
    func = torch.func
    product = lambda a, b, scale=1: ((a * b) ** 2).sum() * scale  # noqa: E731
    out = [func.grad(f(torch))(x), func.grad(product)(x, y), func.grad(product, argnums=1)(x, y), func.grad(product, argnums=-1)(x, y),
           func.grad(product, argnums=(0, 1))(x, y, scale=3), func.grad_and_value(product)(x, y),
           func.grad(lambda a: (a.sum() * 2, {"seen": a * 2}), has_aux=True)(x),
           func.grad_and_value(lambda a: (a.sum(), a), has_aux=True)(x)]
    assert not any(t.requires_grad for t in (out[0], out[1], out[6][1]["seen"]))
    return out


@both
def test_nested_arguments(torch):
    tree = {"w": values(torch, 1.0, 2.0), "rest": [values(torch, 3.0), (values(torch, 5.0, 6.0),)]}
    loss = lambda p, x: (p["w"] * x * p["rest"][0] + p["rest"][1][0] ** 2).sum()  # noqa: E731
    gradients = torch.func.grad(loss)(tree, values(torch, 7.0, 8.0))
    y, pull = torch.func.vjp(lambda p: {"a": p["w"] * 2, "b": (p["rest"][0],)}, tree)
    return gradients, y, pull({"a": values(torch, 1.0, 2.0), "b": (values(torch, 3.0),)})


@both
def test_higher_order(torch):
    x, g = values(torch, 2.0), lambda v: v ** 5
    out = []
    for _ in range(5):
        g = torch.func.grad(g)
        out.append(g(x))
    return out


@both
def test_all_pairs(torch):
    """Each transformation over each."""
    x, v = values(torch, 0.5, 1.5, -0.5), values(torch, 1.0, -2.0, 0.25)
    scalar, vector = f(torch), lambda t: (t * t.roll(1)).sin()  # noqa: E731
    func = torch.func
    grad, jvp = func.grad(scalar), lambda t: func.jvp(vector, (t,), (v,))[1]  # noqa: E731
    vjp = lambda t: func.vjp(vector, t)[1](v)[0]  # noqa: E731
    out = []
    for inner in (grad, jvp, vjp, func.jacrev(scalar), func.jacfwd(scalar)):
        out += [func.jvp(inner, (x,), (v,)), func.vjp(inner, x)[1](v)[0], func.jacrev(inner)(x), func.jacfwd(inner)(x),
                func.grad(lambda t, inner=inner: (inner(t) * v).sum())(x)]
    return out


@both
def test_jacobians_and_hessians(torch):
    x, y = values(torch, [[1.0, 2.0], [3.0, 4.0]]), values(torch, 0.5, -1.0)
    func = torch.func
    return [func.jacrev(lambda a: a * a)(y), func.jacfwd(lambda a: a * a)(y), func.jacrev(lambda a, b: a @ b, argnums=(0, 1))(x, y),
            func.jacfwd(lambda a, b: a @ b, argnums=(0, 1))(x, y), func.hessian(f(torch))(y), func.jacrev(func.jacrev(f(torch)))(y),
            func.jacrev(lambda a: (a.sin(), {"s": a.sum()}))(y), func.jacfwd(lambda a: (a.sin(), a.sum()), has_aux=False)(y),
            func.jacrev(lambda a: (a * a, a + 1), has_aux=True)(y), func.jacfwd(lambda a: (a * a, a + 1), has_aux=True)(y),
            func.hessian(lambda a, b: (a @ b).sin().sum(), argnums=1)(x, y)]


@both
def test_vjp(torch):
    x, y = values(torch, 1.0, 2.0), values(torch, 3.0, 4.0)
    out, pull = torch.func.vjp(lambda a, b: (a * b, a.sum()), x, y)
    first, second = pull((values(torch, 1.0, 10.0), values(torch, 100.0))), pull((values(torch, 1.0, 0.0), values(torch, 0.0)))
    more = torch.func.vjp(lambda a: (a * 2, a + 1), x, has_aux=True)
    return out, first, second, more[0], more[1](y), more[2]


@both
def test_jvp(torch):
    x, y, v = values(torch, 1.0, 2.0), values(torch, 3.0, 4.0), values(torch, 1.0, -1.0)
    jvp = torch.func.jvp
    unused = jvp(lambda a, b: (a * 2, b.sin()), (x, y), (v, v))
    value, push = torch.func.linearize(lambda a: a.sin() * a, x)
    product = jvp(lambda a, b: a * b, (x, y), (v, v))
    return product, unused, jvp(lambda a: (a.exp(), a.sum()), (x,), (v,), has_aux=True)[:2], value, push(v), push(y)


@both
def test_tensors_that_the_function_knows(torch):
    """The graph around goes on through what a function closes over."""
    x, w = values(torch, 1.0, 2.0), values(torch, 3.0, 4.0).requires_grad_()
    g = torch.func.grad(lambda a: (a * a * w).sum())(x)
    assert g.requires_grad
    (gw,) = torch.autograd.grad(g.sum(), w)
    y = x.clone().requires_grad_()
    h = torch.func.grad(lambda a: (a ** 3).sum())(y)
    h.sum().backward()
    with torch.no_grad():
        quiet = torch.func.grad(lambda a: (a * a * w).sum())(x)
    assert not quiet.requires_grad
    return g, gw, h, y.grad, quiet


@both
def test_no_grad_inside(torch):
    def g(x):
        with torch.no_grad():
            c = x * x
        return (c * x).sum()

    x = values(torch, 1.0, 2.0)
    return torch.func.grad(g)(x), torch.func.grad(lambda v: (v.detach() * v).sum())(x)


@both
def test_writes_inside(torch):
    def g(x):
        y = x * 1
        y[0] = y[0] * 3
        y.mul_(x)
        out = torch.zeros(3, dtype=torch.float64)
        out[1:] = y
        return (out * out).sum()

    x, v = values(torch, 1.0, 2.0), values(torch, 0.5, 1.0)
    return torch.func.grad(g)(x), torch.func.jvp(g, (x,), (v,)), torch.func.hessian(g)(x)


@both
def test_errors(torch):
    x = values(torch, 1.0, 2.0)
    func = torch.func
    for bad in (lambda: func.grad(lambda a: a)(x), lambda: func.grad(lambda a: a.sum(), argnums=3)(x), lambda: func.grad(lambda a: 5)(x),
                lambda: func.jvp(lambda a: a, x, x), lambda: func.jvp(lambda a: a, (x,), (x, x)), lambda: func.vjp(lambda a: 5, x),
                lambda: func.grad(lambda a: a.sum())(5.0)):
        with pytest.raises((RuntimeError, ValueError, AssertionError)):
            bad()


@both
def test_vmap(torch):
    x, w = values(torch, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), values(torch, 7.0, 8.0)
    vmap, grad = torch.func.vmap, torch.func.grad
    return [vmap(torch.dot, in_dims=(0, None))(x, w), vmap(lambda a: a * 2, in_dims=1, out_dims=1)(x), vmap(grad(f(torch)))(x),
            vmap(vmap(lambda a: a.sin()))(x), vmap(lambda p, b: {"s": p["a"] + b, "t": (b.sum(),)}, in_dims=({"a": 0}, None))({"a": x}, w),
            vmap(lambda a, k: a * k, in_dims=(0, None))(x, 3), torch.func.jacrev(vmap(lambda a: a.sum()))(x)]


def test_per_sample_gradients():
    torch = tritorch
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    parameters = {k: v.detach() for k, v in net.named_parameters()}
    x, y = torch.randn(5, 3), torch.randn(5, 1)

    def loss(p, a, b):
        return ((torch.func.functional_call(net, p, (a,)) - b) ** 2).mean()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    net.zero_grad()
    ((net(x) - y) ** 2).mean().backward()
    for name, p in net.named_parameters():
        assert torch.allclose(per_sample[name].mean(0), p.grad, atol=1e-6)


@both
def test_vjp_where_nothing_is_recorded(torch):
    x = values(torch, 3.0).requires_grad_()
    out, pull = torch.func.vjp(lambda a: a ** 2, x)
    with torch.no_grad():
        quiet, (y,) = torch.func.vjp(lambda a: a ** 2, x)[1], pull(values(torch, 1.0))
    (z,) = quiet(values(torch, 1.0))
    assert out.requires_grad and not y.requires_grad and z.requires_grad
    return y, torch.autograd.grad(z, x), torch.autograd.grad(out, x)


@both
def test_random_numbers_of_samples(torch):
    x = torch.ones(3, 4)
    torch.manual_seed(0)
    same, further = torch.func.vmap(torch.nn.functional.dropout, randomness="same")(x), torch.rand(4)
    different = torch.func.vmap(lambda row: row * torch.rand(4), randomness="different")(x)
    assert all(torch.equal(row, same[0]) for row in same) and not torch.equal(different[0], different[1])
    torch.manual_seed(0)
    torch.nn.functional.dropout(x[0])
    return torch.equal(torch.rand(4), further)


def test_an_ensemble():
    torch = tritorch
    nets = [torch.nn.Linear(3, 2) for _ in range(4)]
    parameters, buffers = torch.func.stack_module_state(nets)
    x = torch.randn(5, 3)
    made = torch.func.vmap(lambda p, b, v: torch.func.functional_call(nets[0], (p, b), (v,)), in_dims=(0, 0, None))(parameters, buffers, x)
    for k, net in enumerate(nets):
        assert torch.allclose(made[k], net(x))


# ------------------------------------------------------------------ torch.autograd.functional
@both
def test_functional(torch):
    x, y, v = values(torch, 1.0, 2.0), values(torch, 3.0, 4.0), values(torch, 0.5, -1.0)
    one, two = lambda a: (a ** 3).sin(), lambda a, b: (a * b, (a + b).sum())  # noqa: E731
    scalar = lambda a, b: (a * a * b).sum()  # noqa: E731
    F = torch.autograd.functional
    out = [F.jacobian(one, x), F.jacobian(two, (x, y)), F.jacobian(scalar, (x, y)), F.hessian(f(torch), x), F.hessian(scalar, (x, y)),
           F.vjp(one, x, v), F.vjp(two, (x, y), (v, values(torch, 2.0))), F.vjp(scalar, (x, y)), F.jvp(one, x, v),
           F.jvp(two, (x, y), (v, v)), F.vhp(scalar, (x, y), (v, v)),
           F.hvp(f(torch), x, v), F.jacobian(one, x, strategy="forward-mode", vectorize=True)]
    assert not out[0].requires_grad
    z = x.clone().requires_grad_()
    F.jacobian(one, z, create_graph=True).sum().backward()
    for bad in (lambda: F.vjp(one, x), lambda: F.hessian(one, x), lambda: F.jacobian(lambda a: a.detach(), x, strict=True),
                lambda: F.vjp(one, x, y[:1])):
        with pytest.raises(RuntimeError):
            bad()
    return out, z.grad


# ------------------------------------------------------------------ forward mode by hand
@both
def test_what_does_not_move_has_a_tangent_of_zeros(torch):
    ad = __import__("importlib").import_module(torch.__name__ + ".autograd.forward_ad")
    x, v = values(torch, 1.5, -2.0), values(torch, 1.0, -1.0)
    with ad.dual_level():
        dual = ad.make_dual(x, v)
        mantissa, exponent = torch.frexp(dual)
        assert ad.unpack_dual(exponent).tangent is None and ad.unpack_dual(dual > 0).tangent is None
        return [ad.unpack_dual(y).tangent for y in (dual.sign(), dual.floor(), dual.round() + x, mantissa, dual.sign() * dual)]


@both
def test_tangents_that_lie_otherwise_than_their_tensors(torch):
    ad = __import__("importlib").import_module(torch.__name__ + ".autograd.forward_ad")
    x, v = values(torch, 1.5, -2.0, 3.0, 0.5).reshape(2, 2), values(torch, 1.0, -1.0, 2.0, 0.0).reshape(2, 2).t()
    with ad.dual_level():
        dual = ad.make_dual(x, v)
        made = dual.view(4), torch.view_as_real(torch.view_as_complex(dual)), dual.as_strided((2,), (1,), 1)
        return [ad.unpack_dual(y).tangent for y in made]


@both
def test_dual_numbers(torch):
    ad = __import__("importlib").import_module(torch.__name__ + ".autograd.forward_ad")
    x, v, w = values(torch, 1.0, 2.0), values(torch, 1.0, -1.0), values(torch, 3.0, 4.0).requires_grad_()
    with ad.dual_level():
        dual = ad.make_dual(x, v)
        made = ad.unpack_dual((dual * w).sin())
        y = dual * 1
        y[0] = 5
        y.mul_(dual)
        written = ad.unpack_dual(y)
        assert ad.unpack_dual(x).tangent is None and ad.unpack_dual(dual.detach()).tangent is None
        (g,) = torch.autograd.grad(made.tangent.sum(), w)
        with pytest.raises(RuntimeError):
            with ad.dual_level():
                pass
    assert ad.unpack_dual(dual).tangent is None
    with pytest.raises((RuntimeError, AttributeError, AssertionError)):
        ad.make_dual(x, v)
    return made.primal, made.tangent, written.primal, written.tangent, g


# ------------------------------------------------------------------ gradcheck
@both
def test_gradcheck(torch):
    x, y = values(torch, [[0.5, 1.0], [2.0, -1.0]]).requires_grad_(), values(torch, 0.25, 3.0).requires_grad_()
    check, again = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    good = lambda a, b: (a @ b, (a * b).sin().sum())  # noqa: E731
    for fast in (False, True):
        assert check(good, (x, y), fast_mode=fast) and again(good, (x, y), fast_mode=fast)
        assert check(good, (x, y), check_forward_ad=True, fast_mode=fast)
        bad = lambda a: a.detach() * a  # noqa: E731
        assert not check(bad, (y,), fast_mode=fast, raise_exception=False)
        with pytest.raises(RuntimeError):
            check(bad, (y,), fast_mode=fast)
    assert check(lambda a, k: a * k, (y, 3.0)) and check(lambda a: a.max(0)[0], (y,)) and check(torch.sin, y)
    with pytest.raises(ValueError):
        check(torch.sin, (y.detach(),))
    with pytest.raises(RuntimeError):
        check(lambda a: a * 2, (values(torch, 1.0).requires_grad_().expand(3),))


SECOND = {
    "layer_norm": lambda F, x: F.layer_norm(x, (3,), x[0], x[1]), "rms_norm": lambda F, x: F.rms_norm(x, (3,), x[0]),
    "group_norm": lambda F, x: F.group_norm(x[None], 1, x[:, 0], x[:, 1]), "instance_norm": lambda F, x: F.instance_norm(x[None] ** 2),
    "batch_norm": lambda F, x: F.batch_norm(x, None, None, x[0], training=True, eps=0.5),
    "cross_entropy": lambda F, x: F.cross_entropy(x, tritorch.tensor([0, 2]), reduction="none"),
    "linear_cross_entropy": lambda F, x: F.linear_cross_entropy(x, x.T @ x, tritorch.tensor([0, 2])),
    "rows": lambda F, x: F.linear_cross_entropy(x, x.T @ x, tritorch.tensor([0, 2]), reduction="none"),
    "residual_norm": lambda F, x: sum(t.sum() ** 2 for t in residual_norm(x, x ** 2, (3,), x[0], x[1])[:2]),
    "linear_activation": lambda F, x: linear_activation(x, x.T @ x, x[0], "gelu")[0],
    "feed_forward": lambda F, x: feed_forward_layers(x, x.T @ x, x[0], x.T @ x, x[1], "silu")[0],
    "attention": lambda F, x: F.scaled_dot_product_attention(x[None], x[None] ** 2, x[None]), "softmax": lambda F, x: x.softmax(0),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_in_every_order(name):
    """Forward over reverse sees what the gradient rules take as given, like the moments of a norm, move with the input."""
    func, F = tritorch.func, tritorch.nn.functional
    x = tritorch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]], dtype=tritorch.float64)
    loss = lambda x: (SECOND[name](F, x) ** 2).sum()  # noqa: E731
    want = func.jacrev(func.jacrev(loss))(x)
    made = func.hessian(loss)(x)                                         # forward over reverse
    twice = func.jvp(lambda v: func.jvp(loss, (v,), (x,))[1], (x,), (x,))[1]
    assert not made.requires_grad and not twice.requires_grad
    tritorch.testing.assert_close(made, want, rtol=1e-8, atol=1e-9)
    tritorch.testing.assert_close(twice, (want * x).sum((2, 3)).mul(x).sum(), rtol=1e-8, atol=1e-9)


def test_what_is_watched_from_outside_stays_in_its_graph():
    func, x = tritorch.func, tritorch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]], dtype=tritorch.float64)
    loss = lambda x: (SECOND["layer_norm"](tritorch.nn.functional, x) ** 2).sum()  # noqa: E731
    w = x.clone().requires_grad_()
    (g,) = tritorch.autograd.grad(func.jvp(func.grad(loss), (w,), (w.detach(),))[1].sum(), w)
    third = func.grad(lambda v: func.jvp(func.grad(loss), (v,), (x,))[1].sum())(x)
    tritorch.testing.assert_close(g, third, rtol=1e-8, atol=1e-9)


def test_trees_of_every_kind_go_through_transformations():
    import importlib
    from collections import OrderedDict, defaultdict, deque, namedtuple
    from dataclasses import dataclass

    from oracle import torch as pytorch

    Pair = namedtuple("Pair", "x y")
    seen = []
    for T in (tritorch, pytorch):
        P = importlib.import_module(f"{T.__name__}.utils._pytree")

        @dataclass
        class Point:
            x: object
            y: object = None

        class Output(OrderedDict):
            pass

        P.register_dataclass(Point)
        P.register_pytree_node(Output, P._dict_flatten, lambda values, keys, kind=Output, P=P: kind(P._dict_unflatten(values, keys)))
        a, b, F = T.tensor([1.0, 2.0]), T.tensor([3.0, 5.0]), T.func

        def total(tree, P=P):
            return sum((x ** 2 * (k + 1)).sum() for k, x in enumerate(P.tree_leaves(tree)))

        found = []
        for tree in (Pair(a, b), OrderedDict(y=a, x=b), defaultdict(list, k=a), deque([a, (b, {})]), Point(a, [b]), Point(a),
                     Output(u=a, v=Pair(b, a))):
            made = [F.grad(total)(tree), F.vjp(lambda t, P=P: P.tree_map(lambda x: x * x, t), tree)[1](tree)[0],
                    F.jvp(lambda t, P=P: P.tree_map(lambda x: x * x * x, t), (tree,), (tree,))[1],
                    F.vmap(lambda t, P=P: P.tree_map(lambda x: x + 1, t))(tree), F.jacrev(total)(tree), F.hessian(total)(Pair(a, b)).x.y]
            kinds = [type(x).__name__ for x in made]
            found.append((kinds, [[leaf.tolist() for leaf in P.tree_leaves(x)] for x in made]))
        spread = [F.vmap(lambda p: p.x + p.y, (dims,))(kind(a, b)).tolist() for kind in (Pair, Point) for dims in (kind(0, 0), 0)]
        found.append([spread, F.vmap(lambda p: p.x + p.y, (Pair(0, None),))(Pair(a, b)).tolist()])
        seen.append(found)
    assert seen[0] == seen[1]


def test_what_does_not_fit_is_refused():
    layer = tritorch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="functional_call: expected tensors for all parameters .*'bias'"):
        tritorch.func.functional_call(layer, {"weight": tritorch.ones(2, 2)}, tritorch.ones(1, 2), strict=True)
    for args, dims in (((tritorch.tensor(1.0),), 0), ((tritorch.ones(2),), 1), ((tritorch.ones(2), tritorch.tensor(1.0)), 0)):
        with pytest.raises(ValueError, match="vmap: expected in_dims that the arguments have"):
            tritorch.func.vmap(lambda *x: x[0], in_dims=dims)(*args)
