"""What a wheel needs: every package found, data files named, versions that agree, requirements that keep to Linux what Linux has."""
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tritorch

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


def test_another_package_of_our_name_gets_a_sentence(tmp_path):
    """One of the name triton_kernels exists; its modules must not be taken for ours."""
    (tmp_path / "triton_kernels").mkdir()
    (tmp_path / "triton_kernels" / "__init__.py").touch()
    (tmp_path / "triton_kernels" / "reduce.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from tritorch.cuda.launch import kernels; kernels('reduce').reduce_kernel"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "ImportError: tritorch needs its own package triton_kernels, found another at" in done.stderr


def test_nothing_heavy_is_required():
    names = {re.match(r"[\w-]+", requirement).group(0) for requirement in PROJECT["project"]["dependencies"]}
    assert names == {"numpy", "ml_dtypes", "scipy", "tqdm", "triton", "cuda-python"}
