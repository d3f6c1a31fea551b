"""Branches, barriers and the ends of threads."""
import numpy as np

from tritorch.testing.ptx import clusters
from tritorch.testing.ptx.operands import DTYPES
from tritorch.testing.ptx.registry import instruction

U32 = DTYPES["u32"]


@instruction("bra", control=True)
def bra(machine, ins):
    machine.pc[machine.mask] = ins.operands[0].target


@instruction("brx.idx", control=True)
def brx(machine, ins):
    index, targets = ins.operands
    chosen = machine.spread(index.read(machine, U32))[machine.mask]
    machine.pc[machine.mask] = np.array(targets.target)[chosen]


@instruction("ret", "exit", control=True)
def ret(machine, ins):
    machine.alive = machine.alive & ~machine.mask
    if machine.clusters.size > 1:
        clusters.end(machine)
    machine.release()                                           # those who wait for all that live


@instruction("bar.sync", "barrier.sync", "barrier.cta.sync", control=True)
def bar_sync(machine, ins):
    machine.converged()
    number, *size = (machine.read(o, U32) for o in ins.operands)
    machine.barrier(number, *size or [0])


@instruction("bar.warp.sync")
def bar_warp_sync(machine, ins):
    machine.converged(machine.read(ins.operands[0], U32))


@instruction("membar", "fence", "setmaxnreg", "griddepcontrol.launch_dependents", "nanosleep", "discard", "prefetch", "applypriority",
             "createpolicy")
def nothing(machine, ins):
    """Memory is in order here, registers are plenty, and kernels run one after the other."""


@instruction("griddepcontrol.wait")
def wait_for_the_one_before(machine, ins):
    """Of one thread, what the others of its CTA read after a barrier is there too."""
    if machine.waited is not None:
        machine.waited[machine.cta[machine.active()]] = True


@instruction("trap", "brkpt")
def trap(machine, ins):
    raise machine.fault("trap", machine.active()[0])
