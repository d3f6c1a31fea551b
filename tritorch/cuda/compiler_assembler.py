"""The assembler whose code a GPU's driver can load.

Triton brings two, of an older CUDA and of a newer one, and takes the newer one from Blackwell on; since 3.9, where that is of CUDA 13.4,
from Hopper on. A driver is promised to load code of its own major version of CUDA and of those before it, no more. So where the driver
comes before the newer one, the older one is taken, by the variable that Triton has for this: processes that compile for this one
inherit it.
"""
import functools
import os

from triton import knobs

VARIABLES = "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"           # the older one, the newer one
MAJOR = 1000                                                             # the driver's own version of CUDA 12.8 is 12080


def named():
    """The assemblers that the environment names, on which machine code depends."""
    return [(name, os.environ[name]) for name in VARIABLES if os.environ.get(name)]


@functools.cache
def choose(driver):
    """Take an assembler that a driver of version `driver` knows; what the environment names already stays."""
    older, newer = ((tool, int(tool.version.partition(".")[0])) for tool in (knobs.nvidia.ptxas, knobs.nvidia.ptxas_blackwell))
    if older[1] <= driver // MAJOR < newer[1] and not os.environ.get(VARIABLES[1]):
        os.environ[VARIABLES[1]] = older[0].path
