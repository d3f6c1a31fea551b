"""tritorch.compile: steps that are replayed as CUDA graphs do what eager ones do, bit for bit."""
import gc

import numpy as np
import pytest
from models import CNN, GPT, images, loss_of, seeded, texts

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F


def on_device(pairs, device):
    return [tuple([t.to(device) for t in pair]) for pair in pairs]


def kinds(step):
    return list(step.kinds.values())


def captured(step):
    """How many recordings a compiled function has; none of its calls may have fallen back."""
    assert [k.why for k in kinds(step)] == [None] * len(kinds(step)) and not step.warned
    return sum(len(k.recordings) for k in kinds(step))


def state_of(model, *more):
    return [t.detach().cpu().numpy().copy() for t in (*model.parameters(), *model.buffers(), *more)]


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        np.testing.assert_array_equal(a, b)


def both(train, *args):
    """The results of `train(compile, …)` with and without compilation are the same; those of the compiled run."""
    eager = train(lambda f: f, *args)
    compiled = train(torch.compile, *args)
    same(eager, compiled)
    return compiled


# ------------------------------------------------------------------ training
def train_gpt(compile, device, calls, scaled):
    model = seeded(GPT, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + k))
    scaler = torch.amp.GradScaler("cuda", init_scale=64.0, growth_interval=2, enabled=scaled)

    @compile
    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=scaled):
            loss = loss_of(model, x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), {"norm": norm}

    losses = []
    for x, y in on_device(texts(calls), device):
        loss, more = step(x, y)
        losses += [loss, more["norm"]]                                   # results must stay what they are
        schedule.step()
    if compile is torch.compile:
        assert captured(step) == 1
    moments = [optimizer.state[p][name] for p in model.parameters() for name in ("exp_avg", "step")]
    scale = [torch.tensor(scaler.get_scale())]
    return [*state_of(model, *losses, *moments, *scale), torch.cuda.get_rng_state().numpy()]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_transformer_with_dropout_schedule_clipping_and_scaler(cuda, scaled):
    both(train_gpt, cuda, 7, scaled)


def test_a_step_on_a_stream_of_its_own(cuda):
    eager = train_gpt(lambda f: f, cuda, 7, False)
    with torch.cuda.stream(torch.cuda.Stream()):
        same(eager, train_gpt(torch.compile, cuda, 7, False))
        torch.cuda.synchronize()


def train_cnn(compile, device, optimizer):
    model = seeded(CNN, device)
    optimizer = optimizer(model.parameters())

    @compile
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [step(x, y).detach() for x, y in on_device(images(6), device)]
    if compile is torch.compile:
        assert captured(step) == 1
    assert all(p.grad is None for p in model.parameters())
    return state_of(model, *losses)


@pytest.mark.parametrize("optimizer", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, lr=0.1),
    torch.optim.RMSprop, torch.optim.NAdam, lambda p: torch.optim.Adagrad(p, lr_decay=0.1), torch.optim.ASGD,
    lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, capturable=True), lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), fused=True,
                                                                                                    capturable=True)])
def test_batch_norm_and_every_capturable_optimizer(cuda, optimizer):
    both(train_cnn, cuda, optimizer)


