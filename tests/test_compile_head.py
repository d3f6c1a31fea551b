"""tritorch.compile: a last layer and its cross entropy, which a captured step computes without the logits."""
import contextlib

import numpy as np
import pytest
from test_compile_fusion import replaced

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F

CLASSES, WIDTH, NAME = 137, 8, "linear + cross_entropy"
TOKENS = torch.tensor(np.random.default_rng(0).integers(0, CLASSES, (6, 3, 5)))


def weights(logits):
    return torch.linspace(0.5, 2, CLASSES, device=logits.device)


def flat(logits, tokens, **options):
    return F.cross_entropy(logits.view(-1, CLASSES), tokens.view(-1), **options)


LOSSES = {
    "mean": flat,
    "float": lambda z, t: flat(z.float(), t),
    "sum": lambda z, t: flat(z, t, reduction="sum") / 7,
    "none": lambda z, t: (flat(z, t, reduction="none") * torch.arange(15, device=z.device)).sum() / 50,
    "weights": lambda z, t: flat(z, t, weight=weights(z), ignore_index=5),
    "smooth": lambda z, t: flat(z.float(), t, weight=weights(z), label_smoothing=0.2),
    "in pieces": lambda z, t: F.cross_entropy(z.reshape(15, CLASSES), t.flatten(), ignore_index=3) * 2.0,
}


class Model(nn.Module):
    """Tokens, one layer, logits: by a layer, by one whose matrix reads the tokens too, or by a product with a turned matrix."""

    def __init__(self, head, device):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.body = nn.Embedding(CLASSES, WIDTH, device=device), nn.Linear(WIDTH, WIDTH, device=device)
        self.head, self.turned = nn.Linear(WIDTH, CLASSES, bias=head == "bias", device=device), head == "turned"
        if head == "tied":
            self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.body(self.table(tokens)).tanh()
        return (x.flatten(0, 1) @ self.head.weight.T).view(*tokens.shape, CLASSES) if self.turned else self.head(x)


def training(compile, cuda, head, loss, low, pieces=1):
    model = Model(head, cuda)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(tokens):
        for _ in range(pieces):
            with torch.autocast("cuda", torch.bfloat16, enabled=low):
                value = loss(model(tokens), tokens)
            value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.detach()

    step = compile(step)
    losses = [step(tokens.to(cuda)).item() for tokens in TOKENS]
    return step, losses, [p.detach().cpu().numpy() for p in model.parameters()]


def near(ours, theirs, low):
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, rtol=2e-2 if low else 1e-5, atol=1e-2 if low else 1e-5)


def max_autotune(f):
    return torch.compile(f, mode="max-autotune")


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("head, loss", [("plain", name) for name in LOSSES] + [("bias", "mean"), ("bias", "none"), ("tied", "float"),
                                                                           ("turned", "smooth"), ("turned", "none")])
def test_forward_and_backward(head, loss, low, cuda):
    step, losses, weights = training(max_autotune, cuda, head, LOSSES[loss], low)
    _, eager, expected = training(lambda f: f, cuda, head, LOSSES[loss], low)
    near([losses, *weights], [eager, *expected], low)
    assert replaced(step)[NAME] == 1


@pytest.mark.parametrize("head", ["tied", "bias"])
def test_gradients_that_accumulate(head, cuda):
    step, losses, weights = training(max_autotune, cuda, head, flat, True, pieces=2)
    _, eager, expected = training(lambda f: f, cuda, head, flat, True, pieces=2)
    near([losses, *weights], [eager, *expected], True)
    assert replaced(step)[NAME] == 2


def test_only_where_last_bits_may_change(cuda):
    step, losses, weights = training(torch.compile, cuda, "plain", flat, False)
    _, eager, expected = training(lambda f: f, cuda, "plain", flat, False)
    assert NAME not in replaced(step) and losses == eager
    for a, b in zip(weights, expected):
        np.testing.assert_array_equal(a, b)


@torch.no_grad()
def test_a_loss_without_a_way_back(cuda):
    model = Model("plain", cuda)
    step = torch.compile(lambda t: flat(model(t), t), mode="max-autotune")
    for tokens in TOKENS:
        tokens = tokens.to(cuda)
        np.testing.assert_allclose(step(tokens).item(), flat(model(tokens), tokens).item(), rtol=1e-6)
    assert replaced(step)[NAME] == 1


