"""tritorch.compile: the casts of weights under autocast, which the optimizer's step keeps up to date instead of the next call."""
import numpy as np
import pytest
from models import seeded
from test_compile import captured, same
from test_compile_fusion import replaced

import tritorch as torch
from tritorch import nn
from tritorch.compiler import kept
from tritorch.ops import optimize
from tritorch.ops.optimize import Recipe

NAME = "casts of weights, kept from call to call,"
CALLS, CAPTURED = 8, 4                                                   # how many, and which is the first that is captured


class Net(nn.Module):
    """A layer, one whose matrix reads the tokens too, and two of which nothing is learned: one frozen, one without a gradient."""

    def __init__(self):
        super().__init__()
        self.table, self.first, self.last = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9, bias=False)
        self.last.weight = self.table.weight
        self.frozen, self.idle = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.frozen.weight.requires_grad_(False)

    def forward(self, tokens):
        x = self.frozen(self.first(self.table(tokens)).tanh())
        with torch.no_grad():
            idle = self.idle(x)
        return self.last(x + idle).float().square().mean()


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.05)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def usual(model, optimizer, tokens, dtype=torch.bfloat16, clip=True):
    with torch.autocast("cuda", dtype):
        loss = model(tokens)
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def train(compile, cuda, optimizer=adamw, body=usual, between=lambda k, model: None, rows=(5,), calls=CALLS):
    """(the step, losses and weights): `body(model, optimizer, tokens)` is the step, `between` comes before each."""
    model, draw = seeded(Net, cuda), np.random.default_rng(0)
    optimizer = optimizer(model.parameters())
    step, found = compile(lambda tokens: body(model, optimizer, tokens)), []
    for k in range(calls):
        between(k, model)
        found.append(step(torch.tensor(draw.integers(0, 9, (rows[k % len(rows)], 3))).to(cuda)).cpu().numpy())
    return step, [*found, *[p.detach().cpu().numpy() for p in model.parameters()]]


def eager(f):
    return f


@pytest.fixture
def casts(monkeypatch):
    """How many weights were cast before each replay that needed it."""
    found, run = [], kept.cast_all.run

    class Counted:
        def run(self, args):
            found.append(len(args[0]))
            run(args)

    monkeypatch.setattr(kept, "cast_all", Counted())
    return found


@pytest.mark.parametrize("optimizer, options", [(adamw, {}), (sgd, dict(dtype=torch.float16)), (sgd, dict(clip=False))])
def test_the_step_casts_and_changes_no_bit(cuda, casts, optimizer, options):
    def body(*args):
        return usual(*args, **options)

    step, found = train(torch.compile, cuda, optimizer, body)
    assert replaced(step)[NAME] == 1 and NAME in step.report() and casts == [2]
    same(train(eager, cuda, optimizer, body)[1], found)


# ------------------------------------------------------------------ weights that somebody else writes
def in_place(p):
    with torch.no_grad():
        p.mul_(0.5)


def exported(p):
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(p.detach())).mul_(0.5)


def assigned(p):
    p.data = p.data * 0.5


@pytest.mark.parametrize("write", [in_place, lambda p: p.data.view(-1).data[3:].mul_(0.5), exported, assigned])
def test_weights_that_are_written_between_calls(cuda, casts, write):
    def between(k, model):
        if k > CAPTURED:
            write(model.first.weight)

    step, found = train(torch.compile, cuda, between=between)
    same(train(eager, cuda, between=between)[1], found)
    if write is not assigned:                                            # which makes them other weights: there is no graph for them
        assert replaced(step)[NAME] == 1 and casts == [2] * (CALLS - CAPTURED)


def test_a_weight_may_have_other_names(cuda, casts):
    """Views and `.data` that are older than the graph, a checkpoint, an optimizer of its own."""
    def run(compile):
        names = {}

        def between(k, model):
            weight = model.first.weight
            names.setdefault("data", weight.data)
            names.setdefault("row", weight.detach()[2])
            if k == CAPTURED + 1:
                names["data"].add_(0.25)
            elif k == CAPTURED + 2:
                names["row"].fill_(0.5)
            elif k == CAPTURED + 3:
                model.load_state_dict({name: x * 0.5 for name, x in model.state_dict().items()})
            elif k == CAPTURED + 4:
                weight.grad = torch.ones_like(weight)
                torch.optim.SGD([weight], lr=0.1).step()
                weight.grad = None

        return train(compile, cuda, between=between, calls=CALLS + 2)

    step, found = run(torch.compile)
    assert replaced(step)[NAME] == 1 and casts == [2] * 5                # the last call finds nothing that was written
    same(run(eager)[1], found)


@pytest.mark.parametrize("way", ["compiled", "graph"])
def test_weights_that_another_graph_writes(cuda, casts, way):
    """Replays run no Python that could count what they write."""
    def run(compile):
        halve, others = torch.compile(in_place), []

        def between(k, model):
            weight = model.first.weight
            if compile is eager:
                in_place(weight)
            elif way == "compiled":
                halve(weight)
            elif k < CAPTURED:
                in_place(weight)
            else:
                if not others:
                    others.append(torch.cuda.CUDAGraph())
                    with torch.cuda.graph(others[0]):
                        in_place(weight)
                others[0].replay()

        return train(compile, cuda, between=between)

    step, found = run(torch.compile)
    same(run(eager)[1], found)
    assert replaced(step)[NAME] == 1 and casts == [2] * (CALLS - CAPTURED)