def test_adam_becomes_capturable(cuda):
    model = nn.Linear(3, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    @torch.compile
    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(5):
        step(torch.ones(4, 3, device=cuda))
    assert captured(step) == 1 and optimizer.param_groups[0]["capturable"]
    assert [optimizer.state[p]["step"].tolist() for p in model.parameters()] == [5, 5]
    assert "Adam: capturable=True was set" in step.report()


def accumulate(compile, device, calls):
    model = seeded(GPT, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    @compile
    def micro(x, y):
        loss = loss_of(model, x, y) / 3
        loss.backward()
        return loss.detach()

    losses = []
    for k, (x, y) in enumerate(on_device(texts(calls), device)):
        losses.append(micro(x, y))
        if k % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=k % 2 == 0)
    if compile is torch.compile:
        assert captured(micro) >= 2                                      # without gradients at first, and with
    return state_of(model, *losses)


def test_gradients_accumulate(cuda):
    both(accumulate, cuda, 17)


def test_gradients_that_a_call_leaves_are_those_of_the_call(cuda):
    model = nn.Linear(3, 1, bias=False).cuda()

    @torch.compile
    def gradients(x):
        model.zero_grad()
        model(x).sum().backward()

    for k in range(6):
        gradients(torch.full((1, 3), float(k), device=cuda))
        assert model.weight.grad.tolist() == [[k, k, k]]
        if k == 4:
            model.weight.grad = None
    assert captured(gradients) == 1


# ------------------------------------------------------------------ kinds of calls
def test_each_shape_dtype_and_plain_argument_has_a_recording(cuda):
    @torch.compile
    def f(x, *, factor=1.0, more=()):
        out = {"product": x * factor}
        for y in more:
            out["product"] = out["product"] + y
        return out

    def call(*shape, dtype=torch.float32, **kw):
        x = torch.randn(*shape, device=cuda).to(dtype)
        expected = x * kw.get("factor", 1.0)
        for y in kw.get("more", ()):
            expected = expected + y
        assert torch.equal(f(x, **kw)["product"], expected)

    for _ in range(4):
        call(3)
        call(2, 3)
        call(2, 3, dtype=torch.float16)
        call(3, factor=2.0)
        call(3, factor=2.0, more=[torch.ones(3, device=cuda), torch.randn(1, device=cuda)])
    assert captured(f) == 5 == len(kinds(f))


def test_layouts_of_arguments(cuda):
    @torch.compile
    def f(x, y):
        return x * 2 + y

    for _ in range(4):
        base = torch.randn(4, 6, device=cuda)
        for x, y in [(base.t(), base.t()), (base[:, ::2], base[:, 1::2]), (base[:1].expand(4, 6), base), (base[:, :-1], base[:, 1:])]:
            assert torch.equal(f(x, y), x * 2 + y)
    assert captured(f) == 4


def test_too_many_kinds_stay_eager(cuda):
    f = torch.compile(lambda x, k: x + k, options={"cache_size_limit": 2})
    x = torch.zeros(2, device=cuda)
    with pytest.warns(UserWarning, match="more than 2 kinds of arguments"):
        for k in range(12):
            assert f(x, k % 4).tolist() == [k % 4] * 2


def test_modes_and_surroundings_are_told_apart(cuda):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda()
    factor = 1.0

    @torch.compile
    def f(x):
        return model(x) * factor

    x = torch.ones(8, 4, device=cuda)
    with torch.no_grad():
        for _ in range(4):
            model.eval()
            assert torch.equal(f(x), model(x) * factor)
            model.train()
            assert (f(x) == 0).any()
        factor = 2.0
        model.eval()
        for _ in range(4):
            assert torch.equal(f(x), model(x) * 2)
    with torch.inference_mode():
        assert f(x).is_inference()
    assert captured(f) == 3


def test_arguments_written_in_place(cuda):
    @torch.compile
    def f(x, y):
        x.add_(y)
        return x, y

    x, y = torch.zeros(3, device=cuda), torch.ones(3, device=cuda)
    for k in range(5):
        a, b = f(x, y)
        assert a is x and b is y and x.tolist() == [k + 1] * 3
    assert captured(f) == 1


def test_results_of_every_kind(cuda):
    weight = nn.Parameter(torch.ones(2, 3, device=cuda))

    @torch.compile
    def f(x):
        with torch.no_grad():
            return (x + 1).t(), [x.shape, 3, None, "name"], {"view": x[0], "self": x, "weight": weight}

    for k in range(4):
        x = torch.full((2, 3), float(k), device=cuda)
        shifted, rest, named = f(x)
        assert shifted.stride() == (1, 3) and shifted.tolist() == [[k + 1] * 2] * 3 and rest == [(2, 3), 3, None, "name"]
        assert named["view"].tolist() == [k] * 3 and named["self"] is x and named["weight"] is weight
    assert captured(f) == 1


# ------------------------------------------------------------------ what changes between calls
def test_parameters_that_are_replaced_are_noticed(cuda):
    model = nn.Linear(2, 2, bias=False).cuda()

    @torch.compile
    def f(x):
        with torch.no_grad():
            return model(x)

    x = torch.eye(2, device=cuda)

    def calls(value):
        for _ in range(4):
            assert (f(x) == value).all()

    model.load_state_dict({"weight": torch.full((2, 2), 1.0)})
    calls(1)
    model.load_state_dict({"weight": torch.full((2, 2), 2.0)})           # in place
    assert (f(x) == 2).all()
    model.weight.data = torch.full((2, 2), 3.0, device=cuda)
    calls(3)
    model.weight = nn.Parameter(torch.full((2, 2), 4.0, device=cuda))
    calls(4)


def test_frozen_parameters_and_changed_options_are_noticed(cuda):
    model = nn.Linear(2, 1, bias=False).cuda()
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    @torch.compile
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    x = torch.ones(1, 2, device=cuda)
    for _ in range(5):
        step(x)
    assert model.weight.tolist() == [[-4, -4]]
    optimizer.param_groups[0]["maximize"] = True
    for _ in range(5):
        step(x)
    assert model.weight.tolist() == [[1, 1]]
    optimizer.load_state_dict(optimizer.state_dict())
    step(x)
    assert model.weight.tolist() == [[2, 2]]
    model.weight.requires_grad_(False)
    with pytest.raises(RuntimeError, match="requires? grad"):
        step(x)


def test_two_functions_share_a_model(cuda):
    def train(compile):
        model, other = seeded(CNN, cuda), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @compile
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        @compile
        def evaluate(x):
            with torch.no_grad():
                return model(x).argmax(1)

        for x, y in on_device(images(8), cuda):
            model.train()
            other.append(step(x, y))
            model.eval()
            other.append(evaluate(x))
        if compile is torch.compile:
            assert captured(step) == captured(evaluate) == 1
        return state_of(model, *other)

    same(train(lambda f: f), train(torch.compile))


def test_it_runs_on_any_stream(cuda):
    f = torch.compile(lambda x: x * 2 + 1)
    for k in range(8):
        with torch.cuda.stream(torch.cuda.Stream() if k % 3 == 2 else None):
            assert f(torch.full((3,), float(k), device=cuda)).tolist() == [2 * k + 1] * 3
    assert captured(f) == 1


# ------------------------------------------------------------------ memory
def test_memory_is_steady_and_goes_with_the_function():
    with torch.cuda.simulate():
        gc.collect()
        gc.disable()
        try:
            model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).cuda()
            optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()

            def step(x):
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.detach()

            compiled, x = torch.compile(step), torch.randn(8, 16).cuda()
            for _ in range(6):
                compiled(x)
            assert captured(compiled) == 1
            steady, segments = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["num_device_alloc"]
            for _ in range(5):
                compiled(x)
            assert torch.cuda.memory_allocated() == steady and torch.cuda.memory_stats()["num_device_alloc"] == segments
            del compiled, x
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() <= before + 4096        # tables of addresses that optimizers keep
        finally:
            gc.enable()
