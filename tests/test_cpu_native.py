"""Operators on tensors of the CPU as compiled kernels: what is chosen, and that programs do not notice but by the last digits."""
import os
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest

import tritorch as torch
from tritorch.cpu import compiled
from tritorch.cuda import driver
from tritorch.nn import functional as F

pytestmark = pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="code is made for Linux on x86-64")
SIDE = 160                          # a float32 square of this side is large


@pytest.fixture
def calls(monkeypatch):
    """cpu.native, with the calls that went to kernels."""
    seen, choosing = [], compiled._choosing

    def noted(arrays, kernels, least):
        def kernels_noted(*values):
            seen.append(kernels)
            kernels(*values)

        return choosing(arrays, kernels_noted, least)

    kept = {name: dict(door.impls) for name, door in torch.dispatch.registry.items()}
    compiled._open_all.cache_clear()
    monkeypatch.setattr(compiled, "_choosing", noted)
    monkeypatch.setattr(compiled, "PLAIN", compiled.SMALL)
    with torch.cuda.simulate(native=True), torch.cpu.native():
        yield seen
    for name, impls in kept.items():
        torch.dispatch.registry[name].impls.update(impls)
    torch.dispatch.watchers.clear()
    compiled._open_all.cache_clear()


def square(generator, *shape):
    return torch.from_numpy(generator.standard_normal(shape or (SIDE, SIDE), dtype="float32"))


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.T,
    "gapped": lambda x: torch.cat([x, x], 1)[:, ::2],
    "shifted": lambda x: torch.cat([x.flatten(), x[0, :1]])[1:].view(SIDE, SIDE),
    "expanded": lambda x: x[:1].expand(SIDE, SIDE),
}
OPERATORS = {
    "add": lambda x, y: x + y,
    "scaled": lambda x, y: 3 - 2 * x,
    "compared": lambda x, y: torch.where(x > y, x, y),
    "gelu": lambda x, y: F.gelu(x),
    "softmax": lambda x, y: torch.softmax(x, 0),
    "layer_norm": lambda x, y: F.layer_norm(x, (SIDE,), y[0], y[1]),
    "cumsum": lambda x, y: x.cumsum(0),
    "variance": lambda x, y: x.var(1),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "rows": lambda x, y: F.embedding(torch.tensor([3, 0, 3, SIDE - 1]), x),
    "attention": lambda x, y: F.scaled_dot_product_attention(*[x.reshape(2, -1, 16)] * 3),
    "narrowed": lambda x, y: x.bfloat16(),
}


@pytest.mark.parametrize("name, layout", [(name, layout) for name in OPERATORS for layout in LAYOUTS
                                          if layout == "contiguous" or name in ("add", "gelu", "softmax", "cumsum")])
def test_results_are_those_of_numpy(calls, name, layout):
    generator = np.random.default_rng(3)
    x, y = LAYOUTS[layout](square(generator)), square(generator)
    function = OPERATORS[name]
    found = function(x, y)
    assert calls
    compiled._serving[0], serving = None, compiled._serving[0]
    expected = function(x.double(), y.double())
    compiled._serving[0] = serving
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, expected.to(found.dtype), atol=1e-5, rtol=1e-5 if found.dtype is torch.float32 else 1e-2)


def test_gradients_and_optimizers(calls):
    losses = []
    for on in (True, False):
        torch.manual_seed(0)
        compiled._serving[0] = driver.current() if on else None
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 10))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(512, 64), torch.randint(0, 10, (512,))
        before = len(calls)
        for _ in range(4):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        assert on == (len(calls) > before + 20)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_what_is_small_complex_or_a_product_stays_with_numpy(calls):
    small, large = torch.randn(8, 8), torch.randn(SIDE, SIDE)
    del calls[:]
    small + small
    torch.exp(large[:4, :4])                                             # of large memory, but small
    torch.complex(large, large).abs().sum()
    large @ large
    torch.linalg.cholesky(large @ large.T + 200 * torch.eye(SIDE))
    before = len(calls)                                                  # the sum with the identity
    F.linear(large, large)
    assert before <= 4 and len(calls) == before


