"""tritorch.compile: calls that are broken off, by memory that runs out while they are captured and by interrupts at any line."""
import sys
import warnings

import pytest

import tritorch as torch
from tritorch.autograd.modes import state
from tritorch.compiler.function import Compiled
from tritorch.compiler.recording import Capture
from tritorch.compiler.watch import Watch
from tritorch.cuda.stream import captures

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


@pytest.mark.parametrize("enter", [Capture.__enter__, torch.cuda.graph.__enter__], ids=["compile", "graph"])
def test_an_interrupt_when_a_capture_has_begun_ends_it(enter):
    """At each line of `enter` at which a capture is under way, and where it returns from `capture_begin`."""
    def trace(frame, event, what):
        ours = frame.f_code is enter.__code__ or frame.f_code is torch.cuda.CUDAGraph.capture_begin.__code__
        if ours and event in ("line", "return") and captures:
            met.append(event)
            if len(met) == at:
                raise KeyboardInterrupt
        return trace if ours else None

    with torch.cuda.simulate():
        x, before = torch.ones(2, device="cuda"), sys.gettrace()
        for at in range(1, 4):
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


@pytest.mark.parametrize("function", [Watch.watching.__wrapped__, Compiled.run], ids=["watching", "run"])
def test_an_interrupt_at_any_line_leaves_nothing_behind(function):
    """The lines of the function itself, until one is past its end."""
    code, lines = function.__code__, 0
    with torch.cuda.simulate():
        x = torch.ones(2, device="cuda")
        for at in range(1, 60):
            step, met = torch.compile(lambda x: x * 2), [0]

            def trace(frame, event, what, met=met, at=at):
                if event == "line" and frame.f_code is code and frame.f_lineno < last:
                    met[0] += 1
                    if met[0] == at:
                        raise KeyboardInterrupt
                return trace if frame.f_code is code else None

            last = code.co_firstlineno + 1 + _before_finally(function)
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                step(x)
            except KeyboardInterrupt:
                lines += 1
            finally:
                sys.settrace(before)
            assert state.interpreter is None and not torch.compiler.is_compiling() and not captures, at
            if met[0] < at:
                break
        assert lines > 2 and step(x).tolist() == [2, 2]


def _before_finally(function):
    """How many lines of a function come before its `finally`."""
    import inspect
    return next(k for k, line in enumerate(inspect.getsource(function).splitlines()) if line.strip() == "finally:") - 1
