"""The process group of the backend "gloo": it checks the tensors of a call, and gives the engine the generator that moves them."""
from tritorch.cuda.watching import host_work
from tritorch.distributed.failures import DistBackendError, WrongTensors, seconds
from tritorch.distributed.gloo import schedules
from tritorch.distributed.gloo.arithmetic import combiner
from tritorch.distributed.gloo.engine import Engine, Late, Task
from tritorch.distributed.gloo.links import MESSAGE
from tritorch.distributed.gloo.mesh import connected
from tritorch.distributed.gloo.signs import sign
from tritorch.distributed.gloo.staging import Staged
from tritorch.distributed.group import ProcessGroup
from tritorch.distributed.options import BarrierOptions, Options, ReduceOp
from tritorch.distributed.work import Work
from tritorch.errors import check, sentence


class ProcessGroupGloo(ProcessGroup):
    """Ranks that are connected to each other by TCP, and the thread of this one."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(store, rank, size)
        self._timeout, self._label = timeout, "gloo"
        self.engine = Engine(rank, connected(store, rank, size, timeout.total_seconds()), rank)

    def shutdown(self):
        """End the thread and close the connections."""
        self.engine.close()

    def abort(self):
        """The same, without waiting for what is under way."""
        self.engine.close(finish=False)

    # -------------------------------------------------------------- the way of all calls
    def _submit(self, name, options, steps, mark, reads=(), writes=(), results=None):
        """Have `steps(engine, task)` done between the copies of the tensors to the host and back."""
        host_work("a collective")
        work = Work(name, results)

        def whole(task):
            for one in reads:
                one.ready()
            yield from steps(self.engine, task)
            for one in writes:
                one.deliver()

        task = Task(name, work, self.patience(options), mark)
        self.engine.submit(task, whole)
        return work

    def allreduce(self, tensors, opts=None, timeout=None):
        """The sum (or what `opts.reduceOp` says) of each tensor over all ranks."""
        if len(tensors) != 1:
            return self.allreduce_coalesced(tensors, opts)
        x, op = tensors[0], opts.reduceOp
        combine, staged = combiner("all_reduce", op, x.dtype), Staged(x)
        steps = lambda e, t: schedules.all_reduce(e, t, staged.array, combine, x.dtype, op)
        return self._submit("all_reduce", opts, steps, sign("all_reduce", x.dtype, op, 0, x.numel()), [staged], [staged], [x])

    def allreduce_coalesced(self, tensors, opts=None):
        """Several tensors, one after the other, in one task."""
        op, staged = opts.reduceOp, [Staged(x) for x in tensors]
        combine = [combiner("all_reduce", op, x.dtype) for x in tensors]

        def steps(engine, task):
            for x, one, f in zip(tensors, staged, combine):
                task.sign = sign("all_reduce", x.dtype, op, 0, x.numel())
                yield from schedules.all_reduce(engine, task, one.array, f, x.dtype, op)

        return self._submit("all_reduce", opts, steps, None, staged, staged, list(tensors))

    def broadcast(self, tensors, opts=None, timeout=None):
        """The root's tensor on all ranks."""
        (x,), root = tensors, opts.rootRank
        staged = Staged(x, writes=self._rank != root)
        steps = lambda e, t: schedules.broadcast(e, t, staged.array, root)
        return self._submit("broadcast", opts, steps, sign("broadcast", x.dtype, ReduceOp.SUM, root, x.numel()), [staged], [staged], [x])

    def reduce(self, tensors, opts=None):
        """All tensors as one, on the root."""
        (x,), op, root = tensors, opts.reduceOp, opts.rootRank
        combine, staged = combiner("reduce", op, x.dtype), Staged(x, writes=self._rank == root)
        steps = lambda e, t: schedules.reduce(e, t, staged.array, combine, x.dtype, op, root)
        return self._submit("reduce", opts, steps, sign("reduce", x.dtype, op, root, x.numel()), [staged], [staged], [x])

    def allgather(self, output_tensors, input_tensors, opts=None, timeout=None):
        """The tensors of all ranks, which may have different sizes, in a list."""
        (outs,), (x,) = output_tensors, input_tensors
        fits("all_gather", outs[self._rank], x)
        mine, into = Staged(x, writes=False), [Staged(o, reads=False) for o in outs]

        def steps(engine, task):
            into[self._rank].array[...] = mine.array
            yield from schedules.all_gather(engine, task, [one.array for one in into])

        return self._submit("all_gather", opts, steps, sign("all_gather", x.dtype), [mine], into, list(outs))

    def _allgather_base(self, output_tensor, input_tensor, opts=None):
        out, x = output_tensor, input_tensor
        check(out.numel() == x.numel() * self._size, "all_gather_into_tensor", "an output of as many elements as all inputs have",
              f"{tuple(out.shape)} and {self._size} times {tuple(x.shape)}", error=WrongTensors)
        mine, into = Staged(x, writes=False), Staged(out, reads=False)

        def steps(engine, task):
            parts = schedules.parted(into.array, self._size)
            parts[self._rank][...] = mine.array
            yield from schedules.all_gather(engine, task, parts)

        return self._submit("all_gather", opts, steps, sign("all_gather", x.dtype, ReduceOp.SUM, 0, x.numel()), [mine], [into], [out])

    def gather(self, output_tensors, input_tensors, opts=None):
        """The tensors of all ranks, in a list on the root."""
        (x,), root, outs = input_tensors, opts.rootRank, output_tensors[0] if output_tensors else []
        for out in outs:
            fits("gather", out, x)
        mine, into = Staged(x, writes=False), [Staged(o, reads=False) for o in outs]
        steps = lambda e, t: schedules.gather(e, t, mine.array, [one.array for one in into], root)
        return self._submit("gather", opts, steps, sign("gather", x.dtype, ReduceOp.SUM, root, x.numel()), [mine], into, list(outs))

    def scatter(self, output_tensors, input_tensors, opts=None):
        """The tensors of the root's list, one to each rank."""
        (out,), root, given = output_tensors, opts.rootRank, input_tensors[0] if input_tensors else []
        for x in given:
            fits("scatter", out, x)
        parts, into = [Staged(x, writes=False) for x in given], Staged(out, reads=False)
        steps = lambda e, t: schedules.scatter(e, t, into.array, [one.array for one in parts], root)
        return self._submit("scatter", opts, steps, sign("scatter", out.dtype, ReduceOp.SUM, root, out.numel()), parts, [into], [out])

    def reduce_scatter(self, output_tensors, input_tensors, opts=None):
        """The lists of all ranks as one; this rank's part of it."""
        (out,), (given,) = output_tensors, input_tensors
        fits("reduce_scatter", out, given[self._rank])
        return self._reduce_scatter("reduce_scatter", out, [Staged(x, writes=False) for x in given], opts, 0,
                                    lambda staged: [one.array.copy() for one in staged])

    def _reduce_scatter_base(self, output, input, opts=None):
        check(input.numel() == output.numel() * self._size, "reduce_scatter_tensor", "an input of as many elements as all outputs have",
              f"{tuple(input.shape)} and {self._size} times {tuple(output.shape)}", error=WrongTensors)
        check(input.dtype is output.dtype, "reduce_scatter_tensor", "one dtype", f"{input.dtype}", f"{output.dtype}", error=WrongTensors)
        return self._reduce_scatter("reduce_scatter_tensor", output, [Staged(input, writes=False)], opts, output.numel(),
                                    lambda staged: schedules.parted(staged[0].array.copy(), self._size))

    def _reduce_scatter(self, name, out, given, opts, numel, parts):
        op = opts.reduceOp
        combine, into = combiner(name, op, out.dtype), Staged(out, reads=False)
        steps = lambda e, t: schedules.reduce_scatter(e, t, into.array, parts(given), combine, out.dtype, op)
        return self._submit(name, opts, steps, sign("reduce_scatter", out.dtype, op, 0, numel), given, [into], [out])

    def alltoall(self, output_tensors, input_tensors, opts=None):
        """Tensor i of rank j, as tensor j of rank i."""
        fits("all_to_all", output_tensors[self._rank], input_tensors[self._rank])
        given, into = [Staged(x, writes=False) for x in input_tensors], [Staged(o, reads=False) for o in output_tensors]
        steps = lambda e, t: schedules.all_to_all(e, t, [one.array for one in into], [one.array for one in given])
        return self._submit("all_to_all", opts, steps, sign("all_to_all", input_tensors[0].dtype), given, into, list(output_tensors))

    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None):
        """The same for rows of one tensor: `input_split_sizes` of them to each rank."""
        counts = [_counts(x, sizes, self._size) for x, sizes in ((output, output_split_sizes), (input, input_split_sizes))]
        check(counts[0][self._rank] == counts[1][self._rank], "all_to_all_single", "as many elements for oneself in as out",
              counts[1][self._rank], counts[0][self._rank], error=WrongTensors)
        check(input.dtype is output.dtype, "all_to_all_single", "one dtype", f"{input.dtype}", f"{output.dtype}", error=WrongTensors)
        given, into = Staged(input, writes=False), Staged(output, reads=False)
        steps = lambda e, t: schedules.all_to_all(e, t, *(_cut(one.array, n) for one, n in zip((into, given), counts)))
        return self._submit("all_to_all_single", opts, steps, sign("all_to_all", input.dtype), [given], [into], [output])

    def barrier(self, opts=None, timeout=None):
        """Wait until all ranks have come."""
        return self._submit("barrier", opts or BarrierOptions(), schedules.barrier, sign("barrier"))

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """Wait until all have come; rank 0 names the first that does not (all with `wait_all_ranks`)."""
        patience = seconds("monitored_barrier", timeout, self._timeout.total_seconds())

        def steps(engine, task):
            if self._rank:
                yield engine.send(task, 0, schedules.NOTHING)
                yield engine.receive(task, 0, schedules.NOTHING)
                return
            here = {r: engine.receive(task, r, schedules.NOTHING) for r in range(1, self._size)}
            try:
                yield from here.values()
            except (Late, DistBackendError):
                missing = [r for r, transfer in here.items() if not transfer.done or transfer.error]
                names = f"rank {missing[0]}" if not wait_all_ranks else f"the ranks {missing}"
                raise DistBackendError(sentence("monitored_barrier", f"{names} within {patience:.3g} s", "nothing")) from None
            for rank in here:
                yield engine.send(task, rank, schedules.NOTHING)

        self._submit("monitored_barrier", Options(timeout=patience), steps, sign("monitored_barrier")).wait()

    # -------------------------------------------------------------- messages
    def send(self, tensors, dst, tag=0):
        """A tensor to rank `dst`."""
        (x,) = tensors
        staged = Staged(x, writes=False)
        return self._message("send", x, [staged], [], tag, dst, lambda e, t: e.send(t, dst, schedules.raw(staged.array)))

    def recv(self, tensors, src, tag=0):
        """A tensor from rank `src`; None: from any."""
        (x,) = tensors
        staged = Staged(x, reads=False)
        return self._message("recv", x, [], [staged], tag, src, lambda e, t: e.receive(t, src, schedules.raw(staged.array)))

    def recv_anysource(self, tensors, tag=0):
        """A tensor from whichever rank sends one first; `work.source_rank()` tells which."""
        return self.recv(tensors, None, tag)

    def _message(self, name, x, reads, writes, tag, peer, transfer):
        host_work("a message")
        check(isinstance(tag, int) and 0 <= tag < 1 << 63, name, "a tag ≥ 0", tag, error=WrongTensors)
        check(peer is None or 0 <= peer < self._size and peer != self._rank, name, "another rank of the group", peer, error=WrongTensors)
        work = Work(name, [x])

        def steps(task):
            task.key = MESSAGE, tag
            for one in reads:
                one.ready()
            moved = transfer(self.engine, task)
            yield moved
            work._source = moved.rank if name == "recv" else None
            for one in writes:
                one.deliver()

        task = Task(name, work, self._timeout.total_seconds(), sign("send", x.dtype, ReduceOp.SUM, 0, x.numel()), ordered=False)
        task.private = name == "recv"
        self.engine.submit(task, steps)
        return work


def fits(name, out, x):
    """ValueError unless a tensor can hold what another has."""
    check(out.numel() == x.numel() and out.dtype is x.dtype, name, "outputs of the input's shape and dtype",
          f"{tuple(out.shape)} {out.dtype} and {tuple(x.shape)} {x.dtype}", error=WrongTensors)


def _counts(x, sizes, size):
    """How many elements of a tensor are for each rank, by rows."""
    if not sizes:
        check(len(x.shape) > 0 and x.shape[0] % size == 0, "all_to_all_single", f"rows for {size} ranks, the same number each",
              tuple(x.shape), error=WrongTensors)
        return [x.numel() // size] * size
    check(len(sizes) == size and sum(sizes) == x.shape[0] and min(sizes) >= 0, "all_to_all_single",
          f"{size} sizes whose sum is {x.shape[0]}", list(sizes), error=WrongTensors)
    row = x.numel() // x.shape[0] if x.shape[0] else 0
    return [n * row for n in sizes]


def _cut(a, counts):
    ends = [sum(counts[:i]) for i in range(len(counts) + 1)]
    return [a[start:end] for start, end in zip(ends, ends[1:])]
