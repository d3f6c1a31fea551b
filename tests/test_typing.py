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


def test_stubs_are_current():
    for path, text in stubs.stubs().items():
        assert path.exists() and path.read_text(encoding="utf-8") == text, "run: python -m tritorch.testing.stubs"


def test_programs(tmp_path):
    """What is right passes, and each mistake gets its sentence; of one run, as it takes seconds to read the stubs."""
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(RIGHT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text("import tritorch as torch\n" + "\n".join(WRONG), encoding="utf-8")
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--config-file=", "--no-color-output"]
    command = [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"]
    environment = {"MYPYPATH": str(stubs.ROOT.parent), "MYPY_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert "checked 2 source files" in found and "right.py" not in found, found
    for line, sentence in enumerate(WRONG.values(), 2):
        assert any(f"wrong.py:{line}: error" in row and sentence in row for row in found.splitlines()), found
