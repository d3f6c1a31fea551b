"""vmap, and what is around it and inside, against PyTorch and against a loop over the samples."""
import threading
import warnings

import pytest
from both import both
from vmap_programs import Program, by_loop, near, run, values

import tritorch
import tritorch.utils.checkpoint
from tritorch.autograd.modes import state
from tritorch.generator import drawing
from tritorch.ops import create


@pytest.fixture(autouse=True)
def nothing_is_left_on():
    yield
    assert state.interpreter is None and drawing.samples == 1 and not create.newborn


# ---------------------------------------------------------------- random programs
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_random_programs(first):
    for seed in range(first, first + 25):
        run(seed)


def test_programs_are_many_kinds():
    names = set()
    for seed in range(40):
        program = Program(seed)
        program(*[x if d is None else x.select(d, 0) for x, d in zip(program.arguments(), program.dims)])
        names |= {name for name, _ in program.log}
    assert len(names) == 11


# ---------------------------------------------------------------- looking at samples
@both
def test_printing_and_unwrapping(torch):
    from importlib import import_module

    f, x, text = import_module(f"{torch.__name__}._C._functorch"), torch.ones(2, 2, 1), []

    def look(r):
        facts = [f.is_batchedtensor(r), f.maybe_get_bdim(r), f.maybe_get_level(r), f.is_functorch_wrapped_tensor(r),
                 f.maybe_current_level(), list(f.get_unwrapped(r).shape), list(torch.func.debug_unwrap(r).shape),
                 torch._C._are_functorch_transforms_active()]
        text.append([repr(r), f"{r}", facts])
        return r

    torch.vmap(look)(x)
    torch.vmap(torch.vmap(look))(x)
    assert not f.is_batchedtensor(x) and f.maybe_get_level(x) == -1 and f.maybe_current_level() is None and torch.func.debug_unwrap(x) is x
    with pytest.raises(RuntimeError):
        f.get_unwrapped(x)
    return text


def test_what_else_sees_calls_is_no_vmap():
    from tritorch._C import _functorch
    from tritorch.utils.flop_counter import FlopCounterMode

    def of_sample(x):
        assert _functorch.current_level() == 1
        with FlopCounterMode(display=False, depth=5), tritorch.autocast("cpu"):
            assert _functorch.current_level() == 1
            return tritorch.utils.checkpoint.checkpoint(tritorch.sin, x, use_reentrant=False)

    with FlopCounterMode(display=False, depth=5), tritorch.autocast("cpu"):
        assert _functorch.maybe_current_level() is None and not tritorch._C._are_functorch_transforms_active()
        x = tritorch.ones(3, requires_grad=True)
        tritorch.func.vmap(of_sample)(x).sum().backward()
    tritorch.testing.assert_close(x.grad, x.detach().cos())


def test_tensors_left_behind():
    kept, x = [], tritorch.ones(3, 2)
    tritorch.vmap(lambda r: kept.append(r) or r * 1)(x)
    for use in (lambda: kept[0] + 1, lambda: kept[0].sum(), kept[0].tolist, kept[0].numpy, lambda: kept[0].add_(1),
                lambda: bool(kept[0][0])):
        with pytest.raises(RuntimeError, match="got one that its function left behind"):
            use()
    assert "lvl=1" in repr(kept[0])
    tritorch.vmap(lambda r: kept.append(f"{r}") or r)(tritorch.ones(2))
    assert len(kept) == 2 and "lvl=1" in kept[1]


# ---------------------------------------------------------------- around and inside
def f(r, w):
    return (r @ w).sin().sum()


def arguments(requires_grad=True):
    return values(tritorch, 3, 4).requires_grad_(requires_grad), values(tritorch, 4, 5, seed=1).requires_grad_(requires_grad)


def by_both(use):
    """`use(run)` with vmap and with the loop."""
    near(use(lambda fn, dims, *xs: tritorch.vmap(fn, dims)(*xs)), use(lambda fn, dims, *xs: by_loop(tritorch, fn, dims, *xs)))


