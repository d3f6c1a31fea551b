"""What programs ask of tensors inside of `vmap`: whether one stands for many, of which call of vmap, and for which tensor.

>>> import tritorch as torch
>>> from tritorch._C._functorch import get_unwrapped, is_batchedtensor, maybe_get_bdim
>>> y = torch.vmap(lambda x: print(is_batchedtensor(x), maybe_get_bdim(x), get_unwrapped(x).shape) or x)(torch.ones(3, 2))
True 0 tritorch.Size([3, 2])
"""
from tritorch.autograd import forward as _forward
from tritorch.autograd.modes import state as _state
from tritorch.errors import check as _check
from tritorch.storage import Batched as _Batched


def _levels():
    """The calls of `vmap` and of forward mode that this thread is in, innermost first."""
    at = _state.interpreter
    while at is not None:
        if at.of_samples or isinstance(at, _forward.Level):
            yield at
        at = at.outer


def is_batchedtensor(tensor):
    """Whether a tensor is one sample inside of a call of vmap."""
    return type(tensor.storage) is _Batched


is_functorch_wrapped_tensor = is_batchedtensor                           # `grad` and `jvp` wrap nothing


def is_gradtrackingtensor(tensor):
    """Always False: `grad` and `jvp` give functions plain tensors."""
    return False


def maybe_get_bdim(tensor):
    """The dim of the samples in the tensor that `get_unwrapped` returns: 0; -1 for a tensor outside of vmap."""
    return 0 if is_batchedtensor(tensor) else -1


def maybe_get_level(tensor):
    """Which call of vmap a tensor belongs to, 1 being the outermost; -1 for a tensor outside of vmap."""
    return _Batched.shown(tensor)[0] if is_batchedtensor(tensor) else -1


def get_unwrapped(tensor):
    """The tensor of all samples. RuntimeError outside of vmap."""
    _check(is_batchedtensor(tensor), "get_unwrapped", "a tensor inside of vmap", "another")
    return _Batched.shown(tensor)[1]


def maybe_current_level():
    """How many calls of vmap this thread is in; None for none."""
    return max([at.depth for at in _levels() if at.of_samples], default=None)


def current_level():
    """How many calls of vmap this thread is in. RuntimeError for none."""
    depth = maybe_current_level()
    _check(depth is not None, "current_level", "a call inside of vmap", "one outside")
    return depth
