"""What a wheel needs: every package found, data files named, versions that agree, requirements that keep to Linux what Linux has."""
import os
import re
import shutil
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
SETUP = PROJECT["tool"]["setuptools"]
INSTALLED = {name: SETUP["package-dir"].get(name, name.replace(".", "/")) for name in SETUP["packages"]}


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


def test_a_wheel_has_every_file():
    """Modules come with their packages, other files by the patterns of pyproject.toml."""
    whole = {file.relative_to(ROOT) for tree in ("tritorch", "triton_kernels") for file in (ROOT / tree).rglob("*")
             if file.is_file() and "__pycache__" not in file.parts}
    data = [(INSTALLED[name], pattern) for name, patterns in SETUP["package-data"].items() for pattern in patterns]
    found = {file.relative_to(ROOT) for folder, pattern in [*((folder, "*.py") for folder in INSTALLED.values()), *data]
             for file in (ROOT / folder).glob(pattern)}
    assert found == whole


def test_a_wheel_leaves_the_name_triton_kernels_to_others():
    """In site-packages it is the folder of OpenAI's package."""
    assert {name.partition(".")[0] for name in INSTALLED} == {"tritorch", own_kernels.PRIVATE}
    assert INSTALLED[own_kernels.PRIVATE] == own_kernels.PUBLIC


INSTALLATION = """
import tritorch
from tritorch.__main__ import main
from tritorch.cuda import compiler
tritorch.cuda.simulate()
with compiler.recording() as record:
    x = tritorch.ones(8, 2, device="cuda")
    assert x.softmax(-1).sum().item() == 8
print(*(f"{spec.kernel.__name__} {spec.key(90)}" for spec in record.values()))
main(["where", "softmax"])
import triton_kernels.reduce
print(triton_kernels.reduce.__file__)
"""


def test_an_installation_is_beside_another_package_of_our_name(tmp_path):
    """As a wheel leaves it: each has its own files, and kernels have the keys by which the source tree's are in the cache."""
    for name, folder in {"tritorch": "tritorch", own_kernels.PRIVATE: own_kernels.PUBLIC}.items():
        shutil.copytree(ROOT / folder, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / own_kernels.PUBLIC).mkdir()
    for name in ("__init__", "reduce"):
        (tmp_path / own_kernels.PUBLIC / f"{name}.py").write_text("MINE = 1\n")
    done = [subprocess.run([sys.executable, "-c", INSTALLATION], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=True,
                           stdout=subprocess.PIPE, text=True).stdout.splitlines() for root in (tmp_path, ROOT)]
    (ours, *where, others), (in_the_tree, *_) = done
    assert ours == in_the_tree and "softmax_kernel" in ours and "reduce_kernel" in ours
    assert Path(others) == tmp_path / own_kernels.PUBLIC / "reduce.py"
    assert any(line.startswith(f"{own_kernels.PRIVATE}/softmax.py:") for line in where)
    assert not any(line.startswith(own_kernels.PUBLIC) for line in where)


def test_another_package_in_the_place_of_ours_gets_a_sentence(tmp_path, monkeypatch):
    tmp_path = tmp_path / "triton_kernels"
    tmp_path.mkdir()
    (tmp_path / "__init__.py").write_text("MINE = 1\n")
    monkeypatch.setattr(own_kernels, "FOLDER", tmp_path)
    with pytest.raises(ImportError, match="needs its own package triton_kernels, found another at"):
        own_kernels.package.__wrapped__()


def test_nothing_heavy_is_required():
    names = {re.match(r"[\w-]+", requirement).group(0) for requirement in PROJECT["project"]["dependencies"]}
    assert names == {"numpy", "ml_dtypes", "scipy", "tqdm", "triton", "cuda-python"}