def test_graphs_around():
    torch, (x, w) = tritorch, arguments()
    grad, func, dims = torch.autograd.grad, torch.func, (0, None)
    inner = func.grad(f, argnums=(0, 1))
    by_both(lambda run: grad(run(f, dims, x, w).sin().sum(), [x, w]))
    by_both(lambda run: grad(sum((g * g).sum() for g in run(inner, dims, x, w)), [x, w]))
    by_both(lambda run: grad(sum((g * g).sum() for g in grad(run(f, dims, x, w).sin().sum(), [x, w], create_graph=True)), [x, w]))
    by_both(lambda run: grad(run(lambda r: (r @ w).exp(), (0,), x.detach()).sum(), w))
    tangent = values(torch, 3, 4, seed=2)
    by_both(lambda run: func.jvp(lambda v: run(f, dims, v, w.detach()), (x.detach(),), (tangent,)))
    by_both(lambda run: func.jvp(lambda v: func.jvp(lambda u: run(f, dims, u, w.detach()), (v,), (tangent,))[1], (x.detach(),), (tangent,)))
    by_both(lambda run: func.hessian(lambda v: run(f, dims, v, w.detach()).sin().sum())(x.detach()))
    steep = lambda r: (r * r).exp() * r.tanh()  # noqa: E731
    by_both(lambda run: func.jvp(func.grad(lambda v: (run(steep, (0,), v) ** 2).sum()), (x.detach(),), (tangent,)))
    for fn in (lambda r: r * r.sum(), lambda r: r.reshape(2, 2).T @ r[:2], lambda r: torch.zeros(4, dtype=r.dtype).add_(r ** 2) ** 2):
        by_both(lambda run, fn=fn: func.hessian(lambda v: run(fn, (0,), v).sin().sum())(x.detach()))
    by_both(lambda run: grad(sum(o.sin().sum() for o in func.jvp(lambda v: run(f, dims, v, w), (x,), (tangent,))), [x, w]))
    by_both(lambda run: run(func.hessian(f), dims, x.detach(), w.detach()))


def test_gradients_inside():
    torch, (x, w) = tritorch, arguments()

    def automatic(r, w):
        r = r * 1.0
        return torch.autograd.grad(f(r, w), r, create_graph=True)[0]

    def backward(r):
        v = r.detach().requires_grad_()
        (v ** 3).sum().backward()
        (v ** 2).sum().backward()
        return v.grad

    by_both(lambda run: torch.autograd.grad(run(automatic, (0, None), x, w).sum(), [x, w]))
    by_both(lambda run: run(backward, (0,), x))


def test_modes_of_autograd():
    torch, (x, _) = tritorch, arguments()

    def quiet(r):
        with torch.no_grad():
            c = r * r
        return c * r

    by_both(lambda run: torch.autograd.grad(run(quiet, (0,), x).sum(), x))
    by_both(lambda run: run(torch.func.grad(lambda r: quiet(r).sum()), (0,), x.detach()))
    with torch.no_grad():
        assert not torch.vmap(torch.sin)(x).requires_grad
        near(torch.vmap(torch.func.grad(lambda r: (r * r).sum()))(x), 2 * x)
    with torch.inference_mode():
        assert torch.vmap(torch.sin)(x).is_inference() and torch.vmap(torch.sin)(torch.ones(2, 2)).is_inference()
    assert not torch.vmap(torch.sin)(x).is_inference()
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="NaN"):
        torch.vmap(torch.func.grad(lambda r: (r * 0).sqrt().sum()))(x)


@pytest.mark.parametrize("where", ["around", "inside"])
def test_autocast(where):
    torch, (x, w) = tritorch, arguments(False)

    def cast(fn):
        def run(*args):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return fn(*args)

        return run

    product = lambda r, s: r @ s  # noqa: E731
    x, w = x.float(), w.float()
    made = cast(torch.vmap(product, (0, None)))(x, w) if where == "around" else torch.vmap(cast(product), (0, None))(x, w)
    want = by_loop(torch, cast(product), (0, None), x, w)
    assert made.dtype is torch.bfloat16
    torch.testing.assert_close(made, want, rtol=1e-2, atol=1e-2)
    assert torch.vmap(torch.func.grad(lambda r: cast(product)(r, w).float().sum()))(x).dtype is torch.float32


def test_hooks_and_checkpoints():
    torch, (x, _) = tritorch, arguments()
    part = lambda v: (v.sin() * v).exp()  # noqa: E731

    def hooked(r):
        v = r * 2
        v.register_hook(lambda g: g * 10)
        gone = v.register_hook(lambda g: g * 7)
        gone.remove()
        return v.sin()

    def saved(r):
        with torch.autograd.graph.save_on_cpu():
            return part(r)

    for fn in (hooked, saved, *[lambda r, how=how: torch.utils.checkpoint.checkpoint(part, r, use_reentrant=how) for how in (False, True)]):
        by_both(lambda run, fn=fn: torch.autograd.grad(run(fn, (0,), x).sum(), x))
    for fn in (hooked, saved, lambda r: torch.utils.checkpoint.checkpoint(part, r, use_reentrant=False)):
        by_both(lambda run, fn=fn: run(torch.func.grad(lambda r, fn=fn: fn(r).sum()), (0,), x.detach()))
        by_both(lambda run, fn=fn: torch.autograd.grad(run(torch.func.grad(lambda r, fn=fn: fn(r).sum()), (0,), x).sum(), x))
    y = torch.utils.checkpoint.checkpoint(torch.vmap(part), x, use_reentrant=False)
    near(torch.autograd.grad(y.sum(), x), torch.autograd.grad(part(x).sum(), x))


