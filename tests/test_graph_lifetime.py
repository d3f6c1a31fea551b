"""Memory dies with the last reference: no cycles, whatever was run. The garbage collector is off in these tests."""
import gc
import weakref

import pytest

import tritorch as torch
from tritorch.autograd.graph import Node
from tritorch.storage import Storage


def living():
    """How many tensors, nodes and storages are alive."""
    gc.collect()
    objects = gc.get_objects()
    return tuple(sum(isinstance(o, kind) for o in objects) for kind in (torch.Tensor, Node, Storage))


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Watch:
    """Counts what is alive of the objects that were made while it watches, by weak references alone."""

    def __init__(self):
        self.refs = []

    def __call__(self, *objects):
        for o in objects:
            self.refs.append(weakref.ref(o))
            if isinstance(o, torch.Tensor):
                self.refs.append(weakref.ref(o.storage))
                if o.grad_fn is not None:
                    self.refs.append(weakref.ref(o.grad_fn))
        return objects[0]

    def alive(self):
        return [r() for r in self.refs if r() is not None]


def mlp(watch):
    w1, w2 = torch.randn(8, 16, requires_grad=True), torch.randn(16, 4, requires_grad=True)
    x = torch.randn(5, 8)
    h = watch((x @ w1).relu())
    loss = watch((h @ w2).square().mean())
    loss.backward()
    watch(w1.grad, w2.grad)


def convolution(watch):
    x, w = torch.randn(2, 3, 8, 8, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    y = watch(torch.nn.functional.conv2d(x, w, padding=1).relu())
    loss = watch(torch.nn.functional.max_pool2d(y, 2).flatten(1).log_softmax(1).mean())
    loss.backward()
    watch(x.grad, w.grad)


def attention(watch):
    q, k, v = (torch.randn(2, 4, 6, requires_grad=True) for _ in range(3))
    scores = watch((q @ k.transpose(-2, -1) / 6 ** 0.5).softmax(-1))
    out = watch(scores @ v)
    out.sum().backward()
    watch(torch.nn.functional.scaled_dot_product_attention(q, k, v)).sum().backward()
    watch(q.grad)


def in_place(watch):
    x = torch.randn(4, 4, requires_grad=True)
    y = watch(x * 1)
    v = watch(y[1:3])
    v.mul_(2)
    y[0] = 0
    y.sin_()
    y.mul_(y)
    watch(y, v)
    (y.sum() + v.sum()).backward()


def custom_function(watch):
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y

    x = torch.randn(4, requires_grad=True)
    y = watch(Exp.apply(x))
    watch(Exp.apply(y))
    (y * y).sum().backward()


def hooks(watch):
    x = torch.randn(4, requires_grad=True)
    y = watch(x.exp())
    y.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: g * 3)
    y.grad_fn.register_hook(lambda gi, go: None)
    y.grad_fn.register_prehook(lambda go: None)
    x.register_post_accumulate_grad_hook(lambda t: None)
    watch(y.sum()).backward()
    watch(x.grad)


def retained(watch):
    x = torch.randn(4, requires_grad=True)
    y = watch(x.sin())
    y.retain_grad()
    y.mul_(2)
    z = watch(y.sum())
    z.backward(retain_graph=True)
    z.backward()
    watch(y.grad)


def outputs_that_are_saved(watch):
    x = torch.randn(4, requires_grad=True)
    y = watch(x.tanh().sigmoid().exp().softmax(0))
    watch(y.sqrt())


def never_run(watch):
    x = torch.randn(4, requires_grad=True)
    y = x
    for _ in range(10):
        y = watch((y * y).sin())


def second_order(watch):
    x = torch.randn(4, requires_grad=True)
    (g,) = torch.autograd.grad(watch((x ** 3).sum()), x, create_graph=True)
    watch(g).square().sum().backward()
    watch(x.grad)


def functional(watch):
    x = torch.randn(4)
    watch(torch.func.jacrev(torch.func.jacrev(lambda v: (v ** 3).sum()))(x))
    watch(torch.func.grad(torch.func.grad(torch.sin))(x[0]))
    watch(torch.func.jvp(lambda v: v.sin() * v, (x,), (x,))[1])
    watch(torch.func.hessian(lambda v: (v ** 3).sum())(x))


def after_an_error(watch):
    x = torch.randn(4, requires_grad=True)
    y = watch(x * 1)
    z = watch(y * y)
    y.add_(1)
    try:
        z.sum().backward()
    except RuntimeError:
        pass


def saved_hooks(watch):
    x = torch.randn(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t, 5), lambda p: p[0]):
        y = watch((x * x).exp())
    y.sum().backward()


def hooks_on_several(watch):
    for mode in ("all", "any"):
        x = watch(torch.randn(4, requires_grad=True))
        y = watch(x * 2)
        torch.autograd.graph.register_multi_grad_hook((x, y), lambda gs: None, mode=mode)
        y.sum().backward()


PROGRAMS = [mlp, convolution, attention, in_place, custom_function, hooks, hooks_on_several, retained, outputs_that_are_saved, never_run,
            second_order, functional, after_an_error, saved_hooks]


@pytest.mark.parametrize("program", PROGRAMS)
def test_everything_dies_on_the_cpu(program, no_collector):
    watch = Watch()
    program(watch)
    assert watch.refs and not watch.alive()


@pytest.mark.parametrize("program", PROGRAMS)
def test_memory_comes_back_on_the_device(program, no_collector, cuda):
    watch = Watch()
    with default_device(cuda):
        assert torch.randn(2).is_cuda
        program(Watch())
        before = torch.cuda.memory_allocated()
        program(watch)
        assert not watch.alive() and torch.cuda.memory_allocated() == before


class default_device:
    def __init__(self, device):
        self.device = device

    def __enter__(self):
        self.before = torch.get_default_device()
        torch.set_default_device(self.device)

    def __exit__(self, *exception):
        torch.set_default_device(self.before)


def test_saved_tensors_go_with_the_backward_pass(no_collector):
    x = torch.randn(4, requires_grad=True)
    y = x * 2
    saved = weakref.ref(y.storage)
    z = (y * y).sum()
    del y
    assert saved() is not None
    z.backward(retain_graph=True)
    assert saved() is not None
    z.backward()
    assert saved() is None


def test_the_graph_does_not_keep_what_no_rule_reads(no_collector):
    x = torch.randn(4, requires_grad=True)
    y = x * 2
    storage = weakref.ref(y.storage)
    z = (y + 1).sum()
    del y
    assert storage() is None
    z.backward()


def test_a_leaf_dies_before_its_graph(no_collector):
    x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    y = (x + w).sum()
    ref = weakref.ref(x)
    del x
    assert ref() is None
    y.backward()
    assert w.grad.tolist() == [1.0] * 4


@pytest.mark.parametrize("backward", [False, True])
def test_a_deep_graph(no_collector, backward):
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(100_000):
        y = -y
    node = weakref.ref(y.grad_fn)
    if backward:
        y.backward()
        assert x.grad.item() == 1.0
    del y
    assert node() is None


def test_a_deep_graph_of_writes(no_collector):
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    for k in range(5_000):
        y[k % 3].mul_(1.0)
    y.sum().backward()
    assert x.grad.tolist() == [1.0] * 3


def test_a_training_loop_stays_where_it_is(no_collector):
    w = torch.randn(8, 8, requires_grad=True)
    counts = []
    for _ in range(4):
        loss = (w @ w).tanh().sum()
        loss.backward()
        with torch.no_grad():
            w -= 0.01 * w.grad
        w.grad = None
        del loss
        counts.append(living())
    assert len(set(counts)) == 1, counts
