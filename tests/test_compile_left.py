"""tritorch.compile: what a call leaves in attributes, dicts, lists and variables is there after a replay too, whatever was there before.

One file, for the ways to leave something are kept together with what has to hold for them.
"""
import collections
import types
import warnings
from dataclasses import dataclass

import numpy as np
import pytest

import tritorch as torch
from tritorch import nn

LAST = None


@dataclass
class Slots:
    __slots__ = ("loss", "size")
    loss: object
    size: object


class Kept(nn.Module):
    """Leaves its hidden layer, and has a buffer that every call replaces."""

    def __init__(self):
        super().__init__()
        self.layer, self.hidden, self.phase = nn.Linear(2, 2), None, None
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        y = self.layer(x)
        self.hidden, self.seen, self.phase, self.shape = y.detach(), y.detach().sum(0), "train" if self.training else "eval", (*x.shape,)
        return y


def in_a_module():
    model = Kept().cuda()

    def write(k):
        model.hidden, model.seen, model.phase = None, torch.zeros(2, device="cuda"), k

    return lambda x: model(x).detach(), write, lambda: [model.hidden, model.seen, model.phase, model.shape]


def in_an_object():
    args = types.SimpleNamespace(inner=types.SimpleNamespace())

    def step(x):
        args.inner.loss, args.size, args.flag = x.sum(0), x.shape[0], True
        return x * 2

    def write(k):
        args.size, args.flag = -1, False
        if k % 2:
            del args.inner.loss

    return step, write, lambda: [vars(args.inner), args.size, args.flag]


def in_slots():
    slots = Slots(None, None)

    def step(x):
        slots.loss, slots.size = x.sum(0), x.shape
        return x * 2

    def write(k):
        slots.loss = k
        del slots.size

    return step, write, lambda: [slots.loss, slots.size]


def in_dicts():
    stats, other, inner = {"loss": None, 3: {"x": None}}, collections.OrderedDict(), collections.defaultdict(dict)

    def step(x):
        stats["loss"], stats[3]["x"], other["a"], inner["k"]["v"] = x.sum(), x.mean(0), x + 1, x.max()
        stats["size"] = x.shape[0]
        return x * 2

    def write(k):
        stats["loss"], stats[3]["x"], other["a"], inner["k"]["v"], stats["size"] = k, None, 5, k, None

    return step, write, lambda: [stats, other, inner]


def in_lists():
    rows, latest = [0, 1, [None, None]], collections.deque([None], maxlen=1)

    def step(x):
        rows[0], rows[2][-1] = x.sum(0), x * 3
        latest.append(x.mean())
        return x * 2

    def write(k):
        rows[k % 2], rows[2][1] = k, None
        latest.append(k)

    return step, write, lambda: [rows, latest]


def in_variables():
    last = None

    def inner(x):
        nonlocal last
        global LAST
        last, LAST = x.sum(0), x.mean()
        return x * 2

    def write(k):
        nonlocal last
        global LAST
        last, LAST = k, k

    calls = types.SimpleNamespace(inner=inner)                           # a variable of the compiled function itself tells kinds apart
    return lambda x: calls.inner(x), write, lambda: [last, LAST]


def in_functions_and_classes():
    class Settings:
        last = None

    def f(x, memo={}):                                                   # noqa: B006
        memo["x"], f.last, Settings.last = x * 2, x.sum(), x.mean(0)
        return x * 2

    def write(k):
        f.__defaults__[0]["x"] = f.last = Settings.last = k

    return lambda x: f(x), write, lambda: [f.__defaults__, f.last, Settings.last]


def in_what_the_call_makes():
    args = types.SimpleNamespace(out=None)

    def step(x):
        args.out = {"x": x * 2, "rows": [x.sum(), {"m": x.mean()}], "object": types.SimpleNamespace(y=x + 1, n=x.shape[0])}
        args.pair = x * 3, [x.max()]
        return x * 2

    def write(k):
        args.pair[1].append(k)
        if k % 3 == 0:
            args.out["x"], args.out["rows"][1]["m"] = None, k
        elif k % 3 == 1:
            args.out["rows"].append(k)
            del args.out["object"].y
        else:
            args.out.clear()

    def look():
        return [{k: vars(v) if k == "object" else v for k, v in args.out.items()}, args.pair]

    return step, write, look


