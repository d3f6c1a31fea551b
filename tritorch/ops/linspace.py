"""Numbers evenly spaced between two, of real and complex dtypes: `linspace`, `logspace`."""
from tritorch.device import as_device, meta
from tritorch.dtype import types
from tritorch.errors import check, real_numbers, sentence, whole_numbers
from tritorch.layout import only_strided
from tritorch.ops import copy, pointwise
from tritorch.ops.create import _into, ramp
from tritorch.tensor import Tensor


def _number(v, device):
    """The number that an end is; where all is on meta, and nobody sees it, 0 of its kind."""
    if isinstance(v, Tensor):
        return (0j if v.is_complex() else 0) if v.is_meta and as_device(device) is meta else v.item()
    return v


def _ends(name, start, end, dtype, device):
    """(start, end, dtype): complex where one of the numbers is."""
    start, end = [_number(v, device) for v in (start, end)]
    real_numbers(name, **{key: v for key, v in (("start", start), ("end", end)) if not isinstance(v, complex)})
    usual, wide = types.get_default_dtype(), isinstance(start, complex) or isinstance(end, complex)
    dtype = (usual.to_complex() if wide else usual) if dtype is None else types.as_dtype(dtype)
    if wide and not dtype.is_complex:
        raise RuntimeError(sentence(name, "a complex dtype for complex numbers", dtype))
    if not dtype.has_gradients:
        start, end = int(start), int(end)
    return start, end, dtype


def linspace(start, end, steps, *, out=None, dtype=None, layout=None, device=None, requires_grad=False):
    """`steps` numbers evenly from `start` to `end`, both included; on a line in the plane if they are complex.

    >>> import tritorch as torch; torch.linspace(0, 1, 5), torch.linspace(0, 1j, 3)
    (tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000]), tensor([0.+0.0000j, 0.+0.5000j, 0.+1.0000j]))
    """
    only_strided("linspace", layout)
    start, end, dtype = _ends("linspace", start, end, out.dtype if dtype is None and out is not None else dtype, device)
    steps, = whole_numbers("linspace", "steps", (steps,))
    check(steps >= 0, "linspace", "steps of at least 0", steps)
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    kind = dtype if dtype.has_gradients else types.float64
    made = ramp(complex(start) if dtype.is_complex else float(start), step, steps, kind, as_device(device)).to(dtype)
    if steps > 1:
        copy.fill_(made[-1], end)                                        # exactly, whatever the rounding of the steps
    return _into(out, made, requires_grad)


def logspace(start, end, steps, base=10.0, *, out=None, dtype=None, layout=None, device=None, requires_grad=False):
    """`steps` numbers from base^start to base^end, evenly in the exponent; complex if these are.

    >>> import tritorch as torch
    >>> torch.logspace(0, 3, 4)
    tensor([   1.,   10.,  100., 1000.])
    """
    only_strided("logspace", layout)
    start, end, dtype = _ends("logspace", start, end, out.dtype if dtype is None and out is not None else dtype, device)
    wide = types.complex128 if dtype.is_complex else types.float64
    exponents = linspace(start, end, steps, dtype=wide, device=device)
    return _into(out, pointwise.pow(float(base), exponents).to(dtype), requires_grad)
