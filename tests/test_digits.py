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
def tutorial(monkeypatch):
    """The tutorial of a name."""
    monkeypatch.syspath_prepend(ROOT / "tutorials")
    threads = tritorch.get_num_threads()
    yield importlib.import_module
    tritorch.set_num_threads(threads)


def part_of_batches(rank, size, tutorial):
    tritorch.manual_seed(rank)
    model = tutorial.DistributedDataParallel(digits.Net())
    losses = list(tutorial.train(model, digits.datasets()[0], 1, steps=4))
    return losses, [s.tolist() for s in tutorial.checksum(model)]


def test_processes_learn_from_parts_of_batches(tutorial, tmp_path, capsys):
    """The tutorial on DistributedDataParallel: after a few steps all copies are equal; it also runs alone."""
    train_ddp = tutorial("train_ddp")
    first, second = world(part_of_batches, 2, tmp_path, train_ddp)
    assert first == second and first[1][0] == first[1][1] and 2.0 < first[0][-1] < 2.4
    train_ddp.main(["--steps", "2"])
    step, equal, accuracy = capsys.readouterr().out.splitlines()
    assert step.startswith("step 2 loss 2.") and equal == "processes: 1, with equal parameters: True"
    assert accuracy.startswith("accuracy on 300 digits never seen: ")


def shares(rank, size, tutorial):
    tritorch.manual_seed(0)
    model = tutorial.sharded(tutorial.Reader(depth=1))
    training = tutorial.Training(model, tritorch.optim.AdamW(model.parameters(), lr=2e-3))
    losses = list(tutorial.train_epoch(training, digits.datasets()[0], steps=4))
    return losses, sum(p.to_local().numel() for p in model.parameters()), sum(p.numel() for p in model.parameters())


def test_processes_hold_shares(tutorial, tmp_path, capsys):
    """The tutorial on fully_shard: two processes learn the same, each with half of the network; it also runs alone, and goes on."""
    train_fsdp = tutorial("train_fsdp")
    first, second = world(shares, 2, tmp_path, train_fsdp)
    assert first[0] == second[0] and 2.0 < first[0][-1] < 2.4 and first[1] + second[1] == first[2]
    for _ in range(2):
        train_fsdp.main(["--steps", "2", "--folder", str(tmp_path / "saved")])
        share, epoch, accuracy = capsys.readouterr().out.splitlines()
        assert share.startswith("processes: 1; this one holds 86122 of 86122 numbers; epochs done: 0") and epoch.startswith("epoch 1 loss")
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


def test_a_step_that_no_image_can_steer(tutorial):
    """The tutorial on privacy: gradients of every image are those of its backward pass, none longer than the clip in their sum."""
    private = tutorial("private_digits")
    tritorch.manual_seed(0)
    model, (images, labels) = digits.Net().eval(), [x[:5] for x in digits.datasets()[0].tensors]
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    gradients, losses = private.gradients_of_each(model, parameters, images, labels)
    clipped = dict.fromkeys(parameters, 0)
    for k in range(5):
        model.zero_grad()
        loss = tritorch.nn.functional.cross_entropy(model(images[k:k + 1]), labels[k:k + 1])
        loss.backward()
        assert abs(losses[k] - loss) < 1e-6
        length = sum((p.grad ** 2).sum() for p in model.parameters()).sqrt()
        assert length > private.CLIP                                     # else clipping proves nothing
        for name, p in model.named_parameters():
            tritorch.testing.assert_close(gradients[name][k], p.grad, rtol=1e-4, atol=1e-6)
            clipped[name] = clipped[name] + p.grad * (private.CLIP / length)
    for name, g in private.private_gradients(gradients, noise=0.0).items():
        tritorch.testing.assert_close(g, clipped[name], rtol=1e-4, atol=1e-5)
    one = {name: g[:1] for name, g in gradients.items()}
    noisy = [private.private_gradients(one, noise=3.0)["name.1.weight"] - clipped["name.1.weight"] for _ in range(2)]
    assert not tritorch.equal(*noisy) and 2.8 < noisy[0].std() < 3.2


def test_what_a_step_tells(tutorial):
    """ε of the paper's own example, section 3.2: 1.26 for a rate of 0.01, noise of 4, 10 000 steps and δ = 1e-5."""
    private = tutorial("private_digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private, "DELTA", 1e-5)
        assert private.epsilon(0.01, 4.0, 10_000) == pytest.approx(1.26, abs=0.01)
    assert private.epsilon(0.1, 1.5, 10) < private.epsilon(0.1, 1.5, 20) < private.epsilon(0.2, 1.5, 20) < private.epsilon(0.2, 1.0, 20)


def test_learns_in_private(tutorial, capsys):
    tutorial("private_digits").main(["--device", "cpu", "--steps", "30"])
    accuracy = float(capsys.readouterr().out.split()[-2])
    assert accuracy > 60
