"""`python -m tritorch where` finds the card and the kernels of an operator by its public name."""
import random
from pathlib import Path

import pytest

import tritorch
from tritorch.__main__ import main
from tritorch.ops import methods

ROOT = Path(__file__).parent.parent
PUBLIC = sorted({name for table in (methods.BOTH, methods.FUNCTIONS) for names in table.values() for name in names.split()})


def found(name, capsys):
    """The places that are printed: file, line and the text of the line, which is what the file has there."""
    assert main(["where", name]) == 0, name
    for line in capsys.readouterr().out.splitlines():
        place, _, text = line.partition("  ")
        path, _, number = place.partition(":")
        assert text[0] != " ", "a variable of some function"
        assert (ROOT / path).read_text(encoding="utf-8").splitlines()[int(number) - 1].startswith(text)
        yield path, text


@pytest.mark.parametrize("name, card, kernels", [
    ("softmax", "ops/softmax.py", {"softmax"}), ("fmax", "ops/pointwise.py", {"scalar"}), ("conv2d", "ops/convolution.py", {"convolution"}),
    ("embedding", "ops/embedding.py", set()), ("vsplit", "ops/slicing.py", set()), ("concatenate", "ops/shaping.py", {"shaping"}),
    ("stack", "ops/shaping.py", {"shaping"}), ("Linear", "nn/linear.py", set()), ("AdamW", "optim/adam.py", set())])
def test_card_and_kernels(name, card, kernels, capsys):
    paths = {path for path, _ in found(name, capsys)}
    assert f"tritorch/{card}" in paths
    assert {f"triton_kernels/{family}.py" for family in kernels} <= paths


def test_every_public_name_has_a_place(capsys):
    for name in random.sample(PUBLIC, 20):
        assert any(path.startswith("tritorch/ops/") for path, _ in found(name, capsys)), name


def test_what_is_not_there(capsys):
    assert not hasattr(tritorch, "nosuch") and main(["where", "nosuch"]) == 1
    assert "expected a public name of tritorch, got 'nosuch'" in capsys.readouterr().err
