"""The backend "nccl": collectives of CUDA tensors by NVIDIA's library, through nccl4py. It has not run on hardware yet.

Everything runs on a stream of the group, behind what the caller's stream has been given so far, so that a collective travels while the
caller goes on computing; `Work.wait()` lets the current stream wait for it, and never the host. The communicator is made at the first
call, in which all ranks of the group take part; it is one for each group and process, for the device of the first tensors. Ranks that
are gone or late are not found out: NCCL waits for them.
"""
import contextlib

from tritorch.autograd import no_grad
from tritorch.cuda.device import current_device
from tritorch.cuda.device import device as on_device
from tritorch.cuda.event import Event
from tritorch.cuda.stream import Stream, current_stream
from tritorch.cuda.stream import stream as on_stream
from tritorch.device import device
from tritorch.distributed.failures import DistBackendError, WrongTensors
from tritorch.distributed.group import ProcessGroup
from tritorch.distributed.options import BarrierOptions, ReduceOp
from tritorch.distributed.work import Work
from tritorch.dtype import bfloat16, float16, float32, float64, int8, int32, int64, uint8
from tritorch.dtype import bool as truth
from tritorch.errors import check, sentence
from tritorch.ops.create import empty, zeros

NUMBERS = (float64, float32, float16, bfloat16, int64, int32, int8, uint8)       # what it adds; everything is moved as bytes
_NAMES = {ReduceOp.SUM: "SUM", ReduceOp.AVG: "AVG", ReduceOp.PRODUCT: "PROD", ReduceOp.MIN: "MIN", ReduceOp.MAX: "MAX"}
_TRUTH = {ReduceOp.SUM: "MAX", ReduceOp.MAX: "MAX", ReduceOp.BOR: "MAX", ReduceOp.PRODUCT: "MIN", ReduceOp.MIN: "MIN", ReduceOp.BAND: "MIN"}


class Queued(Work):
    """Work on a stream: done for the host once it is queued, for the device when its event has come."""

    def __init__(self, name, tensors):
        super().__init__(name, tensors)
        self._event = Event()
        self.record()
        self.finish()

    def record(self, stream=None):
        """It is done when what `stream`, or the current one, has been given so far is."""
        self._event.record(stream)

    def wait(self, timeout=None):
        """The current stream waits for it; the host does not."""
        current_stream().wait_event(self._event)
        return True

    synchronize = wait

    def get_future(self):
        """A Future of the tensors that are received, which is done: the current stream waits for them, as in `wait`."""
        self.wait()
        return super().get_future()

    def is_completed(self):
        """Whether the device has done it."""
        return self._event.query()


def library():
    """nccl.core of nccl4py. RuntimeError where it is not installed."""
    try:
        from nccl import core
    except ImportError as error:
        way = "pip install tritorch[nccl]"
        raise RuntimeError(sentence("init_process_group", "nccl4py for the backend nccl", error, use=way)) from None
    return core