def through_properties_and_names_that_are_made():
    class Meter:
        @property
        def value(self):
            return self._value

        @value.setter
        def value(self, x):
            self._value = x

    meter = Meter()

    def step(x):
        meter.value = x.sum()
        setattr(meter, f"part{x.ndim}", x * 2)
        vars(meter).update(mean=x.mean())
        return x * 2

    def write(k):
        meter.value = meter.part2 = meter.mean = k

    return step, write, lambda: vars(meter)


def on_a_parameter():
    weight = nn.Parameter(torch.ones(2, device="cuda"))

    def step(x):
        with torch.no_grad():
            weight.importance = (x * weight).mean(0)
            return x * weight

    return step, lambda k: setattr(weight, "importance", k), lambda: weight.importance


def what_it_deletes():
    args, table = types.SimpleNamespace(old=1), {"old": 1}

    def step(x):
        args.tmp = x * 2
        y = args.tmp.sum()
        del args.tmp, args.old
        return y

    def write(k):
        args.tmp = args.old = k

    return step, write, lambda: [vars(args), table]


def flat(x):
    if isinstance(x, torch.Tensor):
        return str(x.dtype), x.shape, x.tolist()
    if isinstance(x, dict):
        return [(k, flat(v)) for k, v in x.items()]
    return [flat(v) for v in x] if isinstance(x, (list, tuple, collections.deque)) else x


WAYS = [in_a_module, in_an_object, in_slots, in_dicts, in_lists, in_variables, in_functions_and_classes, in_what_the_call_makes,
        through_properties_and_names_that_are_made, on_a_parameter]
CALLS = "c4 c4 c4 c4 c4 w c4 e4 c4 c3 c3 c3 c3 c4 c3 w c3 e3 c4 w c3 e4 w c4 c4"


@pytest.mark.parametrize("way", [*WAYS, what_it_deletes], ids=lambda way: way.__name__)
def test_what_a_call_leaves_is_what_an_eager_one_leaves(cuda, way):
    def run(compiled):
        torch.manual_seed(0)
        step, write, look = way()
        f, found = torch.compile(step) if compiled else step, []
        for k, what in enumerate(CALLS.split()):
            if way is what_it_deletes:
                write(0)
            if what == "w":
                write(k)
            else:
                x = torch.arange(2.0 * int(what[1]), device=cuda).view(-1, 2) + k
                result = flat((f if what[0] == "c" else step)(x))
                found.append((k, what, result, flat(look())))
        return found, f

    with warnings.catch_warnings():
        warnings.simplefilter("error")                                   # it is captured, and nothing is told to go on
        (wanted, _), (found, f) = run(False), run(True)
    for a, b in zip(wanted, found):
        assert a == b
    assert sum(recording.used for kind in f.kinds.values() for recording in kind.recordings) >= 2


def test_an_argument_that_is_kept_is_the_callers_own(cuda):
    args = types.SimpleNamespace(x=None)

    @torch.compile
    def step(x):
        args.x = x
        return x * 2

    for _ in range(6):
        x = torch.ones(2, device=cuda)
        step(x)
        assert args.x is x


def test_numbers_that_go_on_are_told_and_left(cuda):
    args = types.SimpleNamespace(n=0, size=0)

    @torch.compile
    def step(x):
        args.n, args.size = args.n + 1, x.shape[0]
        return x * 2

    with pytest.warns(UserWarning, match="changes 'n' of SimpleNamespace") as told:
        for _ in range(12):
            args.size = -1
            step(torch.ones(2, device=cuda))
            assert args.size == 2
    assert len(told) == 1 and args.n < 12


