"""Kernels that may begin before the one in front of them has ended (programmatic dependent launch, from sm_90 on).

Between two kernels of a CUDA graph the GPU is idle for more than a microsecond: it waits until all that the first wrote can be seen, then
it starts the second. So every kernel's first instruction waits until that is so of all in front of it. Started in the usual way a kernel
finds nothing to wait for; started early (`nvidia_function`) it comes onto the GPU when the programs of the one in front have ended, and
waits there for the rest. A kernel of FEW programs lets the next one come at once. One of many does not: programs that come while others
still run crowd onto the multiprocessors that are free by then, and later the rest of these is idle. A kernel with the option `launch_pdl`
says all this in its own code; a product of many programs lets the next one come when it has no more than to store.
"""
import contextlib
import re

from triton.backends.nvidia.compiler import CUDABackend

FIRST = 90                                                               # the architecture that knows it
FEW = 64                                                                 # half of the multiprocessors that such GPUs have, or fewer
INSTRUCTIONS = f"""
\t{{ griddepcontrol.wait;
\t.reg .pred %few;
\t.reg .b32 %along, %down, %deep;
\t.reg .b64 %programs;
\tmov.u32 %along, %nctaid.x;
\tmov.u32 %down, %nctaid.y;
\tmov.u32 %deep, %nctaid.z;
\tmul.lo.u32 %down, %down, %deep;
\tmul.wide.u32 %programs, %along, %down;
\tsetp.le.u64 %few, %programs, {FEW};
\t@%few griddepcontrol.launch_dependents; }}"""
_ENTRY = re.compile(r"\.entry[^{]*\{")


def waits_first(spec, arch):
    """Whether a kernel is given these instructions. One whose programs wait for each other begins when all of them have room."""
    return arch >= FIRST and not spec.options.get("launch_pdl") and not spec.options.get("launch_cooperative_grid")


def waiting_first(ptx):
    """The same kernel with these instructions before all others."""
    entry = _ENTRY.search(ptx)
    return ptx[:entry.end()] + INSTRUCTIONS + ptx[entry.end():]


@contextlib.contextmanager
def changing(change):
    """Compile with this change of Triton's PTX; Triton as it was after it."""
    make = CUDABackend.make_ptx
    CUDABackend.make_ptx = lambda *args: change(make(*args))
    try:
        yield
    finally:
        CUDABackend.make_ptx = make


def early(spec, arch):
    """Compile a kernel with them inside."""
    return changing(waiting_first) if waits_first(spec, arch) else contextlib.nullcontext()