class ProcessGroupNCCL(ProcessGroup):
    """Ranks with a GPU each, and their communicator."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(store, rank, size)
        self.core, self.communicator, self.index, self.stream = library(), None, None, None
        self._timeout, self._label, self._begun = timeout, "nccl", None

    def shutdown(self):
        """End the communicator; all ranks do so."""
        communicator, self.communicator = self.communicator, None
        if communicator is not None:
            communicator.destroy()

    def abort(self):
        """End the communicator with what is under way."""
        communicator, self.communicator = self.communicator, None
        if communicator is not None:
            communicator.abort()

    def _made(self, index):
        """The communicator, for the device of this index."""
        if self.communicator is None:
            self.index = index
            if self._rank == 0:
                self._store.set("id", self.core.get_unique_id().as_bytes)
            key = self.core.UniqueId.from_bytes(self._store.get("id"))
            with on_device(index):
                self.communicator, self.stream = self.core.Communicator.init(self._size, self._rank, key), Stream(index)
        check(index == self.index, "nccl", f"tensors on cuda:{self.index}, as before", f"cuda:{index}")
        return self.communicator

    @contextlib.contextmanager
    def _on(self, name, tensors):
        """(communicator, stream) for the device of these tensors, which the group's stream, current inside, may use; errors of the library
        get a sentence."""
        index = tensors[0].device.index
        with no_grad(), on_device(index):
            try:
                communicator = self._made(index)
                self.stream.wait_stream(current_stream())
                with on_stream(self.stream):
                    yield communicator, self.stream.cuda_stream
                for x in tensors:
                    x.record_stream(self.stream)
            except (WrongTensors, DistBackendError):
                raise
            except Exception as error:
                raise DistBackendError(sentence(name, "nccl to do it", f"{type(error).__name__}: {error}")) from error

    @contextlib.contextmanager
    def together(self):
        """Messages are begun all at once, at the end: else each would wait for the other side."""
        self._begun = []
        try:
            with self.core.group():
                yield
            for work in self._begun:
                work.record(self.stream)
        finally:
            self._begun = None

    # -------------------------------------------------------------- what it adds
    def _reduced(self, name, op, x):
        table, kinds = (_TRUTH, (truth,)) if x.dtype is truth else (_NAMES, NUMBERS)
        check(op in table, name, "an op that nccl has for this dtype", f"{op.name} of {x.dtype}", error=WrongTensors)
        check(x.dtype in kinds, name, "a dtype that nccl adds", x.dtype, use="x.float()", error=WrongTensors)
        return getattr(self.core.NcclRedOp, table[op])

    def allreduce(self, tensors, opts=None, timeout=None):
        """The sum (or what `opts.reduceOp` says) of each tensor over all ranks."""
        ops = [self._reduced("all_reduce", opts.reduceOp, x) for x in tensors]
        with self._on("all_reduce", tensors) as (communicator, stream):
            flat = [flattened(x) for x in tensors]
            with self.core.group():
                for op, x in zip(ops, flat):
                    communicator.allreduce(x, x, op, stream=stream)
            return self._finish("all_reduce", tensors, flat)

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts=None):
        """All tensors as one, on the root."""
        (x,) = tensors
        op = self._reduced("reduce", opts.reduceOp, x)
        with self._on("reduce", tensors) as (communicator, stream):
            flat = flattened(x)
            communicator.reduce(flat, flat, op, opts.rootRank, stream=stream)
            return self._finish("reduce", tensors if self._rank == opts.rootRank else [], [flat], tensors)

    def _reduce_scatter_base(self, output, input, opts=None):
        op = self._reduced("reduce_scatter_tensor", opts.reduceOp, input)
        with self._on("reduce_scatter_tensor", (input, output)) as (communicator, stream):
            out = room(output)
            communicator.reduce_scatter(flattened(input), out, op, stream=stream)
            return self._finish("reduce_scatter_tensor", [output], [out])

    def reduce_scatter(self, output_tensors, input_tensors, opts=None):
        """The lists of all ranks as one; this rank's part of it."""
        (out,), (given,) = output_tensors, input_tensors
        op = self._reduced("reduce_scatter", opts.reduceOp, out)
        with self._on("reduce_scatter", (out, *given)) as (communicator, stream):
            flat = [flattened(x.clone()) for x in given]                 # may have different sizes
            with self.core.group():
                for root, x in enumerate(flat):
                    communicator.reduce(x, x, op, root, stream=stream)
            return self._finish("reduce_scatter", [out], [flat[self._rank]], copies=True)

    # -------------------------------------------------------------- what it moves
    def broadcast(self, tensors, opts=None, timeout=None):
        """The root's tensor on all ranks."""
        (x,) = tensors
        with self._on("broadcast", tensors) as (communicator, stream):
            flat = moved(flattened(x))
            communicator.broadcast(flat, flat, opts.rootRank, stream=stream)
            return self._finish("broadcast", tensors, [flat])

    def _allgather_base(self, output_tensor, input_tensor, opts=None):
        with self._on("all_gather_into_tensor", (input_tensor, output_tensor)) as (communicator, stream):
            out = moved(room(output_tensor))
            communicator.allgather(moved(flattened(input_tensor)), out, stream=stream)
            return self._finish("all_gather_into_tensor", [output_tensor], [out])

    def allgather(self, output_tensors, input_tensors, opts=None, timeout=None):
        """The tensors of all ranks, which may have different sizes, in a list."""
        (outs,), (x,) = output_tensors, input_tensors
        with self._on("all_gather", (x, *outs)) as (communicator, stream):
            flat = [moved(room(out)) for out in outs]
            flat[self._rank].copy_(moved(flattened(x)))
            with self.core.group():
                for root, out in enumerate(flat):
                    communicator.broadcast(out, out, root, stream=stream)
            return self._finish("all_gather", outs, flat)

    def gather(self, output_tensors, input_tensors, opts=None):
        """The tensors of all ranks, in a list on the root."""
        (x,), outs = input_tensors, output_tensors[0] if output_tensors else []
        wanted = [[out] for out in outs] or [[] for _ in range(self._size)]
        given = [[x] if r == opts.rootRank else [] for r in range(self._size)]
        return self._exchange("gather", x, given, wanted, outs)

    def scatter(self, output_tensors, input_tensors, opts=None):
        """The tensors of the root's list, one to each rank."""
        (out,), given = output_tensors, input_tensors[0] if input_tensors else []
        wanted = [[out] if r == opts.rootRank else [] for r in range(self._size)]
        return self._exchange("scatter", out, [[x] for x in given] or [[] for _ in range(self._size)], wanted, [out])

    def alltoall(self, output_tensors, input_tensors, opts=None):
        """Tensor i of rank j, as tensor j of rank i."""
        return self._exchange("all_to_all", input_tensors[0], [[x] for x in input_tensors], [[out] for out in output_tensors],
                              output_tensors)

    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None):
        """The same for rows of one tensor: `input_split_sizes` of them to each rank."""
        out = output if output.is_contiguous() else empty(output.shape, dtype=output.dtype, device=output.device)
        cut = lambda x, sizes: [[part] for part in x.split(sizes or x.shape[0] // self._size)] if x.numel() else [[]] * self._size
        work = self._exchange("all_to_all_single", input, cut(input, input_split_sizes), cut(out, output_split_sizes), [output])
        if out is output:
            return work
        work.wait()
        with no_grad():
            output.copy_(out)
        return Queued("all_to_all_single", [output])

    def _exchange(self, name, x, given, wanted, results):
        """given[r] goes to rank r, and what it gives to this one into wanted[r]."""
        with self._on(name, [x, *(x for row in (*given, *wanted) for x in row)]) as (communicator, stream):
            outs = [[(out, moved(room(out))) for out in row] for row in wanted]
            ins = [[moved(flattened(x)) for x in row] for row in given]
            with self.core.group():
                for r in range(self._size):
                    for x in ins[r]:
                        communicator.send(x, r, stream=stream)
                    for _, flat in outs[r]:
                        communicator.recv(flat, r, stream=stream)
            every = [pair for row in outs for pair in row]
            return self._finish(name, [out for out, _ in every], [flat for _, flat in every], results)

    def barrier(self, opts=None, timeout=None):
        """Wait until all ranks have come: the host, too."""
        ids = (opts or BarrierOptions()).device_ids
        index = ids[0] if ids else current_device() if self.index is None else self.index
        one = zeros((1,), dtype=float32, device=device("cuda", index))
        with self._on("barrier", [one]) as (communicator, stream):
            communicator.allreduce(one, one, self.core.NcclRedOp.SUM, stream=stream)
            current_stream().synchronize()
            return Queued("barrier", [])

    def send(self, tensors, dst, tag=0):
        """A tensor to rank `dst`. Tags change nothing: messages come in the order in which they were sent."""
        (x,) = tensors
        with self._on("send", tensors) as (communicator, stream):
            communicator.send(moved(flattened(x)), dst, stream=stream)
            return self._finish("send", [], [], tensors)

    def recv(self, tensors, src, tag=0):
        """A tensor from rank `src`."""
        (x,) = tensors
        check(x.is_contiguous(), "recv", "a contiguous tensor", tuple(x.stride()), error=WrongTensors)
        with self._on("recv", tensors) as (communicator, stream):
            communicator.recv(moved(flattened(x)), src, stream=stream)
            x.storage.version += 1
            return self._finish("recv", [], [], tensors)

    def recv_anysource(self, tensors, tag=0):
        """NCCL has to know from whom."""
        check(False, "recv", "a rank as src with nccl", "any", error=WrongTensors)

    def _finish(self, name, outs, flat, results=None, copies=False):
        """Bring what has come into the tensors that were given, where it is not there yet."""
        for out, x in zip(outs, flat):
            if copies or not out.is_contiguous():
                out.detach().copy_((x.view(out.dtype) if x.dtype is not out.dtype else x).reshape(out.shape))
            else:
                out.storage.version += 1
        work = Queued(name, list(outs if results is None else results))
        if self._begun is not None:
            self._begun.append(work)
        return work


def flattened(x):
    """The elements of a tensor in one row, contiguous; truth values as bytes."""
    flat = x.detach().contiguous().reshape(-1)
    return flat.view(uint8) if x.dtype is truth else flat


def room(x):
    """The memory of a tensor in one row, or as much memory where it is not contiguous."""
    return flattened(x if x.is_contiguous() else empty(x.shape, dtype=x.dtype, device=x.device))


def moved(flat):
    """A row whose dtype NCCL knows: itself, or its bytes."""
    return flat if flat.dtype in NUMBERS else flat.view(uint8)