def test_what_another_branch_sets_stays_as_it_is(cuda):
    args = types.SimpleNamespace(deep=False, phase="none")

    @torch.compile
    def step(x):
        if args.deep:
            args.phase = "deep"
        return x * 2

    for k in range(12):
        args.phase = str(k // 4)
        step(torch.ones(2, device=cuda))
        assert args.phase == str(k // 4)


@pytest.mark.parametrize("as_tuple", [False, True])
def test_what_one_kind_leaves_outlives_the_replays_of_another(cuda, as_tuple):
    """Graphs of one function share memory: that of what is done with in the first holds what the second leaves."""
    out, last = types.SimpleNamespace(kept={}), {}

    @torch.compile
    def step(x):
        y = (x * 2 + 1).sum(0)
        out.kept[len(x)] = (y, [y + 1]) if as_tuple else y
        return (x * 3).exp().mean()

    for k, n in enumerate([2] * 5 + [3] * 5 + [2, 2, 3, 2, 3, 3, 2]):
        last[n] = k
        step(torch.full((n, 2), float(k), device=cuda))
        for size, number in last.items():
            found = out.kept[size]
            assert (found[0] if as_tuple else found).tolist() == [size * (2.0 * number + 1)] * 2
            assert not as_tuple or found[1][0].tolist() == [size * (2.0 * number + 1) + 1] * 2
    assert all(len(kind.recordings) == 1 and kind.recordings[0].used for kind in step.kinds.values())


class Auxiliary(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.aux = nn.Linear(2, 2), None

    def forward(self, x):
        y = self.layer(x)
        self.aux = y.square().mean()
        return y


@pytest.mark.parametrize("returned", [True, False])
def test_a_loss_that_a_module_leaves_can_be_differentiated(cuda, returned):
    """As mixtures of experts do, which leave a loss for balance."""
    def run(compiled):
        torch.manual_seed(1)
        model = Auxiliary().cuda()
        call = model if returned else lambda x: model(x).detach()
        call = torch.compile(call) if compiled else call
        found = []
        for k in range(7):
            x = torch.full((3, 2), k + 1.0, device=cuda)
            y = (model if k == 5 else call)(x)
            model.zero_grad()
            (model.aux + y.sum() if returned else model.aux).backward()
            found.append([model.aux.item(), model.layer.weight.grad.tolist()])
        return found

    if returned:
        np.testing.assert_equal(run(True), run(False))
    else:
        with pytest.warns(UserWarning, match="a tensor that requires grad, left in 'aux' of Auxiliary; return it too"):
            found = run(True)
        np.testing.assert_equal(found, run(False))


class Counting(torch.optim.Optimizer):
    """Goes by a count of its own after some steps."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["step"] = state.get("step", 0) + 1
            p.add_(p.grad, alpha=-0.1 if state["step"] > 8 else -0.2)


def test_an_optimizer_of_ones_own_that_counts_on_the_host(cuda):
    def run(compiled):
        weight = nn.Parameter(torch.ones(2, device=cuda))
        optimizer = Counting([weight], {})

        def step(x):
            optimizer.zero_grad()
            (weight * x).square().sum().backward()
            optimizer.step()

        step = torch.compile(step) if compiled else step
        for _ in range(12):
            step(torch.ones(2, device=cuda) / 4)
        return weight.tolist()

    with pytest.warns(UserWarning, match="cannot hold 'step' in the state of an optimizer, which the host counts"):
        found = run(True)
    assert found == run(False)


@pytest.mark.parametrize("first", [False, True])
def test_gradients_outlive_replays_that_make_none(first, cuda):
    """An evaluation by the same function, in whose memory the gradients lie, comes before the optimizer's step, which is outside."""
    def run(compiled):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(cuda)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def call(x, train):
            if train:
                model(x).square().mean().backward()
                return None
            return (model(x * 2).relu() + model(x * 3).exp() + model(x).sin()).sum().detach()

        call = torch.compile(call) if compiled else call
        batches = torch.randn(10, 32, 8, device=cuda).unbind()
        for x in batches[:5 * first]:
            call(x, False)
        for x in batches:
            optimizer.zero_grad()
            call(x, True)
            call(x, False)
            optimizer.step()
        assert not compiled or call.report().count("is replayed") >= 2
        return [p.tolist() for p in model.parameters()]

    assert run(True) == run(False)
