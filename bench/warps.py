"""What a multiprocessor (sm.py) knows of its warps, of mbarriers and of the lines that its first cache holds."""
import numpy as np


class Warp:
    """A warp on its way: what it does next, and when its registers have their values."""

    def __init__(self, cta, scheduler, work):
        self.cta, self.scheduler, self.work, self.at, self.times, self.makers = cta, scheduler, work, 0, {}, {}
        self.since = 0.0                                         # when its last instruction was issued
        self.products, self.finished, self.groups = 0, 0, []     # asynchronous products: begun, done, begun at each commit
        self.wanted = None                                       # how many have to be done before it goes on, and since when it waits
        self.copied, self.copies = 0.0, []                       # when its last asynchronous copy is done, and that of each group

    def ready(self, op):
        """(when all that an instruction needs is there, the kind of instruction that was last)."""
        if op.kind == "copies":
            return (self.copies[-1 - op.number], "copies") if op.number < len(self.copies) else (0.0, None)
        latest, maker = 0.0, None
        for register in (*op.reads, *op.writes):
            time = self.times.get(register, 0.0)
            if time > latest:
                latest, maker = time, self.makers[register]
        return latest, maker

    def set(self, op, time, maker=None):
        for register in op.writes:
            self.times[register], self.makers[register] = time, maker or op.kind

    def missing(self, number):
        """How many products must be done so that at most `number` groups are under way, where they are not."""
        wanted = self.groups[-1 - number] if number < len(self.groups) else 0
        return wanted if self.finished < wanted else None


class Barrier:
    """An mbarrier: a phase ends when `count` have arrived and all bytes have come."""

    def __init__(self, count):
        self.count = self.missing = count
        self.expected, self.phase, self.by_copy, self.waiting = 0, 0, False, []

    def settle(self):
        """(the warps that may go on, whether copies were what they waited for)."""
        if self.missing or self.expected:
            return (), False
        found, self.waiting = (self.waiting, self.by_copy), []
        self.missing, self.phase, self.by_copy = self.count, self.phase + 1, False
        return found


class Cache:
    """The sectors used last."""

    def __init__(self, size):
        self.size, self.sectors = max(size, 32), {}

    def has(self, sector):
        """Whether it is there; from now on it is."""
        found = self.sectors.pop(sector, False)
        self.sectors[sector] = True
        if len(self.sectors) > self.size:
            del self.sectors[next(iter(self.sectors))]
        return found


def private(warps_of_blocks):
    """For each CTA a function from its sectors to the sectors of its `turn`-th repetition: those that no other CTA of the sample touches
    are new ones each time."""
    seen, common = set(), set()
    for warps in warps_of_blocks:
        mine = {int(s) for warp in warps for _, touched in warp if isinstance(touched, np.ndarray) for s in touched}
        common |= seen & mine
        seen |= mine
    return common
