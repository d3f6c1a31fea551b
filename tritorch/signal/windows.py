"""Window functions, by which a piece of a signal is faded in and out before a transform: `tritorch.signal.windows` and, for the
older names with `periodic`, `tritorch.hann_window` and the like. Harris, On the Use of Windows for Harmonic Analysis, 1978.

A window of M samples is symmetric, or with sym=False periodic: the first M of M + 1. All are computed in float64 on the host, so that a
device gets the same numbers as the CPU.
"""
import math
import operator

import numpy as np

from tritorch.dtype import get_default_dtype, types
from tritorch.errors import check, explained
from tritorch.layout import strided
from tritorch.ops.create import tensor

__all__ = ["bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming", "hann", "kaiser",
           "nuttall"]
BLACKMAN, NUTTALL = (0.42, 0.5, 0.08), (0.3635819, 0.4891775, 0.1365995, 0.0106411)


def _window(name, M, sym, options, shape):
    """`shape(k, N)`: the samples k of a symmetric window of N."""
    check(options["layout"] is strided, name, "the layout strided", options["layout"], error=ValueError)
    dtype = get_default_dtype() if options["dtype"] is None else options["dtype"]
    check(dtype in (types.float32, types.float64), name, "float32 or float64", dtype, error=ValueError)
    try:
        M = operator.index(M)
    except TypeError:
        check(False, name, "a whole number as M", repr(M), error=TypeError)
    check(M >= 0, name, "a length M of at least 0", M, error=ValueError)
    return _filled(M, sym, dtype, options["device"], options["requires_grad"], False, shape)


def _filled(M, sym, dtype, device, requires_grad, pin_memory, shape):
    values = np.ones(M) if M < 2 else shape(np.arange(M, dtype=np.float64), M if sym else M + 1)
    return tensor(values, dtype=dtype, device=device, requires_grad=requires_grad, pin_memory=pin_memory)


def _cosines(a):
    """Σ (-1)^i a_i cos(2π i k / (N - 1))."""
    return lambda k, N: sum((-1) ** i * c * np.cos(i * 2 * math.pi * k / (N - 1)) for i, c in enumerate(a))


def _triangle(k, N):
    return 1 - np.abs(2 * k / (N - 1) - 1)


def _kaiser(beta):
    return lambda k, N: np.i0(beta * np.sqrt(np.maximum(1 - (2 * k / (N - 1) - 1) ** 2, 0))) / np.i0(beta)


