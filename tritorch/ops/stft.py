"""Transforms of short pieces of signals, which overlap, and signals put together of them. J. Allen, "Short term spectral analysis,
synthesis, and modification by discrete Fourier transform", 1977; D. Griffin and J. Lim, "Signal estimation from modified short-time Fourier
transform", 1984."""
import warnings

from tritorch.errors import check, tensors, whole_numbers
from tritorch.ops import complex, create, padding
from tritorch.ops.composite import composite
from tritorch.ops.fft import fourier, fourier_of_real, fourier_to_real
from tritorch.ops.frames import frames, overlap_add

NO_WINDOW = "{0}: without a window frames end abruptly, and energy leaks to other frequencies; a window of ones says that it is meant"
FAINT = 1e-11                                                            # the least sum of squared windows that is divided by


def _sizes(name, n_fft, hop_length, win_length):
    n, = whole_numbers(name, "n_fft", (n_fft,))
    hop = n // 4 if hop_length is None else whole_numbers(name, "hop_length", (hop_length,))[0]
    return n, hop, n if win_length is None else whole_numbers(name, "win_length", (win_length,))[0]


def _padded(x, before, behind, mode="constant"):
    """More along the last dim of one to three; of complex numbers, of both parts."""
    if x.dtype.is_complex:
        parts = complex.view_as_real(x).transpose(-1, -2)
        return complex.paired(_padded(parts, before, behind, mode).transpose(-1, -2))
    extended = x[(None,) * (3 - x.ndim)] if x.ndim < 3 else x
    made = padding.pad(extended, (before, behind), mode)
    return made.reshape(*x.shape[:-1], made.shape[-1])


def _window(name, window, n, width, x):
    """The window in the middle of n numbers; None if it is ones throughout."""
    if window is None:
        if width == n:
            return None
        window = create.ones(width, dtype=x.dtype.to_real(), device=x.device)
    elif not hasattr(window, "storage"):
        tensors(name, window=window)
    check(window.shape == (width,), name, f"a window of shape ({width},), as win_length says", tuple(window.shape))
    left = (n - width) // 2
    return window if width == n else _padded(window, left, n - width - left)


