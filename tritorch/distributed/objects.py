"""Collectives of Python objects, which travel pickled: unpickling runs code, so all ranks of the group have to be trusted."""
import pickle

import numpy as np

from tritorch.device import cpu, device
from tritorch.distributed.collectives import all_gather, broadcast, gather, place, scatter
from tritorch.distributed.messages import recv, send
from tritorch.distributed.world import _of, outside
from tritorch.errors import check
from tritorch.ops.create import zeros
from tritorch.tensor import from_array


def _device(group):
    """Where the backend of a group has its tensors."""
    kinds = group._backends
    return device("cuda") if kinds and "cpu" not in kinds else cpu


def _bytes(obj, where):
    data = pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    made = from_array(np.frombuffer(data, np.uint8).copy())
    return made.to(where), _number(len(data), where)


def _number(n, where):
    return from_array(np.array([n], np.int64)).to(where)


def _object(data, size):
    return pickle.loads(data.cpu().array.tobytes()[:int(size.item())])


def _empty(n, where):
    return zeros((n,), dtype=_UINT8, device=where)


_UINT8 = from_array(np.zeros(1, np.uint8)).dtype


def all_gather_object(object_list, obj, group=None):
    """object_list[r] = obj of rank r, on all ranks. (Pickle: trust the others.)

    >>> from tritorch import distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> found = [None]
    >>> dist.all_gather_object(found, {"loss": 0.5})
    >>> found
    [{'loss': 0.5}]
    >>> dist.destroy_process_group()
    """
    if outside(group, "all_gather_object"):
        return
    found = _of(group)
    check(len(object_list) >= found.size(), "all_gather_object", f"a list with places for {found.size()} objects", len(object_list),
          error=ValueError)
    where = _device(found)
    data, size = _bytes(obj, where)
    sizes = [_number(0, where) for _ in range(found.size())]
    all_gather(sizes, size, group)
    outs = [_empty(int(n.item()), where) for n in sizes]
    all_gather(outs, data, group)
    for i, (out, n) in enumerate(zip(outs, sizes)):
        object_list[i] = _object(out, n)


def gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None):
    """object_gather_list[r] = obj of rank r, on rank `dst` (0 unless said). (Pickle: trust the others.)"""
    if outside(group, "gather_object"):
        return
    found = _of(group)
    root, where = place("gather_object", found, dst, group_dst, default=0), _device(found)
    if found.rank() == root:
        check(bool(object_gather_list) and len(object_gather_list) >= found.size(), "gather_object",
              f"a list with places for {found.size()} objects on rank {found.ranks[root]}", object_gather_list, error=ValueError)
    else:
        check(not object_gather_list, "gather_object", f"no list on other ranks than {found.ranks[root]}", "one", error=ValueError)
    data, size = _bytes(obj, where)
    sizes = [_number(0, where) for _ in range(found.size())]
    all_gather(sizes, size, group)
    longest = max(int(n.item()) for n in sizes)
    whole = _empty(longest, where)
    whole[:len(data)] = data
    outs = [_empty(longest, where) for _ in sizes] if found.rank() == root else None
    gather(whole, outs, group=group, group_dst=root)
    for i, (out, n) in enumerate(zip(outs or (), sizes)):
        object_gather_list[i] = _object(out, n)


def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
    """object_list = that of rank `src` (0 unless said), on all ranks; it has the same length on each. (Pickle: trust rank `src`.)"""
    if outside(group, "broadcast_object_list"):
        return
    found = _of(group)
    root, where, sends = place("broadcast_object_list", found, src, group_src, default=0), device or _device(found), None
    check(isinstance(object_list, list), "broadcast_object_list", "a list", type(object_list).__name__, error=TypeError)
    sends = found.rank() == root
    data, size = _bytes(list(object_list), where) if sends else (None, _number(0, where))
    broadcast(size, group=group, group_src=root)
    data = data if sends else _empty(int(size.item()), where)
    broadcast(data, group=group, group_src=root)
    if not sends:
        _fill("broadcast_object_list", object_list, _object(data, size))


def _fill(name, places, objects):
    check(len(places) == len(objects), name, "lists of one length on all ranks", f"{len(places)} here and {len(objects)} there")
    places[:] = objects


def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None):
    """scatter_object_output_list[0] = object r of the list of rank `src` (0 unless said), on rank r. (Pickle: trust rank `src`.)"""
    if outside(group, "scatter_object_list"):
        return
    found = _of(group)
    root, where = place("scatter_object_list", found, src, group_src, default=0), _device(found)
    check(isinstance(scatter_object_output_list, list) and len(scatter_object_output_list) > 0, "scatter_object_list",
          "a list with a place for an object", scatter_object_output_list, error=ValueError)
    packed, longest = None, _number(0, where)
    if found.rank() == root:
        given = scatter_object_input_list
        check(isinstance(given, list) and len(given) == found.size(), "scatter_object_list", f"a list of {found.size()} objects",
              len(given) if isinstance(given, list) else given, error=ValueError)
        packed = [_bytes(obj, where) for obj in given]
        longest = _number(max(len(data) for data, _ in packed), where)
    broadcast(longest, group=group, group_src=root)
    out, size, rows = _empty(int(longest.item()), where), _number(0, where), None
    if packed:
        rows = [_empty(len(out), where) for _ in packed]
        for row, (data, _) in zip(rows, packed):
            row[:len(data)] = data
    scatter(out, rows, group=group, group_src=root)
    scatter(size, [n for _, n in packed] if packed else None, group=group, group_src=root)
    scatter_object_output_list[0] = _object(out, size)


def send_object_list(object_list, dst=None, group=None, device=None, group_dst=None, use_batch=False):
    """Send the objects of a list to rank `dst`, whose `recv_object_list` takes as many."""
    if outside(group, "send_object_list"):
        return
    check(isinstance(object_list, list), "send_object_list", "a list", type(object_list).__name__, error=TypeError)
    data, size = _bytes(list(object_list), device or _device(_of(group)))
    send(size, dst, group, group_dst=group_dst)
    send(data, dst, group, group_dst=group_dst)


def recv_object_list(object_list, src=None, group=None, device=None, group_src=None, use_batch=False):
    """Fill a list with objects that rank `src` (any) sends. Returns that rank. (Pickle: trust it.)"""
    if outside(group, "recv_object_list"):
        return -1
    where = device or _device(_of(group))
    size = _number(0, where)
    came = recv(size, src, group, group_src=group_src)
    data = _empty(int(size.item()), where)
    recv(data, came, group)
    _fill("recv_object_list", object_list, _object(data, size))
    return came
