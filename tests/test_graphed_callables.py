"""make_graphed_callables: parts of a model replayed as CUDA graphs, with the eager numbers."""
import collections
import gc

import numpy as np
import pytest
from models import GPT, loss_of, seeded, texts, train_step
from test_training_cuda import adamw

import tritorch as torch
from tritorch import nn
from tritorch.cuda import make_graphed_callables


def randn(*shape, grad=False):
    return torch.randn(*shape, device="cuda", requires_grad=grad)


def train(graphed):
    """Losses of a training loop in which the blocks are graphed, or not: 1 of warm-up, then 5 with dropout."""
    model = seeded(GPT, "cuda")
    optimizer = adamw(model)
    if graphed:
        x = randn(3, 12, 32, grad=True)
        blocks = tuple(model.blocks)
        assert make_graphed_callables(blocks, tuple((x,) for _ in blocks)) == blocks
    torch.manual_seed(1)
    return [train_step(model, optimizer, x.to("cuda"), y.to("cuda")).item() for x, y in texts(5)], model


def test_graphed_blocks_train_as_eager_ones(cuda):
    ours, model = train(True)
    assert ours == train(False)[0] and len(set(ours)) == 5
    x, y = [t.to("cuda") for t in texts(1)[0]]
    model.eval()                                                         # the other mode runs as before, without dropout
    assert loss_of(model, x, y).item() == loss_of(model, x, y).item()
    model.train()
    assert loss_of(model, x, y).item() != loss_of(model, x, y).item()


def test_a_function_of_nested_arguments(cuda):
    def f(pair, more):
        return {"product": pair[0] * pair[1] + more["bias"], "positive": pair[0] > 0}

    graphed = make_graphed_callables(f, ((randn(3, grad=True), randn(3)), {"bias": randn(1, grad=True)}))
    for _ in range(2):
        x, y, bias = randn(3, grad=True), randn(3), randn(1, grad=True)
        out = graphed((x, y), {"bias": bias})
        assert torch.equal(out["product"], x * y + bias) and torch.equal(out["positive"], x > 0) and not out["positive"].requires_grad
        out["product"].sum().backward()
        np.testing.assert_array_equal(x.grad.cpu(), y.cpu())
        assert bias.grad.item() == 3
        with torch.no_grad():
            assert not graphed((x, y), {"bias": bias})["product"].requires_grad


def test_named_tuples(cuda):
    pair = collections.namedtuple("pair", "x y")
    graphed = make_graphed_callables(lambda given: pair(given.x * 2, given.y + given.x), (pair(randn(2), randn(2)),))
    given = pair(randn(2), randn(2))
    out = graphed(given)
    assert type(out) is pair and torch.equal(out.x, given.x * 2) and torch.equal(out.y, given.y + given.x)


def test_a_gradient_of_any_layout_arrives(cuda):
    graphed, x = make_graphed_callables(lambda x: x * 2, (randn(2, 3, grad=True),)), randn(3, 2).mT.requires_grad_()
    graphed(x).mT.contiguous().backward(torch.arange(6.0, device="cuda").view(3, 2))
    assert x.grad.tolist() == [[0, 4, 8], [2, 6, 10]]


def test_the_sample_in_another_layout_is_another_argument(cuda):
    x = randn(2, 2)
    graphed, want = make_graphed_callables(lambda x: x * 2, (x,)), (x.mT * 2).tolist()
    assert graphed(x.mT).tolist() == want


def test_gradients_accumulate(cuda):
    net = make_graphed_callables(nn.Linear(3, 2).cuda(), (randn(4, 3),))
    for k in (1, 2):
        net(torch.ones(4, 3, device="cuda")).sum().backward()
        assert (net.weight.grad == 4 * k).all() and (net.bias.grad == 4 * k).all()


def test_unused_inputs(cuda):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, x, y):
            return x * self.used

    net, args = Half().cuda(), (randn(2), randn(2, grad=True))
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        make_graphed_callables(net, args)
    net = make_graphed_callables(net, args, allow_unused_input=True)
    net(randn(2), args[1]).sum().backward()
    assert net.used.grad is not None and net.idle.grad is None and args[1].grad is None


def test_without_gradients(cuda):
    graphed = make_graphed_callables(lambda x: x + 1, (randn(2),), num_warmup_iters=1)
    with torch.no_grad():
        assert not graphed(randn(2, grad=True)).requires_grad
    assert not graphed(randn(2)).requires_grad and graphed(torch.zeros(2, device="cuda")).tolist() == [1, 1]


def test_under_autocast(cuda):
    net, x = nn.Linear(8, 4).cuda(), randn(2, 8)
    with torch.autocast("cuda", torch.bfloat16):
        with pytest.raises(RuntimeError, match="cache_enabled=False"):
            make_graphed_callables(net, (x,))
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        expected = net(x)
        net = make_graphed_callables(net, (x.clone(),))
        assert torch.equal(net(x), expected) and net(x).dtype is torch.bfloat16
    net(x).sum().backward()
    assert net.weight.grad.dtype is torch.float32


def test_each_misuse_gets_its_sentence(cuda):
    net = nn.Linear(3, 3).cuda()
    for callables, args, sentence in [(net, (torch.ones(3),), "sample_args of CUDA tensors, got cpu"), (net, (1,), "got int"),
                                      ((net, net), ((randn(1, 3),),), "2 tuples of sample_args, got 1")]:
        with pytest.raises((TypeError, ValueError), match=sentence):
            make_graphed_callables(callables, args)
    handle = net.register_forward_hook(lambda *args: None)
    with pytest.raises(RuntimeError, match="modules without hooks"):
        make_graphed_callables(net, (randn(1, 3),))
    handle.remove()
    net = make_graphed_callables(net, (randn(2, 3),))
    with pytest.raises(RuntimeError, match=r"a tensor as captured, tritorch.float32 \(2, 3\), got tritorch.float32 \(1, 3\)"):
        net(randn(1, 3))
    with pytest.raises(TypeError, match="arguments as captured"):
        net(randn(2, 3), randn(2, 3))
    with pytest.raises(RuntimeError, match="requires_grad as captured"):
        net(randn(2, 3, grad=True))
    (g,) = torch.autograd.grad(net(randn(2, 3)).sum(), net.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice|not require grad"):
        g.sum().backward()


def test_memory_goes_with_the_module():
    with torch.cuda.simulate():
        gc.collect()
        gc.disable()
        try:
            before = torch.cuda.memory_allocated()
            net = make_graphed_callables(nn.Linear(64, 64).cuda(), (randn(8, 64),))
            net(randn(8, 64)).sum().backward()
            assert torch.cuda.memory_allocated() > before
            del net
            assert torch.cuda.memory_allocated() == before
        finally:
            gc.enable()
