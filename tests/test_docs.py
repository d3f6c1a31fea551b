"""The documentation is code: examples in README and CONTRIBUTING run, and so does every docstring's."""
import doctest
import importlib
import linecache
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tritorch
import tritorch.ops
from tritorch.testing import check_op, problems

ROOT = Path(__file__).parent.parent
MODULES = sorted(m.name for m in pkgutil.walk_packages(tritorch.__path__, "tritorch.") if not m.name.endswith("__main__"))


def blocks(document, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def no_driver_left():
    """A test may choose a driver; the next one finds the old one."""
    from tritorch.cuda import driver

    with driver.using(None):
        yield


@pytest.mark.parametrize("name", ["tritorch", *MODULES])
def test_docstrings(name, monkeypatch, tmp_path, no_driver_left):
    for package in ("tensorboard", "onnx"):
        if package in name:
            pytest.importorskip(package, reason=f"needs the package {package}")
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(linecache, "checkcache", lambda filename=None: None)    # doctest looks at all files before each docstring
    names = {} if name == "tritorch" else None                           # or float would be the dtype, once somebody asked for it
    failed, _ = doctest.testmod(module, globs=names, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert not failed


def test_readme(monkeypatch, tmp_path, no_driver_left, capsys):
    monkeypatch.chdir(tmp_path)
    source = "\n".join(blocks("README.md"))
    assert 20 <= len(source.splitlines()) <= 40
    exec(compile(source, "README.md", "exec"), {})
    assert "accuracy" in capsys.readouterr().out


def test_readme_commands_stand_alone():
    commands = [line for block in blocks("README.md", "bash") for line in block.splitlines()]
    assert len(commands) == 2 and all(c.startswith("python3 -m venv .venv && .venv/bin/pip install -e ") for c in commands)


@pytest.fixture
def worked_example(tmp_path, monkeypatch):
    """The operator of CONTRIBUTING.md, its two files in a folder of their own beside the packages they extend."""
    import triton_kernels

    for block in blocks("CONTRIBUTING.md"):
        path = tmp_path / re.match(r"# (\S+)\n", block).group(1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block, encoding="utf-8")
    monkeypatch.setattr(triton_kernels, "__path__", [*triton_kernels.__path__, str(tmp_path / "triton_kernels")])
    monkeypatch.setattr(tritorch.ops, "__path__", [*tritorch.ops.__path__, str(tmp_path / "tritorch" / "ops")])
    yield importlib.import_module("tritorch.ops.log_cosh")
    tritorch.dispatch.registry.pop("log_cosh")
    for name in ("tritorch.ops.log_cosh", "triton_kernels.log_cosh"):
        sys.modules.pop(name, None)


def test_contributing_on_the_cpu(worked_example):
    assert doctest.testmod(worked_example).failed == 0
    check_op(worked_example.log_cosh, "cpu")
    assert not problems(worked_example.log_cosh)
    with pytest.raises(RuntimeError, match="log_cosh: expected a floating tensor"):
        worked_example.log_cosh(tritorch.ones(3, dtype=tritorch.int64))


def test_contributing_on_the_simulated_gpu(worked_example, no_driver_left):
    pytest.importorskip("triton")
    tritorch.cuda.simulate()
    check_op(worked_example.log_cosh, "cuda")
    for kind in (tritorch.float32, tritorch.float64, tritorch.bfloat16):
        x = tritorch.linspace(-100, 100, 70_000).to(kind).reshape(700, 100).t()
        ours = worked_example.log_cosh(x.to("cuda"), 0.5).cpu()
        rtol = 1e-2 if kind is tritorch.bfloat16 else 1e-5
        np.testing.assert_allclose(ours.double().numpy(), worked_example.log_cosh(x, 0.5).double().numpy(), rtol=rtol, atol=1e-6)


def test_tutorial_of_existing_kernels():
    environment = {**os.environ, "TRITORCH_CUDA": "simulated", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "tutorials/existing_kernels.py"], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    first, last = map(float, done.stdout.rpartition("loss ")[2].split(" -> "))
    assert "is replayed" in done.stdout and last < first


def test_tutorial_of_an_own_operator():
    """In a process of its own: it registers an operator."""
    environment = {**os.environ, "TRITORCH_CUDA": "simulated", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "tutorials/custom_op.py"], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "on" in done.stdout and "gradient" in done.stdout


def test_tutorial_of_bugs():
    """In a process of its own: it takes the place of the GPU twice."""
    done = subprocess.run([sys.executable, "tutorials/find_the_bug.py"], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    source = (ROOT / "tutorials/find_the_bug.py").read_text().splitlines()
    first, second, third, raced, right, fourth = done.stdout.splitlines()
    line = next(i for i, text in enumerate(source, 1) if "tl.load(x_ptr + i)" in text)
    assert f"find_the_bug.py:{line}," in first and "108 bytes past the end" in first
    assert "nan" in second and "[25, 25, 25, 25]" in third and "a race" in raced and "[25, 25, 25, 25]" in right
    assert not fourth.startswith("4. without a wait: 2000.0,") and fourth.endswith("with it: 2000.0")
