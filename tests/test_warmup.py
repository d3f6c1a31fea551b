"""python -m tritorch warmup and info: a program's kernels are found without a GPU, listed, compiled once and used."""
import json
import os
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton")
K = pytest.importorskip("launch_kernels")

from tritorch import __main__ as command  # noqa: E402
from tritorch import warmup  # noqa: E402
from tritorch.cuda import compiler, driver, kernel_list  # noqa: E402
from tritorch.cuda.compiler import Specialisation  # noqa: E402

PROGRAM = """
import sys
import tritorch as torch
x = torch.zeros(int(sys.argv[1]), 8, device="cuda")
y = torch.nn.functional.softmax(x, -1)
print("sum", y.sum().item())
if len(sys.argv) > 2:
    raise RuntimeError("no more")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_a_program_is_compiled_once(program, capsys, monkeypatch):
    with driver.using(None):
        assert command.main(["warmup", "--arch", "sm_90", program, "16"]) == 0
        out = capsys.readouterr().out.splitlines()
        assert out[0] == "sum 0.0" and out[1].endswith(" compiled, 0 cached, 0 failed") and " kernels for sm_90: " in out[1]
        monkeypatch.setattr(compiler, "compile_here", lambda *spec: pytest.fail("compiled again"))
        assert command.main(["warmup", "--arch", "90", program, "16"]) == 0
        assert " 0 compiled, " in capsys.readouterr().out


def test_lists_are_compiled_elsewhere(program, tmp_path, capsys):
    path = tmp_path / "list.json"
    assert command.main(["warmup", "--arch", "sm_90", "--save", str(path), program, "16", "fail"]) == 1
    told = capsys.readouterr()
    assert "ended with RuntimeError: no more; going on" in told.err and f"kernels listed in {path}" in told.out
    assert not (tmp_path / "cache").exists() and str(tmp_path) not in path.read_text()
    specs = kernel_list.load(path)
    assert {spec.key(90) for spec in specs} == {spec.key(90) for spec in warmup.kernels_of(warmup.program_of(program, ["16"]), 90)}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITORCH_CUDA": "none"}
    done = subprocess.run([sys.executable, "-m", "tritorch", "warmup", "--arch", "sm_80", str(path)], env=environment, capture_output=True,
                          text=True)
    assert done.returncode == 0 and f"{len(specs)} kernels for sm_80: {len(specs)} compiled" in done.stdout, done.stderr
    assert all(compiler.is_cached(spec, 80) for spec in specs)


def test_all_kinds_of_constants_survive_a_list(tmp_path):
    constants = {(0,): None, (1,): 1, (2,): -0.0, (3,): float("inf"), (4,): True, (5,): "ieee", (6,): (1, (2, "a")), (7,): K.square,
                 (8,): triton.language.bfloat16, (9, 1): 1}
    spec = Specialisation(K.map_kernel, {"out_ptr": "*fp32", "pair": ("i32", "constexpr")}, constants, {(0,): [["tt.divisibility", 16]]},
                          {"num_warps": 4})
    kernel_list.save(tmp_path / "list.json", [spec])
    (found,) = kernel_list.load(tmp_path / "list.json")
    assert found == spec and found.key(90) == spec.key(90) and type(found.constexprs[4,]) is bool and found.constexprs[7,] is K.square
    with pytest.raises(TypeError, match="constexprs that JSON can hold"):
        kernel_list.save(tmp_path / "list.json", [Specialisation(K.map_kernel, {}, {(0,): object()})])


def test_mistakes_are_sentences(tmp_path, capsys, monkeypatch):
    (tmp_path / "other.json").write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="expected a list of kernels of format 1, got other.json"):
        kernel_list.load(tmp_path / "other.json")
    with pytest.raises(FileNotFoundError, match="expected a Python file"):
        warmup.program_of(str(tmp_path / "absent.py"))
    with pytest.raises(ValueError, match="expected a Python file, module:function or a list"):
        warmup.program_of("absent")
    assert warmup.program_of("json:JSONDecoder.decode") is json.JSONDecoder.decode
    monkeypatch.setenv("TRITORCH_CUDA", "none")
    with driver.using(None):
        assert command.main(["warmup", "json:loads"]) == 2 and "expected a GPU, or --arch" in capsys.readouterr().err
        assert command.main(["info"]) == 0
    assert "triton " in (told := capsys.readouterr().out) and "TRITORCH_CUDA=none" in told and "kernels, " in told
