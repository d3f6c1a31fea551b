"""The transforms of tritorch.fft, made of the three operators of `tritorch.ops.fft`, one dim after the other."""
from tritorch.dtype import get_default_dtype
from tritorch.errors import check, tensors, whole_numbers
from tritorch.ops import copy
from tritorch.ops.composite import composite
from tritorch.ops.fft import fourier, fourier_of_real, fourier_to_real
from tritorch.shape import wrap_dim
from tritorch.tensor import own

FACTORS = {None: 0, "backward": 0, "ortho": 1, "forward": 2}             # powers of 1/√n in front of forward transforms


# ------------------------------------------------------------------ arguments
def floating(name, input):
    """The input, whole numbers in the default dtype."""
    tensors(name, input=input)
    return input if input.dtype.has_gradients else input.to(get_default_dtype())


def factor(name, norm, back):
    """The power of 1/√n in front of a transform."""
    check(norm is None or isinstance(norm, str), name, "a string or None as norm", norm, error=TypeError)
    check(norm in FACTORS, name, "'backward', 'ortho' or 'forward' as norm", repr(norm))
    return 2 - FACTORS[norm] if back else FACTORS[norm]


def place(name, input, dim):
    """A dim, counted from the front."""
    check(input.ndim > 0, name, "a tensor of at least one dim", "0 dims", error=IndexError)
    return wrap_dim(whole_numbers(name, "dim", (dim,))[0], input.ndim, name)


def length(name, n, default):
    """How many numbers to transform."""
    n = default if n is None else whole_numbers(name, "n", (n,))[0]
    check(n >= 1, name, "at least one number to transform", n)
    return n


def many(value):
    return value if isinstance(value, (tuple, list)) or value is None else (value,)


def axes(name, input, s, dim, half=False):
    """[(dim, its length)]. `half` says that the last one of the dims is half a spectrum, of which -1 or nothing gives an even length."""
    tensors(name, input=input)
    s, dim = many(s), many(dim)
    if dim is not None:
        dim = [wrap_dim(d, input.ndim, name) for d in whole_numbers(name, "dim", dim)] if dim and input.ndim else [
            place(name, input, d) for d in dim]
        check(len(set(dim)) == len(dim), name, "each dim once", tuple(dim))
    if s is not None:
        s = whole_numbers(name, "s", s)
        check(dim is None or len(s) == len(dim), name, "as many sizes as dims", tuple(s), () if dim is None else tuple(dim))
        check(len(s) <= input.ndim, name, f"at most {input.ndim} sizes for as many dims", tuple(s))
    if dim is None:
        dim = list(range(input.ndim - (input.ndim if s is None else len(s)), input.ndim))
    sizes = [-1] * len(dim) if s is None else s
    found = []
    for k, (d, size) in enumerate(zip(dim, sizes)):
        whole = 2 * (input.shape[d] - 1) if half and k == len(dim) - 1 else input.shape[d]
        found.append((d, length(name, None if size == -1 else size, whole)))
    return found


def delivered(name, made, out):
    """`made`, or `out` holding its values."""
    if out is None:
        return made
    tensors(name, out=out)
    check(out.dtype.is_complex is made.dtype.is_complex, name, f"a destination of {made.dtype}", out.dtype)
    return copy.deliver(made, out)


# ------------------------------------------------------------------ steps
def _each(x, dims, norm, back):
    """Complex transforms over several dims."""
    for d, n in dims:
        x = fourier(x, n, d, norm, back, n)
    return x


def _complex(name, input, n, dim, norm, back, out):
    x = floating(name, input)
    dim = place(name, x, dim)
    n = length(name, n, x.shape[dim])
    return delivered(name, fourier(x, n, dim, factor(name, norm, back), back, n), out)


