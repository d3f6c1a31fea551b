"""Programs written for PyTorch, run as they are: what `python -m tritorch run` does."""
import os
import runpy
import sys
from pathlib import Path

from tritorch.alias import as_torch
from tritorch.errors import check

FOLDER = str(Path(__file__).parent / "torch_path")                       # on the path it makes `import torch` mean tritorch


def run(program, arguments=(), module=False):
    """Run a Python file, or a module, as Python does, where `import torch` gives tritorch: in this process, and in those that it starts,
    by `multiprocessing`, `subprocess` or `torch.distributed.run`."""
    check(module or Path(program).is_file() or Path(program, "__main__.py").is_file(), "run", "a Python file, or -m and a module", program,
          error=FileNotFoundError)
    as_torch()
    # An installation that a finder finds (pip install -e) needs no path; one would bring all that is beside it, triton_kernels too
    home = str(Path(__file__).parents[1])
    found_by = [FOLDER, home] if home in map(os.path.abspath, sys.path) else [FOLDER]
    os.environ["PYTHONPATH"] = os.pathsep.join([*found_by, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Python has put the folder in which it was called first; a program's own folder takes its place, as if Python had been given the file
    sys.path[:1] = [sys.path[0] if module else os.path.dirname(os.path.abspath(program)), FOLDER]
    sys.argv = [program, *arguments]
    if module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")