# ------------------------------------------------------------------ logits that somebody else wants
def step_of(function, cuda):
    """A training step whose `function(model, tokens)` returns the loss and what else is wanted; (compiled step, all that it gave)."""
    results = []
    for compile in (lambda f: f, max_autotune):
        model = Model("plain", cuda)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        def step(tokens, model=model, optimizer=optimizer):
            loss, more = function(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach(), more

        step = compile(step)
        given = [step(tokens.to(cuda)) for tokens in TOKENS]
        results.append([*[x.item() for x, _ in given], *[m.cpu().numpy() for _, m in given if m is not None],
                        *[p.detach().cpu().numpy() for p in model.parameters()]])
    near(results[1], results[0], False)
    return replaced(step)


def test_logits_that_are_read_written_or_returned(cuda):
    def read(model, t):
        z = model(t)
        return flat(z, t), z.argmax(-1)

    def returned(model, t):
        z = model(t)
        return flat(z, t), z.detach()

    def scaled(model, t):
        return flat(model(t) * 0.5, t), None

    def a_part(model, t):
        return F.cross_entropy(model(t)[:, 1:].flatten(0, 1), t[:, 1:].flatten()), None

    def two_losses(model, t):
        z = model(t)
        return flat(z, t) + flat(z, t, label_smoothing=0.5), None

    def penalty(model, t):
        z = model(t)
        return flat(z, t) + 1e-3 * z.square().mean(), None

    def weight_written(model, t):
        z = model(t)
        with torch.no_grad():
            model.head.weight.data.mul_(0.9)
        return flat(z, t), None

    for function in read, returned, scaled, a_part, two_losses, penalty, weight_written:
        assert NAME not in step_of(function, cuda), function.__name__


def test_logits_that_are_held_to_the_end_of_the_step(cuda):
    """As in programs whose model returns logits and loss."""
    results = []
    for compile in (lambda f: f, max_autotune):
        model = Model("plain", cuda)

        def step(tokens, model=model):
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(tokens)
                loss = flat(logits, tokens)
            loss.backward()
            grads = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            return [loss.detach(), *grads]

        step = compile(step)
        results.append([x.cpu().numpy() for tokens in TOKENS for x in step(tokens.to(cuda))])
    near(*results, True)
    assert replaced(step)[NAME] == 1


@pytest.mark.parametrize("stage", ["logits", "losses", "gradient", "kept"])
@pytest.mark.parametrize("other", [3, 4])                                # the call that tries the replacement, the one that is captured
def test_a_call_that_goes_otherwise_is_made_up_for(stage, other, cuda):
    results = []
    for compile in (lambda f: f, max_autotune):
        model, calls, seen = Model("bias", cuda), [], []

        def step(tokens, model=model, calls=calls, seen=seen):
            calls.append(None)
            now = len(calls) == other
            z = model(tokens)
            if now and stage == "logits":
                seen.append(z.tolist())
            if now and stage == "gradient":
                z.grad_fn.register_prehook(lambda grads: seen.append(grads[0].tolist()))
            if now and stage == "kept":
                seen.append(z)
            loss = flat(z.float(), tokens)
            if now and stage == "losses":
                seen.append(loss.tolist())
            del z
            loss.backward()
            grads = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            return [loss.detach(), *grads]

        step = compile(step)
        warns = compile is max_autotune and stage != "kept"              # what one call keeps has the step warmed up anew, no more
        with pytest.warns(UserWarning, match="tolist at") if warns else contextlib.nullcontext():
            results.append([x.cpu().numpy() for tokens in TOKENS for x in step(tokens.to(cuda))])
        results[-1].append(np.array(seen.pop().tolist() if stage == "kept" else seen.pop()))
    near(*results, False)


def test_logits_kept_for_once_are_those_of_the_weights_before_the_step(cuda):
    results = []
    for compile in (lambda f: f, max_autotune):
        model, calls, seen = Model("bias", cuda), [], []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        def step(tokens, model=model, optimizer=optimizer, calls=calls, seen=seen):
            calls.append(None)
            z = model(tokens)
            if len(calls) == 3:                                          # the call that tries the replacement
                seen.append(z)
            loss = flat(z, tokens)
            del z
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step = compile(step)
        losses = [step(tokens.to(cuda)).item() for tokens in TOKENS]
        results.append([losses, seen.pop().detach().cpu().numpy(), *[p.detach().cpu().numpy() for p in model.parameters()]])
    near(*results, False)


# ------------------------------------------------------------------ memory
def test_the_logits_are_never_there(cuda):
    rows, classes, width = 512, 512, 8
    table, tokens = torch.randn(classes, width, device=cuda, requires_grad=True), torch.randint(classes, (rows,), device=cuda)
    x = torch.randn(rows, width, device=cuda, requires_grad=True)

    def step():
        F.cross_entropy(F.linear(x, table), tokens).backward()
        x.grad = table.grad = None

    def peak(function):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before

    logits = 4 * rows * classes
    assert peak(step) > logits
    step = torch.compile(step, mode="max-autotune")
    peaks = [peak(step) for _ in range(7)]                               # where kernels are compiled meanwhile, more calls are eager ones
    assert replaced(step) == {NAME: 1} and max(peaks[:2]) > logits and max(peaks[-2:]) < 0.75 * logits
