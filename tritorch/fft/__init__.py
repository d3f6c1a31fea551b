"""Discrete Fourier transforms, under the names of torch.fft.

Of a signal x_0 … x_(n-1) the transform has y_k = Σ_j x_j e^(-2πi jk/n), `fft`; the inverse, `ifft`, has + and a factor 1/n. Real signals
have y_(n-k) = conj(y_k): `rfft` gives 0 ≤ k ≤ n/2, `irfft` gets the signal back; `hfft` and `ihfft` are for signals of which that holds and
whose transforms are real. Names with 2 transform the last two dims, with n any. `n`, or `s` for several dims, cuts a signal or puts zeros
behind it first. `norm` says which factor forward transforms have: None or "backward" none, "ortho" 1/√n, "forward" 1/n; inverse ones have
what makes up 1/n. float32 and complex64 give complex64 or float32, float64 and complex128 the double, whole numbers what the default dtype
gives. Transforms of any length take O(n log n) steps.

>>> import tritorch as torch
>>> torch.fft.fft(torch.tensor([1.0, 2.0, 3.0, 4.0]))
tensor([10.+0.j, -2.+2.j, -2.+0.j, -2.-2.j])
>>> x = torch.randn(8, 100)
>>> torch.allclose(torch.fft.irfft(torch.fft.rfft(x)), x, atol=1e-5)
True
"""
from tritorch.fft.frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from tritorch.fft.transforms import (
    fft,
    fft2,
    fftn,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)

__all__ = """fft fft2 fftfreq fftn fftshift hfft hfft2 hfftn ifft ifft2 ifftn ifftshift ihfft ihfft2 ihfftn irfft irfft2 irfftn rfft rfft2
             rfftfreq rfftn""".split()
