"""Collectives that gradients flow through. All ranks call them, and all ranks call backward: it does collectives, too.

The gradient of what a rank received goes back to who sent it, so that the gradients are those of the sum of all ranks' losses. `op` is
SUM or AVG where a gradient is wanted.

>>> import tritorch as torch
>>> from tritorch import distributed as dist
>>> dist.init_process_group("gloo", rank=0, world_size=1)
>>> x = torch.ones(2, requires_grad=True)
>>> (3 * dist.nn.functional.all_reduce(x)).sum().backward()
>>> x.grad, torch.cat(dist.nn.functional.all_gather(x)).shape
(tensor([3., 3.]), tritorch.Size([2]))
>>> dist.destroy_process_group()
"""
from tritorch.autograd import Function
from tritorch.distributed import collectives as dist
from tritorch.distributed.options import ReduceOp
from tritorch.distributed.world import _of, get_rank, get_world_size
from tritorch.errors import check
from tritorch.ops.create import empty, empty_like, zeros_like

__all__ = ["all_gather", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"]


def _root(name, rank, group):
    """The rank in the group of a rank in the world."""
    return dist.place(name, _of(group), rank, None)


def _linear(name, op, *tensors):
    check(op in (ReduceOp.SUM, ReduceOp.AVG) or not any(t.requires_grad for t in tensors), name, "SUM or AVG where a gradient is wanted",
          op)


def _shared(g, op, group):
    """The gradient of a sum, or of an average."""
    return g / get_world_size(group) if op is ReduceOp.AVG else g


class _Broadcast(Function):
    @staticmethod
    def forward(ctx, root, group, x):
        ctx.root, ctx.group = root, group
        out = x.clone()
        dist.broadcast(out, group=group, group_src=root)
        return out

    @staticmethod
    def backward(ctx, g):
        out = _Reduce.apply(ctx.root, ReduceOp.SUM, ctx.group, g)
        return None, None, out if get_rank(ctx.group) == ctx.root else out * 0


class _Reduce(Function):
    @staticmethod
    def forward(ctx, root, op, group, x):
        ctx.root, ctx.op, ctx.group = root, op, group
        out = x.clone()
        dist.reduce(out, op=op, group=group, group_dst=root)
        return out

    @staticmethod
    def backward(ctx, g):
        return None, None, None, _shared(_Broadcast.apply(ctx.root, ctx.group, g), ctx.op, ctx.group)


class _Gather(Function):
    @staticmethod
    def forward(ctx, root, group, x):
        ctx.root, ctx.group = root, group
        outs = [zeros_like(x) for _ in range(get_world_size(group))]
        dist.gather(x.contiguous(), outs if get_rank(group) == root else None, group=group, group_dst=root)
        return tuple(outs)

    @staticmethod
    def backward(ctx, *gs):
        return None, None, _Scatter.apply(ctx.root, ctx.group, *gs)


class _Scatter(Function):
    @staticmethod
    def forward(ctx, root, group, *xs):
        ctx.root, ctx.group = root, group
        check(all(x.shape == xs[0].shape for x in xs), "scatter", "tensors of one shape", [x.shape for x in xs], error=AssertionError)
        out = empty_like(xs[0])
        dist.scatter(out, list(xs) if get_rank(group) == root else None, group=group, group_src=root)
        return out

    @staticmethod
    def backward(ctx, g):
        return None, None, *_Gather.apply(ctx.root, ctx.group, g)


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx, op, group, *xs):
        ctx.op, ctx.group = op, group
        out = empty_like(xs[get_rank(group)])
        dist.reduce_scatter(out, list(xs), op=op, group=group)
        return out

    @staticmethod
    def backward(ctx, g):
        return None, None, *(_shared(x, ctx.op, ctx.group) for x in _AllGather.apply(ctx.group, g))


class _AllGather(Function):
    @staticmethod
    def forward(ctx, group, x):
        ctx.group = group
        outs = [empty_like(x) for _ in range(get_world_size(group))]
        dist.all_gather(outs, x, group=group)
        return tuple(outs)

    @staticmethod
    def backward(ctx, *gs):
        return None, _ReduceScatter.apply(ReduceOp.SUM, ctx.group, *gs)