@both
def test_dims_and_forms(torch):
    vmap, x, w = torch.vmap, values(torch, 3, 4), values(torch, 4, 5)
    a = vmap(lambda d, *, k: {"s": d["a"][0] + d["b"] * k, "r": [d["b"].sum(), d["b"]]}, in_dims=({"a": (1,), "b": None},),
             out_dims={"s": -1, "r": [0, None]})({"a": (x,), "b": values(torch, 3)}, k=torch.tensor(2.0))
    b = vmap(vmap(vmap(lambda p, q, r: p * q + r, (0, None, None)), (None, 0, None)), (None, None, -1))(x[0], x[:, 0], w)
    c = vmap(lambda r: (r, w), out_dims=(1, None))(x), vmap(lambda r: r)(x), vmap(lambda p, q: p - q, (0, -1))(x, x.mT)
    d = [vmap(lambda r, s: r @ s, (0, None), chunk_size=size)(x, w) for size in (1, 2, 5)]
    e = [vmap(lambda r: r.sin() @ w)(x[:0]), vmap(torch.func.grad(lambda r: r.sin().sum()))(x[:0])]
    return a, b, c, d, e


@both
def test_writes(torch):
    out = []
    for dim in (0, 1, -1):
        x = values(torch, 3, 4)

        def write(r):
            r.mul_(2)
            r[0] = 5
            return r.sum()

        out += [torch.vmap(write, dim)(x), x]
    x = values(torch, 3, 8)

    def shift(r):
        r[1:].add_(r[:1].clone())
        return r

    return *out, torch.vmap(shift)(x[:, ::2]), x


def test_where_a_loop_has_to_do():
    torch, (x, _) = tritorch, arguments(False)
    calls, total = [], torch.zeros(4, dtype=torch.float64)

    def decides(r):
        calls.append(1)
        return r if r.sum() > 0 else -r

    def adds(r):
        total.add_(r)
        return r

    def writes_first(r):
        r.mul_(2)
        return decides(r)

    near(torch.vmap(decides)(x), by_loop(torch, decides, (0,), x))
    assert len(calls) == 1 + 3 + 3
    torch.vmap(adds)(x)
    near(total, x.sum(0))
    with pytest.raises(RuntimeError, match="written into tensors of others"):
        torch.vmap(writes_first)(x.clone())


def test_chunks():
    x, w = tritorch.ones(4, 3), tritorch.ones(2)
    near(tritorch.vmap(lambda r: (r, w), in_dims=1, out_dims=(1, None), chunk_size=2)(x), (x, w))
    same = tritorch.vmap(lambda r: r * tritorch.rand(3), randomness="same", chunk_size=3)(x)
    assert (same == same[0]).all()
    assert tritorch.vmap(lambda r: r * tritorch.rand(3), randomness="different", chunk_size=3)(x).unique().numel() == 12


def test_exceptions_leave_nothing():
    class Ours(Exception):
        pass

    def bad(r):
        tritorch.zeros(2, 2).add_(r)
        raise Ours

    for fn in (bad, tritorch.func.grad(bad), lambda r: tritorch.vmap(bad, randomness="different")(r.expand(3, 2, 2))):
        with pytest.raises(Ours):
            tritorch.vmap(fn)(tritorch.ones(3, 2, 2))
        assert state.interpreter is None and drawing.samples == 1 and not create.newborn
    with pytest.raises(RuntimeError, match="no random operator"):
        tritorch.vmap(lambda r: r + tritorch.rand(2))(tritorch.ones(3, 2))


def test_threads_and_generators():
    (x, w), wrong = arguments(False), []

    def work(k):
        for _ in range(8):
            made = tritorch.vmap(lambda r, s: (r @ s).sin() + tritorch.zeros(5, dtype=r.dtype).add_(r[0]), (0, None))(x + k, w)
            if not tritorch.allclose(made, ((x + k) @ w).sin() + (x + k)[:, :1]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

    def rows():
        for k in (1, 2):
            yield tritorch.vmap(lambda r: sum(r * j for j in range(k)))(x)

    near(list(rows()), [x * 0, x])


# ---------------------------------------------------------------- a device
def test_compiled_and_streams():
    torch = tritorch
    with warnings.catch_warnings(), torch.cuda.simulate():
        warnings.simplefilter("ignore")
        x, w = values(torch, 3, 4).float().cuda(), values(torch, 4, 5).float().cuda()
        per_sample = lambda v, u: torch.vmap(torch.func.grad(f, argnums=(0, 1)), (0, None))(v, u)  # noqa: E731
        compiled = torch.compile(per_sample)
        for k in range(3):
            for got, want in zip(compiled(x + k, w), per_sample(x + k, w)):
                assert torch.allclose(got, want)
        stream, leaf = torch.cuda.Stream(), x.clone().requires_grad_()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = torch.vmap(lambda r: r.sin() @ w)(leaf).sum()
        y.backward()
        torch.cuda.synchronize()
        assert torch.allclose(leaf.grad, x.cos() * w.sum(1))
