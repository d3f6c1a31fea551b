"""Every operator's card, checked on the CPU and on a CUDA device: see tritorch.testing.cards."""
import pytest

import tritorch as torch
import tritorch.linalg
import tritorch.nn
import tritorch.ops.embedded
import tritorch.ops.embedded_values
import tritorch.ops.moving_range
import tritorch.ops.stft
import tritorch.optim
import tritorch.special  # noqa: F401  the operators that only these load have cards as well
from tritorch.testing import CHECKS, problems

OPERATORS = sorted(torch.dispatch.registry)
EXCUSED = {"ldl_solution": "a device without numbers has no right pivots, which LAPACK wants: no workload"}      # why a card may lack


@pytest.mark.parametrize("check", [c for c in CHECKS if c not in ("capture", "repeated")])
@pytest.mark.parametrize("name", OPERATORS)
def test_on_cpu(name, check):
    CHECKS[check](torch.dispatch.registry[name], torch.device("cpu"))


@pytest.mark.parametrize("check", [pytest.param(c, marks=[pytest.mark.smoke] if c == "values" else [])
                                   for c in CHECKS if c not in ("forward_mode", "promises", "errors", "batches")])
@pytest.mark.parametrize("name", OPERATORS)
def test_on_cuda(name, check, cuda):
    CHECKS[check](torch.dispatch.registry[name], cuda)


@pytest.mark.parametrize("name", OPERATORS)
def test_card_is_complete(name):
    assert problems(torch.dispatch.registry[name]) == [] or name in EXCUSED
