"""tritorch.compile: calls that are broken off, by memory that runs out while they are captured and by interrupts at any line."""
import contextlib
import inspect
import itertools
import sys
import warnings

import pytest

import tritorch as torch
from tritorch.autograd.modes import State, state
from tritorch.compiler.capture import Capture
from tritorch.compiler.function import Compiled
from tritorch.compiler.watch import Watch
from tritorch.cuda import driver
from tritorch.cuda.allocator import begin_capture, end_capture
from tritorch.cuda.graph import CUDAGraph
from tritorch.cuda.stream import OnlyStream, Stream, StreamContext, captures

MIB = 2**20


def trained(step, room=8.5, count=4):
    """What `count` steps return and leave where the device has room for one eager step, and the warnings."""
    with torch.cuda.simulate():
        weight = torch.ones(MIB // 4, device="cuda", requires_grad=True)
        x, found = torch.full((MIB // 4,), 2.0, device="cuda"), []
        step = step(weight)
        torch.cuda.set_per_process_memory_fraction(room * MIB / torch.cuda.get_device_properties(0).total_memory)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(count):
                found.append((step(x)[0].item(), weight[1].item()))
        torch.cuda.set_per_process_memory_fraction(1.0)
        return found, [str(w.message) for w in told]


def chain(weight):
    def step(x):
        y = weight * x
        z = y * x
        out = z * x
        out.sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad * 1e-3)
        weight.grad = None
        return out.detach()

    return step


def test_a_capture_that_runs_out_of_memory_runs_eagerly():
    expected, _ = trained(chain)
    found, told = trained(lambda weight: torch.compile(chain(weight), options={"fuse": False}))
    assert found == expected
    assert len(told) == 1 and "needs more memory than there is" in told[0] and not captures


def test_copies_of_arguments_that_do_not_fit():
    def step(weight):
        base = torch.ones(12 * MIB // 4, device="cuda")
        return lambda plain: lambda x: plain(base)

    def total(x):
        return x[:4] * 2

    expected, _ = trained(lambda weight: step(weight)(total), 20.5)
    found, told = trained(lambda weight: step(weight)(torch.compile(total)), 20.5)
    assert found == expected
    assert len(told) == 1 and "needs more memory than there is" in told[0]


def test_memory_that_runs_out_eagerly_too_is_an_error():
    def step(x):
        return x + torch.empty(64 * MIB, device="cuda")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        trained(lambda weight: torch.compile(step))


@pytest.mark.parametrize("differentiable", [False, True])
def test_a_replay_whose_result_does_not_fit_has_not_run(differentiable):
    with torch.cuda.simulate():
        weight = torch.ones(MIB // 4, device="cuda", requires_grad=differentiable)
        count, x = torch.zeros((), device="cuda"), torch.ones(MIB // 4, device="cuda")

        @torch.compile
        def step(x):
            count.add_(1)
            return x * weight

        for _ in range(4):
            step(x)
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / torch.cuda.get_device_properties(0).total_memory)
        held = []
        with pytest.raises(torch.cuda.OutOfMemoryError):
            while len(held) < 100:
                before = count.item()
                held.append(step(x).detach())
        assert count.item() == before
        torch.cuda.set_per_process_memory_fraction(1.0)
        assert step(x)[0].item() == 1 and count.item() == before + 1


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("room", [52, 77, 102, 127])
def test_results_of_the_captured_call_that_do_not_fit(differentiable, room):
    """Whatever of a captured call does not fit, its result too, nothing of it has run, and it runs eagerly."""
    with torch.cuda.simulate(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight, x = torch.ones(4 * MIB, device="cuda", requires_grad=differentiable), torch.ones(4 * MIB, device="cuda")
        count = torch.zeros((), device="cuda")

        @torch.compile
        def step(x):
            count.add_(1)
            return x * weight

        torch.cuda.set_per_process_memory_fraction(room * MIB / torch.cuda.get_device_properties(0).total_memory)
        for calls in range(1, 6):
            assert step(x)[0].item() == 1 and count.item() == calls and weight.grad is None
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_captured_call_comes_before_replays_on_other_streams():
    for seed in range(8):
        with torch.cuda.simulate(seed=seed):
            x, y = torch.ones(64, device="cuda"), torch.full((64,), 2.0, device="cuda")
            step, first, second = torch.compile(lambda x: ((x + x) * x + x) * x), torch.cuda.Stream(), torch.cuda.Stream()
            torch.cuda.synchronize()
            with torch.cuda.stream(first):
                found = [step(x) for _ in range(3)]
            with torch.cuda.stream(second):
                found.append(step(y))
            torch.cuda.synchronize()
            assert [out[0].item() for out in found] == [3, 3, 3, 20], seed


@pytest.mark.parametrize("enter", [Capture.__enter__, torch.cuda.graph.__enter__], ids=["compile", "graph"])
def test_an_interrupt_when_a_capture_has_begun_ends_it(enter):
    """At each line of `enter` at which a capture is under way, and where it returns from `capture_begin`."""
    def trace(frame, event, what):
        ours = frame.f_code is enter.__code__ or frame.f_code is torch.cuda.CUDAGraph.capture_begin.__code__
        if ours and captures and (event == "line" or event == "return" and frame.f_code is not enter.__code__):
            met.append(event)
            if len(met) == at:
                raise KeyboardInterrupt
        return trace if ours else None

    with torch.cuda.simulate():
        x, before = torch.ones(2, device="cuda"), sys.gettrace()
        for at in range(1, 3):
            step, met = torch.compile(lambda x: x * 2), []
            sys.settrace(trace)
            with pytest.raises(KeyboardInterrupt):
                try:
                    for _ in range(5):
                        if enter is Capture.__enter__:
                            step(x)
                        else:
                            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                                x * 2
                finally:
                    sys.settrace(before)
            assert not captures and torch.cuda.current_stream() == torch.cuda.default_stream(), at
            assert [step(x).tolist() for _ in range(4)] == [[2, 2]] * 4


def codes(*owners):
    """The code of functions, and of all methods of classes."""
    found = [vars(owner).values() if isinstance(owner, type) else [owner] for owner in owners]
    return {inspect.unwrap(f).__code__ for group in found for f in group if inspect.isfunction(f)}


class Interrupts:
    """Context manager: KeyboardInterrupt at the `at`-th line inside that belongs to `where`. `met` counts them."""

    def __init__(self, where, at):
        self.where, self.at, self.met = where, at, 0

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *exception):
        sys.settrace(self.before)

    def trace(self, frame, event, what):
        if frame.f_code not in self.where:
            return None
        if event == "line":
            self.met += 1
            if self.met == self.at:
                raise KeyboardInterrupt
        return self.trace


CAPTURING = codes(Capture, CUDAGraph, OnlyStream, StreamContext, Stream.__enter__, Stream.__exit__, begin_capture, end_capture,
                  Watch.watching, Watch.leave, Watch.over, Watch.flush, Watch.slot, Compiled.run,
                  contextlib._GeneratorContextManager)
CAPTURING -= codes(CUDAGraph.__init__, CUDAGraph.__del__)


@pytest.mark.parametrize("calls", [0, 2], ids=["watched", "captured"])
@pytest.mark.parametrize("differentiable, chosen", [(False, False), (True, True)], ids=["step", "forward on a stream"])
def test_an_interrupt_at_any_line_leaves_nothing_behind(differentiable, chosen, calls):
    """Neither a capture nor its stream nor a watch, and each call has run as a whole or not at all."""
    for at in itertools.count(1):
        with torch.cuda.simulate():
            mine = torch.cuda.Stream() if chosen else torch.cuda.current_stream()
            with torch.cuda.stream(mine):
                met = _interrupted(at, differentiable, calls, mine)
            torch.cuda.synchronize()
        if met < at:
            break
    assert at > (60 if calls else 20)


def _interrupted(at, differentiable, calls, mine):
    """How many lines a call had that followed `calls` others and was interrupted at one, if it had so many."""
    weight, x = torch.ones(2, device="cuda", requires_grad=True), torch.ones(2, device="cuda")

    @torch.compile
    def step(x):
        y = x * weight
        if not differentiable:
            y.sum().backward()
            weight.detach().add_(1)
        return y

    for _ in range(calls):
        step(x)
        weight.grad = None
    before, broken = weight[0].item(), False
    with Interrupts(CAPTURING, at) as interrupts:
        try:
            step(x)
        except KeyboardInterrupt:
            broken = True
    assert not captures and torch.cuda.current_stream() == mine and not torch.cuda.is_current_stream_capturing(), at
    assert state.interpreter is State.interpreter and not torch.compiler.is_compiling(), at
    assert not any(driver.current().capture_status(stream.handle) for stream in step.streams.values()), at
    now = weight[0].item()
    assert now == before + 1 or weight.grad is None and now == before and (broken or differentiable), at
    for _ in range(3):
        weight.grad = None
        out = step(x)
        if differentiable:
            out.sum().backward()
        assert weight.grad.tolist() == [1, 1], at
    assert weight[0].item() == now + (0 if differentiable else 3), at
    return interrupts.met
