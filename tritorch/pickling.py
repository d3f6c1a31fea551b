"""Pickling and copying of tensors. Memory is a value of its own, so views that share it share it again afterwards."""
from __future__ import annotations

import copyreg
import sys
from copy import deepcopy
from types import FunctionType

from tritorch.device import as_device, cpu, meta
from tritorch.dtype import uint8
from tritorch.errors import check
from tritorch.storage import DeviceStorage, HostStorage, Shared, Storage, Unwritten, host_storage, meta_storage
from tritorch.tensor import Tensor, alias, strided


def findable(home, functions):
    """Pickle knows a function by its module and name. Those that families of operators made, and wrappers, get the module `home`, where
    users find them by the names given."""
    for name, f in functions.items():
        if type(f) is FunctionType and getattr(sys.modules.get(f.__module__), f.__qualname__, None) is not f:
            f.__module__, f.__qualname__ = home, name


def flat(storage):
    """All bytes of a storage as a uint8 tensor."""
    return strided(storage, (storage.nbytes,), (1,), 0, uint8)


def reduce_storage(storage):
    """Pickle memory as a numpy array (out of band with protocol 5) and the device it goes back to; where there is none, its size."""
    if storage.device is meta:
        return meta_storage, (storage.nbytes,)
    return rebuild_storage, (flat(storage).cpu().array, str(storage.device))


def rebuild_storage(data, place):
    data = data if data.flags.writeable else data.copy()
    place = as_device(place)
    return host_storage(data) if place is cpu else strided(host_storage(data), data.shape, (1,), 0, uint8).to(place).storage


for _kind in (DeviceStorage, HostStorage, Shared, Storage, Unwritten):
    copyreg.pickle(_kind, reduce_storage)


def state(x):
    """Attributes that users have set."""
    ours = "_grad", "_inference", "_hooked", "_tangents", "_settled", "_ones"
    return {name: value for name, value in x.__dict__.items() if name not in ours}


def reduce_ex(x, protocol):
    """`__reduce_ex__`: class, memory, layout and attributes; the history and the gradient are left behind, as in PyTorch."""
    attributes = state(x) or None
    return rebuild, (type(x), x.storage, tuple(x.shape), x.strides, x.offset, x.dtype, x.requires_grad, attributes)


def rebuild(cls, storage, shape, strides, offset, dtype, requires_grad, attributes):
    out = strided(storage, shape, strides, offset, dtype)
    if cls is not Tensor:
        out = alias(out, cls)
    out.__dict__.update(attributes or {})
    return out.requires_grad_() if requires_grad else out


def shallow_copy(x):
    """`copy.copy(x)`: another tensor over the same memory, without history."""
    return rebuild(type(x), x.storage, x.shape, x.strides, x.offset, x.dtype, x.requires_grad, state(x))


def deep_copy(x, memo):
    """`copy.deepcopy(x)`: new memory (one copy for all views of it), gradient and attributes included. Leaves only.

    >>> import copy, tritorch as torch
    >>> x = torch.ones(2, requires_grad=True); y = copy.deepcopy(x); y.requires_grad, y is x
    (True, False)
    """
    found = memo.get(id(x))
    if found is not None:
        return found
    check(x.is_leaf, "deepcopy", "a tensor made by the user (a graph leaf)", f"the result of {x.grad_fn}", use="x.detach().clone()")
    key = id(x.storage.owner), "memory"              # .data gives one memory several Storage objects
    memory = memo.get(key)
    if memory is None:
        memory = memo[key] = flat(x.storage).clone().storage
    out = rebuild(type(x), memory, x.shape, x.strides, x.offset, x.dtype, x.requires_grad, None)
    memo[id(x)] = out
    out.__dict__.update(deepcopy(state(x), memo))
    if x.grad is not None:
        out.grad = deepcopy(x.grad, memo)
    return out


def set_state(x, state):
    """`__setstate__`: what old pickles of PyTorch tell of a tensor, a leaf: the arguments of `set_`; its data, gradient, hooks,
    requires_grad and volatile; or requires_grad, volatile and hooks. Hooks and gradients are left out, as in PyTorch.

    >>> import tritorch as torch; x = torch.zeros(2); x.__setstate__((True, False, None)); x.requires_grad
    True
    """
    check(x.is_leaf, "__setstate__", "a leaf", f"the result of {x.grad_fn}")
    if len(state) == 4:
        x.set_(*state)
        return
    if len(state) == 5:
        x.data = state[0]
        state = state[3], state[4], state[2]
    x.requires_grad, _, _ = state
