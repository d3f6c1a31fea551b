"""Discrete Fourier transforms along one dim: of complex numbers, of real ones into half their spectrum, and back into real ones.

Each takes what it needs of a dim, with zeros behind where there is less, and gives as much of the result as is asked for, so that each
is, but for its direction and sizes, the gradient of another: Fourier matrices are symmetric.
"""
import numpy as np

from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.fft_plans import Ends, as_pairs, transform
from tritorch.pairs import MADE
from tritorch.tensor import strided

NORMS = "backward", "ortho", "forward"                                   # numpy's names for no factor, 1/√n, 1/n of forward ones


@op
def fourier(input, n, dim, norm, back, size):
    """The first `size` of y_k = n^(-norm/2) Σ_j x_j e^(∓2πi jk/n), 0 ≤ k < n, zeros behind; + if `back`. x_j is complex or real."""
    check(input.dtype.to_real() in (types.float32, types.float64), "fft", "a tensor of single or double precision", input.dtype)
    return sized(input.shape, dim, size), input.dtype.to_complex(), input.device


@op
def fourier_of_real(input, n, dim, norm, back, middle, size):
    """As `fourier`, of real numbers, for 0 ≤ k ≤ n/2; those that stand for n - k as well, neither 0 nor n/2, times `middle`."""
    check(input.dtype in (types.float32, types.float64), "rfft", "a real tensor of single or double precision", input.dtype)
    return sized(input.shape, dim, size), input.dtype.to_complex(), input.device


@op
def fourier_to_real(input, n, dim, norm, back, middle, size):
    """The first `size` of y_j = n^(-norm/2) Σ_k w_k Re(x_k e^(∓2πi jk/n)), 0 ≤ j < n and 0 ≤ k ≤ n/2, zeros behind; w_k is 1 for k = 0
    and k = n/2, else `middle`: 2 for the transform of a spectrum with x_(n-k) = conj(x_k)."""
    check(input.dtype.is_complex, "irfft", "a complex tensor", input.dtype)
    return sized(input.shape, dim, size), input.dtype.to_real(), input.device


def sized(shape, dim, size):
    return *shape[:dim], size, *shape[dim + 1:]


# ------------------------------------------------------------------ on the CPU
def deliver(out, made, dim):
    """Into the destination, cut or with zeros behind."""
    out, made = np.moveaxis(out, dim, -1), np.moveaxis(made, dim, -1)
    fits = min(out.shape[-1], made.shape[-1])
    out[..., :fits] = made[..., :fits]
    out[..., fits:] = 0


