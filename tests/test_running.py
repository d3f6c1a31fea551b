"""python -m tritorch run: programs that import torch run as they are, and so do the processes that they start."""
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tritorch as torch
from tritorch import __main__ as command
from tritorch import running

PROGRAM = """
import importlib.metadata
import multiprocessing
import subprocess
import sys
import torch
from torch import nn
import beside


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def work(queue):
    queue.put((Doubled()(torch.ones(2)).tolist(), torch.__version__))


if __name__ == "__main__":
    assert torch.__spec__.name == "tritorch" and importlib.metadata.version("torch") == torch.__version__
    assert beside.y.tolist() == [1.0] and sys.argv[1:] == ["--lr", "0.1"], sys.argv
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    assert queue.get() == ([2.0, 2.0], torch.__version__)
    process.join()
    asked = "from importlib import metadata, util; print(metadata.version('torch'), util.find_spec('torch') is not None)"
    asked += "; import torch.nn, tritorch; assert torch is tritorch"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [torch.__version__, "True"], done.stdout
    print("rank", __import__("os").environ.get("RANK"), file=sys.stderr)
    sys.exit(7)
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "beside.py").write_text("import torch\ny = torch.ones(1)\n")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def ran(*words, cwd=None):
    environment = {**os.environ, "PYTHONPATH": str(Path(torch.__file__).parents[1])}
    return subprocess.run([sys.executable, "-m", "tritorch", "run", *words], capture_output=True, text=True, env=environment, cwd=cwd)


def test_a_file_and_what_it_starts(program, tmp_path):
    done = ran(str(program), "--lr", "0.1", cwd=tmp_path.parent)
    assert done.returncode == 7 and "rank None" in done.stderr, done.stderr


def test_a_module(program, tmp_path):
    done = ran("-m", "program", "--lr", "0.1", cwd=tmp_path)
    assert done.returncode == 7, done.stderr


def test_ranks(program):
    done = ran("-m", "torch.distributed.run", "--nproc-per-node", "2", str(program), "--lr", "0.1")
    assert done.returncode != 0 and ("rank 0" in done.stderr or "rank 1" in done.stderr), done.stderr


@pytest.mark.parametrize("by_finder", [False, True])
def test_processes_find_us_as_the_first_one_did(by_finder, tmp_path):
    """A path is for what was found by it: it shows all that lies there, where pip install -e shows no more than two packages."""
    (tmp_path / "program.py").write_text("import os\nprint(os.environ['PYTHONPATH'])\n")
    home = str(Path(torch.__file__).parents[1])
    code = "import os, sys; from tritorch import running; home = os.environ.pop('PYTHONPATH')"
    code += "; sys.path.remove(home)" * by_finder + "; running.run('program.py')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": home}, capture_output=True,
                          text=True)
    assert done.stdout.strip().split(os.pathsep) == [running.FOLDER] + [home] * (not by_finder), done.stderr


def test_a_program_that_is_missing():
    with pytest.raises(FileNotFoundError, match="run: expected a Python file, or -m and a module, got nowhere.py"):
        command.main(["run", "nowhere.py"])


def test_the_folder_names_the_version_that_we_have():
    (found,) = importlib.metadata.distributions(path=[running.FOLDER])
    assert (found.metadata["Name"], found.version) == ("torch", torch.__version__)


def test_warmup_takes_such_programs(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import torch\ntorch.zeros(8, device='cuda').exp()\n")
    words = ["warmup", "--arch", "sm_90", "--as-torch", "--save", str(tmp_path / "list.json"), str(path)]
    done = subprocess.run([sys.executable, "-m", "tritorch", *words], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(Path(torch.__file__).parents[1])})
    assert done.returncode == 0 and "kernels listed" in done.stdout, done.stderr


def test_triton_asks_us_which_gpu_there_is(tmp_path):
    """There we go by PyTorch's name, and Triton's own driver would want a GPU."""
    (tmp_path / "program.py").write_text("""
import torch, triton
torch.cuda.simulate()
print(triton.runtime.driver.active.get_current_target().backend)
""")
    done = ran(str(tmp_path / "program.py"))
    assert done.stdout.split() == ["cuda"], done.stderr
