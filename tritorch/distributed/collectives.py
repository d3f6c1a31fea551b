"""The collectives of one process: each copies what its only rank gives to where its only rank receives."""
import enum

from tritorch.autograd import no_grad
from tritorch.errors import check


class ReduceOp(enum.Enum):
    """How values of the ranks become one; all the same for one rank."""

    SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)


class ProcessGroup:
    """One process."""

    world = None                                                         # between init_process_group and destroy_process_group

    def __init__(self, backend):
        self.backend = backend

    def size(self):
        """1."""
        return 1

    def rank(self):
        """0."""
        return 0


class _World(type):
    @property
    def WORLD(cls):
        return ProcessGroup.world


class group(metaclass=_World):
    """group.WORLD is the group of all processes, None before init_process_group."""


class Work:
    """A collective of `async_op=True`: it is over."""

    def __init__(self, result=None):
        self._result = result

    def wait(self, timeout=None):
        """True, at once."""
        return True

    def is_completed(self):
        """Always True."""
        return True

    def get_future(self):
        """Itself: `.wait()` and `.value()` are what is asked of a future."""
        return self

    def value(self):
        """The tensors that were received."""
        return self._result


def is_initialized():
    """Whether init_process_group was called."""
    return ProcessGroup.world is not None


def _begun():
    check(is_initialized(), "distributed", "the default process group", "none", error=ValueError, use="init_process_group() first")


def get_rank(group=None):
    """0."""
    _begun()
    return 0


def get_world_size(group=None):
    """1."""
    _begun()
    return 1


def get_process_group_ranks(group=None):
    """[0]."""
    _begun()
    return [0]


def get_global_rank(group, group_rank):
    """0."""
    _root("get_global_rank", group_rank, None)
    return 0


def get_group_rank(group, global_rank):
    """0."""
    _root("get_group_rank", global_rank, None)
    return 0


def get_backend(group=None):
    """The name that init_process_group got."""
    _begun()
    return (group or ProcessGroup.world).backend


def new_group(ranks=None, timeout=None, backend=None, pg_options=None, use_local_synchronization=False, group_desc=None, device_id=None):
    """A group of the one process."""
    _begun()
    check(ranks is None or list(ranks) == [0], "new_group", "ranks None or [0]", ranks)
    return ProcessGroup(backend or ProcessGroup.world.backend)


def _only(name, tensors):
    """The tensor of a list that has one for every rank."""
    check(len(tensors) == 1, name, "a list of 1 tensor, one for every rank", len(tensors), error=ValueError)
    return tensors[0]


def _deliver(name, into, given, async_op):
    """Copy what the one rank gives; a Work where that was asked for."""
    _begun()
    if into is not given:
        check(into.numel() == given.numel(), name, "as many elements in the result as in the input", f"{into.shape} and {given.shape}",
              error=ValueError)
        with no_grad():
            into.copy_(given.reshape(into.shape))
    return Work([into]) if async_op else None


def _root(name, rank, group_rank):
    root = group_rank if rank is None else rank
    check(root in (None, 0), name, "rank 0, the only one", root, error=ValueError)


def barrier(group=None, async_op=False, device_ids=None):
    """Nobody to wait for."""
    _begun()
    return Work() if async_op else None


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """Nobody to wait for."""
    _begun()


def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    """`tensor` stays what it is."""
    _root("broadcast", src, group_src)
    return _deliver("broadcast", tensor, tensor, async_op)


def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    """`tensor` stays what it is."""
    return _deliver("all_reduce", tensor, tensor, async_op)


def reduce(tensor, dst=None, op=ReduceOp.SUM, group=None, async_op=False, group_dst=None):
    """`tensor` stays what it is."""
    _root("reduce", dst, group_dst)
    return _deliver("reduce", tensor, tensor, async_op)


def all_gather(tensor_list, tensor, group=None, async_op=False):
    """tensor_list[0] becomes a copy of `tensor`."""
    return _deliver("all_gather", _only("all_gather", tensor_list), tensor, async_op)


def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    """`output_tensor` becomes a copy of `input_tensor`."""
    return _deliver("all_gather_into_tensor", output_tensor, input_tensor, async_op)


def gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    """gather_list[0] becomes a copy of `tensor`."""
    _root("gather", dst, group_dst)
    return _deliver("gather", _only("gather", gather_list), tensor, async_op)


def scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
    """`tensor` becomes a copy of scatter_list[0]."""
    _root("scatter", src, group_src)
    return _deliver("scatter", tensor, _only("scatter", scatter_list), async_op)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op=False):
    """`output` becomes a copy of input_list[0]."""
    return _deliver("reduce_scatter", output, _only("reduce_scatter", input_list), async_op)


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):
    """`output` becomes a copy of `input`."""
    return _deliver("reduce_scatter_tensor", output, input, async_op)


def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    """output_tensor_list[0] becomes a copy of input_tensor_list[0]."""
    return _deliver("all_to_all", _only("all_to_all", output_tensor_list), _only("all_to_all", input_tensor_list), async_op)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    """`output` becomes a copy of `input`."""
    return _deliver("all_to_all_single", output, input, async_op)


def all_gather_object(object_list, obj, group=None):
    """object_list[0] = obj."""
    _begun()
    _only("all_gather_object", object_list)
    object_list[0] = obj


def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
    """The objects stay what they are."""
    _begun()
    _root("broadcast_object_list", src, group_src)
