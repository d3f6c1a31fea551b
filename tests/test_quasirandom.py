"""Sobol sequences: scipy's, in PyTorch's calls."""
import copy
import pickle

import numpy as np
import pytest
from scipy.stats import qmc

import tritorch as torch

STEPS = [lambda e: e.draw(), lambda e: e.draw(3), lambda e: e.draw(0), lambda e: e.fast_forward(5).draw(2), lambda e: e.draw(4),
         lambda e: e.reset().draw_base2(3), lambda e: e.draw_base2(3), lambda e: e.reset().fast_forward(1).draw(2)]


@pytest.mark.parametrize("dimension", [1, 3, 50])
def test_points_in_order(dimension):
    points, at, engine = qmc.Sobol(dimension, scramble=False).random_base2(5), 0, torch.quasirandom.SobolEngine(dimension)
    for number, skip in [(1, 0), (3, 0), (0, 0), (2, 5), (4, 0)]:
        drawn = engine.fast_forward(skip).draw(number)
        at += skip + number
        assert drawn.dtype is torch.float32 and drawn.shape == (number, dimension) and engine.num_generated == at
        np.testing.assert_array_equal(drawn.numpy(), points[at - number:at].astype(np.float32))
    for other in copy.deepcopy(engine), pickle.loads(pickle.dumps(engine)):
        np.testing.assert_array_equal(other.draw(2, dtype=torch.float64).numpy(), points[at:at + 2])
    out = torch.empty(0)
    assert engine.reset().draw_base2(3, out=out) is out and engine.draw_base2(3).shape == (8, dimension)
    np.testing.assert_array_equal(out.numpy(), points[:8].astype(np.float32))


def test_as_in_pytorch():
    pytorch = pytest.importorskip("torch")
    for dimension in (1, 7, 1000):
        ours, theirs = torch.quasirandom.SobolEngine(dimension), pytorch.quasirandom.SobolEngine(dimension)
        assert repr(ours) == repr(theirs)
        for step in STEPS[:2] + STEPS[3:]:
            np.testing.assert_array_equal(step(ours).numpy(), step(theirs).numpy())


def test_scrambled_points_are_balanced_and_repeat():
    first, again = (torch.quasirandom.SobolEngine(4, scramble=True, seed=3).draw(64) for _ in range(2))
    other = torch.quasirandom.SobolEngine(4, scramble=True, seed=4).draw(64)
    assert (first == again).all() and (first != other).any() and ((first >= 0) & (first < 1)).all()
    for k in range(4):                                                   # in each 64th of every axis lies one point
        assert sorted((first[:, k] * 64).int().tolist()) == list(range(64))
    torch.manual_seed(0)
    drawn = torch.quasirandom.SobolEngine(4, scramble=True).draw(8)
    assert (torch.quasirandom.SobolEngine(4, scramble=True).draw(8) != drawn).any()
    torch.manual_seed(0)
    assert (torch.quasirandom.SobolEngine(4, scramble=True).draw(8) == drawn).all()
    assert repr(torch.quasirandom.SobolEngine(4, True, 3)) == "SobolEngine(dimension=4, scramble=True, seed=3)"


def test_refusals():
    for dimension in (0, 21202, 1.5):
        with pytest.raises(ValueError, match="expected a dimension from 1 to 21201, got"):
            torch.quasirandom.SobolEngine(dimension)
    engine = torch.quasirandom.SobolEngine(2)
    with pytest.raises(ValueError, match=r"a power of two as the number of all points, got 3 \+ 2\*\*2 = 7; use draw"):
        engine.fast_forward(3).draw_base2(2)
    for call in (engine.draw, engine.fast_forward):
        with pytest.raises(ValueError, match="n >= 0, got -1"):
            call(-1)
    assert engine.num_generated == 3
