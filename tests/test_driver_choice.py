"""Which driver speaks to the device: TRITORCH_CUDA, `use`, and the sentence when there is none."""

import builtins
import sys
import threading

import pytest

from tritorch.cuda import driver


@pytest.fixture(autouse=True)
def unchosen(monkeypatch):
    with driver.using(None):
        yield


def test_none_says_what_to_do(monkeypatch):
    monkeypatch.setenv("TRITORCH_CUDA", "none")
    assert not driver.available() and driver.count() == 0 and not driver.chosen()
    with pytest.raises(RuntimeError, match=r"no CUDA device is usable \(TRITORCH_CUDA=none\); use device='cpu', or TRITORCH_CUDA=sim"):
        driver.current()


def test_simulated_is_chosen_once_by_all_threads(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITORCH_CUDA", "simulated")
    found = []
    threads = [threading.Thread(target=lambda: found.append(driver.current())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1 and found[0].name == "simulated" and driver.count() == found[0].device_count() >= 1


def test_without_cuda_python_there_is_no_device(monkeypatch):
    monkeypatch.delenv("TRITORCH_CUDA", raising=False)
    for name in [name for name in sys.modules if name.startswith("tritorch.cuda.nvidia")]:
        monkeypatch.delitem(sys.modules, name)
    plain = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("cuda.bindings"):
            raise ImportError("No module named 'cuda'")
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert not driver.available()
    with pytest.raises(RuntimeError, match="No module named 'cuda'; pip install cuda-bindings"):
        driver.current()


def test_other_names_are_refused(monkeypatch):
    monkeypatch.setenv("TRITORCH_CUDA", "rocm")
    with pytest.raises(ValueError, match="TRITORCH_CUDA: expected simulated, native, nvidia or none, got rocm"):
        driver.current()


def test_use_replaces_and_tells(monkeypatch):
    told, device = [], object()
    monkeypatch.setattr(driver, "watchers", [*driver.watchers, lambda: told.append(driver._chosen)])
    driver.functions["key"] = print
    assert driver.use(device) is None and driver.current() is device and told == [device] and not driver.functions
    assert driver.use(None) is device


def test_tensors_outlive_their_driver_in_peace(monkeypatch):
    """They may die after another driver with fewer devices took its place: in a traceback, or in a cycle that waits for the collector."""
    pytest.importorskip("triton")
    import tritorch as torch

    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with torch.cuda.simulate(devices=2):
        x, y = (torch.ones(3, device="cuda:1") for _ in range(2))
        y.record_stream(torch.cuda.Stream("cuda:1"))
    with torch.cuda.simulate():
        del x, y
    assert not complaints
