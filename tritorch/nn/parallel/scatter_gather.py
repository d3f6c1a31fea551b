"""Batches split over devices, and brought together again.

>>> import tritorch as torch
>>> from tritorch.nn.parallel import gather
>>> gather([{"y": torch.ones(2)}, {"y": torch.zeros(1)}], "cpu")
{'y': tensor([1., 1., 0.])}
"""
from tritorch.device import as_device, cpu, device
from tritorch.errors import check
from tritorch.ops.shaping import cat
from tritorch.ops.slicing import chunk
from tritorch.tensor import Tensor

__all__ = ["gather", "scatter", "scatter_kwargs"]


def _place(target):
    return device("cuda", target) if isinstance(target, int) else as_device(target)


def _is_namedtuple(obj):
    return isinstance(obj, tuple) and hasattr(obj, "_fields")


def scatter(inputs, target_gpus, dim=0):
    """For each device the same containers with its part of every tensor along `dim`; what is no tensor goes to all of them."""
    return _parts([_place(target) for target in target_gpus], dim, inputs)


def _parts(places, dim, obj):
    """What each of the places gets of an object."""
    if isinstance(obj, Tensor):
        return [piece.to(place) for piece, place in zip(chunk(obj, len(places), dim), places)]
    if not isinstance(obj, (tuple, list, dict)) or not obj:
        return [obj] * len(places)
    inside = zip(*[_parts(places, dim, inner) for inner in (obj.items() if isinstance(obj, dict) else obj)])
    if _is_namedtuple(obj):
        return [type(obj)(*values) for values in inside]
    if isinstance(obj, tuple):
        return list(inside)
    return [list(values) if isinstance(obj, list) else type(obj)(values) for values in inside]


def scatter_kwargs(inputs, kwargs, target_gpus, dim=0):
    """`scatter` of arguments and keywords, as many of one as of the other."""
    inputs = scatter(inputs, target_gpus, dim) if inputs else []
    kwargs = scatter(kwargs, target_gpus, dim) if kwargs else []
    count = max(len(inputs), len(kwargs))
    return tuple(inputs) + ((),) * (count - len(inputs)), tuple(kwargs) + ({},) * (count - len(kwargs))


def gather(outputs, target_device, dim=0):
    """The tensors of the devices' outputs joined along `dim` on one device (-1 and "cpu": the CPU), inside of the same containers.

    Errors: ValueError if the outputs are dicts of different keys.
    """
    return _joined(cpu if target_device == -1 else _place(target_device), dim, outputs)


def _joined(place, dim, values):
    """The values of all devices as one."""
    first = values[0]
    if isinstance(first, Tensor):
        pieces = [x.unsqueeze(0) if x.ndim == 0 else x for x in values]
        return cat([x.to(place) for x in pieces], dim)
    if first is None:
        return None
    if isinstance(first, dict):
        same = all(len(first) == len(x) for x in values)
        check(same, "gather", "outputs of the same keys", None if same else [list(x) for x in values], error=ValueError)
        return type(first)((k, _joined(place, dim, [x[k] for x in values])) for k in first)
    inside = [_joined(place, dim, several) for several in zip(*values)]
    return type(first)._make(inside) if _is_namedtuple(first) else type(first)(inside)
