"""The frequencies of a transform's results, and their order."""
from tritorch.dtype import get_default_dtype
from tritorch.errors import check, explained, real_numbers, tensors, whole_numbers
from tritorch.layout import strided
from tritorch.ops import complex, copy, create, shaping
from tritorch.shape import wrap_dim


def _frequencies(name, n, d, options, count, negative):
    """The whole numbers 0 … count - 1, or with `negative` those of the second half less n, over n d."""
    real_numbers(name, d=d)
    out, dtype, requires_grad = options.pop("out"), options.pop("dtype"), options.pop("requires_grad")
    kind = dtype or (get_default_dtype() if out is None else out.dtype)
    check(kind.is_floating_point, name, "a floating dtype", kind)
    made = create.arange(count, dtype=kind, **options)
    if negative:
        made[(n + 1) // 2:] -= n
    made *= 1 / (n * float(d)) if n * d else float("inf")
    made = copy.deliver(made, out)
    return made.requires_grad_() if requires_grad else made


@explained
def fftfreq(n, d=1.0, *, out=None, dtype=None, layout=strided, device=None, requires_grad=False):
    """The frequencies of what `fft` gives for n samples that are d apart: 0, 1, …, then negative ones, up to -1, over n d.

    >>> import tritorch as torch; torch.fft.fftfreq(5)
    tensor([ 0.0000,  0.2000,  0.4000, -0.4000, -0.2000])
    """
    options = dict(out=out, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)
    n, = whole_numbers("fftfreq", "n", (n,))
    return _frequencies("fftfreq", n, d, options, n, True)


@explained
def rfftfreq(n, d=1.0, *, out=None, dtype=None, layout=strided, device=None, requires_grad=False):
    """The frequencies of what `rfft` gives for n samples that are d apart: 0, 1, …, n/2 over n d.

    >>> import tritorch as torch; torch.fft.rfftfreq(5)
    tensor([0.0000, 0.2000, 0.4000])
    """
    options = dict(out=out, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)
    n, = whole_numbers("rfftfreq", "n", (n,))
    return _frequencies("rfftfreq", n, d, options, abs(n) // 2 + 1, False)


def _rolled(name, input, dim, shift):
    tensors(name, input=input)
    dims = tuple(range(input.ndim)) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    check(len(dims) > 0, name, "at least one dim", dims)
    check(input.ndim > 0, name, "a tensor of at least one dim", 0)
    dims = [wrap_dim(d, input.ndim, name) for d in dims]
    shifts = [shift(input.shape[d]) for d in dims]
    if input.dtype.is_complex:
        return complex.paired(shaping.roll(complex.view_as_real(input), shifts, dims))
    return shaping.roll(input, shifts, dims)


@explained
def fftshift(input, dim=None):
    """The frequency 0 from the front to the middle of a dim, of several, or of all: rolled by half their sizes.

    >>> import tritorch as torch; torch.fft.fftshift(torch.fft.fftfreq(4))
    tensor([-0.5000, -0.2500,  0.0000,  0.2500])
    """
    return _rolled("fftshift", input, dim, lambda size: size // 2)


@explained
def ifftshift(input, dim=None):
    """What undoes `fftshift`.

    >>> import tritorch as torch; torch.fft.ifftshift(torch.fft.fftshift(torch.arange(5)))
    tensor([0, 1, 2, 3, 4])
    """
    return _rolled("ifftshift", input, dim, lambda size: (size + 1) // 2)
