"""Checkpoints: the same gradients, with less memory."""
import functools
import weakref

import pytest
from both import both, leaf

import tritorch
from tritorch.utils.checkpoint import CheckpointError


def module(torch, name):
    return __import__("importlib").import_module(f"{torch.__name__}.{name}")


@pytest.mark.parametrize("reentrant", [False, True])
@both
def test_gradients(torch, reentrant):
    checkpoint = module(torch, "utils.checkpoint").checkpoint
    x, w, runs = leaf(torch, 1.0, 2.0), leaf(torch, 3.0, 4.0), []

    def f(x, k):
        runs.append(torch.is_grad_enabled())
        return (x * w).sin() * k, x.exp()

    a, b = checkpoint(f, x, 5, use_reentrant=reentrant)
    (a * b).sum().backward()
    return runs, x.grad, w.grad


@both
def test_inputs_without_gradient(torch):
    checkpoint = module(torch, "utils.checkpoint").checkpoint
    x, w = torch.tensor([1.0, 2.0], dtype=torch.float64), leaf(torch, 3.0, 4.0)
    y = checkpoint(lambda v, scale=1: (v * w * scale).tanh().sum(), x, scale=2, use_reentrant=False)
    y.backward()
    with torch.no_grad():
        assert not checkpoint(lambda v: v * w, x, use_reentrant=False).requires_grad
    return w.grad


@both
def test_nested_and_retained(torch):
    checkpoint = module(torch, "utils.checkpoint").checkpoint
    x = leaf(torch, 1.0, 2.0)

    def inner(v):
        return (v * v).sin()

    def outer(v):
        return checkpoint(inner, v.exp(), use_reentrant=False) * checkpoint(inner, v, use_reentrant=False)

    y = checkpoint(outer, x, use_reentrant=False).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@both
def test_second_order(torch):
    checkpoint = module(torch, "utils.checkpoint").checkpoint
    x = leaf(torch, 1.0, 2.0)
    y = checkpoint(lambda v: (v ** 3).sin().sum(), x, use_reentrant=False)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g, torch.autograd.grad(g.sum(), x)


def test_a_function_that_asks_twice():
    torch, runs = tritorch, []
    checkpoint = torch.utils.checkpoint.checkpoint

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0] + g * ctx.saved_tensors[0]

    def f(v):
        runs.append(1)
        return Twice.apply(v.exp())

    x = leaf(torch, 1.0, 2.0)
    checkpoint(f, x, use_reentrant=False).sum().backward()
    assert len(runs) == 2 and torch.allclose(x.grad, 2 * (2 * x.detach()).exp())


@both
def test_writes_inside(torch):
    checkpoint = module(torch, "utils.checkpoint").checkpoint
    x = leaf(torch, 1.0, 2.0)

    def f(v):
        y = v * 1
        y[0] = 5
        y.sin_()
        return y * v

    checkpoint(f, x, use_reentrant=False).sum().backward()
    return x.grad


@pytest.mark.parametrize("reentrant", [False, True])
@both
def test_sequential(torch, reentrant):
    sequential = module(torch, "utils.checkpoint").checkpoint_sequential
    x = leaf(torch, 1.0, 2.0)
    functions = [torch.sin, torch.exp, torch.tanh, torch.cos, torch.sigmoid]
    out = []
    for segments in (1, 2, 3, 5):
        x.grad = None
        sequential(functions, segments, x, use_reentrant=reentrant).sum().backward()
        out.append(x.grad)
    return out


@pytest.mark.parametrize("reentrant", [False, True])
def test_random_numbers_repeat(reentrant):
    torch = tritorch
    x = torch.ones(1000, requires_grad=True)
    seen = []

    def f(v):
        y = torch.nn.functional.dropout(v, 0.5)
        seen.append(y.detach())
        return (y * y).sum()

    y = torch.utils.checkpoint.checkpoint(f, x, use_reentrant=reentrant)
    torch.rand(7)
    before = torch.get_rng_state()
    y.backward()
    assert len(seen) == 2 and (seen[0] == seen[1]).all() and (torch.get_rng_state() == before).all()
    assert (x.grad == 4 * seen[0]).all()


def test_random_numbers_repeat_on_the_device_of_nested_arguments(cuda):
    torch = tritorch
    x, seen = torch.ones(1000, device=cuda, requires_grad=True), []

    def f(batch, scale=None):
        y = torch.nn.functional.dropout(batch["x"][0] if scale is None else scale["x"], 0.5)
        seen.append(y.detach())
        return (y * y).sum()

    torch.utils.checkpoint.checkpoint(f, {"x": [x]}, use_reentrant=False).backward()
    torch.utils.checkpoint.checkpoint(f, None, scale={"x": x}, use_reentrant=False).backward()
    assert len(seen) == 4 and (seen[0] == seen[1]).all() and (seen[2] == seen[3]).all() and (seen[0] != seen[2]).any()


def test_autocast_repeats():
    torch = tritorch
    x, w, seen = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True), []

    def f(v):
        y = v @ w
        seen.append(y.dtype)
        return y.exp()

    with torch.autocast("cpu"):
        y = torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)
    y.float().sum().backward()
    assert seen == [torch.bfloat16] * 2 and x.grad.dtype is torch.float32


def test_nothing_is_kept_between():
    torch = tritorch
    x, kept = torch.ones(4, requires_grad=True), []

    def f(v):
        y = v.exp()
        kept.append(weakref.ref(y.storage))
        return y.sin().sum()

    y = torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)
    assert kept[0]() is None
    y.backward()
    assert len(kept) == 2 and kept[1]() is None


