"""The backend "mpi": collectives by the MPI library of the system, through mpi4py; mpiexec starts the processes.

Collectives run on a thread of the group, in the order of the calls, where the library allows threads (MPI_THREAD_MULTIPLE), else in the
call; messages are requests, which `Work.wait()` waits for. Half types are added in float32 and rounded once. CUDA tensors go through
page-locked memory. MPI has no timeouts: a lost rank is what its library makes of it, mostly the end of all.
"""
import queue
import threading

import numpy as np

from tritorch.cuda.watching import host_work
from tritorch.distributed.failures import DistBackendError, WrongTensors
from tritorch.distributed.gloo.arithmetic import average, combiner
from tritorch.distributed.gloo.staging import Staged
from tritorch.distributed.group import ProcessGroup
from tritorch.distributed.options import ReduceOp
from tritorch.distributed.work import Work
from tritorch.dtype import bool as truth
from tritorch.errors import check, sentence

_NAMES = {ReduceOp.SUM: "SUM", ReduceOp.AVG: "SUM", ReduceOp.PRODUCT: "PROD", ReduceOp.MIN: "MIN", ReduceOp.MAX: "MAX",
          ReduceOp.BAND: "BAND", ReduceOp.BOR: "BOR", ReduceOp.BXOR: "BXOR"}
_TRUTH = {ReduceOp.SUM: "BOR", ReduceOp.MAX: "BOR", ReduceOp.PRODUCT: "BAND", ReduceOp.MIN: "BAND"}


def library():
    """mpi4py.MPI, which begins MPI when it is first loaded. RuntimeError where it is not installed."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:                         # RuntimeError: no MPI library
        raise RuntimeError(sentence("init_process_group", "mpi4py and an MPI library for the backend mpi", error,
                                    use="pip install tritorch[mpi]")) from None
    return MPI


def world():
    """(rank, size) of this process in MPI's world."""
    everybody = library().COMM_WORLD
    return everybody.rank, everybody.size


class Request(Work):
    """A message that MPI has begun."""

    def __init__(self, name, tensors, request, status, staged, nbytes):
        super().__init__(name, tensors)
        self._request, self._status, self._staged, self._nbytes = request, status, staged, nbytes
        self._lock = threading.Lock()

    def wait(self, timeout=None):
        """Wait until it has come, or gone."""
        with self._lock:
            if not self._future.done():
                self._end(lambda: self._request.Wait(self._status))
        self._future.value()
        return True

    synchronize = wait

    def is_completed(self):
        """Whether it is over."""
        with self._lock:
            if not self._future.done():
                self._end(lambda: self._request.Test(self._status))
        return self._future.done()

    def get_future(self):
        """A Future, once it is over: there is no thread that would bring it about."""
        self.wait()
        return self._future

    def _end(self, ask):
        """Ask MPI (which returns False for not yet) and finish."""
        try:
            if ask() is False:
                return
            if self._name == "recv":
                self._source, came = self._status.Get_source(), self._status.Get_count(library().BYTE)
                check(came == self._nbytes, "recv", f"a message of {self._nbytes} bytes", came, error=DistBackendError)
                self._staged.deliver()
        except Exception as error:
            self.finish(_explained(self._name, error))
        else:
            self.finish()


def _explained(name, error):
    if isinstance(error, DistBackendError):
        return error
    return DistBackendError(sentence(name, "MPI to do it", f"{type(error).__name__}: {error}"))


