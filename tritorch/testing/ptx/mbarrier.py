"""Barriers in shared memory (mbarrier) that count arrivals and bytes, and what else the warps of a specialised kernel share.

A phase of an mbarrier ends when as many threads have arrived as its count says and as many bytes have come as were announced. A wait names
the parity of a phase and succeeds when that phase is over, so right after init a wait for parity 1 passes. Bytes come from copies by TMA,
which the machine delivers as late as it can: when somebody waits in vain. What other CTAs of a cluster may do is in clusters.py.
"""
from dataclasses import dataclass, field

import numpy as np

from tritorch.testing.ptx import clusters, proxies
from tritorch.testing.ptx.matrices import WARP
from tritorch.testing.ptx.operands import DTYPES
from tritorch.testing.ptx.parse import SHARED_BASE
from tritorch.testing.ptx.registry import instruction

U32 = DTYPES["u32"]
_MOST = (1 << 20) - 1                                       # of arrivals and of bytes, as PTX limits them


@dataclass(slots=True)
class Barrier:
    """`token` lies in memory in its place: who writes there destroys the barrier. Its `maker` is a lane that had arrived at `made` cluster
    barriers before; `foreign`: of arrivals of other CTAs that nobody here has waited for the phase, and the same number of who arrived."""

    count: int
    missing: int
    token: np.uint64
    phase: int = 0
    expected: int = 0
    maker: int = 0
    made: int = 0
    told: bool = False
    foreign: list = field(default_factory=list)

    def settle(self, machine):
        """The next phase, when all have arrived and all bytes have come."""
        if not self.missing and not self.expected:
            self.missing, self.phase = self.count, self.phase + 1
            machine.progress()


def barriers_of(machine):
    return machine.state.setdefault("mbarriers", {})


def place_of(machine, operand, lane):
    """(CTA, byte) of a barrier in shared memory, that of another CTA of the cluster where the instruction says that it may be."""
    address = machine.address(operand)[lane:lane + 1]
    cta = int(machine.cta[lane])
    if machine.at.name == "mbarrier" and "shared::cluster" in machine.at.modifiers:
        cta, own = machine.clusters.locate(machine, int(address[0]), lane)
        address = np.array([own], np.uint64)
    machine.shared_places(address, 8, np.array([lane]))
    return cta, int(address[0]) - SHARED_BASE


def find(machine, place, lane):
    barrier = barriers_of(machine).get(place)
    if barrier is None:
        raise machine.fault(f"no mbarrier at byte {place[1]} of shared memory", lane)
    if machine.shared[place[0], place[1]:place[1] + 8].view("u8")[0] != barrier.token:
        raise machine.fault(f"the mbarrier at byte {place[1]} of shared memory was overwritten", lane)
    return barrier


@instruction("mbarrier.init.shared::cta.b64", "mbarrier.init.shared.b64")
def init(machine, ins):
    counts = machine.spread(machine.read(ins.operands[1], U32))
    for lane in machine.active().tolist():
        place, count = place_of(machine, ins.operands[0], lane), int(counts[lane])
        before = barriers_of(machine).get(place)                # Triton leaves barriers behind that nobody uses, and others on top of them
        if before is not None and (before.phase or before.expected or before.missing != before.count):
            raise machine.fault(f"there is an mbarrier in use at byte {place[1]} already", lane)
        if not 0 < count <= _MOST:
            raise machine.fault(f"an mbarrier for {count} arrivals", lane)
        token = np.uint64(0x6D62617272696572 + place[1])
        barriers_of(machine)[place] = Barrier(count, count, token, maker=lane, made=int(machine.clusters.arrived[lane]))
        machine.shared[place[0], place[1]:place[1] + 8].view("u8")[0] = token        # TMA meets barriers without a fence


@instruction("mbarrier.inval.shared::cta.b64", "mbarrier.inval.shared.b64")
def inval(machine, ins):
    for lane in machine.active().tolist():
        place = place_of(machine, ins.operands[0], lane)
        barrier = find(machine, place, lane)
        if barrier.expected:
            raise machine.fault("an mbarrier ends while bytes are under way to it", lane)
        del barriers_of(machine)[place]


