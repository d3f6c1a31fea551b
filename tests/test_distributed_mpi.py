"""The backend mpi, where mpi4py and an MPI library are installed: a program that mpiexec starts."""
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tritorch import distributed as dist

ROOT = Path(__file__).parent.parent
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None or MPIEXEC is None, reason="needs mpi4py and mpiexec")
@pytest.mark.parametrize("size", [2, 3])
def test_collectives_of_mpi(size):
    line = [MPIEXEC, "-n", str(size), sys.executable, str(ROOT / "tests" / "mpi_program.py")]
    done = subprocess.run(line, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.count("well done") == size, done.stderr[-3000:]


@pytest.mark.skipif(dist.is_mpi_available(), reason="mpi4py is here")
def test_what_to_install():
    with pytest.raises(RuntimeError, match="pip install tritorch\\[mpi\\]"):
        dist.init_process_group("mpi")
    assert not dist.is_initialized()
