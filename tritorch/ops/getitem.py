"""x[...] and x[...] = v: numbers, slices, None and Ellipsis make views; tensors, lists and masks pick elements."""
import operator
import warnings

import numpy as np

from tritorch.autograd.places import stacklevel
from tritorch.dtype import types
from tritorch.errors import answered, check, sentence
from tritorch.ops import copy, create, picking, put, slicing, view
from tritorch.storage import Batched
from tritorch.tensor import Tensor

PLAIN = {int, bool, slice, type(None), type(Ellipsis)}                   # what stands in a key as it is


def getitem(input, key):
    """The elements that `key` names, PyTorch's (and numpy's) rules.

    >>> import tritorch as torch; x = torch.arange(6).view(2, 3); x[1, ::2], x[x > 3]
    (tensor([3, 5]), tensor([4, 5]))
    """
    if type(key) is int:                                                 # the commonest cases, without the parser
        return slicing.select(input, 0, key)
    try:
        part, picks = resolve(input, key)
    except IndexError as error:
        return answered(error)
    if picks is not None:
        return picking.index(part, picks)
    return view.view_as(part, part) if part is input else part


def setitem(input, key, value):
    """Write `value` (a number, or a tensor that broadcasts) where `key` points."""
    if not isinstance(value, Tensor) and not _is_number(value):
        try:
            fits = isinstance(value, (list, tuple, np.ndarray))
            check(fits, "index", "a number or a tensor to write", type(value).__name__, error=TypeError)
            value = create.tensor(value, dtype=input.dtype, device=input.device)
        except TypeError as error:
            return answered(error)
    if _is_mask(key) and key.shape and key.shape == input.shape[:key.dim()] and (_is_number(value) or value.numel() == 1):
        mask = _near(key, input.device)                                  # a fill, which need not count the places
        mask = mask if mask.shape == input.shape else view.reshape(mask, *mask.shape, *[1] * (len(input.shape) - key.dim()))
        value = value.item() if isinstance(value, np.generic) else view.reshape(value, ()) if isinstance(value, Tensor) else value
        put.masked_fill(input, mask, value, out=input)
        return
    part, picks = resolve(input, key, value)
    if picks is not None:
        if isinstance(value, Tensor) and value.dtype is not part.dtype and value.numel() == 1 and _one_mask(key):
            value = value.to(part.dtype)                                 # a fill, as in PyTorch
        put.write(part, picks, value)
        return
    if not isinstance(value, Tensor):
        copy.fill_(part, value)
        return
    while len(value.shape) > len(part.shape) and value.shape[0] == 1:    # PyTorch lets leading 1s of the value go
        value = value[0]
    copy.copy_(part, value)


def _one_mask(key):
    """Whether all that a key picks, it picks by one mask."""
    picked = [k for k in (key if isinstance(key, tuple) else (key,)) if isinstance(k, (Tensor, list, tuple, np.ndarray))]
    return len(picked) == 1 and (_is_mask(picked[0]) or isinstance(picked[0], (list, tuple)) and all(type(v) is bool for v in picked[0]))


def _is_many(key):
    """Whether a list stands for a tuple, as in PyTorch to this day, and in numpy long ago: a short one with more in it than numbers."""
    many = len(key) < 32 and any(k is None or k is Ellipsis or isinstance(k, (Tensor, list, tuple, slice, np.ndarray, str)) for k in key)
    if many:
        warnings.warn("index: a list that stands for a tuple is deprecated; use x[tuple(key)], or x[torch.tensor(key)] for its elements",
                      stacklevel=stacklevel())
    return many


def _is_number(value):
    return isinstance(value, (bool, int, float, complex, np.number, np.bool_))


