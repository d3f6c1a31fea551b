"""A test program run under tritorch and, where it is installed, under PyTorch: the two must give the same numbers and errors."""
import functools
import inspect

import numpy as np

import tritorch

try:
    import torch as pytorch
except ImportError:
    pytorch = None


def outcome(program, torch, *args, **kw):
    """What a program returns, as nested lists of arrays; an exception as its type."""
    try:
        return plain(program(torch, *args, **kw))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        return error


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if hasattr(value, "detach"):
        return np.array(value.detach().to("cpu").tolist(), dtype=np.float64)
    return value


def agree(got, want, where="result"):
    """Raise unless two plain values are the same up to rounding."""
    if isinstance(want, np.ndarray):
        assert isinstance(got, np.ndarray) and got.shape == want.shape, f"{where}: {got} and {want}"
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7, err_msg=where)
    elif isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want), f"{where}: {got} and {want}"
        for k, (g, w) in enumerate(zip(got, want)):
            agree(g, w, f"{where}[{k}]")
    elif isinstance(want, dict):
        assert got.keys() == want.keys(), f"{where}: {got} and {want}"
        for k in want:
            agree(got[k], want[k], f"{where}[{k!r}]")
    elif isinstance(want, float):
        assert abs(got - want) <= 1e-7 + 1e-6 * abs(want), f"{where}: {got} and {want}"
    else:
        assert got == want, f"{where}: {got!r} and {want!r}"


def both(test):
    """A test whose first parameter is the library. What it returns must be the same for both; asserts in it hold for both."""

    @functools.wraps(test)
    def run(*args, **kw):
        got = plain(test(tritorch, *args, **kw))
        if pytorch is not None:
            agree(got, plain(test(pytorch, *args, **kw)))

    parameters = list(inspect.signature(test).parameters.values())[1:]
    run.__signature__ = inspect.Signature(parameters)
    return run


def leaf(torch, *values, dtype=None):
    """A tensor of these values (or of one list of lists) that wants a gradient, in float64 unless `dtype` says otherwise."""
    return torch.tensor(list(values) if len(values) != 1 else values[0], dtype=dtype or torch.float64, requires_grad=True)