class ProcessGroupMPI(ProcessGroup):
    """Ranks of MPI's world with a communicator of their own."""

    def __init__(self, ranks, timeout):
        self.mpi = MPI = library()
        everybody = MPI.COMM_WORLD
        super().__init__(ranks.index(everybody.rank), len(ranks))
        self._timeout, self._label = timeout, "mpi"
        self.communicator = everybody.Create_group(everybody.group.Incl(ranks))
        self.jobs = self.thread = None
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self.jobs = queue.SimpleQueue()
            self.thread = threading.Thread(target=self._run, name="tritorch mpi", daemon=True)
            self.thread.start()

    def shutdown(self):
        """End the thread, when it has done what it was given, and the communicator; all ranks do so."""
        self.abort()
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.communicator:
            self.communicator.Free()

    def abort(self):
        """End the thread; others are not waited for."""
        if self.jobs is not None:
            self.jobs.put(None)
            self.jobs = None

    def _run(self):
        jobs = self.jobs
        while (job := jobs.get()) is not None:
            job()

    def _submit(self, name, reads, writes, results, call):
        """Have `call()` done between the copies of the tensors to the host and back."""
        host_work("a collective")
        work = Work(name, results)

        def job():
            try:
                for one in reads:
                    one.ready()
                call()
                for one in writes:
                    one.deliver()
            except Exception as error:
                work.finish(_explained(name, error))
            else:
                work.finish()

        work._worker = self.thread
        job() if self.jobs is None else self.jobs.put(job)
        return work

    # -------------------------------------------------------------- what it adds
    def _operation(self, name, x, op):
        """(op of MPI, how it has an array), checked as gloo's are."""
        combiner(name, op, x.dtype)
        if x.dtype is truth:
            return getattr(self.mpi, _TRUTH.get(op) or _NAMES[op]), lambda a: a.view(np.uint8)
        wide = x.dtype.compute is not x.dtype
        return getattr(self.mpi, _NAMES[op]), (lambda a: a.astype(np.float32)) if wide else (lambda a: a)

    def _reduced(self, name, x, op, call, averages=True):
        """`call(array, op)` on the values as MPI can add them, then the average and the rounding."""
        staged, (operation, prepared) = Staged(x, writes=averages), self._operation(name, x, op)

        def whole():
            a = staged.array
            wide = prepared(a)
            call(wide, operation)
            if op is ReduceOp.AVG and averages:
                average(wide, self._size)
            if averages and not np.shares_memory(wide, a):
                a[...] = wide.astype(a.dtype)

        return self._submit(name, [staged], [staged], [x], whole)

    def allreduce(self, tensors, opts=None, timeout=None):
        """The sum (or what `opts.reduceOp` says) of each tensor over all ranks."""
        works = [self._reduced("all_reduce", x, opts.reduceOp, lambda a, op: self.communicator.Allreduce(self.mpi.IN_PLACE, a, op))
                 for x in tensors]
        works[-1]._tensors = list(tensors)                               # done in order: the last one is done when all are
        return works[-1]

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts=None):
        """All tensors as one, on the root."""
        (x,), root, here = tensors, opts.rootRank, self._rank == opts.rootRank
        call = lambda a, op: self.communicator.Reduce(self.mpi.IN_PLACE if here else a, a if here else None, op, root)
        return self._reduced("reduce", x, opts.reduceOp, call, averages=here)

    def reduce_scatter(self, output_tensors, input_tensors, opts=None):
        """The lists of all ranks as one; this rank's part of it."""
        (out,), (given,) = output_tensors, input_tensors
        return self._reduce_scatter("reduce_scatter", out, [Staged(x, writes=False) for x in given], [x.numel() for x in given],
                                    opts.reduceOp)

    def _reduce_scatter_base(self, output, input, opts=None):
        return self._reduce_scatter("reduce_scatter_tensor", output, [Staged(input, writes=False)], [output.numel()] * self._size,
                                    opts.reduceOp)

    def _reduce_scatter(self, name, out, given, counts, op):
        into, (operation, prepared) = Staged(out, reads=False), self._operation(name, out, op)

        def call():
            whole = prepared(np.concatenate([one.array for one in given]))
            part = np.empty(counts[self._rank], whole.dtype)
            self.communicator.Reduce_scatter(whole, part, counts, operation)
            if op is ReduceOp.AVG:
                average(part, self._size)
            into.array[...] = part.astype(into.array.dtype)

        return self._submit(name, given, [into], [out], call)

    # -------------------------------------------------------------- what it moves
    def _bytes(self, a):
        return [a.view(np.uint8), self.mpi.BYTE]

    def _many(self, arrays):
        """(all arrays in one row of bytes, how many are of each)."""
        return np.concatenate([a.view(np.uint8) for a in arrays] or [np.empty(0, np.uint8)]), [a.nbytes for a in arrays]

    def _spread(self, row, arrays):
        at = 0
        for a in arrays:
            a.view(np.uint8)[...] = row[at:at + a.nbytes]
            at += a.nbytes

    def broadcast(self, tensors, opts=None, timeout=None):
        """The root's tensor on all ranks."""
        (x,) = tensors
        staged = Staged(x, writes=self._rank != opts.rootRank)
        return self._submit("broadcast", [staged], [staged], [x], lambda: self.communicator.Bcast(self._bytes(staged.array), opts.rootRank))

    def allgather(self, output_tensors, input_tensors, opts=None, timeout=None):
        """The tensors of all ranks, which may have different sizes, in a list."""
        (outs,), (x,) = output_tensors, input_tensors
        mine, into = Staged(x, writes=False), [Staged(out, reads=False) for out in outs]

        def call():
            row, counts = self._many([one.array for one in into])
            self.communicator.Allgatherv(self._bytes(mine.array), [row, counts, None, self.mpi.BYTE])
            self._spread(row, [one.array for one in into])

        return self._submit("all_gather", [mine], into, list(outs), call)

    def _allgather_base(self, output_tensor, input_tensor, opts=None):
        mine, into = Staged(input_tensor, writes=False), Staged(output_tensor, reads=False)
        call = lambda: self.communicator.Allgather(self._bytes(mine.array.copy()), self._bytes(into.array))
        return self._submit("all_gather_into_tensor", [mine], [into], [output_tensor], call)

    def gather(self, output_tensors, input_tensors, opts=None):
        """The tensors of all ranks, in a list on the root."""
        (x,), outs = input_tensors, output_tensors[0] if output_tensors else []
        mine, into = Staged(x, writes=False), [Staged(out, reads=False) for out in outs]

        def call():
            row, counts = self._many([one.array for one in into])
            self.communicator.Gatherv(self._bytes(mine.array), [row, counts, None, self.mpi.BYTE] if outs else None, opts.rootRank)
            self._spread(row, [one.array for one in into])

        return self._submit("gather", [mine], into, list(outs), call)

    def scatter(self, output_tensors, input_tensors, opts=None):
        """The tensors of the root's list, one to each rank."""
        (out,), given = output_tensors, [Staged(x, writes=False) for x in (input_tensors[0] if input_tensors else [])]
        into = Staged(out, reads=False)

        def call():
            row, counts = self._many([one.array for one in given])
            self.communicator.Scatterv([row, counts, None, self.mpi.BYTE] if given else None, self._bytes(into.array), opts.rootRank)

        return self._submit("scatter", given, [into], [out], call)

    def alltoall(self, output_tensors, input_tensors, opts=None):
        """Tensor i of rank j, as tensor j of rank i."""
        given, into = [Staged(x, writes=False) for x in input_tensors], [Staged(out, reads=False) for out in output_tensors]

        def call():
            (out, counts), (row, sizes) = (self._many([one.array for one in staged]) for staged in (into, given))
            self.communicator.Alltoallv([row, sizes, None, self.mpi.BYTE], [out, counts, None, self.mpi.BYTE])
            self._spread(out, [one.array for one in into])

        return self._submit("all_to_all", given, into, list(output_tensors), call)

    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None):
        """The same for rows of one tensor: `input_split_sizes` of them to each rank."""
        given, into = Staged(input, writes=False), Staged(output, reads=False)
        sizes, counts = ([n * (x.nbytes // x.shape[0]) for n in split] if split else [x.nbytes // self._size] * self._size
                         for x, split in ((input, input_split_sizes), (output, output_split_sizes)))
        call = lambda: self.communicator.Alltoallv([given.array.view(np.uint8), sizes, None, self.mpi.BYTE],
                                                   [into.array.view(np.uint8), counts, None, self.mpi.BYTE])
        return self._submit("all_to_all_single", [given], [into], [output], call)

    def barrier(self, opts=None, timeout=None):
        """Wait until all ranks have come."""
        return self._submit("barrier", [], [], [], self.communicator.Barrier)

    # -------------------------------------------------------------- messages
    def send(self, tensors, dst, tag=0):
        """A tensor to rank `dst`."""
        (x,) = tensors
        staged = Staged(x, writes=False)
        staged.ready()
        return self._message("send", tensors, staged, tag, lambda: self.communicator.Isend(self._bytes(staged.array), dst, tag))

    def recv(self, tensors, src, tag=0):
        """A tensor from rank `src`; None: from any."""
        (x,), came = tensors, self.mpi.ANY_SOURCE if src is None else src
        staged = Staged(x, reads=False)
        return self._message("recv", tensors, staged, tag, lambda: self.communicator.Irecv(self._bytes(staged.array), came, tag))

    def recv_anysource(self, tensors, tag=0):
        """A tensor from whichever rank sends one first; `work.source_rank()` tells which."""
        return self.recv(tensors, None, tag)

    def _message(self, name, tensors, staged, tag, begin):
        host_work("a message")
        largest = self.mpi.COMM_WORLD.Get_attr(self.mpi.TAG_UB)
        check(tag <= largest, name, f"a tag ≤ {largest}", tag, error=WrongTensors)
        try:
            return Request(name, list(tensors), begin(), self.mpi.Status(), staged, staged.array.nbytes)
        except self.mpi.Exception as error:
            raise _explained(name, error) from None