@composite
def stft(input, n_fft, hop_length=None, win_length=None, window=None, center=True, pad_mode="reflect", normalized=False, onesided=None,
         return_complex=None, align_to_window=None):
    """The transforms of the frames of a signal (T,) or of several (batch, T): (batch, frequencies, frames), complex.

        out[f, t] = Σ_j window[j] · input[t · hop_length + j] · e^(-2πi jf / n_fft), 0 ≤ j < n_fft

    hop_length is by default n_fft / 4, win_length n_fft; a shorter window lies in the middle of a frame. center: frame t has the sample
    t · hop_length in its middle; for that the signal is padded by n_fft / 2 at both ends as `pad_mode` says (see `nn.functional.pad`).
    align_to_window: without center, the first window and not the first frame begins with the signal. onesided: frequencies 0 to n_fft / 2,
    by default where signal and window are real. normalized: times 1/√n_fft. return_complex=False gives real and imaginary parts as a last
    dim; for a real signal the choice has to be made.

    >>> import tritorch as torch
    >>> x = torch.sin(torch.arange(64) * (2 * torch.pi / 8))
    >>> torch.stft(x, 16, window=torch.hann_window(16), return_complex=True).abs()[:, 8].round(decimals=3)
    tensor([0., 2., 4., 2., 0., 0., 0., 0., 0.])
    """
    name = "stft"
    tensors(name, input=input)
    check(not center or align_to_window is None, name, "align_to_window only with center=False", align_to_window)
    n, hop, width = _sizes(name, n_fft, hop_length, win_length)
    real = not input.dtype.is_complex and not (hasattr(window, "dtype") and window.dtype.is_complex)
    x = _padded(input, n // 2, n // 2, pad_mode) if center else input
    if return_complex is None:
        check(not real, name, "return_complex to be given for a real signal", None, use="return_complex=True")
        return_complex = True
    if not return_complex:
        warnings.warn("stft: return_complex=False is deprecated; use view_as_real on the complex result", stacklevel=4)
    if window is None:
        warnings.warn(NO_WINDOW.format(name), stacklevel=4)
    check(x.dtype.has_gradients, name, "a floating or complex signal", x.dtype)
    check(x.ndim in (1, 2), name, "a signal (T,) or (batch, T)", tuple(x.shape))
    if align_to_window:
        x = _padded(x, (n - width) // 2, (n - width) // 2)
    check(0 < n <= x.shape[-1], name, f"n_fft between 1 and {x.shape[-1]}, the length of the signal", n)
    check(hop > 0, name, "a hop_length of at least 1", hop)
    check(0 < width <= n, name, f"a win_length between 1 and {n}", width)
    onesided = real if onesided is None else onesided
    check(real or not onesided, name, "onesided only of a real signal and a real window", onesided)
    shape = _window(name, window, n, width, x)
    cut = frames(x, n, hop)
    cut = cut if shape is None else cut * shape
    last, norm = cut.ndim - 1, int(normalized)
    made = fourier_of_real(cut, n, last, norm, False, 1, n // 2 + 1) if onesided else fourier(cut, n, last, norm, False, n)
    made = made.transpose(-1, -2)
    return made if return_complex else complex.view_as_real(made)


@composite
def istft(input, n_fft, hop_length=None, win_length=None, window=None, center=True, normalized=False, onesided=None, length=None,
          return_complex=False):
    """The signal, (T,) or (batch, T), of which (frequencies, frames) or (batch, frequencies, frames) are the transforms that `stft` gives
    with the same arguments; where they are no such, the one whose transforms are nearest, in least squares: transforms back, times the
    window, added up and divided by the sum of squared windows, which must not be 0 anywhere (RuntimeError). Waits for the device.

    `length` cuts the signal, or puts zeros behind; without it what was padded for `center` is cut off at both ends. return_complex: the
    signal is complex.

    >>> import tritorch as torch
    >>> x, window = torch.randn(100), torch.hann_window(20)
    >>> y = torch.stft(x, 20, window=window, return_complex=True)
    >>> torch.allclose(torch.istft(y, 20, window=window, length=100), x, atol=1e-5)
    True
    """
    name = "istft"
    tensors(name, input=input)
    n, hop, width = _sizes(name, n_fft, hop_length, win_length)
    if window is None:
        warnings.warn(NO_WINDOW.format(name), stacklevel=4)
    check(input.dtype.is_complex, name, "a complex input, as stft with return_complex=True gives it", input.dtype)
    check(input.ndim > 1, name, "(frequencies, frames) or (batch, frequencies, frames)", tuple(input.shape), error=IndexError)
    check(input.numel() > 0, name, "at least one frame", tuple(input.shape))
    check(input.ndim in (2, 3), name, "(frequencies, frames) or (batch, frequencies, frames)", tuple(input.shape))
    onesided = input.shape[-2] != n if onesided is None else onesided
    many = n // 2 + 1 if onesided else n
    check(input.shape[-2] == many, name, f"{many} frequencies for n_fft = {n}{', onesided' if onesided else ''}", input.shape[-2])
    check(0 < hop <= width, name, f"a hop_length between 1 and {width}, the win_length", hop)
    check(0 < width <= n, name, f"a win_length between 1 and {n}", width)
    real = not (hasattr(window, "dtype") and window.dtype.is_complex)
    check(return_complex or real, name, "return_complex=True for a complex window", return_complex)
    check(not (return_complex and onesided), name, "onesided only of a real signal", "return_complex=True")
    shape = _window(name, window, n, width, input)
    x, norm = input.transpose(-1, -2), 1 if normalized else 2
    last, count = x.ndim - 1, x.shape[-2]
    x = fourier(x, n, last, norm, True, n) if return_complex else fourier_to_real(x, n, last, norm, True, 2, n)
    if shape is None:
        shape = create.ones(n, dtype=input.dtype.to_real(), device=input.device)
    else:
        x = x * shape
    reach, start = n + hop * (count - 1), n // 2 if center else 0
    end = start + length if length is not None else -(n // 2) if center else reach
    signal = overlap_add(x, hop, reach)[..., start:end]
    weight = overlap_add((shape * shape).expand(count, n), hop, reach)[start:end]
    check(weight.numel() > 0 and (weight.is_meta or not bool(weight.abs().min() < FAINT)), name, "squared windows whose sum is nowhere 0",
          "one that is, or no samples", use="another window, or center=True")
    signal = signal / weight
    if end > reach:
        warnings.warn(f"istft: the signal has {reach - start} samples for a length of {length}; the rest are zeros", stacklevel=4)
        signal = _padded(signal, 0, end - reach)
    return signal