@instruction("mbarrier.arrive")
def arrive(machine, ins):
    """_, [barrier], how many arrive or, with .expect_tx, how many bytes are announced by one who does."""
    _, where, *number = ins.operands
    numbers = machine.spread(machine.read(number[0], U32) if number else np.array(1))
    announced = "expect_tx" in ins.modifiers
    if machine.unfenced is not None:
        proxies.publish(machine, machine.mask)
    for lane in machine.active().tolist():
        place = place_of(machine, where, lane)
        barrier = find(machine, place, lane)
        if place[0] != machine.cta[lane]:
            clusters.check_reach(machine, place[0], barrier, place, lane)
            barrier.foreign.append((barrier.phase, int(machine.clusters.arrived[lane])))
        barrier.missing -= 1 if announced else int(numbers[lane])
        barrier.expected += int(numbers[lane]) if announced else 0
        if machine.races is not None:
            machine.races.release(machine, lane, ("mbarrier", int(machine.block[place[0] * machine.threads]), place[1]))
        if barrier.missing < 0 or barrier.expected > _MOST:
            raise machine.fault("more arrivals, or bytes, than the mbarrier counts", lane)
        barrier.settle(machine)


@instruction("mbarrier.try_wait.parity", control=True)
def try_wait(machine, ins):
    """A GPU returns false after a while; here the threads come back when others have had their turn."""
    result, where, parity = ins.operands
    lanes, late = machine.active(), np.zeros(machine.lanes, bool)
    odds = machine.spread(machine.read(parity, U32))[lanes]
    asked = (machine.cta[lanes] << 33) + 2 * machine.address(where)[lanes].astype(np.int64) + odds      # shared addresses have 32 bits
    _, first, which = np.unique(asked, return_index=True, return_inverse=True)                          # a warp asks with all of its lanes
    for i, odd in enumerate(odds[first].tolist()):
        lane = int(lanes[first[i]])
        place = place_of(machine, where, lane)
        barrier = find(machine, place, lane)
        if barrier.phase & 1 == odd:
            deliver(machine, place)
            late[lanes[which == i]] = barrier.phase & 1 == odd
        if barrier.foreign and barrier.phase & 1 != odd:
            barrier.foreign = [one for one in barrier.foreign if one[0] >= barrier.phase]
        if machine.races is not None and machine.races.warps and barrier.phase & 1 != odd:
            for one in np.unique(lanes[which == i] // WARP):
                machine.races.acquire(machine, one * WARP, ("mbarrier", int(machine.block[lane]), place[1]))
    machine.write(result, ~late)
    if late.any():
        machine.retry(late)


def deliver(machine, place):
    """The copies by TMA that count for a barrier arrive."""
    for load in machine.state.get("loads", {}).pop(place, ()):
        load()


@instruction("setmaxnreg.inc.sync.aligned.u32", "setmaxnreg.dec.sync.aligned.u32", control=True)
def setmaxnreg(machine, ins):
    """Warps give registers back, or wait until there are enough in the pool that their CTA was started with (.maxnreg for each thread)."""
    wanted, more = int(ins.operands[0].value), "inc" in ins.modifiers
    limits = machine.state.get("registers")
    if limits is None:
        limits = machine.state["registers"] = np.full((machine.ctas, machine.threads // WARP), machine.program.maxnreg)
    pool, late = machine.program.maxnreg * limits.shape[1], np.zeros(machine.lanes, bool)
    for warp in np.flatnonzero(machine.mask.reshape(-1, WARP)[:, 0]).tolist():
        cta, at = divmod(warp, limits.shape[1])
        have = limits[cta, at]
        if wanted % 8 or not 24 <= wanted <= 256 or (wanted < have if more else wanted > have):
            raise machine.fault(f"{wanted} registers after {have}", warp * WARP)
        if more and limits[cta].sum() - have + wanted > pool:
            late[warp * WARP:warp * WARP + WARP] = True
        else:
            limits[cta, at] = wanted
            machine.progress()
    if late.any():
        machine.retry(late)
