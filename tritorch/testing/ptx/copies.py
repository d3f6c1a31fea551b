"""cp.async: copies from global to shared memory that a thread waits for in groups (sm_80).

The source is read when the copy is issued, the destination is poisoned then and gets the bytes at the wait that covers the copy: the latest
moment that is allowed. So who reads without waiting, or waits for too few groups, computes with NaN.
"""
from dataclasses import dataclass

import numpy as np

from tritorch.testing.ptx import proxies
from tritorch.testing.ptx.memory import POISON
from tritorch.testing.ptx.operands import DTYPES
from tritorch.testing.ptx.registry import instruction


@dataclass(slots=True)
class Copy:
    """Bytes (lanes, size) on their way to `places`, and to which group of its thread each belongs."""

    lanes: np.ndarray
    places: np.ndarray
    data: np.ndarray
    group: np.ndarray


def _state(machine):
    if "copies" not in machine.state:
        machine.state["copies"] = np.zeros(machine.lanes, np.int64), []
        machine.at_end.append(_nothing_under_way)
    return machine.state["copies"]


def _nothing_under_way(machine):
    if machine.state["copies"][1]:
        machine.at = None
        raise machine.fault("a thread ends before its cp.async have arrived", int(machine.state["copies"][1][0].lanes[0]))


@instruction("cp.async.ca.shared.global", "cp.async.cg.shared.global")
def cp_async(machine, ins):
    """[shared], [global], size, how many bytes of it to read: the others become zero."""
    to, source, size, *read = ins.operands[:-1] if "L2::cache_hint" in ins.modifiers else ins.operands
    committed, pending = _state(machine)
    size, lanes = int(size.value), machine.active()
    count = machine.spread(machine.read(read[0], DTYPES["u32"]))[lanes] if read else np.full(len(lanes), size)
    if np.count_nonzero(count > size):
        raise machine.fault("more bytes to read than to write", int(lanes[(count > size).argmax()]))
    places = machine.shared_places(machine.address(to)[lanes], size, lanes)
    data = np.zeros((len(lanes), size), np.uint8)
    reading = count > 0
    if np.count_nonzero(reading):
        addresses = machine.address(source)[lanes][reading]
        problem = machine.global_problem(addresses, size, lanes[reading])       # of all: a partial read is still aligned, none is ours
        if problem:
            raise machine.fault(problem[1], int(lanes[reading][problem[0]]))
        if machine.races is not None:
            machine.races.read(machine, (addresses - np.uint64(machine.memory.base)).astype(np.int64), size, lanes[reading])
        data[reading] = machine.memory.load(addresses, np.dtype(f"V{size}")).view(np.uint8).reshape(-1, size)
        data[np.arange(size) >= count[:, None]] = 0
    machine.shared.reshape(-1).view(f"V{size}")[places // size] = np.full(size, POISON, np.uint8).view(f"V{size}")
    if machine.unfenced is not None:
        proxies.cleared(machine, places)
    pending.append(Copy(lanes, places, data, committed[lanes]))


@instruction("cp.async.commit_group")
def commit_group(machine, ins):
    _state(machine)[0][machine.mask] += 1


@instruction("cp.async.wait_group", "cp.async.wait_all")
def wait_group(machine, ins):
    """The bytes of all but the last groups of the executing threads arrive."""
    committed, pending = _state(machine)
    limit = np.where(machine.mask, committed - ins.operands[0].value if ins.operands else committed + 1, -1)
    left = []
    for copy in pending:
        done = copy.group < limit[copy.lanes]
        if np.count_nonzero(done):
            size = copy.data.shape[1]
            machine.shared.reshape(-1).view(f"V{size}")[copy.places[done] // size] = copy.data[done].view(f"V{size}")[:, 0]
        if not done.all():
            rest = ~done
            left.append(Copy(copy.lanes[rest], copy.places[rest], copy.data[rest], copy.group[rest]) if done.any() else copy)
    pending[:] = left