def halves_weighted(x, n, dim, factor):
    """Half a spectrum whose numbers but for those at its ends are multiplied."""
    if factor == 1:
        return x
    weights = np.full(x.shape[dim], factor, x.real.dtype)
    weights[0] = 1
    if n % 2 == 0 and x.shape[dim] > n // 2:
        weights[n // 2] = 1
    return x * weights.reshape(-1, *[1] * (x.ndim - dim - 1))


@fourier.impl("cpu")
def fourier_cpu(out, input, n, dim, norm, back, size):
    made = np.fft.ifft(input, n, dim, NORMS[2 - norm]) if back else np.fft.fft(input, n, dim, NORMS[norm])
    deliver(out, made, dim)


@fourier_of_real.impl("cpu")
def fourier_of_real_cpu(out, input, n, dim, norm, back, middle, size):
    made = halves_weighted(np.fft.rfft(input, n, dim, NORMS[norm]), n, dim, middle)
    deliver(out, made.conj() if back else made, dim)


@fourier_to_real.impl("cpu")
def fourier_to_real_cpu(out, input, n, dim, norm, back, middle, size):
    if not input.shape[dim]:                                             # of which numpy leaves results as memory has them
        out[...] = 0
        return
    half = halves_weighted(input, n, dim, middle / 2)
    deliver(out, np.fft.irfft(half if back else half.conj(), n, dim, NORMS[2 - norm]), dim)


# ------------------------------------------------------------------ on a GPU
def run(out, x, n, dim, steps, ends, made):
    """Transform along dim into the first `made` places, zeros behind."""
    if not out.numel():
        return
    shape = sized(out.shape, dim, out.shape[dim] - made)
    if shape[dim] > 0:
        strided(out.storage, shape, out.strides, out.offset + made * out.strides[dim], out.dtype).fill_(0)
    dims = [d for k, d in enumerate(zip(out.shape, out.strides, x.strides)) if k != dim]
    transform(out, x, n, dims, steps, ends)


@fourier.impl("cuda")
def fourier_cuda(out, input, n, dim, norm, back, size):
    want = min(size, n)
    ends = Ends(min(input.shape[dim], n), want, scale=n ** (-norm / 2), back=back)
    run(out, input, n, dim, (out.strides[dim], input.strides[dim]), ends, want)


@fourier_of_real.impl("cuda")
def fourier_of_real_cuda(out, input, n, dim, norm, back, middle, size):
    want = min(size, n // 2 + 1)
    pair = 2 if as_pairs(n, input.dtype) and want == n // 2 + 1 else 1
    load, store = ("pairs", "halved") if pair == 2 else ("all", "half")
    ends = Ends(min(input.shape[dim], n), want, load, store, n ** (-norm / 2), middle, conj=back, pairs=(0, input.strides[dim]))
    run(out, input, n // pair, dim, (out.strides[dim], pair * input.strides[dim]), ends, want)


@fourier_to_real.impl("cuda")
def fourier_to_real_cuda(out, input, n, dim, norm, back, middle, size):
    have, want, pair = min(input.shape[dim], n // 2 + 1), min(size, n), 2 if as_pairs(n, out.dtype) else 1
    load, store = ("half", "pairs") if pair == 2 else ("whole", "real")
    ends = Ends(have, want, load, store, n ** (-norm / 2), middle / 2, True, not back, (out.strides[dim], 0))
    run(out, input, n // pair, dim, (pair * out.strides[dim], input.strides[dim]), ends, want)


# ------------------------------------------------------------------ gradients
@fourier.grad("input")
def fourier_grad(g, input_shape, n, dim, norm, back):
    return fourier(g, n, dim, norm, not back, input_shape[dim])


@fourier_of_real.grad("input")
def fourier_of_real_grad(g, input_shape, n, dim, norm, back, middle):
    return fourier_to_real(g, n, dim, norm, not back, middle, input_shape[dim])


@fourier_to_real.grad("input")
def fourier_to_real_grad(g, input_shape, n, dim, norm, back, middle):
    return fourier_of_real(g, n, dim, norm, not back, middle, input_shape[dim])


# ------------------------------------------------------------------ samples
for _made in (fourier, fourier_of_real, fourier_to_real):
    _made.complex = MADE


def precise(make):
    """Float64 where floats of less are no dtype of transforms."""
    return make.dtype if make.dtype in (types.float32, types.float64) else types.float32


@fourier.samples
def fourier_samples(make):
    kind = precise(make).to_complex()
    yield make(3, 8, dtype=kind), 8, 1, 0, False, 8
    yield make(11, 2, dtype=kind), 11, 0, 1, True, 11                    # side by side, by a chirp
    yield make(2, 5, 2, dtype=kind), 4, 1, 2, False, 6                   # cut, then zeros behind
    yield make(2, 3, dtype=precise(make)), 6, 1, 0, True, 5              # real, of mixed factors
    yield make(1, dtype=kind), 1, 0, 2, False, 1
    yield make(0, 4, dtype=kind), 4, 1, 0, False, 4


@fourier_of_real.samples
def fourier_of_real_samples(make):
    kind = precise(make)
    yield make(3, 16, dtype=kind), 16, 1, 0, False, 2, 9
    yield make(20, 2, dtype=kind), 22, 0, 1, True, 1, 12                 # as pairs
    yield make(2, 9, 2, dtype=kind), 7, 1, 2, False, 2, 6
    yield make(2, dtype=kind), 2, 0, 2, False, 1, 2
    yield make(1, dtype=kind), 1, 0, 0, True, 1, 1
    yield make(0, 4, dtype=kind), 4, 1, 0, False, 1, 3


@fourier_to_real.samples
def fourier_to_real_samples(make):
    kind = precise(make).to_complex()
    yield make(3, 9, dtype=kind), 16, 1, 0, True, 2, 16
    yield make(13, 2, dtype=kind), 22, 0, 1, False, 1, 21                # as pairs
    yield make(2, 3, 2, dtype=kind), 7, 1, 2, True, 2, 8
    yield make(2, dtype=kind), 2, 0, 2, True, 1, 2
    yield make(1, dtype=kind), 1, 0, 0, False, 2, 1
    yield make(0, 3, dtype=kind), 4, 1, 0, True, 2, 4


@fourier.errors
def fourier_errors(make):
    yield (make(3, integer=True), 3, 0, 0, False, 3), {}, RuntimeError, "a tensor of single or double precision"


@fourier_of_real.errors
def fourier_of_real_errors(make):
    yield (make(3, complex=True), 3, 0, 0, False, 1, 2), {}, RuntimeError, "a real tensor"


@fourier_to_real.errors
def fourier_to_real_errors(make):
    yield (make(3), 4, 0, 0, False, 2, 4), {}, RuntimeError, "a complex tensor"


@fourier.workloads
def fourier_workloads(make):
    for batch, n in ((1 << 20, 16), (1 << 14, 1024), (1 << 12, 4096), (16, 1 << 20), (1 << 14, 1000), (1 << 12, 400)):
        flops = int(5 * batch * n * np.log2(n))
        yield f"{batch} of {n} complex64", lambda batch=batch, n=n: (make(batch, n, complex=True, grad=False), n, 1, 0, False,
                                                                     n), 16 * batch * n, flops
    yield "columns of 1024 complex64", lambda: (make(16, 1024, 1024, complex=True, grad=False), 1024, 1, 0, False, 1024), 1 << 28, 50 << 24


@fourier_of_real.workloads
def fourier_of_real_workloads(make):
    for batch, n in ((1 << 14, 1024), (1 << 14, 400)):
        yield f"{batch} of {n} float32", lambda batch=batch, n=n: (make(batch, n, grad=False), n, 1, 0, False, 1,
                                                                   n // 2 + 1), 8 * batch * n, int(2.5 * batch * n * np.log2(n))


@fourier_to_real.workloads
def fourier_to_real_workloads(make):
    for batch, n in ((1 << 14, 1024), (1 << 14, 400)):
        yield f"{batch} of {n} float32", lambda batch=batch, n=n: (make(batch, n // 2 + 1, complex=True, grad=False), n, 1, 0, True, 2,
                                                                   n), 8 * batch * n, int(2.5 * batch * n * np.log2(n))
