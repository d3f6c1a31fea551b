"""`__version__` is PyTorch's version as far as programs ask for it, ours behind the plus sign; it is ordered as PEP 440 says."""
import itertools
import re
from pathlib import Path

import pytest

import tritorch
from tritorch.torch_version import TorchVersion

IN_ORDER = ["1.0b2.dev3", "1.0b2", "1.0", "1.0-1", "2.0.dev1", "2.0a0", "2.0", "2.9.1", "2.13.0.dev20251112", "2.13.0a0", "2.13.0a0+git12",
            "2.13.0rc1", "2.13", "2.13.0+cu118", "2.13.0+tritorch.0.1.0", "2.13.0+1", "2.13.0+12.1", "2.13.0.post1", "2.13.1", "10.0"]


def test_versions_have_the_order_of_pep_440():
    for (i, a), (j, b) in itertools.product(enumerate(IN_ORDER), repeat=2):
        a = TorchVersion(a)
        assert (a < b, a <= b, a == b, a != b, a >= b, a > b) == (i < j, i <= j, i == j, i != j, i >= j, i > j), (a, b)


def test_what_programs_do_with_the_version():
    version = tritorch.__version__
    assert isinstance(version, str) and version >= (2, 0) and version > (1, 13, 1) and not version < (2, 13) and version < (3,)
    assert version != "0.1.0" and version == str(version) and hash(version) == hash(str(version))
    assert tuple(map(int, version.split("+")[0].split("."))) >= (2, 0)
    assert f"torch {version}".endswith(tritorch.version.tritorch)
    assert tritorch.version.__version__ is version
    assert TorchVersion("a fork") == "a fork" and TorchVersion("a fork") < "a knife" and TorchVersion("2.0") == "2"
    assert version != None and version != 2                              # noqa: E711
    with pytest.raises(TypeError):
        assert version > 2


def test_a_released_version_is_written_once_more_in_the_project_file():
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.*)"$', project, re.MULTILINE)[1] == tritorch.version.tritorch
