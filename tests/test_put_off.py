"""Large random fills on the CPU are made when somebody looks at the memory: every look finds them, and what nobody sees is not drawn."""
import copy
import ctypes
import io
import os
import pickle
import signal
import threading
import time
import warnings

import numpy as np
import pytest

import tritorch as T
from tritorch import nn
from tritorch.autograd.snapshot import holds_memory, pack
from tritorch.generator import default_generator
from tritorch.ops import draws

SHAPE = 256, 256


@pytest.fixture
def drawn(monkeypatch):
    """How many elements were drawn so far, as a list of counts."""
    counts, bits_of = [], draws.bits_of
    monkeypatch.setattr(draws, "bits_of", lambda dtype, count, *place: counts.append(count) or bits_of(dtype, count, *place))
    return counts


def filled():
    T.manual_seed(5)
    return T.empty(SHAPE).normal_(1, 2)


def expected():
    return draws.draw_normal(draws.bits_of(np.dtype("f4"), SHAPE[0] * SHAPE[1], 5, 0), 1, 2).reshape(SHAPE)


def saved(x):
    file = io.BytesIO()
    T.save(x, file)
    file.seek(0)
    return T.load(file)


LOOKS = {
    "array": lambda x: x.array, "numpy": lambda x: x.numpy(), "numpy of a view": lambda x: x[:, 1:].numpy(), "detach": lambda x: x.detach(),
    "data": lambda x: x.data, "list": lambda x: x.tolist(), "clone": lambda x: x.clone(), "operator": lambda x: x * 1,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)), "save": saved, "deepcopy": copy.deepcopy, "copy": copy.copy,
    "storage": lambda x: x.untyped_storage().bytes.view(np.float32).reshape(SHAPE), "dlpack": np.from_dlpack, "asarray": np.asarray,
    "address": lambda x: np.array((ctypes.c_float * x.numel()).from_address(x.data_ptr())).reshape(SHAPE),
    "parameter": nn.Parameter, "transposed twice": lambda x: x.t().contiguous().t(), "bytes": lambda x: x.view(T.uint8).view(T.float32),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_every_look_finds_the_numbers(look, drawn):
    x = filled()
    assert not drawn
    seen = look(x)
    seen = seen.detach().numpy() if isinstance(seen, T.Tensor) else np.asarray(seen, np.float32)
    want = expected()[:, 1:] if seen.shape != SHAPE else expected()
    np.testing.assert_array_equal(seen, want)
    np.testing.assert_array_equal(x.numpy(), expected())


def test_it_moves_to_a_device(cuda):
    np.testing.assert_array_equal(filled().to(cuda).cpu().numpy(), expected())


def test_what_is_drawn_anew_or_written_whole_is_not_drawn(drawn):
    layer = nn.Linear(*SHAPE, bias=False)
    nn.init.normal_(layer.weight, 1, 2)
    nn.init.zeros_(layer.weight)
    other = nn.Linear(*SHAPE, bias=False)
    for each in (layer, other):
        each.load_state_dict({"weight": T.ones(SHAPE)})
        assert not drawn and (each.weight == 1).all()
    T.manual_seed(5)
    nn.init.normal_(layer.weight, 1, 2)                                  # its memory has been looked at
    assert sum(drawn) == layer.weight.numel()
    np.testing.assert_array_equal(layer.weight.detach().numpy(), expected())


def test_writes_in_place_come_after_the_fill():
    for write in (lambda x: x.add_(1), lambda x: x[3].fill_(0), lambda x: x.t().copy_(T.zeros(1)), lambda x: x.copy_(x.t()),
                  lambda x: x.copy_(x), lambda x: x[:, ::2].uniform_(), lambda x: x.fill_(x[2, 3]), lambda x: T.exp(x, out=x),
                  lambda x: x[0].copy_(x[1]), lambda x: x.masked_fill_(x > 1, 0), lambda x: x.view(-1).copy_(x.t().reshape(-1))):
        x, y = filled(), T.tensor(expected())
        for each in (x, y):
            T.manual_seed(6)
            write(each)
        assert T.equal(x, y)


def test_who_has_the_memory_sees_the_next_fill_at_once(drawn):
    for look in (lambda x: x.numpy(), lambda x: np.asarray(x.data), lambda x: x[1:].numpy(), np.from_dlpack):
        x = T.zeros(SHAPE)
        seen = look(x)
        x.fill_(3), x.normal_(1, 2)
        assert not (seen == 3).any()
    x, given = T.zeros(SHAPE), np.zeros(SHAPE, np.float32)
    address = x.data_ptr()
    x.normal_(1, 2)
    assert ctypes.c_float.from_address(address).value != 0
    T.from_numpy(given).normal_(1, 2)
    assert given.all()
    window = T.from_numpy(np.zeros(SHAPE, np.float32)[:])                # memory that somebody else owns
    count = len(drawn)
    window.normal_(1, 2)
    assert len(drawn) > count


def test_the_generator_moves_on_at_once_and_versions_count():
    x = filled()
    assert default_generator().get_offset() == x.numel() // 4 and x._version == 1
    T.manual_seed(5)
    y = T.empty(SHAPE).normal_(1, 2)
    T.rand(3)
    assert T.equal(x, y)


class Kept(T.autograd.Function):
    """x, with a gradient of w, which forward does not look at."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g, None


def test_the_graph_saves_it_unseen(drawn):
    assert holds_memory(pack(filled())) and not drawn
    x, w = T.ones(SHAPE, requires_grad=True), filled()
    y = Kept.apply(x, w)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), expected())
    y, w = Kept.apply(x, other := filled()), None
    other.normal_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_threads_that_look_at_the_same_time_find_all_numbers():
    for _ in range(5):
        x, seen = filled(), []
        threads = [threading.Thread(target=lambda x=x, seen=seen: seen.append(x.detach().numpy().copy())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 4
        for each in seen:
            np.testing.assert_array_equal(each, expected())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system starts processes otherwise")
def test_a_forked_process_fills_what_its_parent_was_filling():
    x, entered, go = filled(), threading.Event(), threading.Event()
    fill = x.storage._bytes
    x.storage._bytes = lambda array: (entered.set(), go.wait(60), fill(array))
    other = T.empty(SHAPE).normal_()
    looking = threading.Thread(target=x.numpy)
    looking.start()
    entered.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)              # of a fork beside threads, which is what is tried here
        child = os.fork()
    if not child:
        os._exit(0 if other.numpy().any() else 1)
    go.set()
    looking.join()
    deadline = time.monotonic() + 60
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if status == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status == (child, 0)
    np.testing.assert_array_equal(x.numpy(), expected())


class Looker:
    """Looks at a tensor when it is finalized."""

    def __init__(self, x):
        self.x = x

    def __del__(self):
        self.x.numpy()


def test_a_finalizer_looks_while_its_thread_fills():
    x, looker = filled(), [Looker(T.empty(SHAPE).normal_())]
    fill = x.storage._bytes
    x.storage._bytes = lambda array: (looker.clear(), fill(array))
    np.testing.assert_array_equal(x.numpy(), expected())
