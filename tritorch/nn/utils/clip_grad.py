"""Gradient clipping. Nothing here waits for the GPU, except `error_if_nonfinite`."""
import warnings

from tritorch.autograd.modes import no_grad
from tritorch.errors import explained
from tritorch.layout import others, strided
from tritorch.ops import optimize
from tritorch.ops.create import tensor
from tritorch.ops.shaping import stack
from tritorch.tensor import Tensor


def _gradients(parameters):
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [g for p in parameters if (g := p.grad) is not None]


def _values(gradients, summed):
    """Sparse gradients as their values, of equal places one if `summed`."""
    return [g if g.layout is strided else (g.coalesce() if summed else g)._values() for g in gradients] if others else gradients


@no_grad()
def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """The norm of all elements of several tensors together, as a scalar tensor. Of order 0, the number of tensors that have any but 0.

    >>> import tritorch as torch
    >>> torch.nn.utils.get_total_norm([torch.tensor([3.0]), torch.tensor([4.0])]).item()
    5.0
    """
    tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    norm_type = float(norm_type)
    if not tensors:
        return tensor(0.0)
    tensors = _values(tensors, True)
    if norm_type:
        total = optimize.total_norm(tensors, norm_type)
    else:                                                                # PyTorch takes the norm of norms, which here counts tensors
        total = stack([optimize.total_norm([t], 0.0).to(tensors[0].device) for t in tensors]).norm(0)
    if error_if_nonfinite and not bool(total.isfinite()):
        raise RuntimeError(f"clip_grad_norm_: expected a finite norm of order {norm_type}, got {total.item()}; "
                           "use error_if_nonfinite=False to scale by it all the same")
    return total


@no_grad()
def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None):
    """Multiply all gradients by min(1, max_norm / total_norm)."""
    optimize.clip_by_norm(_values(_gradients(parameters), False), total_norm, float(max_norm))


@explained
@no_grad()
def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Scale all gradients down, in place, so that their norm together is at most `max_norm`; returns the norm before. Pascanu et al. 2013.

    >>> import tritorch as torch
    >>> w = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    >>> (w * torch.tensor([3.0, 4.0])).sum().backward()
    >>> torch.nn.utils.clip_grad_norm_(w, 1.0).item()
    5.0
    """
    gradients = _gradients(parameters)
    total = get_total_norm(gradients, norm_type, error_if_nonfinite)
    optimize.clip_by_norm(_values(gradients, False), total, float(max_norm))
    return total


def clip_grad_norm(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """The older name of `clip_grad_norm_`."""
    warnings.warn("clip_grad_norm is the old name of clip_grad_norm_", FutureWarning,
                  stacklevel=2)
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)


@no_grad()
def clip_grad_value_(parameters, clip_value, foreach=None):
    """Clamp every gradient, in place, to [-clip_value, clip_value].

    >>> import tritorch as torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> (x * torch.tensor([0.5, -3.0])).sum().backward()
    >>> torch.nn.utils.clip_grad_value_([x], 1.0)
    >>> x.grad
    tensor([ 0.5000, -1.0000])
    """
    for gradient in _gradients(parameters):
        if gradient.dtype.is_complex:
            raise NotImplementedError(f"clip_grad_value_: expected real gradients, got {gradient.dtype}")
        gradient.clamp_(min=-float(clip_value), max=float(clip_value))
