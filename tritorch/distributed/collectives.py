"""The collectives: what all ranks of a group do together with their tensors.

All ranks call the same function with tensors of the same shapes and dtypes, in the same order. Each waits until the tensors can be used,
or, with `async_op=True`, returns a `Work` whose `wait()` does. `group` is None for all processes; ranks in arguments are those of the world
(`src`, `dst`) or of the group (`group_src`, `group_dst`). A rank that is not in the group warns and does nothing. A rank that is gone,
late, or has called something else ends the group: DistBackendError, here and in every later call. Values are added in an order that does
not change from run to run, and all ranks get the same bits.
"""
from tritorch.distributed.failures import WrongTensors, seconds
from tritorch.distributed.options import (
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
from tritorch.distributed.world import _of, get_group_rank, get_rank, outside
from tritorch.errors import check
from tritorch.tensor import Tensor


def one(name, key, x):
    """TypeError unless an argument is a tensor."""
    check(isinstance(x, Tensor), name, f"a tensor as {key}", type(x).__name__, error=TypeError)


def several(name, key, xs):
    """TypeError unless an argument is a list of tensors, ValueError if their dtypes differ."""
    check(isinstance(xs, (list, tuple)) and all(isinstance(x, Tensor) for x in xs), name, f"a list of tensors as {key}",
          type(xs).__name__, error=TypeError)


def same_dtypes(name, *xs):
    """ValueError if the dtypes of tensors differ."""
    found = {x.dtype for x in xs}
    check(len(found) < 2, name, "one dtype", ", ".join(map(repr, found)), error=ValueError)


def each(name, key, xs, group):
    """WrongTensors unless there is one for each rank."""
    size = group.size()
    check(len(xs) == size, name, f"a list of {size} tensor{'s' * (size != 1)} as {key}, one for every rank", len(xs), error=WrongTensors)


def place(name, group, rank, group_rank, default=None):
    """The rank in the group that an argument means. ValueError unless there is one of the two, WrongTensors for none of the group's."""
    if rank is None and group_rank is None:
        group_rank = default
    check((rank is None) != (group_rank is None), name, "a rank of the world or one of the group", "both" if rank is not None else "none",
          error=ValueError)
    ranks = group.ranks
    check(rank in ranks if rank is not None else 0 <= group_rank < len(ranks), name,
          f"a rank of the group: {'rank 0, the only one' if len(ranks) == 1 else f'one of {ranks}'}",
          rank if rank is not None else group_rank, error=WrongTensors)
    return group_rank if rank is None else get_group_rank(group, rank)


def _operation(name, op, x):
    """A ReduceOp that a tensor can have. RuntimeError for bits of floating numbers."""
    check(isinstance(op, ReduceOp), name, "a ReduceOp", repr(op), error=TypeError)
    check(op not in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) or not x.dtype.is_floating_point, name, "whole numbers for an op on bits",
          x.dtype)
    return op


def _done(work, async_op):
    """The Work, or None when it is done."""
    if async_op:
        return work
    if work is not None:
        work.wait()
    return None


def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    """tensor = op over all ranks of tensor, on each of them.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> x = torch.tensor([1.0, 2.0])
    >>> work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
    >>> work.wait(), x
    (True, tensor([1., 2.]))
    >>> dist.destroy_process_group()
    """
    if outside(group, "all_reduce"):
        return None
    one("all_reduce", "tensor", tensor)
    return _done(_of(group).allreduce([tensor], AllreduceOptions(reduceOp=_operation("all_reduce", op, tensor))), async_op)


def all_reduce_coalesced(tensors, op=ReduceOp.SUM, group=None, async_op=False):
    """all_reduce of several tensors of one dtype and device, in one call."""
    if outside(group, "all_reduce_coalesced"):
        return None
    tensors = [tensors] if isinstance(tensors, Tensor) else tensors
    several("all_reduce_coalesced", "tensors", tensors)
    same_dtypes("all_reduce_coalesced", *tensors)
    if not tensors:
        return None
    options = AllreduceCoalescedOptions(reduceOp=_operation("all_reduce_coalesced", op, tensors[0]))
    return _done(_of(group).allreduce_coalesced(list(tensors), options), async_op)


def reduce(tensor, dst=None, op=ReduceOp.SUM, group=None, async_op=False, group_dst=None):
    """tensor = op over all ranks of tensor, on rank `dst`; the others keep theirs."""
    if outside(group, "reduce"):
        return None
    one("reduce", "tensor", tensor)
    root = place("reduce", _of(group), dst, group_dst)
    return _done(_of(group).reduce([tensor], ReduceOptions(reduceOp=_operation("reduce", op, tensor), rootRank=root)), async_op)


