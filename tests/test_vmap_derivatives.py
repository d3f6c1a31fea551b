"""What takes derivatives by vmap, against PyTorch: Jacobians, Hessians, gradients of batches, and their checks."""
import pytest
from both import both
from vmap_programs import values

import tritorch
from tritorch.autograd.modes import state


@both
def test_jacobians(torch):
    func, x, y = torch.func, values(torch, 2, 3), values(torch, 3)
    f = lambda a, b: (a @ b, (a * b).sin().sum(), b * 2)  # noqa: E731
    calls = []

    def counted(a):
        calls.append(1)
        return (a * a.roll(1, 0)).sin()

    out = [func.jacrev(f, argnums=(0, 1), chunk_size=c, _preallocate_and_copy=p)(x, y) for c in (None, 1, 2, 5) for p in (False, True)]
    out += [func.jacfwd(f, argnums=(1, 0))(x, y), func.jacfwd(counted)(x), func.jacrev(counted)(x), func.hessian(lambda a: f(a, y)[1])(x)]
    out += [func.jacfwd(lambda v: (v * 2, v + 1), has_aux=True)(y), func.jacrev(lambda v: v[:0])(y), func.jacfwd(lambda v: v[:0])(y),
            func.jacfwd(lambda v: v * 2)(y[:0]), func.vmap(func.jacrev(torch.sin))(x), func.vmap(func.hessian(lambda v: (v ** 3).sum()))(x),
            func.jacfwd(lambda v: torch.ones(2) + 0 * v.sum())(y)]
    assert len(calls) == 2
    for size in (0, -1):
        with pytest.raises(ValueError, match="chunk_size"):
            func.jacrev(f, chunk_size=size)
    return out


@both
def test_randomness_of_jacfwd(torch):
    noisy = lambda v: v * torch.rand(3, dtype=torch.float64)  # noqa: E731
    y = values(torch, 3)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.jacfwd(noisy)(y)
    torch.manual_seed(1)
    same = torch.func.jacfwd(noisy, randomness="same")(y)
    torch.manual_seed(1)
    assert torch.equal(same.diagonal(), torch.rand(3, dtype=torch.float64))
    assert torch.func.jacfwd(noisy, randomness="different")(y).diagonal().unique().numel() == 3


@both
def test_functional(torch):
    jacobian, hessian, x, y = torch.autograd.functional.jacobian, torch.autograd.functional.hessian, values(torch, 2, 3), values(torch, 3)
    f = lambda a, b: (a @ b, (a * b).sin().sum(), b * 2)  # noqa: E731
    out = [jacobian(f, (x, y), **how) for how in ({}, {"vectorize": True})]
    out += [jacobian(torch.sin, y, vectorize=True), jacobian(torch.sin, y, vectorize=True, strategy="forward-mode"),
            jacobian(lambda a: (a * 2,), y, vectorize=True)]
    for how in ({}, {"vectorize": True}, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}):
        out.append([list(row) for row in hessian(lambda a, b: (a @ b).sin().sum(), (x, y), **how)])
    r = x.clone().requires_grad_()
    h = hessian(lambda a: (a ** 3).sum(), r, create_graph=True, vectorize=True)
    for how in ({"vectorize": True}, {"vectorize": True, "strategy": "forward-mode"}):
        with pytest.raises(RuntimeError, match="strict"):
            jacobian(f, (x, y), strict=True, **how)
    return out, h, torch.autograd.grad(h.sum(), r)


@both
def test_batched_gradients(torch):
    a, b = values(torch, 2, 3).requires_grad_(), values(torch, 3).requires_grad_()
    o, o2, eye = (a @ b).exp(), (a * 2).sum(), torch.eye(2, dtype=torch.float64)
    grad = torch.autograd.grad
    both_ = grad([o, o2], [a, b], [eye, eye[0]], is_grads_batched=True, retain_graph=True)
    some = grad(o2, [a, b], eye[1], is_grads_batched=True, allow_unused=True)
    assert some[1] is None
    deep = grad(o, [a, b], eye, is_grads_batched=True, create_graph=True)
    return both_, some[0], deep, grad(sum((g * g).sum() for g in deep), [a, b])


@both
def test_batched_checks(torch):
    a, b = values(torch, 2, 3).requires_grad_(), values(torch, 3).requires_grad_()
    f = lambda x, y: ((x @ y).sin(), x.exp())  # noqa: E731
    assert torch.autograd.gradcheck(f, (a, b), check_batched_grad=True, check_forward_ad=True, check_batched_forward_grad=True)
    assert torch.autograd.gradgradcheck(f, (a, b), check_batched_grad=True)


def test_batched_checks_see_a_wrong_rule():
    class Odd(tritorch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * (3 if state.interpreter is not None else 2)

        @staticmethod
        def jvp(ctx, t):
            return t * 2

    x = values(tritorch, 3).requires_grad_()
    assert tritorch.autograd.gradcheck(Odd.apply, (x,))
    with pytest.raises(tritorch.autograd.GradcheckError, match="the gradients of output 0 of a batch"):
        tritorch.autograd.gradcheck(Odd.apply, (x,), check_batched_grad=True)
    with pytest.raises(ValueError, match="check_forward_ad"):
        tritorch.autograd.gradcheck(Odd.apply, (x,), check_batched_forward_grad=True)
