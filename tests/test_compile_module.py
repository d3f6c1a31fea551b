"""tritorch.compile of modules and functions whose results are differentiated outside."""
import gc
import types

import numpy as np
import pytest
from models import GPT, loss_of, seeded, texts
from test_compile import captured, on_device, same, state_of

import tritorch as torch
from tritorch import nn
from tritorch.nn.modules.module import register_module_forward_hook


def train(compile, device, whole):
    model = seeded(GPT, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
    if whole:
        forward = compile(model)
    else:
        forward = model
        model.blocks = nn.Sequential(*[compile(block) for block in model.blocks])
    losses = []
    for x, y in on_device(texts(7), device):
        loss = loss_of(forward, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    if compile is torch.compile:
        for part in [forward] if whole else model.blocks:
            assert captured(part.compiled) == 1
    return [*state_of(model, *losses), torch.cuda.get_rng_state().numpy()]


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_module_trains_as_the_eager_one(cuda, whole):
    same(train(lambda f: f, cuda, whole), train(torch.compile, cuda, whole))


def test_functions_of_arguments_that_want_gradients(cuda):
    weight = nn.Parameter(torch.full((3,), 2.0, device=cuda))

    @torch.compile
    def f(x, pair):
        return {"product": x * weight * pair[0], "positive": x > 0, "same": pair[1]}

    for k in range(1, 7):
        x, y, z = [torch.full((3,), float(k + i), device=cuda, requires_grad=i < 2) for i in range(3)]
        inner = x * 1                                                    # not a leaf
        out = f(inner, (y, z))
        assert out["same"] is z and not out["positive"].requires_grad and out["positive"].all()
        np.testing.assert_array_equal(out["product"].detach().cpu(), [2 * k * (k + 1)] * 3)
        (out["product"] * 10).sum().backward()
        assert x.grad.tolist() == [20 * (k + 1)] * 3 and y.grad.tolist() == [20 * k] * 3
        assert weight.grad.tolist() == [10 * k * (k + 1)] * 3
        weight.grad = None
    assert captured(f) == 1


def test_calls_before_the_backward_pass_of_the_last_one_run_eagerly(cuda):
    net = torch.compile(nn.Linear(2, 1, bias=False).cuda())
    nn.init.ones_(net.weight)
    x = torch.ones(1, 2, device=cuda)
    for _ in range(4):
        net(x).sum().backward()
    net.zero_grad()
    outs = [net(x * k) for k in (1, 2, 3)]
    assert [o.item() for o in outs] == [2, 4, 6]
    for o in reversed(outs):
        o.sum().backward()
    assert net.weight.grad.tolist() == [[6, 6]] and captured(net.compiled) == 1


class Reversed(torch.autograd.Function):
    """Its backward pass reads numbers that the forward pass does not."""

    @staticmethod
    def forward(ctx, x, settings):
        ctx.settings = settings
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * ctx.settings.backward, None


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("place", ["a function", "a hook of a gradient", "a hook of a module", "a hook of every module"])
def test_numbers_that_only_a_backward_pass_reads(cuda, place, whole):
    def trained(compile):
        settings, layer = types.SimpleNamespace(backward=1.0), nn.Linear(3, 3, bias=False).to(cuda)
        with torch.no_grad():
            layer.weight.fill_(0.5)
        optimizer, seen, held = torch.optim.SGD(layer.parameters(), lr=0.5), [], types.SimpleNamespace(hook=settings)
        if place == "a hook of a gradient" and whole:
            layer.weight.register_hook(lambda g: g * held.hook.backward)
        elif place == "a hook of a module":
            layer.register_full_backward_hook(lambda module, gx, gy: (None if gx[0] is None else gx[0] * held.hook.backward,))
        hook = None
        if place == "a hook of every module":
            hook = register_module_forward_hook(lambda module, args, out: out * held.hook.backward)
        forward = (lambda x: Reversed.apply(layer(x), settings)) if place == "a function" else layer

        def step(x):
            optimizer.zero_grad()
            loss = forward(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        if whole:
            step = compile(step)
        else:
            forward = compile(lambda x, forward=forward: forward(x))
        for k in range(14):
            settings.backward = 0.5 if k > 6 else 1.0
            seen.append((step(torch.full((2, 3), 0.1 * k, device=cuda)).item(), layer.weight.tolist()))
        if hook is not None:
            hook.remove()
        assert compile is not torch.compile or "is replayed" in (step if whole else forward).report()
        return seen

    assert trained(torch.compile) == trained(lambda function: function)


def test_misuse_gets_its_sentence(cuda):
    net, x = torch.compile(nn.Linear(2, 1).cuda()), torch.ones(1, 2, device=cuda)
    for _ in range(4):
        net(x).sum().backward()
    loss = net(x).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass for each call"):
        loss.backward()
    loss = net(x).sum()
    with torch.no_grad():
        net.weight.add_(1)
    with pytest.raises(RuntimeError, match="parameters as they were in the forward pass"):
        loss.backward()


def test_a_backward_pass_that_cannot_be_captured(cuda):
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * g.sum().item()

    f = torch.compile(lambda x: Odd.apply(x) + 1)
    with pytest.warns(UserWarning, match="item at"):
        for _ in range(5):
            x = torch.ones(2, device=cuda, requires_grad=True)
            f(x).sum().backward()
            assert x.grad.tolist() == [2, 2]


def test_a_compiled_module_is_the_module(cuda):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda()
    compiled = torch.compile(model)
    assert isinstance(compiled, nn.Module) and list(compiled.parameters()) == list(model.parameters())
    assert list(compiled.state_dict()) == ["_orig_mod." + name for name in model.state_dict()]
    assert compiled[0] is model[0] and not compiled.eval().training and not model.training and "replayed" not in compiled.report()
    model.tag = 3
    assert compiled.tag == 3
    compiled.tag, compiled.head = 4, nn.Linear(2, 1)
    assert model.tag == 4 and model.head is compiled.head and list(compiled._modules) == ["_orig_mod"]
    del compiled.head, compiled.tag
    assert not hasattr(model, "tag") and not hasattr(model, "head")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        compiled.nothing  # noqa: B018
    model.train()
    x = torch.randn(4, 2, device=cuda)
    for k in range(5):
        compiled(x).sum().backward()
        assert model[1].num_batches_tracked.item() == k + 1
    assert "replayed" in compiled.report()


def test_hooks_behind_gradients_run_after_replays(cuda):
    """They see what is accumulated, outside of the graphs; hooks on the gradients themselves would run within and without."""
    inner, seen = nn.Linear(3, 2).to(cuda), []
    model = torch.compile(inner)
    inner.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
    for k in range(1, 7):
        model(torch.full((1, 3), float(k), device=cuda)).sum().backward()
        inner.zero_grad()
    assert seen == [6 * k for k in range(1, 7)] and captured(model.compiled)
    with inner.weight.register_hook(lambda g: g * 2):
        for _ in range(2):
            model(torch.ones(1, 3, device=cuda)).sum().backward()
            inner.zero_grad()
    assert seen[6:] == [12, 12]


def test_the_mode_is_that_of_the_module():
    class Kept(nn.Sequential):
        def train(self, mode=True):
            modes.append(mode)
            return super().train(False)

    modes, model = [], nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    compiled = torch.compile(model)
    assert len(compiled) == 2 and compiled.training
    model.eval()
    assert not compiled.training
    assert compiled.train() is compiled and compiled.training and model.training and model[1].training
    compiled.training = False
    assert not model.training and model[1].training
    kept = torch.compile(Kept(nn.Dropout()))
    assert not kept.train().training and not kept[0].training and modes == [True]


def test_memory_goes_with_the_module():
    with torch.cuda.simulate():
        gc.collect()
        gc.disable()
        try:
            before = torch.cuda.memory_allocated()
            net = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.GELU()).cuda())
            x = torch.randn(8, 64, device="cuda")
            for _ in range(5):
                net(x).sum().backward()
            assert captured(net.compiled) == 1
            del net, x
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() == before
        finally:
            gc.enable()
