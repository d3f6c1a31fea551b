"""tritorch.library: plain functions as operators, eagerly, in autograd, captured, and on two kinds of devices."""
from collections.abc import Sequence

import numpy as np
import pytest
from test_compile import captured

import tritorch as torch
from tritorch import Tensor
from tritorch.library import OpCheckError, custom_op, infer_schema, opcheck, triton_op


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


def mixed():
    """a·b + c·weight, with c perhaps None; nothing that autograd follows."""

    @custom_op("tests::mixed", mutates_args=())
    def mixed(a: Tensor, b: Tensor, c: Tensor | None = None, weight: float = 2.0) -> tuple[Tensor, Tensor]:
        y = torch.from_numpy(a.detach().numpy() * b.detach().numpy())
        return (y if c is None else y + c * weight), y.sum(0)

    def backward(ctx, g, g_sum):
        a, b = ctx.saved_tensors
        g_c = g * ctx.weight if ctx.needs_input_grad[2] else None
        g = g + g_sum
        return g * b, g * a, g_c, None

    def setup(ctx, inputs, output):
        save(ctx, inputs, output)
        ctx.weight, ctx.seen = inputs[3], (len(inputs), len(output))
        assert ctx.seen == (4, 2)

    mixed.register_autograd(backward, setup_context=setup)
    return mixed


def tensors(n, requires_grad=True, seed=0):
    r = np.random.default_rng(seed)
    return [torch.tensor(r.standard_normal((3, 4)), dtype=torch.float64, requires_grad=requires_grad) for _ in range(n)]


def test_gradients_are_those_of_the_formula_twice_over():
    op, (a, b, c) = mixed(), tensors(3)
    y, s = op(a, b, c, weight=3.0)
    (y.sum() + (s ** 2).sum()).backward()
    other = [x.detach().clone().requires_grad_() for x in (a, b, c)]
    z = other[0] * other[1]
    ((z + other[2] * 3.0).sum() + (z.sum(0) ** 2).sum()).backward()
    for x, o in zip((a, b, c), other):
        torch.testing.assert_close(x.grad, o.grad)
    assert torch.autograd.gradcheck(lambda a, b, c: op(a, b, c), (a, b, c)) and torch.autograd.gradgradcheck(op, (a, b, c))
    assert not op(a.detach(), b.detach())[0].requires_grad
    with torch.no_grad():
        assert not op(a, b)[0].requires_grad
    assert torch.ops.tests.mixed.default is op.default and torch.equal(torch.ops.tests.mixed(a, b)[0], op(a, b)[0])


def test_an_operator_without_a_formula_runs_but_has_no_gradient():
    @custom_op("tests::plain", mutates_args=())
    def plain(x: Tensor) -> Tensor:
        return x.exp()

    x = torch.ones(2, requires_grad=True)
    y = plain(x)
    assert y.requires_grad
    with pytest.raises(RuntimeError, match="tests::plain: expected a formula for its gradients, got none; use register_autograd"):
        y.sum().backward()


def test_lists_of_tensors_in_and_out():
    @custom_op("tests::sums", mutates_args=())
    def sums(xs: Sequence[Tensor], scale: float, y: Tensor) -> list[Tensor]:
        return [x.sum() * scale + y for x in xs]

    def backward(ctx, grads):
        assert ctx.needs_input_grad == ([True, False, True], False, True)
        return [(g * ctx.scale).sum().expand(n) for g, n in zip(grads, ctx.sizes)], None, sum(grads)

    def setup(ctx, inputs, output):
        ctx.scale, ctx.sizes = inputs[1], [len(x) for x in inputs[0]]

    sums.register_autograd(backward, setup_context=setup)
    xs = [torch.ones(n, requires_grad=n != 3) for n in (2, 3, 4)]
    y = torch.zeros((), requires_grad=True)
    outs = sums(xs, 5.0, y)
    assert isinstance(outs, list) and [o.item() for o in outs] == [10, 15, 20]
    (outs[0] + 2 * outs[2]).backward()
    assert xs[0].grad.tolist() == [5] * 2 and xs[1].grad is None and xs[2].grad.tolist() == [10] * 4 and y.grad.item() == 3


