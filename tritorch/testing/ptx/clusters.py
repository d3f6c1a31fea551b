"""Clusters of CTAs (sm_90): the barrier of all their threads, and what one does to another's shared memory.

Rows of a machine that follow each other are a cluster. An address of another CTA is the one of the same place in its own shared memory,
with the rank of that CTA, plus one, above WINDOW.

Whatever order CTAs run in here, on a GPU they may run in any other. So nobody may reach for an mbarrier of another CTA unless a cluster
barrier lies between its making, with a fence.mbarrier_init, and that; and no CTA may end unless it has learned of every arrival of others
at its mbarriers: some thread of it has waited for the phase that the arrival counts in, or a cluster barrier lies between.
"""
import numpy as np

from tritorch.testing.ptx import proxies
from tritorch.testing.ptx.operands import DTYPES
from tritorch.testing.ptx.registry import instruction

WARP, WINDOW = 32, 1 << 24
U32 = DTYPES["u32"]


class Clusters:
    """Of each lane how many cluster barriers it has arrived at and passed, of each CTA the rows of its cluster by rank."""

    def __init__(self, machine):
        self.size = machine.launch.cluster
        self.arrived, self.passed = np.zeros(machine.lanes, np.int64), np.zeros(machine.lanes, np.int64)
        self.of = machine.cta // self.size
        firsts = machine.block[::machine.threads]
        groups = np.arange(machine.ctas).reshape(-1, self.size)
        assert (firsts[groups] // self.size == firsts[groups[:, :1]] // self.size).all(), "a cluster runs as a whole"
        self.mates = groups[np.arange(len(groups))[:, None], np.argsort(firsts[groups] % self.size, axis=1)]
        self.ended = np.zeros(machine.ctas, bool)

    def rows(self, cta):
        """The rows of a CTA's cluster, by rank."""
        return self.mates[cta // self.size]

    def locate(self, machine, address, lane):
        """(row of the CTA, address in its own shared memory) of an address of shared::cluster."""
        rank, own = address // WINDOW, address % WINDOW
        if rank > self.size:
            raise machine.fault(f"the shared address {address:#x} of no CTA of the cluster", lane)
        cta = int(machine.cta[lane])
        return (int(self.rows(cta)[rank - 1]) if rank else cta), own


def check_reach(machine, cta, barrier, place, lane):
    """Raise where a lane signals an mbarrier of another CTA that may not be there yet, or no more."""
    clusters = machine.clusters
    if clusters.ended[cta]:
        raise machine.fault("the CTA that this reaches has ended", lane)
    if not barrier.told:
        raise machine.fault(f"no fence.mbarrier_init followed the making of the mbarrier at byte {place[1]} of another CTA", lane)
    if clusters.passed[lane] <= barrier.made:
        raise machine.fault(f"no cluster barrier lies between the making of the mbarrier at byte {place[1]} of another CTA and this", lane)


def end(machine):
    """Called when threads have ended. The CTAs that have ended with them must have learned of all that others did to them."""
    clusters = machine.clusters
    if (clusters.arrived != clusters.passed)[~machine.alive].any():
        lane = ((clusters.arrived != clusters.passed) & ~machine.alive).argmax()
        raise machine.fault("a thread ends between its arrival at the cluster's barrier and its wait there", int(lane))
    living = machine.alive.reshape(machine.ctas, -1).any(axis=1)
    for cta in np.flatnonzero(~living & ~clusters.ended).tolist():
        clusters.ended[cta], lanes = True, slice(cta * machine.threads, (cta + 1) * machine.threads)
        for place in machine.state.get("loads", ()):
            if place[0] == cta:
                raise machine.fault(f"the CTA ends while a load by TMA is under way to its mbarrier at byte {place[1]}", lanes.start)
        for place, barrier in machine.state.get("mbarriers", {}).items():
            if place[0] == cta and barrier.expected < 0:
                raise machine.fault(f"bytes that nobody announced came to the mbarrier at byte {place[1]}", lanes.start)
            if place[0] == cta and any(number >= clusters.passed[lanes].max() for _, number in barrier.foreign):
                raise machine.fault(f"the CTA ends and may not have learned of an arrival of another at its mbarrier at byte {place[1]}",
                                    lanes.start)


def _keys(machine, lanes):
    """(first lane, what releases and acquires share) of each warp at the cluster barrier that it is at; of `lanes`, a mask."""
    clusters, first = machine.clusters, np.flatnonzero(lanes.reshape(-1, WARP).any(axis=1)) * WARP
    return [(lane, ("cluster", int(machine.block[lane]) // clusters.size, int(clusters.arrived[lane]))) for lane in first.tolist()]


@instruction("barrier.cluster.arrive")
def arrive(machine, ins):
    """Each thread that lives arrives once, and then waits, before it arrives again."""
    if "aligned" in ins.modifiers:
        machine.converged()
    clusters, lanes = machine.clusters, machine.active()
    twice = clusters.arrived[lanes] != clusters.passed[lanes]
    if twice.any():
        raise machine.fault("a thread arrives again at the cluster's barrier before it has waited there", int(lanes[twice.argmax()]))
    clusters.arrived[lanes] += 1
    if "relaxed" not in ins.modifiers:
        if machine.unfenced is not None:
            proxies.publish(machine, machine.mask)
        if machine.races is not None:
            for lane, key in _keys(machine, machine.mask):
                machine.races.release(machine, lane, key)
    machine.progress()


@instruction("barrier.cluster.wait", control=True)
def wait(machine, ins):
    if "aligned" in ins.modifiers:
        machine.converged()
    clusters, lanes = machine.clusters, machine.active()
    early = clusters.arrived[lanes] == clusters.passed[lanes]
    if early.any():
        raise machine.fault("a thread waits at the cluster's barrier without having arrived", int(lanes[early.argmax()]))
    least = np.full(len(clusters.mates), np.iinfo(np.int64).max)
    np.minimum.at(least, clusters.of[machine.alive], clusters.arrived[machine.alive])
    late = machine.mask & (least[clusters.of] < clusters.arrived)
    there = machine.mask & ~late
    clusters.passed[there] += 1
    if machine.races is not None:
        for lane, key in _keys(machine, there):
            machine.races.acquire(machine, lane, key)
    if there.any():
        machine.progress()
    if late.any():
        machine.retry(late)


@instruction("mapa.shared::cluster.u32", "mapa.shared::cluster.u64")
def mapa(machine, ins):
    """The address of the same place in the shared memory of the CTA of a rank."""
    target, address, rank = ins.operands
    ranks, addresses = machine.spread(machine.read(rank, U32)).astype(np.uint64), machine.address(address)
    lanes = machine.active()
    machine.shared_places(addresses[lanes], 1, lanes)
    if (ranks[lanes] >= machine.clusters.size).any():
        raise machine.fault(f"rank {int(ranks[lanes].max())} in a cluster of {machine.clusters.size}")
    machine.write(target, addresses + (ranks + np.uint64(1)) * np.uint64(WINDOW))


@instruction("fence.mbarrier_init")
def tell(machine, ins):
    """Of the mbarriers that these threads have made others of the cluster may know, once they have met."""
    for barrier in machine.state.get("mbarriers", {}).values():
        barrier.told |= bool(machine.mask[barrier.maker])