class _AllToAll(Function):
    @staticmethod
    def forward(ctx, group, shapes, *xs):
        ctx.group, ctx.sizes = group, [tuple(x.shape) for x in xs]
        outs = [empty(shape, dtype=xs[0].dtype, device=xs[0].device) for shape in shapes]
        dist.all_to_all(outs, list(xs), group=group)
        return tuple(outs)

    @staticmethod
    def backward(ctx, *gs):
        return None, None, *_AllToAll.apply(ctx.group, ctx.sizes, *gs)


class _AllToAllSingle(Function):
    @staticmethod
    def forward(ctx, group, shape, outs, ins, x):
        ctx.group, ctx.size_of_input, ctx.splits = group, tuple(x.shape), (ins, outs)
        out = empty(shape, dtype=x.dtype, device=x.device)
        dist.all_to_all_single(out, x.contiguous(), outs, ins, group)
        return out

    @staticmethod
    def backward(ctx, g):
        return None, None, None, None, _AllToAllSingle.apply(ctx.group, ctx.size_of_input, *ctx.splits, g)


class _AllReduce(Function):
    @staticmethod
    def forward(ctx, op, group, x):
        ctx.op, ctx.group = op, group
        out = x.clone()
        dist.all_reduce(out, op=op, group=group)
        return out

    @staticmethod
    def backward(ctx, g):
        return None, None, _AllReduce.apply(ctx.op, ctx.group, g)


def broadcast(tensor, src, group=None):
    """The tensor of rank `src`. Its gradient is the sum of those of all ranks; that of the others is 0."""
    return _Broadcast.apply(_root("broadcast", src, group), group, tensor)


def gather(tensor, dst=0, group=None):
    """A tuple of the tensors of all ranks, on rank `dst`; zeros on the others."""
    return _Gather.apply(_root("gather", dst, group), group, tensor)


def scatter(tensors, src=0, group=None):
    """The tensor of rank src's list that is this rank's. All ranks give a list of tensors of the same shapes."""
    dist.several("scatter", "tensors", tensors)
    dist.each("scatter", "tensors", tensors, _of(group))
    return _Scatter.apply(_root("scatter", src, group), group, *tensors)


def reduce(tensor, dst, op=ReduceOp.SUM, group=None):
    """The tensors of all ranks as one, on rank `dst`; the others get their own."""
    _linear("reduce", op, tensor)
    return _Reduce.apply(_root("reduce", dst, group), op, group, tensor)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None):
    """This rank's part of the lists of all ranks as one. (`output` says no more than the shape, as in PyTorch.)"""
    dist.several("reduce_scatter", "input_list", input_list)
    dist.each("reduce_scatter", "input_list", input_list, _of(group))
    _linear("reduce_scatter", op, *input_list)
    return _ReduceScatter.apply(op, group, *input_list)


def all_gather(tensor, group=None):
    """A tuple of the tensors of all ranks."""
    _of(group)
    return _AllGather.apply(group, tensor)


def all_to_all(output_tensor_list, input_tensor_list, group=None):
    """A tuple of what each rank has for this one. (Of `output_tensor_list`, the shapes matter.)"""
    for key, xs in (("output_tensor_list", output_tensor_list), ("input_tensor_list", input_tensor_list)):
        dist.several("all_to_all", key, xs)
        dist.each("all_to_all", key, xs, _of(group))
    return _AllToAll.apply(group, [tuple(x.shape) for x in output_tensor_list], *input_tensor_list)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None):
    """What all ranks have for this one, in a tensor of output's shape."""
    _of(group)
    return _AllToAllSingle.apply(group, tuple(output.shape), output_split_sizes, input_split_sizes, input)


def all_reduce(tensor, op=ReduceOp.SUM, group=None):
    """The tensors of all ranks as one, on each."""
    _of(group)
    _linear("all_reduce", op, tensor)
    return _AllReduce.apply(op, group, tensor)
