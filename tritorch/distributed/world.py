"""The world: all processes that work together, the groups among them, and who is who."""
import atexit
import contextlib
import hashlib
import os
import warnings

from tritorch.distributed import backend as backends
from tritorch.distributed.alone import ProcessGroupAlone
from tritorch.distributed.backend import Backend, BackendConfig
from tritorch.distributed.group import ProcessGroup
from tritorch.distributed.rendezvous import given, rendezvous
from tritorch.distributed.stores import HashStore, PrefixStore, Store
from tritorch.errors import check

LINGER = 2.0                                                             # seconds for the others to leave the store of this process


class _World:
    """What is known of the groups of this process."""

    def __init__(self):
        self.default, self.groups, self.count, self.local, self.store = None, [], 0, {}, None
        self.met = None                                                  # the store, if init_process_group made it


_world = _World()


class _Names(type):
    @property
    def WORLD(cls):
        """The group of all processes, None before init_process_group."""
        return _world.default

    @WORLD.setter
    def WORLD(cls, group):
        _world.default = group


class group(metaclass=_Names):
    """group.WORLD is the group of all processes, None before init_process_group."""


class GroupMember(metaclass=_Names):
    """What new_group gives to processes that are not in the group."""

    NON_GROUP_MEMBER = -100


def is_initialized():
    """Whether init_process_group was called."""
    return _world.default is not None


def _of(group, name="distributed"):
    """A group, the default one for None."""
    check(is_initialized(), name, "the default process group", "none", error=ValueError, use="init_process_group() first")
    return _world.default if group is None else group


def outside(group, name):
    """Whether this process is not in a group, which makes its call a call of nothing."""
    if _of(group, name) is GroupMember.NON_GROUP_MEMBER:
        warnings.warn(f"{name}: rank {get_rank()} does not belong to the given group; nothing is done", stacklevel=3)
        return True
    return False


def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, group_name="", pg_options=None,
                       device_id=None, _ranks=None):
    """Meet the other processes; all of them call it, and all have come when it returns.

    `backend`: "gloo" (tensors on the CPU, and on CUDA through copies), "nccl" (CUDA), "mpi", one that was registered, or which for which
    device ("cpu:gloo,cuda:nccl", what None means). Where they meet is said by `init_method`: "env://" (that is also without one: RANK,
    WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, as `python -m tritorch.distributed.run` sets them), "tcp://host:port" of
    rank 0 or "file:///path", or by a `store`. After `timeout` (a timedelta, 30 minutes), here and in every collective, who waits for a rank
    gets a DistBackendError, or a DistStoreError or DistNetworkError while meeting. A world of one process needs none of it.

    Raises ValueError when it has been called before, and for what is missing.

    >>> from tritorch import distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> dist.get_rank(), dist.get_world_size(), dist.get_backend()
    (0, 1, 'gloo')
    >>> dist.destroy_process_group()
    """
    check(not is_initialized(), "init_process_group", "to be called once", "a second call", error=ValueError,
          use="destroy_process_group() in between")
    backends.known("init_process_group", backend)
    timeout, met = given(timeout), None
    if str(backend).lower() == Backend.MPI and world_size != 1 and store is None:
        from tritorch.distributed.mpi import world

        (rank, world_size), store = world(), HashStore()
    elif store is None:
        met, rank, world_size = _met(init_method, rank, world_size, timeout)
        store = met
    else:
        check(init_method is None, "init_process_group", "init_method or store", "both", error=AssertionError)
        check(isinstance(store, Store), "init_process_group", "a Store", type(store).__name__, error=TypeError)
        check(world_size > 0 and 0 <= rank < world_size, "init_process_group", "rank and world_size with a store",
              f"rank {rank} of {world_size}", error=AssertionError)
    if world_size > 1 and not isinstance(store, HashStore):
        store = PrefixStore(f"default_pg/{store.add(f'default_pg/came/{rank}', 1)}", store)      # a store may be used again
    _world.store, _world.met, _world.count = store, met, 0
    try:
        _world.default = _made(backend, range(world_size), rank, timeout, group_name or "0", pg_options, "default_pg", device_id)
        if world_size > 1 and str(backend).lower() != Backend.MPI:
            store.barrier("made", world_size, timeout)
    except BaseException:
        _close()
        raise


def _met(init_method, rank, world_size, timeout):
    """The store, the rank and the size of the world, from a URL or the environment. One process that says no more is alone."""
    told = os.environ.get("WORLD_SIZE", "1") if world_size == -1 else str(world_size)
    if told == "1" and init_method in (None, "env://") and rank in (-1, 0):
        return HashStore(), 0, 1
    return next(rendezvous(init_method or "env://", rank, world_size, timeout=timeout))