def resolve(input, key, value=None):
    """(view, index tensors): the basic part of a key applied, and for each dim of that view an index tensor or None; None if there are
    none. `value` is what will be written there: on meta it tells how many places a mask has."""
    if isinstance(key, list) and _is_many(key):
        key = tuple(key)
    items = [k if k.__class__ in PLAIN else _as_index(k, input.device) for k in (key if isinstance(key, tuple) else (key,))]
    used, ellipses = 0, 0
    for k in items:
        if k is Ellipsis:
            ellipses += 1
        elif k is not None and k.__class__ is not bool:
            used += k.dim() if _is_mask(k) else 1
    if used > len(input.shape):
        raise IndexError(sentence("index", f"at most {len(input.shape)} indices for shape {input.shape}", used))
    check(ellipses < 2, "index", "at most one Ellipsis", "more", error=IndexError)
    out, picks, dim = input, {}, 0
    for k in items:
        if k is Ellipsis:
            dim += len(input.shape) - used
        elif k is None:
            out, dim = view.unsqueeze(out, dim), dim + 1
        elif k.__class__ is int:
            out = slicing.select(out, dim, k)
        elif k.__class__ is slice:
            out, dim = _slice(out, dim, k), dim + 1
        elif k.__class__ is bool:                                        # a new dim, of size 1 or 0
            out = view.unsqueeze(out, dim)
            picks[dim] = create.tensor([0] if k else [], dtype=types.int64, device=input.device)
            dim += 1
        elif _is_mask(k):
            after = len(out.shape) - dim - k.dim()
            count = value.shape[-1 - after] if isinstance(value, Tensor) and value.dim() > after else value is not None and 1
            for d, places in enumerate(picking.mask_to_indices(k, out.shape[dim:dim + k.dim()], count)):
                picks[dim + d] = _near(places, input.device)
            dim += k.dim()
        else:
            picks[dim], dim = _near(k, input.device), dim + 1
    if not picks:
        return out, None
    if len(picks) > 1 and 0 < sum([not k.shape for k in picks.values()]) < len(picks):
        return _neighbours(out, picks)
    return out, tuple([picks.get(d) for d in range(len(out.shape))])


def _neighbours(out, picks):
    """The dims at which samples of vmap have a number each, which selects as one that all have, moved to the first of the other picked
    ones: so these are neighbours if they were but for such dims."""
    numbers = [d for d, k in picks.items() if not k.shape]
    order = [d for d in range(len(out.shape)) if d not in numbers]
    place = order.index(min([d for d in picks if d not in numbers]))
    order = [*order[:place], *numbers, *order[place:]]
    return view.permute_dims(out, order), tuple([picks.get(d) for d in order])


def _near(k, device):
    """Where the tensor is that it picks from: indices on the CPU pick from tensors on any device, as in PyTorch."""
    return k.to(device) if k.device.type == "cpu" != device.type else k


def _is_mask(k):
    return isinstance(k, Tensor) and k.dtype is types.bool


def _as_index(k, device):
    """One item of a key that is not PLAIN as a bool, an int or an index tensor."""
    if isinstance(k, Tensor):
        if k.dtype is types.bool or k.dtype is types.uint8:
            if k.dtype is types.uint8:
                warnings.warn("indexing with uint8 is deprecated: use a mask of bools, or indices of int64", stacklevel=stacklevel())
            return k.to(types.bool) if k.shape else bool(k.item())
        if not k.shape and not k.dtype.is_floating_point and type(k.storage) is not Batched:
            return int(k.item())                                         # a view, as with a Python number
        check(not k.dtype.is_floating_point, "index", "tensors of integers or bools", k.dtype, error=IndexError)
        return k if k.shape else k.to(types.int64)
    if isinstance(k, np.bool_):
        return bool(k)
    if isinstance(k, (list, tuple, np.ndarray, range)):
        made = create.tensor(k if isinstance(k, (list, tuple)) else np.asarray(k), device=device)
        made = made.to(types.int64) if made.numel() == 0 and made.dtype is not types.bool else made
        return _as_index(made, device)
    try:
        return operator.index(k)
    except TypeError:
        raise IndexError(f"index: expected integers, slices, ..., None, tensors of integers or bools, got {type(k).__name__}") from None


def _slice(x, dim, k):
    start, stop, step = k.start, k.stop, k.step
    if start is None and stop is None and step is None:
        return x
    if step is not None and step <= 0:
        raise ValueError(f"index: expected a step greater than zero, got {step}; use flip() to reverse")
    start, stop, step = k.indices(x.shape[dim])
    return slicing.slice_dim(x, dim, start, stop if stop > start else start, step)
