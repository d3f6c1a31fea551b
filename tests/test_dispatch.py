"""op(): what it refuses, and what running an operator leaves alone."""
import threading
import warnings

import numpy as np
import pytest

import tritorch as T
from tritorch.dispatch import op, registry
from tritorch.quiet import quietly


@pytest.mark.parametrize("name, returns", [
    ("g", ("out",)), ("out", ("out",)), ("values", ("values", "places")), ("g_places", ("values", "places"))])
def test_a_parameter_named_like_what_gradient_rules_ask_for(name, returns):
    scope = {}
    exec(f"def clashing(x, {name}): return x", scope)
    with pytest.raises(TypeError, match=rf"clashing: expected parameters not named .*, got {name}"):
        op(scope["clashing"], returns=returns)
    assert "clashing" not in registry


@pytest.mark.parametrize("call", [
    lambda x: x * 0, lambda x: x - x, lambda x: x.log(), lambda x: x / 0, lambda x: x.half() * 6e4, lambda x: (x * 3e38).half(),
    lambda x: x.int(), lambda x: x.sum(), lambda x: x.var(), lambda x: x.softmax(0), lambda x: x.cumsum(0), lambda x: x @ x,
    lambda x: x.exp().bfloat16(), lambda x: T.tensor([1e300]), lambda x: T.tensor(np.array([1e300]), dtype=T.half),
    lambda x: x.clone().fill_(1e300), lambda x: x.copy_(T.tensor(1e300, dtype=T.float64))])
def test_numpy_does_not_warn(call):
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        call(T.tensor([float("inf"), float("nan"), -1.0, 0.0, 3e38]))


def test_numpy_warns_as_before():
    with pytest.raises(FloatingPointError), np.errstate(all="raise"):
        T.zeros(2).log()
        np.log(np.zeros(2))


def test_quiet_calls_within_calls_and_in_threads():
    def deep(n):
        return quietly(deep, n - 1) + quietly(deep, n - 1) if n else np.divide(1.0, 0.0)

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads = [threading.Thread(target=lambda: found.append(quietly(deep, 8))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(ZeroDivisionError):
            quietly(lambda: 1 // 0)
        found.append(quietly(deep, 3))
    assert found == [np.inf] * 5


@pytest.mark.parametrize("call", [
    lambda x, i, s: (x + s, s - x, i * s, i + s.int()),
    lambda x, i, s: (x < s.double(), i[0] < s, i[0] == s, i[0].char() == s.int() * 100 + 56),
    lambda x, i, s: (T.where(x > 1, s, x), T.maximum(x, s), x.clone().add_(s), T.lerp(x, x * 2, s))])
def test_a_number_on_the_cpu_joins_what_is_on_a_gpu(call, cuda):
    x, i, s = T.tensor([1.0, 2.0, 3.0]), T.tensor([56, 2, 3], dtype=T.int32), T.tensor(2.5)
    for ours, want in zip(call(x.to(cuda), i.to(cuda), s), call(x, i, s), strict=True):
        assert ours.device.type == "cuda" and ours.dtype is want.dtype and ours.tolist() == want.tolist()
    x, s = x.to(cuda).requires_grad_(), s.requires_grad_()
    (x * s).sum().backward()
    assert s.grad.device.type == "cpu" and s.grad.item() == 6 and x.grad.tolist() == [2.5] * 3


def test_other_tensors_stay_on_their_device(cuda):
    x = T.ones(3, device=cuda)
    for call in lambda: x + T.ones(1), lambda: T.ones(3) + x, lambda: T.cat([x, T.ones(1)]):
        with pytest.raises(RuntimeError, match="expected all tensors on one device"):
            call()
    for call in lambda: T.add(x, 1, out=T.zeros(3)), lambda: T.ones(()).add_(x[0]):
        with pytest.raises(RuntimeError, match="expected a destination on cuda:0, got cpu"):
            call()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_destinations_have_an_element_for_each_of_the_result(device, cuda):
    x, one = T.arange(3.0, device=device), T.zeros(1, device=device)
    with pytest.raises(RuntimeError, match="elements have memory of their own"):
        T.add(x, 1, out=one.expand(3))
    assert one.tolist() == [0]
    assert T.add(x[:1], 1, out=one.squeeze().expand(1)).tolist() == [1] == one.tolist()
    assert T.add(x[:0], 1, out=one.expand(0)).shape == (0,)
    empty = T.zeros(0, device=device)
    assert T.add(x, 1, out=empty) is empty and empty.tolist() == [1, 2, 3]
    before = T.zeros(0, device=device)
    with pytest.raises(RuntimeError, match="expected a destination of shape"):
        T.sum(before, out=before)
    assert before.shape == (0,)
    memory = T.arange(4.0, device=device)
    assert T.mul(memory[:3], 2, out=memory[1:]).tolist() == [0, 2, 4] and memory.tolist() == [0, 0, 2, 4]
    square = T.arange(4.0, device=device).view(2, 2)
    assert T.neg(square.T, out=square).tolist() == [[0, -2], [-1, -3]]
