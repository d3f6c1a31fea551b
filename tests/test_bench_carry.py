"""Kernels that are compiled before the day with a GPU: which tests need, and how they are carried there."""
import argparse
import time

import pytest

pytest.importorskip("triton")

import tritorch as torch  # noqa: E402
from bench import ahead, carry, gpu_tests, shards  # noqa: E402
from tritorch.cuda import compiler, compiler_pool  # noqa: E402
from tritorch.warmup import kernels_of  # noqa: E402


def test_tests_say_what_they_would_launch(monkeypatch):
    """Their assertions would fail where nothing runs, before the last kernel; for the second one pytest begins the device anew."""
    ids = ["tests/test_clip_gradients.py::test_clipping[cuda]", "tests/test_attention_bias.py::test_slopes[hardware-(4,)-window0]"]
    monkeypatch.setattr(shards, "collect", lambda words, seconds: ids)
    monkeypatch.setattr(compiler_pool, "cores", lambda: 1)
    found = gpu_tests.kernels("", 90, time.monotonic() + 200)
    assert {"norm_kernel", "finish_norm_kernel", "scale_kernel", "attention_kernel"} <= {spec.kernel.__name__ for spec in found}


def relu():
    torch.ones(40, device="cuda").relu()
    torch.ones(4, 10, device="cuda").relu().sum(1)


def test_what_tests_launch_is_compiled_with_the_rest_and_carried_whole(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setattr(gpu_tests, "kernels", lambda only, arch, deadline: kernels_of(relu, 90))
    made = ahead.compile_all(["tests"], arch=90)
    assert len(made) > 2
    words = argparse.Namespace(families=["pack", str(tmp_path / "kernels")])
    assert carry.main(words) == 0 and f"{len(made)} kernels" in capsys.readouterr().out
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path / "there"))
    words.families[0] = "unpack"
    assert carry.main(words) == 0
    for spec, compiled in made:
        assert compiler.is_cached(spec, 90)
        there = compiler.read(compiler.path_of(spec, 90))
        assert {**vars(there), "packed_ptx": there.ptx} == {**vars(compiled), "packed_ptx": compiled.ptx}


def test_carry_says_what_it_needs(capsys):
    assert carry.main(argparse.Namespace(families=["pack"])) == 2 and "expected pack FILE" in capsys.readouterr().out