def _of_real(name, input, n, dim, norm, back, out):
    x = floating(name, input)
    check(not x.dtype.is_complex, name, "a real tensor", x.dtype)
    dim = place(name, x, dim)
    n = length(name, n, x.shape[dim])
    return delivered(name, fourier_of_real(x, n, dim, factor(name, norm, back), back, 1, n // 2 + 1), out)


def _to_real(name, input, n, dim, norm, back, out):
    x = floating(name, input)
    dim = place(name, x, dim)
    n = length(name, n, 2 * (x.shape[dim] - 1))
    return delivered(name, fourier_to_real(_as_complex(x), n, dim, factor(name, norm, back), back, 2, n), out)


def _as_complex(x):
    return x if x.dtype.is_complex else x.to(x.dtype.to_complex())


def _complex_many(name, input, s, dim, norm, back, out):
    x, dims = floating(name, input), axes(name, input, s, dim)
    made = _each(x, reversed(dims), factor(name, norm, back), back)
    return delivered(name, made if dims else own(_as_complex(x).clone()), out)


def _of_real_many(name, input, s, dim, norm, back, out):
    x = floating(name, input)
    check(back or not x.dtype.is_complex, name, "a real tensor", x.dtype)
    dims = axes(name, x, s, dim)
    check(not x.dtype.is_complex, name, "a real tensor", x.dtype)
    check(len(dims) > 0, name, "at least one dim to transform", dims)
    (last, n), norm = dims[-1], factor(name, norm, back)
    return delivered(name, _each(fourier_of_real(x, n, last, norm, back, 1, n // 2 + 1), reversed(dims[:-1]), norm, back), out)


def _to_real_many(name, input, s, dim, norm, back, out):
    x, dims = _as_complex(floating(name, input)), axes(name, input, s, dim, half=True)
    check(len(dims) > 0, name, "at least one dim to transform", dims)
    (last, n), norm = dims[-1], factor(name, norm, back)
    return delivered(name, fourier_to_real(_each(x, dims[:-1], norm, back), n, last, norm, back, 2, n), out)


# ------------------------------------------------------------------ along one dim
@composite
def fft(input, n=None, dim=-1, norm=None, *, out=None):
    """The transform of a real or complex tensor along `dim`, cut or with zeros behind to n numbers: y_k = Σ_j x_j e^(-2πi jk/n).

    >>> import tritorch as torch; torch.fft.fft(torch.tensor([1.0, 0.0, -1.0, 0.0]))
    tensor([0.+0.j, 2.+0.j, 0.+0.j, 2.+0.j])
    """
    return _complex("fft", input, n, dim, norm, False, out)


@composite
def ifft(input, n=None, dim=-1, norm=None, *, out=None):
    """What undoes `fft`: x_j = 1/n Σ_k y_k e^(2πi jk/n).

    >>> import tritorch as torch; torch.fft.ifft(torch.tensor([0.0, 2.0, 0.0, 2.0]))
    tensor([ 1.+0.j,  0.+0.j, -1.+0.j,  0.+0.j])
    """
    return _complex("ifft", input, n, dim, norm, True, out)


@composite
def rfft(input, n=None, dim=-1, norm=None, *, out=None):
    """`fft` of a real tensor for 0 ≤ k ≤ n/2 alone, of which the rest are conjugates.

    >>> import tritorch as torch; torch.fft.rfft(torch.tensor([1.0, 0.0, -1.0, 0.0]))
    tensor([0.+0.j, 2.+0.j, 0.+0.j])
    """
    return _of_real("rfft", input, n, dim, norm, False, out)


@composite
def irfft(input, n=None, dim=-1, norm=None, *, out=None):
    """What undoes `rfft`: n real numbers, by default 2 · (size - 1); odd lengths have to be given. Imaginary parts of the number 0 and, if
    n is even, n/2, which are 0 where the signal is real, do not count.

    >>> import tritorch as torch; torch.fft.irfft(torch.tensor([0.0, 2.0, 0.0]))
    tensor([ 1.,  0., -1.,  0.])
    """
    return _to_real("irfft", input, n, dim, norm, True, out)


@composite
def hfft(input, n=None, dim=-1, norm=None, *, out=None):
    """The transform, n real numbers, of a signal with x_(n-j) = conj(x_j), from 0 ≤ j ≤ n/2; n is by default 2 · (size - 1).

    >>> import tritorch as torch; torch.fft.hfft(torch.tensor([0.0, 1.0, 0.0]))
    tensor([ 2.,  0., -2.,  0.])
    """
    return _to_real("hfft", input, n, dim, norm, False, out)


@composite
def ihfft(input, n=None, dim=-1, norm=None, *, out=None):
    """What undoes `hfft`: `ifft` of n real numbers, for 0 ≤ j ≤ n/2.

    >>> import tritorch as torch; torch.fft.ihfft(torch.tensor([2.0, 0.0, -2.0, 0.0])).real
    tensor([0., 1., 0.])
    """
    return _of_real("ihfft", input, n, dim, norm, True, out)


# ------------------------------------------------------------------ over several dims
@composite
def fftn(input, s=None, dim=None, norm=None, *, out=None):
    """`fft` along several dims, cut or with zeros behind to the sizes s (-1: as it is). Without `dim` the last len(s) dims, or all.

    >>> import tritorch as torch; torch.fft.fftn(torch.ones(2, 2))
    tensor([[4.+0.j, 0.+0.j],
            [0.+0.j, 0.+0.j]])
    """
    return _complex_many("fftn", input, s, dim, norm, False, out)


@composite
def ifftn(input, s=None, dim=None, norm=None, *, out=None):
    """What undoes `fftn`.

    >>> import tritorch as torch; torch.fft.ifftn(torch.tensor([[4.0, 0.0], [0.0, 0.0]])).real
    tensor([[1., 1.],
            [1., 1.]])
    """
    return _complex_many("ifftn", input, s, dim, norm, True, out)


@composite
def rfftn(input, s=None, dim=None, norm=None, *, out=None):
    """`fftn` of a real tensor, `rfft` along the last of the dims.

    >>> import tritorch as torch; torch.fft.rfftn(torch.ones(2, 4)).shape
    tritorch.Size([2, 3])
    """
    return _of_real_many("rfftn", input, s, dim, norm, False, out)


@composite
def irfftn(input, s=None, dim=None, norm=None, *, out=None):
    """What undoes `rfftn`: `irfft` along the last of the dims, whose length is by default 2 · (size - 1).

    >>> import tritorch as torch; torch.fft.irfftn(torch.fft.rfftn(torch.ones(2, 4)))
    tensor([[1., 1., 1., 1.],
            [1., 1., 1., 1.]])
    """
    return _to_real_many("irfftn", input, s, dim, norm, True, out)


@composite
def hfftn(input, s=None, dim=None, norm=None, *, out=None):
    """`fft` along all of several dims but the last, `hfft` along that.

    >>> import tritorch as torch; torch.fft.hfftn(torch.ones(2, 2))
    tensor([[4., 0.],
            [0., 0.]])
    """
    return _to_real_many("hfftn", input, s, dim, norm, False, out)


@composite
def ihfftn(input, s=None, dim=None, norm=None, *, out=None):
    """What undoes `hfftn`.

    >>> import tritorch as torch; torch.fft.ihfftn(torch.tensor([[4.0, 0.0], [0.0, 0.0]])).real
    tensor([[1., 1.],
            [1., 1.]])
    """
    return _of_real_many("ihfftn", input, s, dim, norm, True, out)


def _of_two(f, undoes):
    """The form of a transform for two dims, by default the last ones."""

    def transform(input, s=None, dim=(-2, -1), norm=None, *, out=None):
        return f(input, s, dim, norm, out=out)

    transform.__name__ = transform.__qualname__ = f.__name__[:-1] + "2"
    transform.__doc__ = f"""`{f.__name__}` of two dims, by default the last ones; `{undoes}` is the other way round.

    >>> import tritorch as torch; torch.fft.{transform.__name__}(torch.ones(3, 2, 5)).shape
    tritorch.Size({[3, 2, {"rfftn": 3, "ihfftn": 3, "irfftn": 8, "hfftn": 8}.get(f.__name__, 5)]})
    """
    return composite(transform)


fft2, ifft2, rfft2, irfft2 = _of_two(fftn, "ifft2"), _of_two(ifftn, "fft2"), _of_two(rfftn, "irfft2"), _of_two(irfftn, "rfft2")
hfft2, ihfft2 = _of_two(hfftn, "ihfft2"), _of_two(ihfftn, "hfft2")