def test_backward_may_return_the_list_of_its_only_argument():
    @custom_op("tests::total", mutates_args=())
    def total(xs: list[Tensor]) -> Tensor:
        return sum(x.sum() for x in xs).clone()

    total.register_autograd(lambda ctx, g: [g.expand(n) for n in ctx.sizes], setup_context=lambda ctx, inputs, output: setattr(
        ctx, "sizes", [len(x) for x in inputs[0]]))
    xs = [torch.ones(n, requires_grad=True) for n in (2, 3)]
    total(xs).backward()
    assert xs[0].grad.tolist() == [1, 1] and xs[1].grad.tolist() == [1, 1, 1]


def test_keyword_only_arguments():
    @custom_op("tests::named", mutates_args=())
    def named(x: Tensor, *, k: int = 2) -> Tensor:
        return x * k

    def setup(ctx, inputs, keyword_only_inputs, output):
        assert len(inputs) == 1
        ctx.k = keyword_only_inputs["k"]

    named.register_autograd(lambda ctx, g: g * ctx.k, setup_context=setup)
    x = torch.ones(2, requires_grad=True)
    named(x, k=7).sum().backward()
    assert x.grad.tolist() == [7, 7]


def test_what_it_writes_is_seen_by_autograd_and_what_it_hides_is_an_error():
    @custom_op("tests::fill", mutates_args={"out"})
    def fill(x: Tensor, out: Tensor) -> None:
        np.copyto(out.numpy(), x.numpy())

    x, out, w = torch.full((2,), 3.0), torch.zeros(2), torch.ones(2, requires_grad=True)
    y = (w * out).sum()
    assert fill(x, out) is None and out.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="modified|written|version"):
        y.backward()
    with pytest.raises(RuntimeError, match="writes no argument"):
        fill.register_autograd(lambda ctx, g: g)

    @custom_op("tests::same", mutates_args=())
    def same(x: Tensor) -> Tensor:
        return x.view(-1)

    with pytest.raises(RuntimeError, match="results in memory of their own"):
        same(x)


def test_nothing_is_kept_alive_that_is_not_saved():
    import gc
    import weakref

    @custom_op("tests::forgetful", mutates_args=())
    def forgetful(x: Tensor) -> Tensor:
        return x * 2

    forgetful.register_autograd(lambda ctx, g: g * 2)
    w = torch.ones(3, requires_grad=True)
    x = w * 1
    gone = weakref.ref(x)
    gc.disable()
    try:
        y = forgetful(x)
        del x
        assert gone() is None and y.requires_grad
    finally:
        gc.enable()


