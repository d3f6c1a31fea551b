"""A convolutional network reads handwritten digits: well enough on the CPU, and on the simulated GPU with the CPU's losses."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from worlds import world

import tritorch

pytest.importorskip("sklearn")
ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("digits_cnn", ROOT / "tutorials" / "digits_cnn.py")
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


def test_processes_learn_together():
    """The tutorial on shared memory: both processes see all of their images, and what they learn is in one model."""
    done = subprocess.run([sys.executable, "tutorials/hogwild.py", "--epochs", "6"], cwd=ROOT, capture_output=True, text=True, timeout=250,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("images seen [4491, 4491]") and float(last.split()[-2]) > 85


@pytest.fixture
def train_ddp(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tutorials")
    threads = tritorch.get_num_threads()
    yield importlib.import_module("train_ddp")
    tritorch.set_num_threads(threads)


def part_of_batches(rank, size, tutorial):
    tritorch.manual_seed(rank)
    model = tutorial.DistributedDataParallel(digits.Net())
    losses = list(tutorial.train(model, digits.datasets()[0], 1, steps=4))
    return losses, [s.tolist() for s in tutorial.checksum(model)]


def test_processes_learn_from_parts_of_batches(train_ddp, tmp_path, capsys):
    """The tutorial on DistributedDataParallel: after a few steps all copies are equal; it also runs alone."""
    first, second = world(part_of_batches, 2, tmp_path, train_ddp)
    assert first == second and first[1][0] == first[1][1] and 2.0 < first[0][-1] < 2.4
    train_ddp.main(["--steps", "2"])
    step, equal, accuracy = capsys.readouterr().out.splitlines()
    assert step.startswith("step 2 loss 2.") and equal == "processes: 1, with equal parameters: True"
    assert accuracy.startswith("accuracy on 300 digits never seen: ")


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
