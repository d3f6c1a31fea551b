"""Backward on several streams of the simulated device, in the orders that its seeds draw: same gradients, right streams."""
import pytest

pytest.importorskip("triton")

import tritorch as torch  # noqa: E402
from tritorch import cuda  # noqa: E402
from tritorch.autograd.graph import Node  # noqa: E402
from tritorch.dispatch import Interpreter  # noqa: E402

SEEDS = range(16)


class Where(Interpreter):
    """Notes the stream that each operator runs on."""

    def __init__(self):
        self.seen = []

    def __call__(self, op, args, out):
        self.seen.append((op.__name__, cuda.current_stream().cuda_stream))
        return self.proceed(op, args, out)


def values(n=8, shift=0.0):
    return torch.arange(n, dtype=torch.float32) / n + shift


def branches(device, streams, order=(0, 1)):
    """Two branches on two streams, met on the caller's; the loss and its leaves."""
    leaves = [values(shift=k).to(device).requires_grad_() for k in range(3)]
    x, w, v = leaves
    caller, made = cuda.current_stream(), {}
    for k in order:
        s = streams[k]
        s.wait_stream(caller)
        with cuda.stream(s):
            made[k] = (x * (w, v)[k]).sin()
            made[k] = made[k] * x + made[k]
    for s in streams:
        caller.wait_stream(s)
    total = (made[0] * made[1]).sum()
    return total, leaves


def on_cpu():
    x, w, v = leaves = [values(shift=k).requires_grad_() for k in range(3)]
    parts = [(x * other).sin() for other in (w, v)]
    a, b = [p * x + p for p in parts]
    (a * b).sum().backward()
    return [t.grad.tolist() for t in leaves]


