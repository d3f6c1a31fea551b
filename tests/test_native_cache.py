"""The native device: what it keeps on disk, and what it does with kernels that cannot be compiled."""
import importlib.util
import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import tritorch as torch
from tritorch.cuda import ahead

if sys.platform != "linux" or platform.machine() != "x86_64" or importlib.util.find_spec("triton") is None:
    pytest.skip("the native device takes Linux on x86-64, and triton", allow_module_level=True)

import native_kernels as K

from tritorch.cuda.launch import launch
from tritorch.cuda.native import compiler, lower


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own."""
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    return tmp_path / "native"


def on_device(array):
    return torch.from_numpy(np.array(array)).cuda()


# ------------------------------------------------------------------ what cannot be compiled
def test_the_interpreter_runs_what_cannot_be_compiled(native, folder, monkeypatch):
    def refuse(text, fused):
        raise lower.Untranslatable("tt.store (native_kernels.py:12): there is no rule for it")

    monkeypatch.setattr(lower, "lower", refuse)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")                      # compile in this process
    x, y, out = on_device(np.arange(100.0)), torch.ones(100, dtype=torch.float64, device="cuda"), torch.zeros(100, device="cuda")
    with pytest.warns(UserWarning, match=r"axpy_kernel .* runs in the interpreter, .*: tt.store \(native_kernels.py:12\)"):
        launch(K.axpy_kernel, (2,), out, x, y, 100, 2.0, BLOCK=64)
    monkeypatch.undo()
    assert out.tolist() == [2.0 * i + 1 for i in range(100)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch(K.axpy_kernel, (2,), out, x, y, 100, 2.0, BLOCK=64)
    assert compiler.read(next(folder.iterdir())).refusal.startswith("tt.store")


# ------------------------------------------------------------------ the cache on disk
WORK = """
x = torch.arange(1000, device="cuda").float()
found = (x * 2 + 1).softmax(0).argmax().item()
(x.reshape(20, 50) @ x.reshape(50, 20)).sum(0).sort()
"""
PROGRAM = f"""
import sys
import tritorch as torch
from tritorch.cuda.native import compiler, llvm
if sys.argv[1:]:
    def refuse(*args):
        raise AssertionError("this process compiles")
    llvm.assemble = compiler.compile_here = refuse
torch.cuda.simulate(native=True)
{WORK}
print(found)
"""


def test_a_second_process_compiles_nothing(folder):
    for words in ([], ["again"]):
        found = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True,
                               env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(torch.__file__).parents[1]), *sys.path])})
        assert found.stdout == "999\n", found.stderr
    assert list(folder.glob("*.z"))


def test_kernels_are_compiled_ahead_of_time(folder, tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(f"import tritorch as torch{WORK}")
    monkeypatch.setenv("TRITORCH_CUDA", "native")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(torch.__file__).parents[1]), *sys.path])}
    warmed = subprocess.run([sys.executable, "-m", "tritorch", "warmup", "--workers", "1", str(program)], capture_output=True, text=True,
                            env=environment)
    count = len(list(folder.glob("*.z")))
    assert warmed.stdout == f"{count} kernels for the host: {count} compiled, 0 cached, 0 failed\n" and count > 3, warmed.stderr
    run = subprocess.run([sys.executable, "-c", PROGRAM, "again"], capture_output=True, text=True, env=environment)
    assert run.stdout == "999\n", run.stderr


def test_what_is_damaged_or_of_another_processor_is_compiled_anew(native, folder, monkeypatch):
    spec = compiler.compiler.Specialisation(K.count_kernel, {"count_ptr": "*i64"}, {}, {}, {})

    def compiled():
        with ahead.staying():
            native.load(spec.kernel, spec.signature, spec.constexprs, spec.attrs, spec.options)
        return compiler.read(path)

    path = compiler.path_of(spec)
    first = compiled()
    whole = path.read_bytes()
    assert first.arguments == ("ptr",) and first == compiler.compile_here(spec)
    for damaged in (b"", whole[:-1], whole[:20], b"{}\n", whole[:whole.index(b"\n") + 1] + bytes(len(whole) - whole.index(b"\n") - 1)):
        path.write_bytes(damaged)
        assert compiler.read(path) is None
        assert compiled() == first and path.read_bytes() == whole
    monkeypatch.setattr(compiler.llvm, "processor", lambda: ("another", ""))
    assert compiler.path_of(spec) != path
