"""The kernels that the tests of a GPU launch, so that they can be compiled before: the tests run without their assertions on a device on
which nothing runs, on all cores."""
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import rows, shards

PART = 250                                                       # tests of a process: what one does not tell is not much


def kernels(only, arch, deadline):
    """Specialisations, without those of tests that have not run at `deadline`. Of 356 that 50 tests compiled 329 were found."""
    from tritorch.cuda import compiler_pool, kernel_list

    ids, cores = shards.collect(["-k", only.replace("|", " or ")] if only else [], deadline - time.monotonic()), compiler_pool.cores()
    with tempfile.TemporaryDirectory(prefix="tritorch-") as folder, ThreadPoolExecutor(cores) as pool:
        parts = shards.divided(ids, max(cores, -(-len(ids) // PART)))
        files = [Path(folder) / f"{k}.json" for k in range(len(parts))]
        ends = list(pool.map(lambda part, file: listed(part, file, arch, deadline), parts, files))
        for end in filter(None, ends):
            print(f"kernels of some tests are not known: {end}", flush=True)
        return [spec for file in files if file.exists() for spec in kernel_list.load(file)]


def listed(tests, file, arch, deadline):
    """Have pytest write the list; why it did not, else nothing. That tests fail where no kernel runs is as it must be."""
    command = [sys.executable, "-O", "-m", "pytest", "-m", "gpu", "-q", "--assert=plain", "--tb=no", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run([*command, f"--kernels-to={file}", *tests], cwd=rows.ROOT, capture_output=True, text=True,
                              env={**shards.environment(), "TRITORCH_PTX": str(arch)}, timeout=max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        return "out of time"
    return "" if file.exists() else f"pytest ended with {done.returncode}: {' '.join(done.stdout.split()[-30:])}"
