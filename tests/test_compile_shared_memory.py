"""tritorch.compile: arguments that share memory, with one another or with what the call writes and reads besides."""
import warnings

import pytest

import tritorch as torch


def calls(function, given):
    seen = []
    for args in given:
        out = function(*args)
        seen.append((out.tolist(), *[x.tolist() for x in args]))
    return seen


def pairs(overlap, first):
    """Arguments in memory of their own, and those of which one lies in the other's."""
    for k in range(10):
        memory, shared = torch.arange(8.0, device="cuda"), k >= 6 or first and k < 2
        yield memory[:4], (memory[overlap:overlap + 4] if shared else torch.arange(4.0, device="cuda"))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("overlap", [0, 2])
def test_one_of_two_is_written(cuda, overlap, first):
    def function(a, b):
        a.add_(1)
        return a * b

    assert calls(torch.compile(function), pairs(overlap, first)) == calls(function, pairs(overlap, first))


def test_none_is_written(cuda):
    step, x = torch.compile(lambda a, b: a * b), torch.ones(3, device=cuda)
    assert [step(x, x).tolist() for _ in range(8)] == [[1.0] * 3] * 8
    assert "is replayed" in step.report()


@pytest.mark.parametrize("since", range(9))
@pytest.mark.parametrize("written", ["the argument", "the other", "a parameter"])
def test_an_argument_in_other_memory_of_the_call(cuda, written, since):
    """From any call on, be it of the warm-up, the captured one or a replay."""
    def seen(compile):
        memory = torch.zeros(3, device=cuda, requires_grad=written == "a parameter")
        optimizer = torch.optim.SGD([memory], lr=0.5)

        def function(x):
            if written == "a parameter":
                optimizer.zero_grad()
                (memory * x).sum().backward()
                optimizer.step()
            else:
                (x if written == "the argument" else memory).add_(1)
            return x * 2 + memory.detach()

        step = compile(function)
        found = [step(torch.ones(3, device=cuda) if k < since else memory.detach()).tolist() for k in range(10)]
        assert compile is not torch.compile or since < 5 or "is replayed" in step.report()
        return found, memory.tolist()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "compile: .* an argument in memory that the call reads or writes by another name too")
        assert seen(torch.compile) == seen(lambda function: function)


def test_the_default_device_is_part_of_a_call(cuda):
    step = torch.compile(lambda: torch.ones(3) * 2)
    try:
        for device in ("cuda", "cpu", "cuda"):
            torch.set_default_device(device)
            with warnings.catch_warnings(record=device == "cpu"):
                assert {step().device.type for _ in range(5)} == {device}
    finally:
        torch.set_default_device(None)
