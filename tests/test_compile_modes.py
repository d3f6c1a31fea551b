"""tritorch.compile beside grad modes: results that are views of arguments, tensors of inference mode, threads."""

import threading

import pytest

import tritorch as torch

INFERENCE = "expected a normal tensor to write outside of inference mode"


def test_gradients_of_results_that_are_views_of_arguments(cuda):
    """They have no memory of the graph, but a place among the results."""
    def function(x):
        return x[1:], x * 3, x.t()

    step = torch.compile(function)
    for factors in [(10, 1, 100), (0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 2, 3)] * 2:
        gradients = []
        for call in (function, step):
            x = torch.arange(4.0, device="cuda").view(2, 2).requires_grad_()
            sum(out.sum() * factor for out, factor in zip(call(x), factors) if factor).backward()
            gradients.append(x.grad.tolist())
        assert gradients[0] == gradients[1], factors
    assert any(kind.recordings for kind in step.kinds.values())


def test_inference_tensors_as_arguments_and_results(cuda):
    def written(x):
        x.add_(1)
        return x[1:], x * 2

    def inside(x):
        with torch.inference_mode():
            y = x * 2
        return y, x * 3

    for function in (written, inside):
        step = torch.compile(function)
        for mode, made in [(False, False), (True, False), (True, True), (False, True)] * 6:
            found = []
            for call in (function, step):
                with torch.inference_mode(made):
                    x = torch.ones(3, device="cuda") * 2
                with torch.inference_mode(mode):
                    try:
                        found.append([(out.tolist(), out.is_inference()) for out in call(x)])
                    except RuntimeError as error:
                        assert INFERENCE in str(error)
                        found.append("refused")
            assert found[0] == found[1], (function, mode, made)
            assert (found[0] == "refused") == (function is written and made and not mode)
        assert sum(len(kind.recordings) for kind in step.kinds.values()) >= 3


@pytest.mark.filterwarnings("ignore:compile")
def test_a_backward_pass_waits_while_another_thread_captures(cuda):
    capturing, capture_on, kept = threading.Event(), threading.Event(), []

    def slow(x):
        if torch.cuda.is_current_stream_capturing():
            capturing.set()
            capture_on.wait(10)
        return x + 1

    def other():
        with torch.cuda.stream(torch.cuda.Stream()):
            step, x = torch.compile(slow), torch.ones(3, device="cuda")
            kept.extend([step(x) for _ in range(4)])

    with torch.cuda.stream(torch.cuda.Stream()):
        forward = torch.compile(lambda x: x * x)
        for _ in range(4):
            x = torch.ones(3, device="cuda").requires_grad_()
            forward(x).sum().backward()
        total = forward(x).sum()
        thread = threading.Thread(target=other)
        thread.start()
        assert capturing.wait(20)
        threading.Timer(0.3, capture_on.set).start()
        total.backward()
        thread.join()
        torch.cuda.synchronize()
        assert x.grad.tolist() == [4, 4, 4] and kept[3].tolist() == [2, 2, 2]
    assert any(kind.recordings for kind in forward.kinds.values())


def test_compiled_functions_in_several_threads(cuda):
    """Each with a stream, a mode and an optimizer of its own; some functions are shared, and one calls another."""
    shared = torch.compile(lambda x: ((x * 2 + 1) * x).sum(0))
    nested, squared = torch.compile(lambda x: shared(x) + 1), torch.compile(lambda x: x * x)
    found, wanted = [[] for _ in range(4)], []
    modes = [torch.no_grad, torch.inference_mode, torch.enable_grad, lambda: torch.autocast("cuda", torch.bfloat16)]

    def work(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            weight = torch.ones(4, device="cuda", requires_grad=True)
            optimizer = torch.optim.SGD([weight], lr=0.5)

            @torch.compile
            def step(x):
                optimizer.zero_grad()
                (weight * x).sum().backward()
                optimizer.step()
                return weight.detach() * 1

            for call in range(8):
                x = torch.full((2, 4), k + call / 8, device="cuda")
                with modes[k]():
                    found[k] += [shared(x), nested(x)]
                squared(x.requires_grad_()).sum().backward()
                found[k] += [x.grad, step(x.detach())]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    torch.cuda.synchronize()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for k in range(4):
        weight, wanted = 1.0, []
        for call in range(8):
            x = k + call / 8
            weight -= x
            wanted += [2 * (2 * x + 1) * x, 2 * (2 * x + 1) * x + 1, 2 * x, weight]
        assert [out.flatten()[0].item() for out in found[k]] == wanted, k


def test_gradients_are_a_threads_own(cuda):
    """Another thread replays the backward pass after this one did, and before what it gave has been read."""
    function, replayed = torch.compile(lambda x: x * x), threading.Event()

    def gradient(value):
        x = torch.full((3,), value, device="cuda").requires_grad_()
        y = function(x * 1)
        y.sum().backward()
        return x.grad

    def other():
        with torch.cuda.stream(torch.cuda.Stream()):
            kept.append(gradient(5.0))
            torch.cuda.current_stream().synchronize()
            replayed.set()

    kept, thread = [], threading.Thread(target=other)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(4):
            gradient(1.0)
        x = torch.full((3,), 2.0, device="cuda").requires_grad_()
        y = x * 1
        y.register_hook(lambda g: thread.start() or replayed.wait(20) and None)
        out, ready = function(y), threading.Event()
        idle = threading.Thread(target=ready.wait)
        idle.start()
        out.sum().backward()
        ready.set()
        thread.join()
        torch.cuda.synchronize()
        assert x.grad.tolist() == [4, 4, 4] and kept[0].tolist() == [10, 10, 10]