def test_writes_in_place_and_into_destinations(calls):
    x = torch.ones(SIDE, SIDE)
    version, view = x._version, x[::2]
    x.mul_(3).add_(1)
    assert x._version == version + 2 and view.numpy().min() == 4 and x.numpy().max() == 4
    out = torch.empty(SIDE, SIDE)
    assert torch.exp(torch.zeros(SIDE, SIDE), out=out) is out and out.numpy().sum() == SIDE * SIDE
    view += 1
    assert x.sum().item() == SIDE * SIDE * 4.5


def test_wrong_indices_are_refused_at_once_in_the_words_of_the_cpu(calls):
    table = torch.randn(400, 64)
    messages = []
    for on in (True, False):
        compiled._serving[0] = driver.current() if on else None
        for wrong in (lambda: F.embedding(torch.full((300,), 400), table), lambda: F.cross_entropy(table, torch.full((400,), 64)),
                      lambda: table.gather(1, torch.full((400, 64), -65))):
            with pytest.raises((IndexError, RuntimeError)) as caught:
                wrong()
            messages.append((caught.type, str(caught.value)))
    assert messages[:3] == messages[3:]
    F.embedding(torch.full((300,), 399), table)                          # nothing of it is left


def test_threads_share_the_processors(calls):
    generator = np.random.default_rng(5)
    inputs, found = [square(generator) for _ in range(4)], {}

    def work(k):
        for _ in range(20):
            found[k] = torch.softmax(F.gelu(inputs[k]) * 2, 1)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, x in enumerate(inputs):
        torch.testing.assert_close(found[k].double(), torch.softmax(F.gelu(x.double()) * 2, 1), atol=1e-6, rtol=1e-5, check_dtype=False)


def test_no_device_appears_and_none_is_left():
    with driver.using(None):
        available = torch.cuda.is_available()
        if available:
            pytest.skip("a GPU is in use")
        with torch.cpu.native():
            assert not torch.cuda.is_available() and torch.cuda.device_count() == 0 and not torch.cuda.is_initialized()
            with torch.cpu.native():
                assert torch.exp(torch.zeros(SIDE, SIDE)).sum() == SIDE * SIDE
            assert driver.current().name == "native"
        assert not driver.chosen()


def test_beside_the_native_device(native):
    x = torch.randn(SIDE, SIDE)
    with torch.cpu.native():
        assert torch.cuda.is_available()
        here, there = torch.softmax(x, 0), torch.softmax(x.cuda(), 0).cpu()
        assert torch.equal(here, there)                                  # the same kernels
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        on_device = x.cuda()
        with torch.cuda.graph(graph, stream=stream):
            y = on_device + 1
            z = torch.exp(x)                                             # what the CPU does meanwhile is no part of it
        assert torch.allclose(z.double(), torch.exp(x.double()))
        x.zero_()
        graph.replay()
        assert torch.equal(y.cpu(), on_device.cpu() + 1)


def test_other_devices_are_not_disturbed(cuda):
    if driver.current().name == "native":
        pytest.skip("this one is shared")
    with pytest.raises(RuntimeError, match="no GPU in use, got the .* device; use TRITORCH_CUDA=none"):
        torch.cpu.native()
    assert torch.cuda.is_available()


@pytest.mark.parametrize("wanted, said",
                         [("native", "native True"), ("numpy", "none False"), ("", "none False"),
                          ("fast", "expected native or numpy, got fast")])
def test_the_environment_chooses(wanted, said):
    program = ("import tritorch as torch\nfrom tritorch.cuda import driver\nx = torch.exp(torch.zeros(200, 200)).sum().item()\n"
               "print(driver.current().name if driver.chosen() else 'none', driver.hidden(), x)")
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "TRITORCH_CPU": wanted, "TRITORCH_CUDA": "none"},
                          capture_output=True, text=True)
    assert said in done.stdout + done.stderr
    assert wanted == "fast" or done.stdout.rstrip().endswith("40000.0")