@explained
def bartlett(M, *, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """A triangle: 1 - |2k / (M - 1) - 1|.

    >>> import tritorch as torch; torch.signal.windows.bartlett(5)
    tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    return _window("bartlett", M, sym, dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad), _triangle)


@explained
def general_cosine(M, *, a, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """Σ (-1)^i a_i cos(2π i k / (M - 1)) for the coefficients a.

    >>> import tritorch as torch; torch.signal.windows.general_cosine(4, a=[0.5, 0.5])
    tensor([0.0000, 0.7500, 0.7500, 0.0000])
    """
    check(hasattr(a, "__iter__"), "general_cosine", "a list or tuple of coefficients", type(a).__name__, error=TypeError)
    a = [float(c) for c in a]
    check(len(a) > 0, "general_cosine", "at least one coefficient", 0, error=ValueError)
    return _window("general_cosine", M, sym, dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad), _cosines(a))


@explained
def general_hamming(M, *, alpha=0.54, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """α - (1 - α) cos(2π k / (M - 1)).

    >>> import tritorch as torch; torch.signal.windows.general_hamming(3, alpha=0.6)
    tensor([0.2000, 1.0000, 0.2000])
    """
    options = dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)
    return _window("general_hamming", M, sym, options, _cosines((alpha, 1 - alpha)))


@explained
def hamming(M, *, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """0.54 - 0.46 cos(2π k / (M - 1)).

    >>> import tritorch as torch; torch.signal.windows.hamming(3)
    tensor([0.0800, 1.0000, 0.0800])
    """
    return _window("hamming", M, sym, dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad), _cosines((0.54, 0.46)))


@explained
def hann(M, *, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """½ - ½ cos(2π k / (M - 1)) = sin²(π k / (M - 1)).

    >>> import tritorch as torch; torch.signal.windows.hann(4, sym=False)
    tensor([0.0000, 0.5000, 1.0000, 0.5000])
    """
    return _window("hann", M, sym, dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad), _cosines((0.5, 0.5)))


@explained
def blackman(M, *, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """0.42 - 0.5 cos(2π k / (M - 1)) + 0.08 cos(4π k / (M - 1)).

    >>> import tritorch as torch; torch.signal.windows.blackman(5)[1:4]
    tensor([0.3400, 1.0000, 0.3400])
    """
    return _window("blackman", M, sym, dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad), _cosines(BLACKMAN))


@explained
def nuttall(M, *, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """Four cosines whose sides fall off quickly: Nuttall, Some Windows with Very Good Sidelobe Behavior, 1981.

    >>> import tritorch as torch; torch.signal.windows.nuttall(5)[1:4]
    tensor([0.2270, 1.0000, 0.2270])
    """
    return _window("nuttall", M, sym, dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad), _cosines(NUTTALL))


@explained
def cosine(M, *, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """sin(π (k + ½) / M).

    >>> import tritorch as torch; torch.signal.windows.cosine(3)
    tensor([0.5000, 1.0000, 0.5000])
    """
    options = dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)
    return _window("cosine", M, sym, options, lambda k, N: np.sin(math.pi * (k + 0.5) / N))


@explained
def exponential(M, *, center=None, tau=1.0, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """exp(-|k - center| / τ); the center, which a symmetric window has in its middle, may be given for a periodic one.

    >>> import tritorch as torch; torch.signal.windows.exponential(3)
    tensor([0.3679, 1.0000, 0.3679])
    """
    check(tau > 0, "exponential", "tau above 0", tau, error=ValueError)
    check(not sym or center is None, "exponential", "no center for a symmetric window", center, error=ValueError)
    options = dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)
    return _window("exponential", M, sym, options, lambda k, N: np.exp(-np.abs(k - ((N - 1) / 2 if center is None else center)) / tau))


@explained
def gaussian(M, *, std=1.0, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """exp(-(k - (M - 1) / 2)² / (2 std²)).

    >>> import tritorch as torch; torch.signal.windows.gaussian(3)
    tensor([0.6065, 1.0000, 0.6065])
    """
    check(std > 0, "gaussian", "std above 0", std, error=ValueError)
    options = dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)
    return _window("gaussian", M, sym, options, lambda k, N: np.exp(-(((k - (N - 1) / 2) / std) ** 2) / 2))


@explained
def kaiser(M, *, beta=12.0, sym=True, dtype=None, layout=strided, device=None, requires_grad=False):
    """I₀(β √(1 - (2k / (M - 1) - 1)²)) / I₀(β), I₀ the modified Bessel function of order 0. Kaiser and Schafer 1980.

    >>> import tritorch as torch; torch.signal.windows.kaiser(3, beta=2.0)
    tensor([0.4387, 1.0000, 0.4387])
    """
    beta = float(beta)
    check(beta >= 0, "kaiser", "beta of at least 0", beta, error=ValueError)
    return _window("kaiser", M, sym, dict(dtype=dtype, layout=layout, device=device, requires_grad=requires_grad), _kaiser(beta))


# ------------------------------------------------------------------ the older names
def _older(name, window_length, periodic, shape, *, dtype, layout, device, pin_memory, requires_grad):
    try:
        window_length = operator.index(window_length)
    except TypeError:
        check(False, name, "a whole number as window_length", repr(window_length), error=TypeError)
    check(layout is None or layout is strided, name, "the layout strided", layout)
    check(window_length >= 0, name, "a window_length of at least 0", window_length)
    dtype = get_default_dtype() if dtype is None else dtype
    check(dtype.is_floating_point, name, "a floating dtype", dtype)
    return _filled(window_length, not periodic, dtype, device, requires_grad, pin_memory, shape)


@explained
def bartlett_window(window_length, periodic=True, *, dtype=None, layout=strided, device=None, pin_memory=False, requires_grad=False):
    """A triangle, `signal.windows.bartlett`, periodic unless told otherwise.

    >>> import tritorch as torch; torch.bartlett_window(4)
    tensor([0.0000, 0.5000, 1.0000, 0.5000])
    """
    return _older("bartlett_window", window_length, periodic, _triangle, dtype=dtype, layout=layout, device=device,
                  pin_memory=pin_memory, requires_grad=requires_grad)


@explained
def blackman_window(window_length, periodic=True, *, dtype=None, layout=strided, device=None, pin_memory=False, requires_grad=False):
    """`signal.windows.blackman`, periodic unless told otherwise."""
    return _older("blackman_window", window_length, periodic, _cosines(BLACKMAN), dtype=dtype, layout=layout, device=device,
                  pin_memory=pin_memory, requires_grad=requires_grad)


@explained
def hamming_window(window_length, periodic=True, alpha=0.54, beta=0.46, *, dtype=None, layout=strided, device=None, pin_memory=False,
                   requires_grad=False):
    """α - β cos(2π k / N), periodic unless told otherwise.

    >>> import tritorch as torch; torch.hamming_window(4)
    tensor([0.0800, 0.5400, 1.0000, 0.5400])
    """
    return _older("hamming_window", window_length, periodic, _cosines((alpha, beta)), dtype=dtype, layout=layout, device=device,
                  pin_memory=pin_memory, requires_grad=requires_grad)


@explained
def hann_window(window_length, periodic=True, *, dtype=None, layout=strided, device=None, pin_memory=False, requires_grad=False):
    """`signal.windows.hann`, periodic unless told otherwise.

    >>> import tritorch as torch; torch.hann_window(4)
    tensor([0.0000, 0.5000, 1.0000, 0.5000])
    """
    return _older("hann_window", window_length, periodic, _cosines((0.5, 0.5)), dtype=dtype, layout=layout, device=device,
                  pin_memory=pin_memory, requires_grad=requires_grad)


@explained
def kaiser_window(window_length, periodic=True, beta=12.0, *, dtype=None, layout=strided, device=None, pin_memory=False,
                  requires_grad=False):
    """`signal.windows.kaiser`, periodic unless told otherwise."""
    return _older("kaiser_window", window_length, periodic, _kaiser(beta), dtype=dtype, layout=layout, device=device,
                  pin_memory=pin_memory, requires_grad=requires_grad)
