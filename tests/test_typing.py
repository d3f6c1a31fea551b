"""A type checker sees the public API: the stubs are those of the running package, and programs are held against them."""
import subprocess
import sys

import pytest

from tritorch.testing import stubs

RIGHT = """
import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F

x = torch.randn(3, 4, requires_grad=True)
y = (x @ x.mT).relu().sum(dim=-1)
y.sum().backward()
model: nn.Module = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
loss = F.cross_entropy(model(x), torch.tensor([0, 1, 0]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kind: torch.dtype = torch.float32
torch.save(model.state_dict(), "x.safetensors")
"""
WRONG = {
    "torch.onez(2)": 'has no attribute "onez"',
    "torch.exp(1.0).summ()": 'has no attribute "summ"',
    "torch.exp(torch.ones(2), 3, 4)": "Too many arguments",
    "torch.exp(1.0) + 'a'.undefined": 'has no attribute "undefined"',
}


def check(tmp_path, source):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(source, encoding="utf-8")
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--config-file=", "--no-color-output"]
    command = [sys.executable, "-m", "mypy", *options, "program.py"]
    environment = {"MYPYPATH": str(stubs.ROOT.parent), "MYPY_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout


def test_stubs_are_current():
    for path, text in stubs.stubs().items():
        assert path.exists() and path.read_text(encoding="utf-8") == text, "run: python -m tritorch.testing.stubs"


def test_right_program(tmp_path):
    assert "Success" in check(tmp_path, RIGHT)


def test_wrong_programs(tmp_path):
    found = check(tmp_path, "import tritorch as torch\n" + "\n".join(WRONG))
    for line, sentence in enumerate(WRONG.values(), 2):
        assert any(f"program.py:{line}: error" in row and sentence in row for row in found.splitlines()), found
