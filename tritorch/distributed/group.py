"""ProcessGroup: processes that do collectives together, and the backends that do them, by the device of the tensors."""
import contextlib
import copy

from tritorch.distributed.failures import default_pg_timeout, seconds
from tritorch.distributed.options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from tritorch.errors import check
from tritorch.tensor import Tensor


class ProcessGroup:
    """A group of processes: `rank()` is this one's place in it, of `size()`.

    Its methods are those of PyTorch's: they take lists of tensors and options, and return a Work. A backend of one's own is a subclass
    that has some of them, which `Backend.register_backend` makes known.
    """

    def __init__(self, *args):
        """ProcessGroup(rank, size) or ProcessGroup(store, rank, size)."""
        self._store, self._rank, self._size = (None, *args) if len(args) == 2 else args
        self._backends, self._name, self.group_desc, self.ranks = {}, "", "undefined", list(range(self._size))
        self._label, self._timeout = None, default_pg_timeout
        self.bound_device_id = None

    def rank(self):
        """The place of this process in the group."""
        return self._rank

    def size(self):
        """How many processes the group has."""
        return self._size

    def name(self):
        """The name of the backend."""
        return self._label or type(self).__name__

    @property
    def group_name(self):
        """A name that is the same on all ranks."""
        return self._name

    def get_group_store(self):
        """The part of the store that belongs to this group."""
        return self._store

    def set_timeout(self, timeout):
        """How long collectives may take from now on (a timedelta)."""
        seconds("set_timeout", timeout)
        self._timeout = timeout
        for backend in self._backends.values():
            backend._timeout = timeout

    def patience(self, options):
        """Seconds that a call with these options may take."""
        return seconds("timeout", options.timeout, self._timeout.total_seconds())

    def shutdown(self):
        """End the backends: connections are closed."""
        for backend in {id(b): b for b in self._backends.values()}.values():
            backend.shutdown()

    def abort(self):
        """End the backends without waiting for the other ranks."""
        for backend in {id(b): b for b in self._backends.values()}.values():
            backend.abort()

    # -------------------------------------------------------------- backends
    def _register_backend(self, device, backend):
        self._backends[getattr(device, "type", device)] = backend

    def _get_backend(self, device):
        kind = getattr(device, "type", device)
        check(kind in self._backends, type(self).__name__, f"a backend for tensors on {kind}",
              ", ".join(f"{k}:{b.name()}" for k, b in self._backends.items()) or "none")
        return self._backends[kind]

    def _do(self, call, tensors, *args):
        """Have the backend for these tensors do it."""
        check(bool(self._backends), type(self).__name__, f"a backend that has {call}", self.name())
        first = next((t for t in tensors if isinstance(t, Tensor)), None)
        backend = self._get_backend(first.device) if first is not None else next(iter(self._backends.values()))
        return getattr(backend, call)(*args)

    # -------------------------------------------------------------- collectives
    def allreduce(self, tensors, opts=None, timeout=None):
        """Each tensor becomes those of all ranks as one."""
        tensors = _listed(tensors)
        return self._do("allreduce", tensors, tensors, _options(AllreduceOptions, opts, timeout))

    def allreduce_coalesced(self, tensors, opts=None):
        """Each of several tensors becomes those of all ranks as one, all at once."""
        return self._do("allreduce_coalesced", tensors, tensors, _options(AllreduceCoalescedOptions, opts))

    def broadcast(self, tensors, opts=None, timeout=None):
        """The tensor of rank `opts.rootRank` (or `opts`) comes to all."""
        tensors = _listed(tensors)
        return self._do("broadcast", tensors, tensors, _options(BroadcastOptions, opts, timeout))

    def reduce(self, tensors, opts=None):
        """The root's tensor becomes those of all ranks as one."""
        tensors = _listed(tensors)
        return self._do("reduce", tensors, tensors, _options(ReduceOptions, opts))

    def allgather(self, output_tensors, input_tensors, opts=None, timeout=None):
        """The tensors of all ranks, in a list on each."""
        inputs = _listed(input_tensors)
        outputs = [output_tensors] if output_tensors and isinstance(output_tensors[0], Tensor) else output_tensors
        return self._do("allgather", inputs, outputs, inputs, _options(AllgatherOptions, opts, timeout))

    def _allgather_base(self, output_tensor, input_tensor, opts=None):
        return self._do("_allgather_base", [input_tensor], output_tensor, input_tensor, _options(AllgatherOptions, opts))

    def gather(self, output_tensors, input_tensors, opts=None):
        """The tensors of all ranks, in a list on the root."""
        return self._do("gather", input_tensors, output_tensors, input_tensors, _options(GatherOptions, opts))

    def scatter(self, output_tensors, input_tensors, opts=None):
        """The tensors of a list on the root, one to each rank."""
        return self._do("scatter", output_tensors, output_tensors, input_tensors, _options(ScatterOptions, opts))

    def reduce_scatter(self, output_tensors, input_tensors, opts=None):
        """The lists of all ranks as one, of which each rank gets its part."""
        return self._do("reduce_scatter", output_tensors, output_tensors, input_tensors, _options(ReduceScatterOptions, opts))

    def _reduce_scatter_base(self, output, input, opts=None):
        return self._do("_reduce_scatter_base", [output], output, input, _options(ReduceScatterOptions, opts))

    def alltoall(self, output_tensors, input_tensors, opts=None):
        """Tensor i of rank j comes to rank i, as tensor j."""
        return self._do("alltoall", input_tensors, output_tensors, input_tensors, _options(AllToAllOptions, opts))

    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None):
        """The same for the parts of one tensor."""
        return self._do("alltoall_base", [output], output, input, output_split_sizes, input_split_sizes, _options(AllToAllOptions, opts))

    def barrier(self, opts=None, timeout=None):
        """Wait until all ranks have come."""
        return self._do("barrier", [], _options(BarrierOptions, opts, timeout))

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier that names who has not come. Only gloo has it."""
        check(bool(self._backends), "monitored_barrier", "a group of gloo", self.name())
        return self._get_backend("cpu").monitored_barrier(timeout, wait_all_ranks)

    def send(self, tensors, dst, tag=0):
        """A tensor to rank `dst` of the group."""
        return self._do("send", tensors, tensors, dst, tag)

    def recv(self, tensors, src, tag=0):
        """A tensor from rank `src` of the group."""
        return self._do("recv", tensors, tensors, src, tag)

    def recv_anysource(self, tensors, tag=0):
        """A tensor from whichever rank sends one."""
        return self._do("recv_anysource", tensors, tensors, tag)

    @contextlib.contextmanager
    def together(self):
        """A context in which messages may be begun in any order: backends that need to know of all of them beforehand collect them."""
        with contextlib.ExitStack() as stack:
            for backend in {id(b): b for b in self._backends.values()}.values():
                stack.enter_context(backend.together())
            yield

    def __repr__(self):
        return f"{type(self).__name__}({self.name()}, rank {self._rank} of {self._size})"

    def __deepcopy__(self, memo):                                        # a module that has a group is copied, connections are not
        return self

    def __copy__(self):
        return self

    def __reduce__(self):
        check(False, "pickle", "something that is not bound to this process", "a ProcessGroup", error=TypeError)


def _listed(tensors):
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _options(kind, given, timeout=None):
    """Options: as they are, or from the one value that matters (a ReduceOp, a root)."""
    if isinstance(given, ReduceOp):
        given = kind(reduceOp=given)
    elif type(given) is int:
        given = kind(rootRank=given)
    elif given is None:
        given = kind()
    if timeout is not None:
        given = copy.copy(given)
        given.timeout = timeout
    return given
