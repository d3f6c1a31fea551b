"""The tutorial on Fourier neural operators: what it solves is right, and what it learns on few points holds on many."""
import importlib.util
import math
from pathlib import Path

import tritorch as torch

SPEC = importlib.util.spec_from_file_location("fourier_operator", Path(__file__).parent.parent / "tutorials" / "fourier_operator.py")
fourier = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fourier)


def test_the_solver_keeps_what_burgers_equation_keeps():
    torch.manual_seed(0)
    u = fourier.waves(2, 64).double()
    end, finer = fourier.burgers(u), fourier.burgers(u, 800)
    assert torch.allclose(end.mean(-1), u.mean(-1), atol=1e-12) and (end.square().sum(-1) < u.square().sum(-1)).all()
    assert (end - finer).abs().max() < 1e-4                              # shorter steps change nothing
    slow = 1e-6 * torch.sin(3 * torch.arange(64, dtype=torch.float64) * 2 * math.pi / 64)
    decay = math.exp(-fourier.VISCOSITY * 9 * fourier.END)               # with hardly any wind there is friction alone
    assert torch.allclose(fourier.burgers(slow[None])[0], decay * slow, atol=1e-11)


def test_it_learns(capsys):
    coarse, finer, still = fourier.main(["--steps", "30"])
    assert coarse < 0.5 * still and finer < 1.2 * coarse and "step 30" in capsys.readouterr().out
