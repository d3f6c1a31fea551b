"""How operators take complex tensors. On a card, `door.complex` is

- None: it does not, and says so;
- OWN: its implementations do, and its gradient rules are right for them: g arrives as ∂L/∂Re + i ∂L/∂Im and leaves as such, as in PyTorch;
- HOST: the same, but on a GPU it refuses;
- MADE: it makes complex tensors of real ones, by rules that are right, too;
- HOLOMORPHIC: its implementations do, and its rules are those of a real function; `autograd.graph.HolomorphicNode` conjugates around them;
- Parts(…): it moves elements, or is linear in them over the real numbers: the implementation for real tensors runs on the real and on the
  imaginary parts. What only moves elements (`words`) does so once on the CPU, and with complex64 on a device, which is a word of 64 bits
  to kernels.
"""
import numpy as np

from tritorch.errors import sentence
from tritorch.tensor import Tensor, part, strided

OWN, HOST, MADE, HOLOMORPHIC = "own", "host", "made", "holomorphic"


class Parts:
    """An operator that works on the two parts apart. Numbers among its arguments that are values of elements, named in `values`, have
    parts as well; others stay."""

    __slots__ = ("words", "values")

    def __init__(self, words=False, values=()):
        self.words, self.values = words, values

    def run(self, door, fn, values):
        """fn of the real parts, then of the imaginary ones. Destinations and arguments may be tensors or numpy arrays."""
        lead = len(door.returns)
        for which in (0, 1):
            fn(*[_part(v, which, k >= lead and door.names[k - lead] in self.values) for k, v in enumerate(values)])


def _part(v, which, value):
    """The part of an argument: of a complex tensor, array, dtype or number, also in a tuple."""
    if isinstance(v, Tensor):
        return part(v, which) if v.dtype.is_complex else v
    if isinstance(v, np.ndarray):
        return v if v.dtype.kind != "c" else v.imag if which else v.real
    if type(v) is tuple:
        return tuple([_part(x, which, value) for x in v])
    if getattr(v, "is_complex", False):
        return v.to_real()
    if value or isinstance(v, complex):
        return v.imag if which else v.real
    return v


def both(x):
    """The parts of a complex tensor along a last dim of size 2, in its memory and without history."""
    return strided(x.storage, (*x.shape, 2), (*[2 * s for s in x.strides], 1), 2 * x.offset, x.dtype.parts)


def lengthened(x):
    """Rows of complex numbers as rows of twice as many real ones, without history: in the same memory where the numbers of a row follow
    each other."""
    x = x if x.strides[-1] == 1 or x.shape[-1] == 1 else x.contiguous()
    return strided(x.storage, (*x.shape[:-1], 2 * x.shape[-1]), (*[2 * s for s in x.strides[:-1]], 1), 2 * x.offset, x.dtype.parts)


def as_word(value):
    """The bits of a complex64 number."""
    return int(np.complex64(value).view(np.uint64))


def met(values):
    """Whether a tensor among the arguments is complex."""
    for v in values:
        if isinstance(v, Tensor):
            if v.dtype.is_complex:
                return True
        elif type(v) is tuple and v and isinstance(v[0], Tensor) and any(isinstance(x, Tensor) and x.dtype.is_complex for x in v):
            return True
    return False


def adjoint(x):
    """The last two dims exchanged, complex numbers conjugated."""
    return x.mH if x.dtype.is_complex else x.mT


def check_number(name, dtype, *values):
    """Raise RuntimeError if one of these numbers or tensors is complex and the dtype that is to take it is not."""
    for v in values:
        if not dtype.is_complex and (v.dtype.is_complex if isinstance(v, Tensor) else isinstance(v, complex)):
            raise RuntimeError(sentence(name, f"a number that {dtype} can hold", v))


def refuse(name, *values):
    """Raise NotImplementedError: the operator takes no complex tensors."""
    found = next((v.dtype for v in values if isinstance(v, Tensor) and v.dtype.is_complex), "a complex number")
    raise NotImplementedError(f"{name}: expected real tensors, got {found}")


def apart(door, fn, values, tensors):
    """Run an implementation of a call with complex tensors in the way that the card names. `values` are what `fn` takes: arrays on the CPU,
    elsewhere the tensors themselves."""
    way = door.complex
    if way is None:
        refuse(door.__name__, *[x for v in tensors for x in (v if type(v) is tuple else (v,))])
    if way is HOST and values is tensors:
        raise NotImplementedError(sentence(door.__name__, "real tensors on a GPU", "complex ones", use="x.cpu()"))
    if type(way) is not Parts or way.words and (values is not tensors or _are_words(values)):
        return fn(*values)
    return way.run(door, fn, values)


def _are_words(values):
    """Whether all tensors that hold elements are of complex64, which is one word to a kernel."""
    kinds = {x.dtype.name for v in values for x in (v if type(v) is tuple else (v,)) if isinstance(x, Tensor)}
    return not kinds & {"complex128", "float32", "float64"}