def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    """tensor = that of rank `src`, on all ranks."""
    if outside(group, "broadcast"):
        return None
    one("broadcast", "tensor", tensor)
    root = place("broadcast", _of(group), src, group_src)
    return _done(_of(group).broadcast([tensor], BroadcastOptions(rootRank=root)), async_op)


def all_gather(tensor_list, tensor, group=None, async_op=False):
    """tensor_list[r] = tensor of rank r, on all ranks. Sizes may differ from rank to rank."""
    if outside(group, "all_gather"):
        return None
    several("all_gather", "tensor_list", tensor_list)
    one("all_gather", "tensor", tensor)
    same_dtypes("all_gather", tensor, *tensor_list)
    each("all_gather", "tensor_list", tensor_list, _of(group))
    same_size("all_gather", tensor_list[get_rank(group)], tensor)
    return _done(_of(group).allgather([list(tensor_list)], [tensor]), async_op)


def all_gather_coalesced(output_tensor_lists, input_tensor_list, group=None, async_op=False):
    """all_gather of several tensors: output_tensor_lists[r][i] = input_tensor_list[i] of rank r."""
    if outside(group, "all_gather_coalesced"):
        return None
    several("all_gather_coalesced", "input_tensor_list", input_tensor_list)
    for row in output_tensor_lists:
        several("all_gather_coalesced", "output_tensor_lists", row)
    each("all_gather_coalesced", "output_tensor_lists", output_tensor_lists, _of(group))
    work = None
    for i, x in enumerate(input_tensor_list):                            # done in order: the last one is done when all are
        work = all_gather([row[i] for row in output_tensor_lists], x, group, async_op=True)
    return _done(work, async_op)


def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    """output_tensor = input_tensor of all ranks, one after the other (along dim 0, or along a new first dim)."""
    if outside(group, "all_gather_into_tensor"):
        return None
    one("all_gather_into_tensor", "output_tensor", output_tensor)
    one("all_gather_into_tensor", "input_tensor", input_tensor)
    same_dtypes("all_gather_into_tensor", output_tensor, input_tensor)
    same_size("all_gather_into_tensor", output_tensor, input_tensor, _of(group).size())
    return _done(_of(group)._allgather_base(output_tensor, input_tensor), async_op)


def same_size(name, out, x, times=1):
    """WrongTensors unless a tensor has the elements of another, so many times."""
    check(out.numel() == x.numel() * times, name, "as many elements in the result as in the input",
          f"{tuple(out.shape)} and {f'{times} times ' if times != 1 else ''}{tuple(x.shape)}", error=WrongTensors)


def gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    """gather_list[r] = tensor of rank r, on rank `dst` (0 unless said); the others give no list."""
    if outside(group, "gather"):
        return None
    one("gather", "tensor", tensor)
    found, root = _of(group), place("gather", _of(group), dst, group_dst, default=0)
    _list_of_root("gather", "gather_list", gather_list, found, root)
    for out in gather_list or ():
        same_dtypes("gather", out, tensor)
        same_size("gather", out, tensor)
    return _done(found.gather([list(gather_list)] if gather_list else [], [tensor], GatherOptions(rootRank=root)), async_op)


def scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
    """tensor = scatter_list[r] of rank `src` (0 unless said), on rank r; the others give no list."""
    if outside(group, "scatter"):
        return None
    one("scatter", "tensor", tensor)
    found, root = _of(group), place("scatter", _of(group), src, group_src, default=0)
    _list_of_root("scatter", "scatter_list", scatter_list, found, root)
    for x in scatter_list or ():
        same_dtypes("scatter", x, tensor)
        same_size("scatter", tensor, x)
    return _done(found.scatter([tensor], [list(scatter_list)] if scatter_list else [], ScatterOptions(rootRank=root)), async_op)


