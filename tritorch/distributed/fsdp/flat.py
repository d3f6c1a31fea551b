"""The parameters of a group that have one dtype, in one memory: their shards, and for as long as they are gathered the whole of them.

Shards of a rank lie one after the other, so that one all-gather of one buffer brings them all. A copy puts the parts of the ranks side by
side (they come as rows, rank by rank). The gathered parameters are made once and stay the same objects: what the graph has saved of them
shows their storage, whose memory is given back when the group is sharded again, and exchanged for what comes with the next gathering.
"""
from tritorch import distributed as dist
from tritorch.device import cpu
from tritorch.ops.copy import pinned
from tritorch.ops.create import empty, zeros
from tritorch.storage import exchange
from tritorch.tensor import strided

ALIGNED = 16                                                             # elements: launches read up to 16 bytes at once


def starts(cuts):
    """(where each parameter's part begins among those of a rank, how many elements a rank has)."""
    out, end = [], 0
    for cut in cuts:
        out.append(end)
        end += -(-cut.count // ALIGNED) * ALIGNED
    return out, end


class Gathered:
    """What is under way from all ranks: the Work, and the buffer of which rank r fills row r."""

    __slots__ = ("work", "buffer", "rows")

    def __init__(self, work, buffer, rows):
        self.work, self.buffer, self.rows = work, buffer, rows


class Flat:
    """`cuts` are the parameters; `kind` is the dtype in which they are gathered, `device` where, `home` where their shards are."""

    def __init__(self, cuts, ranks, kind, device, home, pinned_memory):
        self.cuts, self.ranks, self.kind, self.device, self.home = cuts, ranks, kind, device, home
        places, self.count = starts(cuts)
        dtype = cuts[0].sharded.dtype
        self.memory = zeros(self.count, dtype=dtype, device=home)        # not empty: nobody reads what is between, but the ranks send it
        if pinned_memory:
            self.memory = pinned((self.count,), dtype).zero_()
        for cut, start in zip(cuts, places):
            cut.start, cut.full = start, None
            cut.move_to(self.memory)
        self.storage, self.kept = None, None                             # of what is gathered; what a smaller group of ranks keeps of it

    def holds(self):
        """Whether the shards are still where they were put, and of one dtype."""
        return all(cut.sharded.storage.owner is self.memory.storage.owner and cut.sharded.dtype is self.memory.dtype
                   for cut in self.cuts)

    # -------------------------------------------------------------- gathering
    def gather(self, group):
        """Begin to collect the parts of all ranks of a group: of all that have some, or of those that keep the parameters after forward."""
        mine = self.memory if self.kept is None else self.kept
        count, rank = mine.numel(), group.rank()
        buffer = empty(count * group.size(), dtype=self.kind, device=self.device)
        own = buffer.narrow(0, count * rank, count)
        own.copy_(mine, non_blocking=True)                               # here it is cast, and comes from the CPU
        work = dist.all_gather_into_tensor(buffer, own, group, async_op=True) if group.size() > 1 else None
        return Gathered(work, buffer, group.size())

    def receive(self, gathered):
        """The parameters are there: `full` of each can be computed with."""
        if gathered.work is not None:
            gathered.work.wait()
        whole = gathered.buffer
        if self.ranks > 1:
            table = whole.view(gathered.rows, -1)
            whole = empty(self.ranks * self.count, dtype=self.kind, device=self.device)
            if self.kept is None:
                for cut in self.cuts:
                    cut.whole_from(table, whole)
            else:
                self._join(table, whole)
        self.kept = None
        if self.storage is not None:
            exchange(self.storage, whole.storage)
            return
        self.storage = whole.storage
        for cut in self.cuts:
            cut.show(self.storage, self.kind)

    def release(self):
        """Give the memory of the whole parameters back."""
        if self.storage is not None and self.storage.nbytes:
            exchange(self.storage, empty(0, dtype=self.kind, device=self.device).storage)
            for cut in self.cuts:
                cut.forget_memory()

    # -------------------------------------------------------------- fewer ranks after forward
    def keep(self, group):
        """Keep this rank's part of the whole parameters, cut among the ranks of a group."""
        size, rank = group.size(), group.rank()
        self.kept = empty(self.ranks * self.count // size, dtype=self.kind, device=self.device)
        for start, n, region in self._regions(size):
            self.kept.narrow(0, start, n).copy_(region[rank])

    def _join(self, table, whole):
        for start, n, region in self._regions(table.shape[0], whole):
            region.copy_(table.narrow(1, start, n))

    def _regions(self, size, whole=None):
        """(start and number of elements in a row of what `size` ranks have, the whole parameter in as many rows) of each parameter."""
        storage = self.storage if whole is None else whole.storage
        for cut in self.cuts:
            n, where = cut.count * self.ranks // size, cut.start * self.ranks
            yield where // size, n, strided(storage, (size, n), (n, 1), where, self.kind)


def flats_of(cuts, ranks, dtype_of, device, offload):
    """The parameters in as many flats as there are pairs of dtypes, of the shards and gathered: mostly one."""
    kinds = {}
    for cut in cuts:
        kinds.setdefault((cut.sharded.dtype, dtype_of(cut.sharded.dtype)), []).append(cut)
    home = device if offload is None else cpu
    pin = offload is not None and offload.pin_memory and device is not cpu
    return [Flat(some, ranks, kind, device, home, pin) for (_, kind), some in kinds.items()]
