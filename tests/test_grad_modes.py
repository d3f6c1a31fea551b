"""no_grad, enable_grad, set_grad_enabled and inference_mode: as blocks, as decorators, on generators, in threads."""
import threading
import warnings

import numpy as np
import pytest
from both import both, leaf


@both
def test_modes(torch):
    x = leaf(torch, 2.0)
    seen = [torch.is_grad_enabled()]
    with torch.no_grad():
        seen += [torch.is_grad_enabled(), (x * 2).requires_grad]
        with torch.enable_grad():
            seen += [torch.is_grad_enabled(), (x * 2).requires_grad]
        with torch.set_grad_enabled(True):
            seen += [(x * 2).requires_grad]
        seen += [(x * 2).requires_grad]
    seen += [(x * 2).requires_grad]
    torch.set_grad_enabled(False)
    seen += [torch.is_grad_enabled()]
    torch.set_grad_enabled(True)
    with torch.set_grad_enabled(False) as _:
        seen += [torch.is_grad_enabled()]
    seen += [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    return seen


@both
def test_modes_survive_exceptions(torch):
    for mode in (torch.no_grad(), torch.set_grad_enabled(False), torch.inference_mode()):
        with pytest.raises(KeyError), mode:
            raise KeyError
        torch.set_grad_enabled(True)
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


@both
def test_modes_as_decorators(torch):
    seen = []

    @torch.no_grad()
    def off():
        seen.append(torch.is_grad_enabled())

    @torch.no_grad
    def bare():
        seen.append(torch.is_grad_enabled())

    @torch.enable_grad()
    def on():
        seen.append(torch.is_grad_enabled())

    @torch.set_grad_enabled(False)
    def switched():
        seen.append(torch.is_grad_enabled())

    @torch.inference_mode()
    def inferring():
        seen.append(torch.is_inference_mode_enabled())

    @torch.inference_mode
    def inferring_bare():
        seen.append(torch.is_inference_mode_enabled())

    for f in (off, bare, on, switched, inferring, inferring_bare):
        f()
        seen.append(torch.is_grad_enabled())
    with torch.no_grad():
        on()
        switched()
        seen.append(torch.is_grad_enabled())
    return seen


@both
def test_a_mode_of_a_class_is_that_of_its_init(torch):
    class Made:
        def __init__(self):
            self.seen = [torch.is_grad_enabled()]

        def call(self):
            return [*self.seen, torch.is_grad_enabled()]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                                  # PyTorch means to stop it
        return torch.no_grad()(Made)().call()


@both
def test_one_mode_object_nested_in_itself(torch):
    mode = torch.no_grad()

    @torch.no_grad()
    def recursive(n):
        return [torch.is_grad_enabled()] + (recursive(n - 1) if n else [])

    seen = recursive(3) + [torch.is_grad_enabled()]
    with mode:
        seen.append(torch.is_grad_enabled())
    with mode:
        seen.append(torch.is_grad_enabled())
    return seen + [torch.is_grad_enabled()]


@both
def test_modes_on_generators(torch):
    """Each step of a generator runs in its mode, the caller between the steps in the caller's."""
    seen = []

    @torch.no_grad()
    def numbers():
        seen.append(torch.is_grad_enabled())
        try:
            got = yield 1
            seen.append((got, torch.is_grad_enabled()))
            try:
                yield 2
            except KeyError:
                seen.append(("thrown", torch.is_grad_enabled()))
                yield 3
        finally:
            seen.append(("closed", torch.is_grad_enabled()))
        return 4

    g = numbers()
    seen.append((next(g), torch.is_grad_enabled()))
    seen.append((g.send("hello"), torch.is_grad_enabled()))
    seen.append((g.throw(KeyError()), torch.is_grad_enabled()))
    with pytest.raises(StopIteration) as stop:
        next(g)
    seen.append(stop.value.value)
    h = numbers()
    next(h)
    h.close()
    return seen


@both
def test_modes_are_of_a_thread(torch):
    seen = []
    with torch.no_grad():
        thread = threading.Thread(target=lambda: seen.append(torch.is_grad_enabled()))
        thread.start()
        thread.join()
    return seen


@both
def test_inference_mode(torch):
    x = leaf(torch, 1.0, 2.0)
    with torch.inference_mode():
        y = x * 2
        seen = [y.requires_grad, y.is_inference(), x.is_inference(), x[0].is_inference(), torch.ones(2).is_inference()]
        y.add_(1)                                                        # fine inside
        with torch.inference_mode(False):
            seen += [torch.is_inference_mode_enabled(), torch.is_grad_enabled(), (x * 2).is_inference()]
    z = x * 1
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        (y * x).sum()                                                    # y would be saved
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        y.add_(1)
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        y.requires_grad_()
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        y._version                                                       # noqa: B018
    seen += [(y + 1).is_inference(), (y + x).requires_grad, y.clone().is_inference(), z.is_inference(), y[0].is_inference()]
    (y.clone() * x).sum().backward()
    return seen, x.grad - y                                              # PyTorch has written y before it refused to


@both
def test_numpy_reads_what_requires_grad_where_nothing_is_recorded(torch):
    x = leaf(torch, 2.0)
    with torch.no_grad():
        seen = [x.numpy().tolist(), np.asarray(x).tolist(), np.shares_memory(x.numpy(), x.detach().numpy())]
    with pytest.raises(RuntimeError, match="requires? grad"):
        x.numpy()
    return seen