def _list_of_root(name, key, tensors, group, root):
    if group.rank() == root:
        check(bool(tensors), name, f"a {key} on rank {group.ranks[root]}", "none", error=ValueError)
        several(name, key, tensors)
        each(name, key, tensors, group)
    else:
        check(not tensors, name, f"no {key} on other ranks than {group.ranks[root]}", "one", error=ValueError)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op=False):
    """output = op over all ranks of input_list[r], on rank r."""
    if outside(group, "reduce_scatter"):
        return None
    one("reduce_scatter", "output", output)
    several("reduce_scatter", "input_list", input_list)
    same_dtypes("reduce_scatter", output, *input_list)
    each("reduce_scatter", "input_list", input_list, _of(group))
    same_size("reduce_scatter", output, input_list[get_rank(group)])
    options = ReduceScatterOptions(reduceOp=_operation("reduce_scatter", op, output))
    return _done(_of(group).reduce_scatter([output], [list(input_list)], options), async_op)


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):
    """output = op over all ranks of the r-th part of input (along dim 0), on rank r."""
    if outside(group, "reduce_scatter_tensor"):
        return None
    one("reduce_scatter_tensor", "output", output)
    one("reduce_scatter_tensor", "input", input)
    same_dtypes("reduce_scatter_tensor", output, input)
    same_size("reduce_scatter_tensor", input, output, _of(group).size())
    options = ReduceScatterOptions(reduceOp=_operation("reduce_scatter_tensor", op, input))
    return _done(_of(group)._reduce_scatter_base(output, input, options), async_op)


def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    """output_tensor_list[j] of rank i = input_tensor_list[i] of rank j."""
    if outside(group, "all_to_all"):
        return None
    for key, xs in (("output_tensor_list", output_tensor_list), ("input_tensor_list", input_tensor_list)):
        several("all_to_all", key, xs)
        each("all_to_all", key, xs, _of(group))
    same_dtypes("all_to_all", *output_tensor_list, *input_tensor_list)
    rank = get_rank(group)
    same_size("all_to_all", output_tensor_list[rank], input_tensor_list[rank])
    return _done(_of(group).alltoall(list(output_tensor_list), list(input_tensor_list), AllToAllOptions()), async_op)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    """Rows of `input`, the same number for each rank or input_split_sizes[r] of them for rank r, become rows of `output` there, in the
    order of the ranks that they come from; output_split_sizes[r] of them come from rank r."""
    if outside(group, "all_to_all_single"):
        return None
    one("all_to_all_single", "output", output)
    one("all_to_all_single", "input", input)
    same_dtypes("all_to_all_single", output, input)
    counts = []
    for key, x, sizes in (("output", output, output_split_sizes), ("input", input, input_split_sizes)):
        counts.append(_rows(key, x, sizes, _of(group).size()))
    rank = get_rank(group)
    check(counts[0][rank] == counts[1][rank], "all_to_all_single", "as many elements in the result as in the input for oneself",
          f"{counts[0][rank]} and {counts[1][rank]}", error=WrongTensors)
    options = AllToAllOptions()
    return _done(_of(group).alltoall_base(output, input, list(output_split_sizes or []), list(input_split_sizes or []), options), async_op)


def _rows(key, x, sizes, size):
    rows = x.shape[0] if x.ndim else 0
    if not sizes:
        check(x.ndim > 0 and rows % size == 0, "all_to_all_single", f"{key} rows for {size} ranks, the same number each", tuple(x.shape),
              error=WrongTensors)
        return [x.numel() // size] * size
    check(len(sizes) == size and sum(sizes) == rows and min(sizes) >= 0, "all_to_all_single", f"{size} sizes whose sum is {rows}",
          list(sizes), error=WrongTensors)
    return [n * (x.numel() // rows if rows else 0) for n in sizes]


def barrier(group=None, async_op=False, device_ids=None, timeout=None):
    """Wait until all ranks of the group have called it."""
    if outside(group, "barrier"):
        return None
    check(device_ids is None or isinstance(device_ids, list), "barrier", "a list as device_ids", type(device_ids).__name__, error=TypeError)
    return _done(_of(group).barrier(BarrierOptions(timeout=timeout, device_ids=device_ids or [])), async_op)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """Wait until all ranks have called it, `timeout` (a timedelta) at most; rank 0 names the first that does not come, or all of them with
    `wait_all_ranks`. Raises DistBackendError."""
    if outside(group, "monitored_barrier"):
        return
    check(seconds("monitored_barrier", timeout, 1.0) > 0, "monitored_barrier", "a timeout > 0", timeout, error=ValueError)
    _of(group).monitored_barrier(timeout, wait_all_ranks)


all_gather_single, reduce_scatter_single = all_gather_into_tensor, reduce_scatter_tensor
_all_gather_base, _reduce_scatter_base = all_gather_into_tensor, reduce_scatter_tensor
