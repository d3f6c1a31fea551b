"""Activations with PyTorch's `inplace`, and those composed of other operators."""
import warnings

from tritorch.autograd.places import stacklevel
from tritorch.errors import answered, check, explained, refuse_misuse
from tritorch.ops import activation
from tritorch.ops.random import exponential_
from tritorch.ops.softmax import log_softmax as log_softmax_over
from tritorch.ops.softmax import softmax as softmax_over


def _apply(card, inplace, input, *numbers):
    try:
        return card.into(input, input, *numbers) if inplace else card(input, *numbers)
    except Exception as error:
        return answered(error)


def relu(input, inplace=False):
    """max(0, x).

    >>> import tritorch as torch
    >>> torch.nn.functional.relu(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    return activation.relu.into(input, input) if inplace else activation.relu(input)


def relu6(input, inplace=False):
    """min(max(0, x), 6)."""
    return _apply(activation.hardtanh_between, inplace, input, 0.0, 6.0)


def leaky_relu(input, negative_slope=0.01, inplace=False):
    """x where x > 0, else negative_slope · x."""
    return _apply(activation.leaky_relu, inplace, input, negative_slope)


def elu(input, alpha=1.0, inplace=False):
    """x where x > 0, else α (eˣ - 1). Clevert et al. 2015.

    >>> import tritorch as torch
    >>> torch.nn.functional.elu(torch.tensor([-2.0, 0.0, 3.0]))
    tensor([-0.8647,  0.0000,  3.0000])
    """
    return _apply(activation.elu, inplace, input, alpha)


def celu(input, alpha=1.0, inplace=False):
    """max(0, x) + min(0, α (e^(x/α) - 1)). Barron 2017.

    >>> import tritorch as torch
    >>> torch.nn.functional.celu(torch.tensor([-2.0, 0.0, 3.0]), alpha=2.0)
    tensor([-1.2642,  0.0000,  3.0000])
    """
    check(alpha != 0, "celu", "alpha other than 0", alpha)
    return _apply(activation.celu_of, inplace, input, alpha)


def selu(input, inplace=False):
    """scale · elu(x, α) with scale = 1.0507…, α = 1.6732…. Klambauer et al. 2017.

    >>> import tritorch as torch
    >>> torch.nn.functional.selu(torch.tensor([-2.0, 0.0, 3.0]))
    tensor([-1.5202,  0.0000,  3.1521])
    """
    return _apply(activation.selu, inplace, input)


def silu(input, inplace=False):
    """x · sigmoid(x).

    >>> import tritorch as torch
    >>> torch.nn.functional.silu(torch.tensor([-2.0, 0.0, 3.0]))
    tensor([-0.2384,  0.0000,  2.8577])
    """
    return _apply(activation.silu, inplace, input)


def mish(input, inplace=False):
    """x · tanh(softplus(x)). Misra 2019.

    >>> import tritorch as torch
    >>> torch.nn.functional.mish(torch.tensor([-2.0, 0.0, 3.0]))
    tensor([-0.2525,  0.0000,  2.9865])
    """
    return _apply(activation.mish, inplace, input)


def hardswish(input, inplace=False):
    """x · clamp(x + 3, 0, 6) / 6. Howard et al. 2019."""
    return _apply(activation.hardswish, inplace, input)


def hardsigmoid(input, inplace=False):
    """clamp(x + 3, 0, 6) / 6."""
    return _apply(activation.hardsigmoid, inplace, input)


def hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False):
    """x clamped to [min_val, max_val], with gradient 0 on the bounds.

    >>> import tritorch as torch
    >>> torch.nn.functional.hardtanh(torch.tensor([-2.0, 0.5, 3.0]))
    tensor([-1.0000,  0.5000,  1.0000])
    """
    try:
        check(not min_val > max_val, "hardtanh", "min_val ≤ max_val", min_val, max_val, error=ValueError)
        if input.dtype.category < 2:
            check(min_val >= 0 or input.dtype.is_signed, "hardtanh", "a min_val of 0 or more for what has no sign", min_val, input.dtype)
        return _apply(activation.hardtanh_between, inplace, input, min_val, max_val)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def threshold(input, threshold, value, inplace=False):
    """x where x > threshold, else `value`."""
    return _apply(activation.threshold_at, inplace, input, threshold, value)


def relu_(input):
    """`relu` in place."""
    return relu(input, True)


def leaky_relu_(input, negative_slope=0.01):
    """`leaky_relu` in place."""
    return leaky_relu(input, negative_slope, True)


def elu_(input, alpha=1.0):
    """`elu` in place."""
    return elu(input, alpha, True)


def celu_(input, alpha=1.0):
    """`celu` in place."""
    return celu(input, alpha, True)


def selu_(input):
    """`selu` in place."""
    return selu(input, True)


def hardtanh_(input, min_val=-1.0, max_val=1.0):
    """`hardtanh` in place."""
    return hardtanh(input, min_val, max_val, True)


def threshold_(input, threshold, value):
    """`threshold` in place."""
    return _apply(activation.threshold_at, True, input, threshold, value)


def _dim(name, input, dim):
    if dim is not None:
        return dim
    warnings.warn(f"{name}: say dim=; one is chosen by the number of dims, which is deprecated",
                  stacklevel=stacklevel())
    return 0 if input.ndim in (0, 1, 3) else 1


def softmax(input, dim=None, _stacklevel=3, dtype=None):
    """e^(x_i) / Σ e^(x_j) over `dim`, computed in `dtype` if given.

    >>> import tritorch as torch
    >>> torch.nn.functional.softmax(torch.zeros(4), dim=0)
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    try:
        return softmax_over(input, _dim("softmax", input, dim), dtype)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    """x_i - log Σ e^(x_j) over `dim`, computed in `dtype` if given.

    >>> import tritorch as torch
    >>> torch.nn.functional.log_softmax(torch.tensor([0.0, 0.0]), dim=0)
    tensor([-0.6931, -0.6931])
    """
    try:
        return log_softmax_over(input, _dim("log_softmax", input, dim), dtype)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


@explained
def softmin(input, dim=None, _stacklevel=3, dtype=None):
    """Softmax of -x over `dim`.

    >>> import tritorch as torch
    >>> torch.nn.functional.softmin(torch.tensor([0.0, 0.0]), dim=0)
    tensor([0.5000, 0.5000])
    """
    return softmax_over(-input, _dim("softmin", input, dim), dtype)


@explained
def gumbel_softmax(logits, tau=1, hard=False, eps=1e-10, dim=-1):
    """softmax((x + g) / tau) with Gumbel noise g: samples of a categorical distribution, relaxed. Jang et al. 2016.

    With `hard` the result is one-hot, and its gradient that of the soft one.

    >>> import tritorch as torch
    >>> torch.nn.functional.gumbel_softmax(torch.zeros(4, 3), hard=True).sum(-1)
    tensor([1., 1., 1., 1.])
    """
    if eps != 1e-10:
        warnings.warn("gumbel_softmax: eps changes nothing and is deprecated", stacklevel=stacklevel())
    noise = -exponential_(logits.detach().clone()).log()
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    one_hot = soft.detach().new_zeros(soft.shape).scatter_(dim, soft.detach().argmax(dim, keepdim=True), 1.0)
    return one_hot - soft.detach() + soft
