"""What a wheel needs: every package found, data files named, versions that agree, requirements that keep to Linux what Linux has."""
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tritorch
from tritorch.cuda import own_kernels

try:
    import tomllib
except ModuleNotFoundError:                        # Python 3.10, where pytest brings its twin
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_versions_agree():
    assert tritorch.version.tritorch == PROJECT["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+?),? ", changelog, re.M).group(1).strip(",") == tritorch.version.tritorch
    try:
        assert metadata.version("tritorch") == tritorch.version.tritorch
    except metadata.PackageNotFoundError:
        pytest.skip("runs from the source tree: not installed")


@pytest.mark.parametrize("package", ["tritorch", "triton_kernels"])
def test_every_folder_is_a_package(package):
    """What walks packages (type checkers, the doctests) passes over folders without __init__.py."""
    folders = {p.parent for p in (ROOT / package).rglob("*.py")}
    assert not [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").exists()]


def test_typed():
    assert (ROOT / "tritorch" / "py.typed").exists()


def test_gpu_requirements_are_for_linux_alone():
    for requirement in PROJECT["project"]["dependencies"]:
        if requirement.startswith(("triton", "cuda")):
            assert requirement.endswith("; platform_system == 'Linux'"), requirement


PROGRAM = """
import sys
import tritorch
from tritorch.cuda import own_kernels
{before}
tritorch.cuda.simulate()
x = tritorch.ones(3, device="cuda")
assert (x + x).tolist() == [2, 2, 2] and tritorch.special.digamma(x).isfinite().all()
import triton_kernels
assert triton_kernels.MINE == 1
from tritorch.cuda import compiler
from tritorch.cuda.launch import kernels
kernel = kernels("reduce").reduce_kernel
module, name, file = compiler.kernel_place(kernel)
assert module == "tritorch_kernels.reduce" and compiler.find_kernel(module, name, file) is kernel
"""


@pytest.mark.parametrize("before", ["", "import triton_kernels"])
@pytest.mark.parametrize("place", ["triton_kernels.py", "triton_kernels/__init__.py"])
def test_a_program_may_have_a_module_of_our_name(place, before, tmp_path):
    """Who writes Triton kernels likes the name triton_kernels, too."""
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("MINE = 1\n")
    (tmp_path / "program.py").write_text(PROGRAM.format(before=before))
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr


def test_another_package_installed_over_ours_gets_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "__init__.py").write_text("MINE = 1\n")
    monkeypatch.setattr(own_kernels, "FOLDER", tmp_path)
    with pytest.raises(ImportError, match="needs its own package triton_kernels, found another at"):
        own_kernels.package.__wrapped__()


def test_nothing_heavy_is_required():
    names = {re.match(r"[\w-]+", requirement).group(0) for requirement in PROJECT["project"]["dependencies"]}
    assert names == {"numpy", "ml_dtypes", "scipy", "tqdm", "triton", "cuda-python"}
