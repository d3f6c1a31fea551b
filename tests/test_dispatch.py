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