def near(got, want):
    for g, w in zip(got, want):
        assert torch.allclose(g.cpu(), torch.tensor(w), atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("caller_is_default", [True, False])
def test_two_branches(seed, caller_is_default):
    with cuda.simulate(seed=seed):
        device = torch.device("cuda:0")
        caller = cuda.default_stream() if caller_is_default else cuda.Stream()
        with cuda.stream(caller):
            for _ in range(2):                                           # memory of the first pass is used again in the second
                total, leaves = branches(device, [cuda.Stream(), cuda.Stream()], (seed % 2, 1 - seed % 2))
                total.backward()
                near([x.grad for x in leaves], on_cpu())                 # read at once, on the caller's stream
                del total, leaves


@pytest.mark.parametrize("seed", SEEDS)
def test_grad_and_accumulation(seed):
    with cuda.simulate(seed=seed):
        device = torch.device("cuda:0")
        total, leaves = branches(device, [cuda.Stream(), cuda.Stream()])
        near(torch.autograd.grad(total, leaves, retain_graph=True), on_cpu())
        for _ in range(2):
            total.backward(retain_graph=True)
        near([x.grad / 2 for x in leaves], on_cpu())


def test_rules_run_on_the_streams_of_their_forward_calls():
    with cuda.simulate(seed=0):
        side = cuda.Stream()
        x = values().to("cuda").requires_grad_()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            y = x.exp()
        cuda.current_stream().wait_stream(side)
        z = y.sin().sum()
        assert y.grad_fn.streams == (side,) and z.grad_fn.streams is None
        with Where() as where:
            z.backward()
        used = dict(where.seen)
        assert used["cos"] == 0 and where.seen[-1][1] in (0, side.cuda_stream)
        assert any(name == "mul" and stream == side.cuda_stream for name, stream in where.seen)
        assert cuda.current_stream().cuda_stream == 0


def test_hooks_run_on_the_streams_of_their_tensors():
    with cuda.simulate(seed=0):
        side, seen = cuda.Stream(), []
        x = values().to("cuda").requires_grad_()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            y = x.exp()
        cuda.current_stream().wait_stream(side)
        y.register_hook(lambda g: seen.append(cuda.current_stream() == side))
        x.register_hook(lambda g: seen.append(cuda.current_stream() == cuda.default_stream()))
        (y * y).sum().backward()
        assert seen == [True, True]


def test_an_error_restores_the_callers_stream():
    with cuda.simulate(seed=0):
        side, caller = cuda.Stream(), cuda.Stream()
        x = values().to("cuda").requires_grad_()
        with cuda.stream(side):
            y = x.exp()
            y.register_hook(lambda g: 1 / 0)
        with cuda.stream(caller):
            with pytest.raises(ZeroDivisionError):
                y.sum().backward()
            assert cuda.current_stream() == caller


@pytest.mark.parametrize("seed", SEEDS)
def test_a_function_on_a_stream(seed):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    with cuda.simulate(seed=seed):
        side = cuda.Stream()
        x = values().to("cuda").requires_grad_()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            y = Cube.apply(x * 2)
        cuda.current_stream().wait_stream(side)
        (y * y).sum().backward()
        x2 = values().requires_grad_()
        ((x2 * 2) ** 6).sum().backward()
        near([x.grad], [x2.grad.tolist()])


@pytest.mark.parametrize("seed", SEEDS)
def test_writes_in_place_on_a_stream(seed):
    def run(device):
        x = values().to(device).requires_grad_()
        y = x * 2
        if device == "cpu":
            y[2:5].mul_(x[2:5])
        else:
            side = cuda.Stream()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                y[2:5].mul_(x[2:5])
            cuda.current_stream().wait_stream(side)
        (y * y).sum().backward()
        return x.grad

    with cuda.simulate(seed=seed):
        near([run("cuda")], [run("cpu").tolist()])


@pytest.mark.parametrize("seed", range(6))
def test_two_devices(seed):
    with cuda.simulate(seed=seed, devices=2):
        x = values().to("cuda:0").requires_grad_()
        side = cuda.Stream("cuda:1")
        y = (x * x).to("cuda:1")
        side.wait_stream(cuda.current_stream("cuda:1"))
        with cuda.stream(side):
            z = y.sin()
        cuda.current_stream("cuda:1").wait_stream(side)
        (z * y).sum().backward()
        w = values().requires_grad_()
        ((w * w).sin() * (w * w)).sum().backward()
        near([x.grad], [w.grad.tolist()])
        assert cuda.current_device() == 0


def stream_gradient(norm_on, residual_on):
    """What a residual stream gets from its norm and from the branch beside it, each on a stream of its own."""
    caller, leaf = cuda.current_stream(), values(64).sin().bfloat16().reshape(4, 16).to("cuda").requires_grad_()
    x = leaf * 1.5
    for s in (norm_on, residual_on):
        s.wait_stream(caller)
    with cuda.stream(norm_on):
        y = torch.nn.functional.layer_norm(x, (16,))
    with cuda.stream(residual_on):
        z = x.exp()                                                      # made later: its gradient arrives first
    for s in (norm_on, residual_on):
        caller.wait_stream(s)
    with Where() as where:
        (y.sin() * z).sum().backward()
    return leaf.grad.float().tolist(), [place for name, place in where.seen if name == "residual_norm_backward"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rule_adds_to_what_arrived_from_another_stream(seed):
    """In its own kernel, with the bits that default streams give; it waits for what it adds to."""
    with cuda.simulate(seed=seed):
        default, first, second = cuda.current_stream(), cuda.Stream(), cuda.Stream()
        want, (place,) = stream_gradient(default, default)
        assert place == 0
        for streams in (first, second), (first, first), (first, default), (default, second):
            got, (place,) = stream_gradient(*streams)
            assert got == want and place == streams[0].cuda_stream


def test_nothing_is_noted_on_default_streams():
    with cuda.simulate(seed=0):
        x = values().to("cuda").requires_grad_()
        y = x.exp()
        assert y.grad_fn.streams is None and isinstance(y.grad_fn, Node)