def _made(backend, ranks, rank, timeout, name, options, description, device_id=None):
    """A ProcessGroup of these global ranks, of which this process is `rank`."""
    ranks, label = list(ranks), str(backend or Backend.UNDEFINED).lower()
    store, place, plugins = PrefixStore(name, _world.store), ranks.index(rank), [key.lower() for key in Backend._plugins]
    if len(ranks) == 1 and not any(p in label for p in plugins):
        made = ProcessGroupAlone(label)
        made._store = store
    else:
        made, plain = ProcessGroup(store, place, len(ranks)), {}
        _world.groups.append(made)                                       # to be shut down should the next backend fail
        for device, kind in BackendConfig(backend).get_device_backend_map().items():
            if kind == Backend.NCCL and not backends.driver.available() and ":" in str(backend or ":"):
                continue                                                 # cpu:gloo,cuda:nccl is for all machines
            if kind not in plain:
                plain[kind] = backends.make(kind, PrefixStore(kind, store), place, len(ranks), timeout, name, ranks, options)
            made._register_backend(device, plain[kind])
        _world.groups.remove(made)
    made._label, made._timeout, made._name, made.group_desc, made.ranks = label, timeout, name, description, ranks
    made.bound_device_id = device_id
    _world.groups.append(made)
    return made


def destroy_process_group(group=None):
    """End a group, or the world with all groups (None). What was sent still goes, then connections are closed. Every rank calls it."""
    if group is None or group is _world.default:
        check(_world.default is not None, "destroy_process_group", "a process group", "none", error=AssertionError)
        _close()
    elif group is not GroupMember.NON_GROUP_MEMBER:
        check(group in _world.groups, "destroy_process_group", "a group that is there", "one that was destroyed", error=ValueError)
        _world.groups.remove(group)
        group.shutdown()


def _close(abort=False):
    groups, met = _world.groups, _world.met
    _world.__init__()
    for one in reversed(groups):
        one.abort() if abort else one.shutdown()
    if hasattr(met, "_close"):
        met._close(LINGER)                                               # others may still wait for an answer of it


@atexit.register
def _end():
    with contextlib.suppress(Exception):
        _close(abort=True)


def _leave():
    """A forked process is not one of the world: what is open belongs to its parent (stores and engines close their copies)."""
    _world.__init__()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)


# ------------------------------------------------------------------ groups
def new_group(ranks=None, timeout=None, backend=None, pg_options=None, use_local_synchronization=False, group_desc=None, device_id=None,
              sort_ranks=True):
    """A group of some ranks (None: all), which the others are not in: they get GroupMember.NON_GROUP_MEMBER.

    All processes of the world call it, in the same order, members or not; with `use_local_synchronization` members alone. Rank i of the
    group is the i-th of `ranks`, which are sorted unless `sort_ranks=False`. ValueError for ranks that are not in the world.

    >>> from tritorch import distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> dist.get_process_group_ranks(dist.new_group([0]))
    [0]
    >>> dist.destroy_process_group()
    """
    world = _of(None, "new_group")
    ranks = list(range(world.size())) if ranks is None else sorted(ranks) if sort_ranks else list(ranks)
    check(len(ranks) <= world.size(), "new_group", f"at most {world.size()} ranks", len(ranks), error=ValueError)
    check(len(set(ranks)) == len(ranks), "new_group", "each rank once", ranks, error=ValueError)
    check(all(0 <= r < world.size() for r in ranks), "new_group", f"ranks from 0 to {world.size() - 1}", ranks, error=ValueError)
    backends.known("new_group", backend)
    if use_local_synchronization:
        digest = hashlib.sha1("_".join(map(str, ranks)).encode()).hexdigest()
        uses = _world.local[digest] = _world.local.get(digest, 0) + 1
        name = f"{digest}_{uses}"
    else:
        _world.count += 1
        name = str(_world.count)
    if world.rank() not in ranks:
        return GroupMember.NON_GROUP_MEMBER
    timeout = world._timeout if timeout is None else given(timeout)
    backend = backend or (None if world._label == Backend.UNDEFINED else world._label)
    return _made(backend, ranks, world.rank(), timeout, name, pg_options, group_desc or "undefined", device_id)


