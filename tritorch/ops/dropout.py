"""Dropout and its relatives as functions of a Generator. The operator is `random_dropout`; the rest is built from it and masks."""
from __future__ import annotations

import math
import warnings

from tritorch.autograd.places import stacklevel
from tritorch.errors import check, explained, refuse_misuse
from tritorch.memory_format import elementwise
from tritorch.ops.compare import where
from tritorch.ops.draws import place, random_coin, random_dropout, random_uniform
from tritorch.ops.random import made

ALPHA = -1.7580993408473766                    # −scale · alpha of SELU: the value it saturates at


def dropout(input, p=0.5, training=True, inplace=False, *, generator=None):
    """Zero each element with chance p and scale the others by 1 / (1 − p), while training.

    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 2014.

    >>> import tritorch as torch
    >>> torch.nn.functional.dropout(torch.ones(3), 0.5, training=False)
    tensor([1., 1., 1.])
    """
    try:
        if idle(input, p, training):
            return input
        if p == 1:
            return input.mul_(0.0) if inplace else input * 0.0
        order = None if input.is_contiguous() else elementwise(input.shape, input.strides)
        values = input, p, *place(input.device, generator, input.numel()), order
        return random_dropout.into(input, *values) if inplace else random_dropout(*values)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def idle(x, p, training):
    """Whether dropout leaves x as it is; raises ValueError unless p is a chance."""
    check(0 <= p <= 1, "dropout", "0 ≤ p ≤ 1", p, error=ValueError)
    return not training or p == 0 or x.numel() == 0


def channel_mask(x, p, generator):
    """1 with chance 1 − p, else 0, one for each channel of (N, C, …)."""
    check(x.ndim >= 2, "feature_dropout", "at least 2 dims", x.ndim)
    return made(random_coin, x.shape[:2] + (1,) * (x.ndim - 2), 1 - p, 0.0, x.dtype, x.device, generator)


def feature_dropout(input, p=0.5, training=True, inplace=False, *, generator=None):
    """Dropout of whole channels of (N, C, …): Tompson et al., "Efficient object localization using convolutional networks", 2015."""
    if idle(input, p, training):
        return input
    mask = channel_mask(input, p, generator) * (1 / (1 - p) if p < 1 else 0.0)
    return input.mul_(mask) if inplace else input * mask


@explained
def dropout1d(input, p=0.5, training=True, inplace=False):
    """Channel dropout of (N, C, L) or (C, L)."""
    check(input.ndim in (2, 3), "dropout1d", "2 or 3 dims", input.ndim)
    return batched(input, 3, p, training, inplace)


@explained
def dropout2d(input, p=0.5, training=True, inplace=False):
    """Channel dropout of (N, C, H, W); as in PyTorch, 3 dims are read as (N, C, L), with a warning."""
    if input.ndim != 4:
        warnings.warn(f"dropout2d: expected 4 dims, got {input.ndim}; the second is taken for the channels", stacklevel=stacklevel())
    return feature_dropout(input, p, training, inplace)


@explained
def dropout3d(input, p=0.5, training=True, inplace=False):
    """Channel dropout of (N, C, D, H, W) or (C, D, H, W)."""
    if input.ndim not in (4, 5):
        warnings.warn(f"dropout3d: expected 4 or 5 dims, got {input.ndim}; the second is taken for the channels", stacklevel=stacklevel())
    return batched(input, 5, p, training, inplace)


def batched(x, ndim, p, training, inplace):
    if x.ndim == ndim - 1:
        out = feature_dropout(x.unsqueeze(0), p, training, inplace)
        return x if inplace else out.squeeze(0)
    return feature_dropout(x, p, training, inplace)


@explained
def alpha_dropout(input, p=0.5, training=False, inplace=False, *, generator=None):
    """Dropout that keeps mean 0 and variance 1 after SELU: dropped elements become its saturation value, then all are rescaled.

    Klambauer et al., "Self-normalizing neural networks", 2017.
    """
    if idle(input, p, training):
        return input
    return saturate(input, made(random_coin, input.shape, 1 - p, 0.0, input.dtype, input.device, generator), p, inplace)


@explained
def feature_alpha_dropout(input, p=0.5, training=False, inplace=False, *, generator=None):
    """`alpha_dropout` of whole channels of (N, C, …)."""
    return input if idle(input, p, training) else saturate(input, channel_mask(input, p, generator), p, inplace)


def saturate(x, mask, p, inplace):
    if p == 1:
        return x.mul_(0.0) if inplace else x * 0.0
    scale = 1 / math.sqrt((1 + p * ALPHA * ALPHA) * (1 - p))
    factor, shift = mask * scale, (1 - mask) * (ALPHA * scale) - ALPHA * scale * p
    return x.mul_(factor).add_(shift) if inplace else x * factor + shift


@explained
def rrelu(input, lower=1 / 8, upper=1 / 3, training=False, inplace=False, *, generator=None):
    """x where x > 0, else a x: a uniform in [lower, upper) for each element while training, its mean otherwise.

    Xu et al., "Empirical evaluation of rectified activations in convolutional network", 2015.
    """
    check(lower <= upper, "rrelu", "lower ≤ upper", lower, upper)
    slope = (lower + upper) / 2
    if training:
        slope = made(random_uniform, input.shape, lower, upper, input.dtype, input.device, generator)
    out = where(input.detach() > 0, input, input * slope)
    return input.copy_(out) if inplace else out


@explained
def rrelu_(input, lower=1 / 8, upper=1 / 3, training=False, *, generator=None):
    """`rrelu` written into the tensor itself.

    >>> import tritorch as torch
    >>> torch.nn.functional.rrelu_(torch.tensor([-8.0, 2.0]), 0.25, 0.25).tolist()
    [-2.0, 2.0]
    """
    return rrelu(input, lower, upper, training, True, generator=generator)
