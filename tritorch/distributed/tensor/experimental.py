"""Names of torch.distributed.tensor.experimental."""
import contextlib
import functools

from tritorch.distributed.tensor.dtensor import DTensor
from tritorch.distributed.tensor.mixing import allowed
from tritorch.distributed.tensor.placement_types import Placement
from tritorch.distributed.tensor.spec import checked
from tritorch.errors import check
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["implicit_replication", "local_map"]


@contextlib.contextmanager
def implicit_replication():
    """Inside, ordinary tensors among DTensors are taken to be the same on all processes.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.tensor import Shard, experimental, ones
    >>> mesh = dist.init_device_mesh("cpu", (1,))
    >>> with experimental.implicit_replication():
    ...     y = ones(2, device_mesh=mesh, placements=[Shard(0)]) + torch.tensor([1.0, 2.0])
    >>> y.to_local()
    tensor([2., 3.])
    >>> dist.destroy_process_group()
    """
    allowed.append(True)
    try:
        yield
    finally:
        allowed.pop()


def local_map(func=None, out_placements=None, in_placements=None, in_grad_placements=None, device_mesh=None, *, redistribute_inputs=False):
    """A function of DTensors from one of ordinary tensors: `func` gets this process's part of each argument, and its results become
    DTensors placed as `out_placements` says: the placements of one result, or a tuple of them for several, None for what is no tensor.

    `in_placements` are those that the arguments, in the order in which they are given, must have (None: any), or get with
    `redistribute_inputs`; ValueError otherwise. `in_grad_placements` say how their gradients are placed. Without a DTensor among the
    arguments it is `func` itself.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.tensor import Shard, experimental, ones
    >>> mesh = dist.init_device_mesh("cpu", (1,))
    >>> @experimental.local_map(out_placements=[Shard(0)])
    ... def halves(x):
    ...     return x / 2
    >>> halves(ones(2, device_mesh=mesh, placements=[Shard(0)])).full_tensor()
    tensor([0.5000, 0.5000])
    >>> dist.destroy_process_group()
    """
    if func is None:
        return functools.partial(local_map, out_placements=out_placements, in_placements=in_placements, device_mesh=device_mesh,
                                 in_grad_placements=in_grad_placements, redistribute_inputs=redistribute_inputs)

    @functools.wraps(func)
    def mapped(*args, **kwargs):
        flat, form = tree_flatten((args, kwargs))
        meshes = [x.device_mesh for x in flat if isinstance(x, DTensor)]
        if not meshes:
            return func(*args, **kwargs)
        mesh = meshes[0] if device_mesh is None else device_mesh
        wanted, gradients = [given or [None] * len(flat) for given in (in_placements, in_grad_placements)]
        for what, given in ("in_placements", wanted), ("in_grad_placements", gradients):
            check(len(given) == len(flat), "local_map", f"{len(flat)} {what}, one for each argument", len(given), error=AssertionError)
        args, kwargs = tree_unflatten([_part(*each, redistribute_inputs) for each in zip(flat, wanted, gradients)], form)
        return _whole(func(*args, **kwargs), out_placements, mesh)

    return mapped


def _part(x, wanted, gradients, redistribute):
    """This process's part of an argument."""
    if not isinstance(x, DTensor):
        return x
    if wanted is not None:
        wanted = checked("local_map", x.device_mesh, wanted, x.ndim)
        check(redistribute or x.placements == wanted, "local_map", f"an argument placed {wanted}", x.placements, error=ValueError,
              use="redistribute_inputs=True")
        x = x.redistribute(placements=wanted)
    return x.to_local(grad_placements=gradients)


def _whole(made, places, mesh):
    """The results as DTensors."""
    flat, form = tree_flatten(made)
    one = len(flat) == 1 and (places is None or all(isinstance(p, Placement) for p in places))
    places = [places] if one else list(places or ())
    check(len(places) == len(flat), "local_map", f"{len(flat)} out_placements, one for each result", len(places), error=AssertionError)
    out = []
    for x, p in zip(flat, places):
        fits = p is None or isinstance(x, Tensor)
        check(fits, "local_map", "None as out_placements of what is no tensor", None if fits else p, error=AssertionError)
        out.append(DTensor.from_local(x, mesh, p) if p is not None and not isinstance(x, DTensor) else x)
    return tree_unflatten(out, form)
