"""A convolutional network reads handwritten digits: well enough on the CPU, and on the simulated GPU with the CPU's losses."""
import importlib.util
from pathlib import Path

import numpy as np
import pytest

import tritorch

pytest.importorskip("sklearn")
SPEC = importlib.util.spec_from_file_location("digits_cnn", Path(__file__).parent.parent / "tutorials" / "digits_cnn.py")
digits = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(digits)


def train(device, epochs, steps=None):
    tritorch.manual_seed(0)
    model = digits.Net().to(device)
    tritorch.manual_seed(1)                        # the generators of both devices start the dropout masks at the same place
    learn, test = digits.datasets()
    losses = list(digits.train(model, learn, device, epochs, steps))
    return losses, digits.accuracy(model, test, device)


def test_learns_to_read():
    losses, accuracy = train("cpu", epochs=12)
    assert losses[0] > 2.0 > losses[-1] and accuracy >= 0.97


@pytest.fixture
def simulated():
    pytest.importorskip("triton")
    from tritorch.cuda import driver

    previous = driver.use(None)
    tritorch.cuda.simulate()
    yield
    driver.use(previous)


def test_simulated_gpu_follows_the_cpu(simulated):
    """The dropout masks too: the same seed draws the same numbers on both."""
    ours, _ = train("cuda", epochs=1, steps=4)
    theirs, _ = train("cpu", epochs=1, steps=4)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
