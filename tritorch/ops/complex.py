"""Complex numbers: how they are made of real ones and seen as such. Gradients are PyTorch's: that of a real L is ∂L/∂Re + i ∂L/∂Im."""
import numpy as np

from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, tensors
from tritorch.memory_format import contiguous_format
from tritorch.ops import copy, view
from tritorch.ops.complex_arrays import parts
from tritorch.ops.elementwise import binary, one_dtype, unary
from tritorch.pairs import MADE, OWN
from tritorch.tensor import strided


# ------------------------------------------------------------------ views
@op
def view_as_real(input):
    """The memory of a complex tensor as a real one with a last dim of size 2 for the real and the imaginary part.

    >>> import tritorch as torch; torch.view_as_real(torch.tensor([1 + 2j]))
    tensor([[1., 2.]])
    """
    tensors("view_as_real", input=input)
    check(input.dtype.is_complex, "view_as_real", "a complex tensor", input.dtype)
    return strided(input.storage, (*input.shape, 2), (*[2 * s for s in input.strides], 1), 2 * input.offset, input.dtype.parts)


@view_as_real.grad("input")
def view_as_real_grad(g):
    return paired(g)


@op
def view_as_complex(input):
    """The memory of a real tensor, float32 or float64, whose last dim has size 2 and stride 1, as a complex one.

    >>> import tritorch as torch; torch.view_as_complex(torch.tensor([[1.0, 2.0]]))
    tensor([1.+2.j])
    """
    tensors("view_as_complex", input=input)
    check(input.dtype in (types.float32, types.float64), "view_as_complex", "a tensor of float32 or float64", input.dtype)
    check(input.ndim > 0 and input.shape[-1] == 2, "view_as_complex", "a last dim of size 2", input.shape)
    check(input.strides[-1] == 1, "view_as_complex", "a last dim of stride 1", input.strides)
    even = not any(s % 2 for s in (*input.strides[:-1], input.offset))
    check(even, "view_as_complex", "strides and an offset that 2 divides", input.strides, input.offset)
    strides = tuple([s // 2 for s in input.strides[:-1]])
    return strided(input.storage, input.shape[:-1], strides, input.offset // 2, input.dtype.to_complex())


@view_as_complex.grad("input")
def view_as_complex_grad(g):
    return view_as_real(g if g.dtype.is_complex else g.to(g.dtype.to_complex()))


@view_as_real.samples
def view_as_real_samples(make):
    yield make(3, 4, complex=True)
    yield make(complex=True)
    yield make(0, 2, complex=True)


view_as_complex.complex = MADE


@view_as_complex.samples
def view_as_complex_samples(make):
    yield make(3, 4, 2)
    yield make(2)
    yield make(0, 2)


def paired(x):
    """A real tensor whose last dim has size 2 as a complex one, copied where it does not lie so."""
    fits = x.strides[-1] == 1 and not any(s % 2 for s in (*x.strides[:-1], x.offset))
    return view_as_complex(x if fits else x.clone(memory_format=contiguous_format))


@op
def part_of(input, which):
    """The real (0) or imaginary (1) parts of a complex tensor in its memory: `x.real`, `x.imag`."""
    check(input.dtype.is_complex, ("real", "imag")[which], "a tensor of a complex dtype", input.dtype)
    return strided(input.storage, input.shape, tuple([2 * s for s in input.strides]), 2 * input.offset + which, input.dtype.parts)


@part_of.grad("input")
def part_of_grad(g, which):
    return times_i(g) if which else g                                    # the engine makes it complex


@part_of.samples
def part_of_samples(make):
    for which in (0, 1):
        yield make(3, 4, complex=True), which
        yield make(complex=True), which


def real(input):
    """The real parts, in the memory of a complex tensor; a real tensor itself.

    >>> import tritorch as torch; x = torch.tensor([1 + 2j]); x.real += 3; x
    tensor([4.+2.j])
    """
    tensors("real", input=input)
    return part_of(input, 0) if input.dtype.is_complex else input


def imag(input):
    """The imaginary parts, in the memory of a complex tensor.

    >>> import tritorch as torch; torch.tensor([1 + 2j]).imag
    tensor([2.])
    """
    tensors("imag", input=input)
    return part_of(input, 1)


def seen_as(base, shape, strides, offset, dtype):
    """A view of the memory of `base` under another layout, and as complex or real where the dtype says so."""
    if dtype.is_complex is base.dtype.is_complex:
        return base.as_strided(shape, strides, offset)
    if dtype.is_complex:
        return view_as_complex(base.as_strided((*shape, 2), (*[2 * s for s in strides], 1), 2 * offset))
    return view_as_real(base).as_strided(shape, strides, offset)


# ------------------------------------------------------------------ made of real numbers
def _complex_dtype(name, x, y):
    """The dtype whose parts both tensors are."""
    check(x.dtype in (types.float32, types.float64), name, "tensors of float32 or float64", x.dtype)
    return one_dtype(name, x, y).to_complex()


complex = binary("complex", """real + i · imag, elementwise, broadcast; of two tensors of float32 or of float64.

    >>> import tritorch as torch; torch.complex(torch.tensor([1.0]), torch.tensor([2.0]))
    tensor([1.+2.j])
    """, lambda x, y: parts(x.real, y.real, y.dtype), "complex", names=("real", "imag"), tensors="input other", result=_complex_dtype,
                 complex=MADE, grad_input=lambda g: real(g), grad_other=lambda g: imag(g))
polar = binary("polar", """abs · (cos angle + i · sin angle), elementwise, broadcast; of two tensors of float32 or of float64.

    >>> import tritorch as torch; torch.polar(torch.tensor([2.0]), torch.tensor([0.0]))
    tensor([2.+0.j])
    """, lambda x, y: parts(x.real * np.cos(y.real), x.real * np.sin(y.real), y.dtype), "polar", names=("abs", "angle"),
               tensors="input other", result=_complex_dtype,
               complex=MADE, grad_input=lambda g, abs, angle: real(g * polar(abs * 0 + 1, -angle)),
               grad_other=lambda g, out: imag(g * conj(out)))
complex.exact = polar.exact = True
times_i = unary("times_i", "i · input.", lambda x: parts(-x.imag, x.real, x.dtype), complex=OWN,
                result=lambda name, x: x.dtype.to_complex(), grad=lambda g: -times_i(g))
conjugate = unary("conjugate", "The conjugate of a complex tensor: the imaginary parts with the other sign.", np.conj, complex=OWN,
                  domain={"complex": True}, grad=lambda g: conj(g))

angle_of = unary("angle_of", "The angle of a complex number in the plane, in [-π, π].", np.angle, "angle", complex=OWN,
                 domain={"complex": True},
                 result=lambda name, x: x.dtype.to_real(), grad=lambda g, input: _angle_grad(g, input))


def _angle_grad(g, input):
    """i · input / |input|², 0 at 0."""
    size = input.real * input.real + input.imag * input.imag
    return (times_i(input) * (g / size)).masked_fill(size == 0, 0)


def conj(input):
    """The conjugate; a real tensor itself. It is computed at once: no tensor is marked as to be conjugated when it is read, so that, unlike
    in PyTorch, the result is no view.

    >>> import tritorch as torch; torch.tensor([1 + 2j]).conj()
    tensor([1.-2.j])
    """
    tensors("conj", input=input)
    return conjugate(input) if input.dtype.is_complex else input


def conj_physical(input, *, out=None):
    """The conjugate, as `conj`.

    >>> import tritorch as torch; torch.conj_physical(torch.tensor([1 + 2j]))
    tensor([1.-2.j])
    """
    if out is not None and input.dtype.is_complex:
        return conjugate.into(out, input)
    return copy.deliver(conj(input), out, exact=True)


def adjoint(input):
    """The last two dims exchanged and complex numbers conjugated: `x.mH`. Of real numbers a view.

    >>> import tritorch as torch; torch.adjoint(torch.tensor([[1, 2j]]))
    tensor([[1.-0.j],
            [0.-2.j]])
    """
    return conj(view.matrices_transposed(input))


def matrix_adjoint(input):
    """The transpose of a matrix with complex numbers conjugated: `x.H`."""
    check(len(input.shape) in (0, 2), "H", "a matrix", input.shape)
    return adjoint(input)


def resolve_conj(input):
    """The tensor itself: none is marked to be conjugated when it is read."""
    tensors("resolve_conj", input=input)
    return input


resolve_neg = resolve_conj


# ------------------------------------------------------------------ assigned to
def set_real(self, value):
    """`x.real = value`."""
    real(self).copy_(value)


def set_imag(self, value):
    """`x.imag = value`."""
    imag(self).copy_(value)
