"""tritorch.compile: numbers and objects that Python reads far from the compiled function, and that change between calls."""
import argparse
import functools
import types
import warnings
import weakref
from dataclasses import dataclass

import pytest

import tritorch as torch
from tritorch import nn

FACTOR, OPTIONS, LIST = 1.0, {"d": 1.0, 3: 1.0}, [1.0]
ARGS = argparse.Namespace(beta=1.0, inner=types.SimpleNamespace(beta=1.0))


class Settings:
    beta = zeta = 1.0


@dataclass
class Config:
    __slots__ = ("beta",)
    beta: float


class Trainer:
    """An object that programs keep their numbers in."""

    def __init__(self):
        self.gamma, self.unread, self.mask = 1.0, 0, None

    def part(self, x):
        return x * self.gamma


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.config, self.unread = types.SimpleNamespace(e=1.0), 0

    def forward(self, x):
        return x * self.config.e


CONFIG, TRAINER, LAYER, SETTINGS = Config(1.0), Trainer(), Layer(), Settings()


def scaled(x):
    return x * FACTOR


def factor():
    return FACTOR


def with_default(x, options={"f": 1.0}):                                 # noqa: B006
    return x * options["f"]


def closed():
    k = 1.0

    def inner(x):
        return x * k

    def assign(value):
        nonlocal k
        k = value

    return inner, assign