def test_functions_that_change_their_mind():
    torch = tritorch
    checkpoint = torch.utils.checkpoint.checkpoint
    x, turn = torch.ones(4, requires_grad=True), []

    def fewer(v):
        turn.append(1)
        y = v.exp() if len(turn) % 2 else v * 1
        return y + 1

    def other(v):
        turn.append(1)
        return (v[:2] if len(turn) % 2 else v).exp().sum()

    for f in (fewer, other):
        turn.clear()
        y = checkpoint(f, x, use_reentrant=False).sum()
        with pytest.raises(CheckpointError, match="the same each time"):
            y.backward()


def test_the_second_run_may_go_on_to_the_end():
    torch, seen = tritorch, []

    def f(v):
        made = v.sin()
        seen.append(len(seen))
        return made

    x, checkpoint = torch.ones(4, requires_grad=True), torch.utils.checkpoint
    for enable in (True, False):
        with checkpoint.set_checkpoint_early_stop(enable):
            y = checkpoint.checkpoint(f, x, use_reentrant=False, early_stop=not enable)
        y.sum().backward()
    assert len(seen) == 3


# ------------------------------------------------------------------ some results kept
def selective(torch, policy, f, *args, **how):
    checkpoint = module(torch, "utils.checkpoint")
    contexts = functools.partial(checkpoint.create_selective_checkpoint_contexts, policy(checkpoint.CheckpointPolicy), **how)
    return checkpoint.checkpoint(f, *args, use_reentrant=False, context_fn=contexts)


@pytest.mark.parametrize("answer", ["MUST_SAVE", "PREFER_SAVE", "PREFER_RECOMPUTE", "MUST_RECOMPUTE", True, False])
@both
def test_what_a_policy_keeps(torch, answer):
    """The policy is asked about what is computed, in the first run alone."""
    x, w, asked = leaf(torch, *[[0.1 * i + j for i in range(3)] for j in range(3)]), leaf(torch, *[[0.5, -1.0, 2.0]] * 3), []

    def policy(Policy):
        def ask(context, op, *args, **options):
            asked.append((context.is_recompute, str(op).split(".")[1], list(context.op_output.shape)))
            return getattr(Policy, answer) if isinstance(answer, str) else answer

        return ask

    y = selective(torch, policy, lambda x: ((x @ w).sin() * torch.nn.functional.gelu(x)).exp(), x)
    y.sum().backward()
    return [list(one) for one in asked], x.grad, w.grad


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_kept_is_not_computed_again(keep):
    torch, seen = tritorch, []

    class See(torch.dispatch.Interpreter):
        def __call__(self, op, args, out):
            seen.append(op.__name__)
            return self.proceed(op, args, out)

    x, w = torch.ones(3, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)
    q = torch.rand(1, 2, 3, 4, requires_grad=True)
    listed = [torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default] if keep else []
    f = lambda x, q: (x @ w).cos() * torch.nn.functional.scaled_dot_product_attention(q, q, q)
    with See():
        y = selective(torch, lambda Policy: listed, f, x, q)
        first = len(seen)
        y.sum().backward()
    again = seen[first:]
    assert again.count("cos") >= 1 and ("attention" in again) is not keep and again.count("attention_backward") == 1
    for got, want in zip((x.grad, w.grad, q.grad), torch.autograd.grad(f(x, q).sum(), (x, w, q))):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("writable", [False, True])
@both
def test_kept_results_that_are_written(torch, writable):
    """What was written would give another gradient."""
    x = leaf(torch, 1.0, 2.0)

    def f(x):
        made = x.sin()
        made.mul_(2)
        return made.exp()

    y = selective(torch, lambda Policy: [torch.ops.aten.sin.default], f, x, allow_cache_entry_mutation=writable)
    if writable:
        y.sum().backward()
        return []
    with pytest.raises(RuntimeError):
        y.sum().backward()


def test_results_kept_by_the_host(cuda):
    torch = tritorch
    x, w = torch.rand(3, 4, device="cuda", requires_grad=True), torch.rand(4, 4, device="cuda")
    f = lambda x: (x @ w).sin().exp()
    y = selective(torch, lambda Policy: lambda context, op, *args: Policy.MUST_CPU_OFFLOAD if "mm" in str(op) else False, f, x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(f(x).sum(), x)[0])
    with pytest.raises(TypeError, match="a function or a list of operators"):
        torch.utils.checkpoint.create_selective_checkpoint_contexts(3)


def test_errors():
    torch = tritorch
    checkpoint = torch.utils.checkpoint.checkpoint
    x = torch.ones(4, requires_grad=True)
    with pytest.raises(ValueError, match="use_reentrant=False"):
        checkpoint(lambda v, k: v, x, use_reentrant=True, k=5)
    with pytest.raises(ZeroDivisionError):
        checkpoint(lambda v: 1 / 0, x, use_reentrant=False)
    with pytest.warns(UserWarning, match="no input requires grad, so none gets a gradient"):
        checkpoint(lambda v: v * 2, torch.ones(1), use_reentrant=True)


def test_states_of_devices(cuda):
    torch = tritorch
    x = torch.ones(3, device="cuda")
    saved = torch.utils.checkpoint.get_device_states(x, [torch.ones(2), {"k": x}], 3)
    assert saved[0] == [0, 0] and torch.utils.checkpoint.get_device_states(torch.ones(2)) == ([], [])
    numbers = torch.rand(4, device="cuda")
    torch.utils.checkpoint.set_device_states(*saved, device_type="meta")
    assert not torch.equal(torch.rand(4, device="cuda"), numbers)
    torch.utils.checkpoint.set_device_states(*saved)
    assert torch.equal(torch.rand(4, device="cuda"), numbers) and torch.equal(torch.cuda.random.get_rng_state(), torch.cuda.get_rng_state())