def test_recordings_of_one_function_share_the_copies(cuda, casts):
    step, found = train(torch.compile, cuda, rows=(5, 3), calls=2 * CALLS)
    same(train(eager, cuda, rows=(5, 3), calls=2 * CALLS)[1], found)
    assert captured(step) == 2 and len(step.copies) == 1 and casts == [2, 2]             # as each is captured


# ------------------------------------------------------------------ what a step does besides
def accumulating(model, optimizer, tokens):
    for part in tokens[:2], tokens[2:]:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(part)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def twice(model, optimizer, tokens):
    usual(model, optimizer, tokens)
    return usual(model, optimizer, tokens)


def clamped(model, optimizer, tokens):
    loss = usual(model, optimizer, tokens)
    with torch.no_grad():
        model.first.weight.clamp_(-0.2, 0.2)
    return loss


def decayed(model, optimizer, tokens):
    with torch.no_grad():
        model.first.weight.mul_(0.9)
    return usual(model, optimizer, tokens)


def unseen(model, optimizer, tokens):
    loss = usual(model, optimizer, tokens)
    torch.autograd.graph.increment_version(model.first.weight)           # a kernel of which no operator tells
    return loss


def again(model, optimizer, tokens):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens)
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    model.first.bias.grad = torch.autograd.grad(loss, model.first.bias)[0]               # with the weights that the loss was made of
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def part_by_part(model, optimizer, tokens):
    """Two steps of two optimizers, with a forward pass before each."""
    for some in optimizer.parts:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        some.step()
        for other in optimizer.parts:
            other.zero_grad()
    return loss.detach()


class Parts:
    def __init__(self, parameters):
        tied, *rest = parameters
        self.parts = sgd([tied]), adamw(rest)


@pytest.mark.parametrize("body, optimizer, count", [(accumulating, adamw, 1), (part_by_part, Parts, 1), (twice, sgd, 1),
                                                    (clamped, adamw, 0), (decayed, adamw, 0), (unseen, adamw, 0), (again, sgd, 0)])
def test_other_steps(cuda, casts, body, optimizer, count):
    step, found = train(torch.compile, cuda, optimizer, body)
    assert replaced(step).get(NAME, 0) == count and casts == [2] * count
    same(train(eager, cuda, optimizer, body)[1], found)


def test_steps_that_a_scaler_skips(cuda, casts):
    def run(compile):
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 10, growth_interval=2)

        def body(model, optimizer, tokens):
            with torch.autocast("cuda", torch.float16):
                loss = model(tokens)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss.detach()

        def between(k, model):
            if k in (CAPTURED + 1, CAPTURED + 3):                        # the next step meets infinite gradients
                scaler._scale.fill_(2.0 ** 60)

        step, found = train(compile, cuda, adamw, body, between, calls=CALLS + 2)
        return step, [*found, scaler.get_scale()]

    step, found = run(torch.compile)
    assert replaced(step)[NAME] == 1 and casts == [2]
    same(run(eager)[1], found)


def test_weights_that_nobody_trains(cuda, casts):
    """A pass without gradients casts them once, until they are written. Where a gradient is wanted, a step elsewhere will write them."""
    model, draw = seeded(Net, cuda), np.random.default_rng(0)

    def forward(tokens):
        with torch.autocast("cuda", torch.bfloat16):
            return model(tokens)

    with torch.no_grad():
        step = torch.compile(forward)
        for k in range(CALLS):
            tokens = torch.tensor(draw.integers(0, 9, (2, 3))).to(cuda)
            if k == CAPTURED + 2:
                in_place(model.last.weight)
            assert step(tokens).item() == forward(tokens).item()
    assert replaced(step)[NAME] == 1 and casts == [3, 3]
    step = torch.compile(forward)
    for _ in range(CALLS):
        step(tokens).backward()
    assert NAME not in replaced(step)


@pytest.mark.parametrize("other", [CAPTURED - 1, CAPTURED])              # the call that tries it, the one that is captured
def test_a_call_that_goes_otherwise(cuda, casts, other):
    """The cast is left out already when the call turns out another one."""
    def run(compile):
        calls = []

        def body(model, optimizer, tokens):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens)
            loss.backward()
            calls.append(None)
            if len(calls) == other + 1:
                model.first.weight.grad.mul_(2.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return train(compile, cuda, body=body, calls=2 * CALLS)

    with pytest.warns(UserWarning, match="changes 'calls' of body"):
        step, found = run(torch.compile)
    same(run(eager)[1], found)
    assert replaced(step)[NAME] == 1 and casts == [2] * (1 + (other == CAPTURED))


# ------------------------------------------------------------------ the operator
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("skipped", [False, True])
def test_a_step_with_copies_is_a_step_and_casts(cuda, kind, skipped):
    for device in ("cpu", cuda):
        shapes, kind_ = ((5, 3), (2049,), (4,)), getattr(torch, kind)
        p, g, m = [[torch.linspace(k, 2 + k, int(np.prod(s)), device=device).reshape(s).to(kind_) for s in shapes] for k in range(3)]
        p[1][:2] = torch.tensor([float("nan"), 3e38], device=device)
        lows = [torch.full(s, 7.0, dtype=torch.float16, device=device) for s in shapes[:2]]
        inf = torch.tensor(float(skipped), device=device)
        recipe = Recipe("sgd", (0.9, 1.0), "momentum")
        optimize.update(p, g, m, None, None, None, None, None, 0.5, (0.0, 0.0, 0.0), recipe, inf, None, [*lows, p[2]])
        for low, x in zip(lows, p):
            expected = torch.full_like(low, 7.0) if skipped else x.to(torch.float16)
            np.testing.assert_array_equal(low.cpu().numpy(), expected.cpu().numpy())