INNER, ASSIGN = closed()
WAYS = {
    "a global of a function that it calls": (scaled, lambda v: globals().update(FACTOR=v)),
    "a function without operators": (lambda x: x * factor(), lambda v: globals().update(FACTOR=v)),
    "an attribute": (lambda x: x * ARGS.beta, lambda v: setattr(ARGS, "beta", v)),
    "an attribute of an attribute": (lambda x: x * ARGS.inner.beta, lambda v: setattr(ARGS.inner, "beta", v)),
    "another object there": (lambda x: x * ARGS.inner.beta, lambda v: setattr(ARGS, "inner", types.SimpleNamespace(beta=v))),
    "an attribute of a class": (lambda x: x * Settings.beta, lambda v: setattr(Settings, "beta", v)),
    "an attribute that hides one of a class": (lambda x: x * SETTINGS.zeta, lambda v: setattr(SETTINGS, "zeta", v) if v != 1 else None),
    "an entry that was not there": (lambda x: x * OPTIONS.get("new", 1),
                                    lambda v: OPTIONS.update(new=v) if v != 1 else OPTIONS.pop("new", 0)),
    "a slot": (lambda x: x * CONFIG.beta, lambda v: setattr(CONFIG, "beta", v)),
    "an entry of a dict": (lambda x: x * OPTIONS["d"], lambda v: OPTIONS.update(d=v)),
    "an entry by a number": (lambda x: x * OPTIONS[3], lambda v: OPTIONS.update({3: v})),
    "an element of a list": (lambda x: x * LIST[0], lambda v: LIST.__setitem__(0, v)),
    "what a method reads": (lambda x: TRAINER.part(x), lambda v: setattr(TRAINER, "gamma", v)),
    "a variable of an enclosing function": (lambda x: INNER(x), ASSIGN),
    "a default": (lambda x: with_default(x), lambda v: with_default.__defaults__[0].update(f=v)),
    "an object that a module has": (LAYER, lambda v: setattr(LAYER.config, "e", v)),
    "what a partial calls": (functools.partial(scaled), lambda v: globals().update(FACTOR=v)),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_far_away(cuda, way):
    function, assign = WAYS[way]
    assign(1.0)
    step, x = torch.compile(lambda x: function(x)), torch.ones(2, device=cuda)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (1.0, 2.0, 2, 1.0, 0.5):
            assign(value)
            for _ in range(5):
                assert step(x).tolist() == function(x).tolist()
            assert value == 1 or step(x).tolist() == [value] * 2
    assert "is replayed" in step.report()
    assign(1.0)


def test_a_global_that_is_made_later(cuda):
    space = {}
    exec("def step(x): return x * later", space)
    step, x = torch.compile(space["step"]), torch.ones(2, device=cuda)
    for value in (1.0, 2.0):
        space["later"] = value
        assert [step(x).tolist()[0] for _ in range(5)] == [value] * 5


def test_integers_are_no_floats(cuda):
    """1, 1.0 and True are equal, and give other dtypes."""
    step, x = torch.compile(scaled), torch.arange(3, device=cuda)
    for value in (1, 1.0, True, 1, 1.0):
        globals()["FACTOR"] = value
        assert {step(x).dtype for _ in range(5)} == {scaled(x).dtype}
    globals()["FACTOR"] = 1.0


def test_the_sign_of_zero_and_nan(cuda):
    """0.0 and -0.0 are equal and not the same; nan is the same and not equal."""
    step, far, x = torch.compile(lambda x, c: x * c), torch.compile(lambda x: x * float("nan")), torch.ones(1, device=cuda)
    for value in (0.0, -0.0, 0.0):
        assert {str(step(x, value).item()) for _ in range(5)} == {str(value)}
    for _ in range(12):
        step(x, float("nan"))
        far(x)
    assert step.report().count("is replayed") == 3 and "is replayed" in far.report()


def test_what_is_not_read_may_change(cuda):
    """Attributes that no code on the way to an operator names, in every call, in objects and modules."""
    trainer, layer, captures = Trainer(), Layer(), []

    @torch.compile
    def step(x):
        captures.append(torch.cuda.is_current_stream_capturing())
        return layer(getattr([trainer][0], "part")(x))                   # noqa: B009 (an attribute that has a name, of what has none)

    for k in range(12):
        trainer.unread, layer.unread = k, k
        step(torch.ones(2, device=cuda))
    assert captures.count(True) == 1


def test_what_a_call_changes_itself_does_not_count(cuda):
    """Neither a counter nor what depends on the shape, though calls of another shape write it as well."""
    trainer, captures = Trainer(), []
    trainer.calls = trainer.size = 0

    @torch.compile
    def step(x):
        captures.append(torch.cuda.is_current_stream_capturing())
        trainer.calls += 1
        trainer.size = x.shape[0]
        return x * trainer.size

    with pytest.warns(UserWarning, match="changes '(calls|size)' of Trainer"):
        for k in range(20):
            n = 2 + k % 2
            assert step(torch.ones(n, device=cuda)).tolist() == [n] * n
    assert captures.count(True) == 2


TOTAL = 0


def by_attribute():
    holder = types.SimpleNamespace(n=0)

    def count():
        holder.n += 1
        return holder.n
    return count


def by_getattr():
    holder = types.SimpleNamespace()

    def count():
        holder.n = getattr(holder, "n", 0) + 1
        return holder.n
    return count


def by_variable():
    n = 0

    def count():
        nonlocal n
        n += 1
        return n
    return count


def by_entry():
    holder = {"n": 0}

    def count():
        holder["n"] += 1
        return holder["n"]
    return count


def by_global():
    def count():
        global TOTAL
        TOTAL += 1
        return TOTAL
    globals()["TOTAL"] = 0
    return count


@pytest.mark.parametrize("way", [by_attribute, by_getattr, by_variable, by_entry, by_global])
def test_a_counter_that_the_call_goes_by(cuda, way):
    """Every second call makes a step, and is a recording of its own, for which the gradients are there: between replays nobody counts."""
    def trained(compile):
        w, count, seen = torch.ones(3, device=cuda, requires_grad=True), way(), []
        optimizer = torch.optim.SGD([w], lr=0.5)

        @compile
        def step(x):
            (w * x).sum().backward()
            if count() % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

        for k in range(13):
            step(torch.full((3,), float(k), device=cuda))
            seen.append(w.tolist())
        return seen

    with pytest.warns(UserWarning, match="'(n|TOTAL)' of .*, which the call counts and goes by"):
        assert trained(torch.compile) == trained(lambda function: function)


def test_a_tensor_that_an_object_has(cuda):
    trainer, x = Trainer(), torch.ones(2, device=cuda)
    step = torch.compile(lambda x: x * trainer.mask)
    for value in (1.0, 2.0):
        trainer.mask = torch.full((2,), value, device=cuda)
        assert [step(x).tolist()[0] for _ in range(5)] == [value] * 5


def test_a_number_of_every_call(cuda):
    """What makes every call another one is named."""
    trainer, x = Trainer(), torch.ones(2, device=cuda)

    @torch.compile
    def step(x):
        return trainer.part(x) if trainer.unread >= 0 else x

    with pytest.warns(UserWarning, match="'unread' of Trainer") as seen:
        for k in range(60):
            trainer.unread = k
            assert step(x).tolist() == [1.0, 1.0]
    assert [warning.filename for warning in seen] == [__file__]


def test_arguments_die_as_they_do_without_it(cuda):
    """A dict of tensors among the arguments is of one call only; so is what the function makes."""
    @torch.compile
    def step(batch):
        made = types.SimpleNamespace(y=batch["x"] * 2)
        return scaled(made.y)

    alive = []
    for _ in range(6):
        batch = {"x": torch.ones(2, device=cuda)}
        alive.append(weakref.ref(batch["x"]))
        step(batch)
    del batch
    assert not any(ref() is not None for ref in alive)


HOOKS = {
    "before a module": lambda m, o, hook: m[0].register_forward_pre_hook(lambda module, args: hook()),
    "behind a module": lambda m, o, hook: m[0].register_forward_hook(lambda module, args, out: hook()),
    "behind all modules": lambda m, o, hook: nn.modules.module.register_module_forward_hook(lambda module, args, out: hook()),
    "behind its gradients": lambda m, o, hook: m[1].register_full_backward_hook(lambda module, args, out: hook()),
    "on a gradient": lambda m, o, hook: m[0].weight.register_hook(lambda g: hook()),
    "behind a gradient": lambda m, o, hook: m[0].weight.register_post_accumulate_grad_hook(lambda p: hook()),
    "before a step": lambda m, o, hook: o.register_step_pre_hook(lambda *args: hook()),
    "behind a step": lambda m, o, hook: o.register_step_post_hook(lambda *args: hook()),
    "behind all steps": lambda m, o, hook: torch.optim.optimizer.register_optimizer_step_post_hook(lambda *args: hook()),
}


@pytest.mark.parametrize("place", HOOKS)
def test_a_hook_that_comes_and_goes_after_the_capture(cuda, place):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(cuda)
    optimizer, x, calls = torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(1, 2, device=cuda), []

    @torch.compile
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(5):
        step(x)
    with HOOKS[place](model, optimizer, lambda: calls.append(1)):
        for _ in range(2):
            step(x)
    assert calls
    ran = len(calls)
    step(x)
    assert len(calls) == ran
    assert "is replayed" in step.report()


def test_modes_that_look_into_a_call(cuda):
    """Hunting for NaN, hooks on saved tensors and a choice of attention hold for calls that were captured without them."""
    w, x = torch.ones(2, device=cuda, requires_grad=True), torch.ones(2, device=cuda)

    @torch.compile
    def step(x):
        w.grad = None
        (w * x).log().sum().backward()
        return w.grad.clone()

    for _ in range(5):
        step(x)
    with pytest.raises(RuntimeError, match="nan"), torch.autograd.detect_anomaly():
        step(x * 0)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        step(x)
    assert saved and step.report().count("is replayed") == 1
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        step(x)
    assert "2 kinds of calls" in step.report()