def test_one_function_for_each_device(cuda):
    @custom_op("tests::where", mutates_args=(), device_types="cpu")
    def where(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(NotImplementedError, match="tests::where: expected a kernel for cuda, got cpu; use register_kernel"):
        where(torch.ones(2, device=cuda))

    @torch.library.register_kernel("tests::where", "cuda")
    def _(x):
        return x + 2

    assert where(torch.ones(1)).item() == 2 and where(torch.ones(1, device=cuda)).item() == 3


def test_autocast_is_what_was_registered():
    @custom_op("tests::kind", mutates_args=())
    def kind(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    x, w = torch.ones(2, 2), torch.ones(2, 2)
    torch.library.register_autocast("tests::kind", "cpu", torch.float16)
    with torch.autocast("cpu", torch.bfloat16):
        assert kind(x, w).dtype is torch.float16
    assert kind(x, w).dtype is torch.float32


def train(compile, device):
    op = custom_op("tests::step", product, mutates_args=())
    op.register_autograd(lambda ctx, g: (g @ ctx.saved_tensors[1].T, ctx.saved_tensors[0].T @ g), setup_context=save)
    r = np.random.default_rng(0)
    w = torch.tensor(r.standard_normal((4, 4)), dtype=torch.float32, device=device).requires_grad_()
    optimizer, losses = torch.optim.SGD([w], lr=0.1), []

    @compile
    def step(x):
        loss = op(x, w).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(6):
        losses.append(step(torch.tensor(r.standard_normal((3, 4)), dtype=torch.float32, device=device)))
    if compile is torch.compile:
        assert captured(step) == 1
    return [x.item() for x in losses], w.detach().cpu().tolist()


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def test_captured_calls_do_what_eager_ones_do(cuda):
    assert train(torch.compile, cuda) == train(lambda f: f, cuda)


def test_a_triton_kernel_inside(cuda):
    pytest.importorskip("triton")
    from launch_kernels import axpy_kernel

    @triton_op("tests::add", mutates_args={})
    def add(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(axpy_kernel)[(1,)](out, x, y, x.numel(), 1.0, BLOCK=64)
        return out

    add.register_autograd(lambda ctx, g: (g, g))
    x, y = (torch.arange(40, dtype=torch.float32, device=cuda).requires_grad_() for _ in range(2))
    z = add(x, y)
    z.sum().backward()
    assert z.tolist() == [2 * k for k in range(40)] and x.grad.tolist() == [1] * 40
    with pytest.raises(RuntimeError, match="wrap_triton"):
        torch.library.wrap_triton(add)


# ------------------------------------------------------------------ what the declaration says
def wrong(name="tests::wrong", mutates_args=()):
    def declare(fn):
        with pytest.raises(ValueError) as caught:
            custom_op(name, fn, mutates_args=mutates_args)
        return str(caught.value)

    return declare


def test_declarations_that_make_no_operator():
    def fine(x: Tensor) -> Tensor: ...
    def bare(x) -> Tensor: ...
    def silent(x: Tensor): ...
    def odd(x: Tensor, table: dict) -> Tensor: ...
    def many(*xs: Tensor) -> Tensor: ...
    assert "a name like namespace::operator" in wrong("noname")(fine)
    assert "none of x" in wrong()(bare) and "annotation of the result" in wrong()(silent) and "dict" in wrong()(odd)
    assert "parameters with names" in wrong()(many) and "['z'" in wrong(mutates_args=("z",))(fine)


def test_schemas_are_pytorchs():
    def f(x: Tensor, xs: list[Tensor], y: Tensor | None, n: int, k: float = 1.5, *, flag: bool = False, s: str = "a",
          d: torch.dtype = None, where: torch.device | None = None, sizes: Sequence[int] = None) -> tuple[Tensor, list[Tensor]]: ...
    assert infer_schema(f, mutates_args=("x", "xs"), op_name="g") == (
        'g(Tensor(a0!) x, Tensor(a1!)[] xs, Tensor? y, SymInt n, float k=1.5, *, bool flag=False, str s="a", ScalarType d=None, '
        'Device? where=None, SymInt[] sizes=None) -> (Tensor, Tensor[])')


def test_opcheck_finds_what_does_not_fit():
    op, args = mixed(), tuple(tensors(3))
    op.register_fake(lambda a, b, c=None, weight=2.0: (torch.empty_like(a), a.new_empty(a.shape[1:])))
    assert set(opcheck(op, args, {"weight": 4.0}).values()) == {"SUCCESS"}
    op.register_fake(lambda a, b, c=None, weight=2.0: (torch.empty_like(a), a.new_empty(())))
    with pytest.raises(OpCheckError, match="test_faketensor of tests::mixed: .* of result 1"):
        opcheck(op, args)

    @custom_op("tests::sneaky", mutates_args=())
    def sneaky(x: Tensor) -> Tensor:
        return x.add_(1).clone()

    found = opcheck(sneaky, (torch.ones(2),), raise_exception=False)
    assert "mutates_args" in str(found["test_schema"]) and "register_fake" in str(found["test_faketensor"])
    assert found["test_autograd_registration"] == "SUCCESS"