def new_subgroups(group_size=None, group=None, timeout=None, backend=None, pg_options=None, group_desc=None):
    """Groups of `group_size` consecutive ranks (None: of as many as there are GPUs on this host) that cover the world.
    Returns (this process's, all)."""
    parent = _of(group, "new_subgroups")
    if group_size is None:
        check(backends.driver.available(), "new_subgroups", "a group_size where there is no GPU", "None", error=ValueError)
        group_size = backends.driver.current().device_count()
    check(group_size > 0, "new_subgroups", "group_size > 0", group_size, error=ValueError)
    check(parent.size() >= group_size and parent.size() % group_size == 0, "new_subgroups", f"a group_size that divides {parent.size()}",
          group_size, error=ValueError)
    rows = [parent.ranks[start:start + group_size] for start in range(0, parent.size(), group_size)]
    return new_subgroups_by_enumeration(rows, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(ranks_per_subgroup_list, timeout=None, backend=None, pg_options=None, group_desc=None):
    """Groups of the ranks in each of these lists, which have none in common. Returns (this process's or None, all)."""
    check(bool(ranks_per_subgroup_list), "new_subgroups_by_enumeration", "lists of ranks", ranks_per_subgroup_list, error=ValueError)
    every = [r for ranks in ranks_per_subgroup_list for r in ranks]
    check(len(set(every)) == len(every), "new_subgroups_by_enumeration", "each rank in one list", ranks_per_subgroup_list, error=ValueError)
    made = [new_group(ranks, timeout, backend, pg_options, group_desc=group_desc) for ranks in ranks_per_subgroup_list]
    mine = [g for g, ranks in zip(made, ranks_per_subgroup_list) if get_rank() in ranks]
    return mine[0] if mine else None, made


def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, backend=None):
    """The part of a group that this process is in, None for a process in no part. `split_ranks` are lists of ranks of that group, in which
    each is at most once; all processes of that group call it."""
    parent = _of(parent_pg, "split_group")
    check(bool(split_ranks), "split_group", "lists of ranks", split_ranks, error=ValueError)
    every = [r for ranks in split_ranks for r in ranks]
    check(len(set(every)) == len(every), "split_group", "each rank in one list at most", split_ranks, error=ValueError)
    check(all(0 <= r < parent.size() for r in every), "split_group", f"ranks from 0 to {parent.size() - 1}", split_ranks, error=ValueError)
    mine = None
    for ranks in split_ranks:
        if parent.rank() in ranks:
            mine = new_group([parent.ranks[r] for r in sorted(ranks)], timeout or parent._timeout, backend, pg_options,
                             use_local_synchronization=True, group_desc=group_desc)
    return mine


# ------------------------------------------------------------------ who is who
def get_rank(group=None):
    """This process's rank in a group (None: the world), -1 if it is not in it."""
    found = _of(group)
    return -1 if found is GroupMember.NON_GROUP_MEMBER else found.rank()


def get_world_size(group=None):
    """How many processes a group has, -1 if this process is not in it."""
    found = _of(group)
    return -1 if found is GroupMember.NON_GROUP_MEMBER else found.size()


def _inside(name, group):
    """A group that has this process. ValueError for another."""
    found = _of(group, name)
    check(found is not GroupMember.NON_GROUP_MEMBER, name, "a group that this process is in", "another", error=ValueError)
    return found


def get_process_group_ranks(group=None):
    """The global ranks of a group, in the order of their ranks in it."""
    return list(_inside("get_process_group_ranks", group).ranks)


def get_global_rank(group, group_rank):
    """The rank in the world of a rank in a group."""
    found = _inside("get_global_rank", group)
    check(0 <= group_rank < found.size(), "get_global_rank", f"a rank from 0 to {found.size() - 1}", group_rank, error=ValueError)
    return found.ranks[group_rank]


def get_group_rank(group, global_rank):
    """The rank in a group of a rank in the world."""
    found = _inside("get_group_rank", group)
    check(global_rank in found.ranks, "get_group_rank", f"a rank of the group: one of {found.ranks}", global_rank, error=ValueError)
    return found.ranks.index(global_rank)


def get_node_local_rank(fallback_rank=None):
    """This process's place among those of its host, from LOCAL_RANK in the environment."""
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    check(fallback_rank is not None, "get_node_local_rank", "LOCAL_RANK in the environment", "none",
          use="python -m tritorch.distributed.run, or fallback_rank")
    return int(fallback_rank)


def get_backend(group=None):
    """The name of the backend that init_process_group or new_group got."""
    found = _inside("get_backend", group)
    return found._label or found.name()


def get_backend_config(group=None):
    """Which backend serves which device, like "cpu:gloo,cuda:nccl"."""
    found = get_backend(group)
    return repr(BackendConfig(None if found == Backend.UNDEFINED else found))


def get_pg_count():
    """How many groups there are."""
    return len(_world.groups)


def is_torchelastic_launched():
    """Whether torchrun, or tritorch.distributed.run, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_available():
    """Always True."""
    return True
