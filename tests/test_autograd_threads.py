"""Backward in several threads, inside of hooks, and under anomaly mode."""
import threading
import warnings

import pytest
from both import both, leaf

import tritorch


def test_two_threads_on_one_graph():
    torch = tritorch
    x = torch.randn(50, requires_grad=True)
    shared = (x * x).exp()
    done, errors = [], []

    def work(scale):
        try:
            for _ in range(20):
                done.append(torch.autograd.grad((shared * scale).sum(), x, retain_graph=True)[0].tolist())
        except Exception as error:                                       # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(1.0,)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and all(d == done[0] for d in done) and len(done) == 80


def test_two_threads_accumulate_into_one_leaf():
    torch = tritorch
    x = torch.ones(100, requires_grad=True)
    start = threading.Barrier(4)

    def work():
        start.wait()
        for _ in range(50):
            (x * 1.0).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert x.grad.tolist() == [200.0] * 100


@both
def test_backward_inside_of_a_hook(torch):
    """A pass may start inside of another."""
    x, w = leaf(torch, 2.0), leaf(torch, 3.0)
    y = x * x
    z = w * w
    y.register_hook(lambda g: z.backward())
    y.backward()
    return x.grad, w.grad


# ------------------------------------------------------------------ anomalies
@both
def test_anomaly_mode_names_the_node(torch):
    x = leaf(torch, -1.0)
    with pytest.warns(UserWarning) if torch is not tritorch else torch.autograd.detect_anomaly():
        with torch.autograd.detect_anomaly():
            y = torch.sqrt(x)
            with pytest.raises(RuntimeError, match="SqrtBackward0"):
                y.backward()


def test_anomaly_mode_names_the_line():
    torch = tritorch
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with torch.autograd.detect_anomaly():
        y = (x / x).sum()                                                # the line of the quotient
        with pytest.raises(RuntimeError, match="the line of the quotient$"):             # no frame of ours below it
            y.backward()
    function = type("Nothing", (torch.autograd.Function,), {
        "forward": staticmethod(lambda ctx, x: x * 1), "backward": staticmethod(lambda ctx, g: g * float("nan"))})
    with torch.autograd.set_detect_anomaly(True):
        assert torch.is_anomaly_enabled()
        y = function.apply(x)                                            # the line of the function
        with pytest.raises(RuntimeError, match="the line of the function$"):
            y.sum().backward()
    assert not torch.is_anomaly_enabled()


@both
def test_anomaly_mode_without_a_search_for_nan(torch):
    x = leaf(torch, -1.0)
    assert torch.is_anomaly_check_nan_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                                  # PyTorch says that the mode is slow
        with torch.autograd.detect_anomaly(check_nan=False):
            assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
            x.sqrt().backward()
    return x.grad
