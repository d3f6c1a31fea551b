"""The first call of a process on a GPU: its context is made while the compiler is imported."""
import sys
import threading

import pytest
from fake_cuda_bindings import Code
from test_nvidia_stub import stub  # noqa: F401  a fixture

from tritorch.cuda import driver as protocol


@pytest.mark.parametrize("triton", [True, False])
def test_the_compiler_is_imported_while_the_driver_makes_a_context(stub, monkeypatch, triton):  # noqa: F811
    fake, driver = stub
    nvidia, imported, retain, seen = sys.modules["tritorch.cuda.nvidia"], threading.Event(), fake.cuDevicePrimaryCtxRetain, []

    def load(module):
        seen.append(module)
        imported.set()
        if not triton:
            raise ImportError(module)

    monkeypatch.delitem(sys.modules, "tritorch.cuda.compiler", raising=False)
    monkeypatch.setattr(nvidia, "load", load)
    monkeypatch.setattr(nvidia.importlib, "import_module", seen.append)
    fake.cuDevicePrimaryCtxRetain = lambda device: retain(device) if imported.wait(60) else (Code(2),)
    assert driver.alloc(16)
    monkeypatch.undo()
    assert seen == ["triton", "tritorch.cuda.compiler"][:1 + triton]


def test_no_context_is_an_error_of_its_own(stub, monkeypatch):  # noqa: F811
    fake, driver = stub
    monkeypatch.delitem(sys.modules, "tritorch.cuda.compiler", raising=False)
    monkeypatch.setattr(sys.modules["tritorch.cuda.nvidia"].importlib, "import_module", lambda name: None)
    fake.cuDevicePrimaryCtxRetain = lambda device: (Code(2),)
    with pytest.raises(protocol.OutOfMemory, match="cuDevicePrimaryCtxRetain"):
        driver.alloc(16)
