"""The main job in miniature: it learns, stops and goes on to the last bit, and survives being killed."""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tritorch

ROOT = Path(__file__).parent.parent
LAST_LINE = re.compile(r"step (\d+) train (\d+\.\d+) val (\d+\.\d+) tokens/s (\d+)$")
SMALL = dict(LAYERS=2, HEADS=2, WIDTH=32, CONTEXT=16, BATCH=4, WARMUP=2, SAVE_EVERY=2, EVAL_EVERY=4, EVAL_ROWS=8, SAMPLE=5)
PROGRAM = """
import sys
sys.path.insert(0, "tutorials")
import train_gpt
vars(train_gpt).update({settings})
sys.exit(train_gpt.main())
"""


def start(out, *options, device="cpu", cuda="none", **settings):
    program = PROGRAM.format(settings={**SMALL, **settings})
    command = [sys.executable, "-c", program, "--out", str(out), "--device", device, *map(str, options)]
    environment = {**os.environ, "TRITORCH_CUDA": cuda, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(out, *options, **settings):
    process = start(out, *options, **settings)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return LAST_LINE.match(output.splitlines()[-1]).groups()


def checkpoint(out):
    return tritorch.load(out / "checkpoint.safetensors", map_location="cpu")


def wait_for_checkpoint(process, out, newer_than=0.0):
    path, patience = out / "checkpoint.safetensors", time.time() + 120
    while not (path.exists() and path.stat().st_mtime > newer_than):
        assert process.poll() is None and time.time() < patience, process.communicate()
        time.sleep(0.005)
    return path.stat().st_mtime


def assert_same(ours, theirs):
    """Two checkpoints, bit by bit."""
    assert ours["history"]["train"] == theirs["history"]["train"]
    for name, weight in ours["model"].items():
        np.testing.assert_array_equal(weight.numpy(), theirs["model"][name].numpy(), err_msg=name)
    assert tritorch.equal(ours["rng"], theirs["rng"])


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of 12 steps that nothing happened to."""
    out = tmp_path_factory.mktemp("straight")
    return run(out, "--steps", 12), checkpoint(out)


def test_learns_and_reports(straight):
    (step, train, held_out, _), state = straight
    assert step == "12" and len(state["history"]["train"]) == 12 and [s for s, _ in state["history"]["held_out"]] == [4, 8, 12]
    assert float(held_out) < np.log(len(state["history"]["vocabulary"]))                # better than guessing


def test_resumes_to_the_last_bit(straight, tmp_path):
    run(tmp_path, "--steps", 5)
    run(tmp_path, "--steps", 12, "--resume", "--seed", 7)                               # the checkpoint's generator counts, not the seed
    assert_same(straight[1], checkpoint(tmp_path))


def test_resuming_a_finished_run_reports_it(straight, tmp_path):
    first = run(tmp_path, "--steps", 4)
    assert run(tmp_path, "--steps", 4, "--resume")[:3] == first[:3]


def test_seeds_differ(straight, tmp_path):
    run(tmp_path, "--steps", 2, "--seed", 1)
    assert checkpoint(tmp_path)["history"]["train"] != straight[1]["history"]["train"][:2]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_interrupt_keeps_the_checkpoint(straight, tmp_path):
    process = start(tmp_path, "--steps", 1_000_000)
    wait_for_checkpoint(process, tmp_path)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in errors
    done = int(LAST_LINE.match(output.splitlines()[-1]).group(1))
    losses = checkpoint(tmp_path)["history"]["train"]
    assert len(losses) == done and losses[:12] == straight[1]["history"]["train"][: done]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_killed_at_any_moment_a_checkpoint_is_whole(straight, tmp_path):
    process = start(tmp_path, "--steps", 1_000_000, SAVE_EVERY=1)
    written = wait_for_checkpoint(process, tmp_path)
    for pause in (0.0, 0.003, 0.011):
        written = wait_for_checkpoint(process, tmp_path, written)
        time.sleep(pause)
        process.kill()
        process.communicate()
        losses = checkpoint(tmp_path)["history"]["train"]
        assert losses[:12] == straight[1]["history"]["train"][: len(losses)]
        process = start(tmp_path, "--steps", 1_000_000, "--resume", SAVE_EVERY=1)
    process.kill()
    process.communicate()


def test_bad_calls_get_one_sentence(tmp_path):
    for options, sentence in ((["--resume"], "--resume: expected a checkpoint at"), (["--steps", 0], "expected at least 1, got 0")):
        process = start(tmp_path, *options)
        errors = process.communicate(timeout=120)[1]
        assert process.returncode != 0 and sentence in errors.splitlines()[-1] and "Traceback" not in errors


def test_broken_checkpoint_is_refused(straight, tmp_path):
    run(tmp_path, "--steps", 2)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    process = start(tmp_path, "--steps", 4, "--resume")
    errors = process.communicate(timeout=120)[1]
    assert process.returncode != 0 and "load: expected" in errors.splitlines()[-1]


def test_simulated_gpu_follows_the_cpu(straight, tmp_path):
    pytest.importorskip("triton")
    run(tmp_path, "--steps", 6, device="cuda", cuda="simulated", EVAL_ROWS=4, SAMPLE=1)           # the last ones are replays of a graph
    np.testing.assert_allclose(checkpoint(tmp_path)["history"]["train"], straight[1]["history"]["train"][:6], rtol=1e-4)
