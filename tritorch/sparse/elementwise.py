"""Elementwise functions of sparse tensors: sums, products with numbers and tensors, and functions that leave 0 as it is."""
from math import prod

from tritorch.dtype import promote, types
from tritorch.errors import check, sentence
from tritorch.layout import sparse_bsc, sparse_bsr, strided
from tritorch.ops.create import empty
from tritorch.ops.shaping import cat as joined
from tritorch.shape import broadcast_shapes
from tritorch.sparse.base import Sparse
from tritorch.sparse.compressed import Compressed, as_coo, compress, taken_by_compressed, to_coo, without_values
from tritorch.sparse.coo import Coo, keys, known_places, summed, taken, values_of, with_values
from tritorch.sparse.graph import plain, recorded, straight
from tritorch.tensor import Tensor


def is_number(x):
    """Whether x is a number, or a strided tensor without dims."""
    return not isinstance(x, Tensor) or not isinstance(x, Sparse) and not x.shape


# ------------------------------------------------------------------ sums
def add(input, other, alpha=1):
    """input + alpha · other: of two sparse tensors a sparse one, of a strided and a sparse one, in this order, a strided one."""
    if not isinstance(input, Sparse):
        return _add_to_dense(input, other, alpha)
    if not isinstance(other, Sparse):
        if isinstance(input, Compressed) and isinstance(other, Tensor) and other.shape == input.shape:
            return _add_to_dense(other if alpha == 1 else other * alpha, input, 1)
        raise RuntimeError(sentence("add", "a sparse tensor as other (add(sparse, dense) is not supported)", "one that is not",
                                   use="add(dense, sparse)"))
    check(input.shape == other.shape, "add", "sparse tensors of one shape", tuple(input.shape), tuple(other.shape))
    if isinstance(input, Compressed) or isinstance(other, Compressed):
        return _add_compressed(input, other, alpha)
    check(input.sparse_dim() == other.sparse_dim(), "add", "equally many sparse dims", input.sparse_dim(), other.sparse_dim())
    kind = promote(input, other)
    a, b = input.parts[1].to(kind), _scaled(other.parts[1], alpha).to(kind)
    if input.parts[0] is other.parts[0] and input._coalesced == other._coalesced:
        out = Coo.made(input.shape, input.parts[0], a + b, _coalesced=input._coalesced)
    else:
        out = Coo.made(input.shape, joined([input.parts[0], other.parts[0]], 1), joined([a, b]))
        out = summed(out) if input._coalesced and other._coalesced else out
    return recorded("Add", out, [(input, lambda g: g), (other, lambda g: _scaled(g, alpha))])


def _scaled(x, alpha):
    return x if type(alpha) in (int, float) and alpha == 1 else x * alpha


def _add_compressed(a, b, alpha):
    check(a.layout is b.layout, "add", "sparse tensors of one layout", a.layout, b.layout)
    block = a.block() if a.layout in (sparse_bsr, sparse_bsc) else None
    if all(p is q for p, q in zip(a.parts[:2], b.parts[:2])):
        return with_values(a.detach(), values_of(a) + _scaled(values_of(b), alpha))
    return compress(add(to_coo(a).coalesce(), to_coo(b).coalesce(), alpha), a.layout, block)


def sub(input, other, alpha=1):
    """input − alpha · other."""
    return add(input, other, -alpha)


def _add_to_dense(dense, x, alpha):
    check(isinstance(dense, Tensor), "add", "a strided tensor beside a sparse one (add(sparse, dense) is not supported)",
          type(dense).__name__)
    kind, shape = promote(dense, x), tuple(x.shape)
    check(broadcast_shapes("add", dense.shape, shape) == shape, "add", f"a strided tensor that broadcasts to {shape}", tuple(dense.shape))
    start = plain(dense).to(kind).expand(shape).clone()
    return recorded("Add", add_into(start, x, alpha), [(dense, lambda g: g), (x, lambda g: _scaled(g, alpha))])


def add_into(dense, x, alpha=1):
    """Write dense + alpha · x into the strided tensor; nothing is recorded. The rows that x has are touched, no others."""
    x = x if isinstance(x, Coo) else as_coo(x)
    indices, values = x.parts
    values = _scaled(values, alpha).to(dense.dtype)
    if x.sparse_dim() == 1 and values.numel():
        return dense.index_add_(0, indices[0], values)
    sizes = tuple(x.shape[:x.sparse_dim()])
    if not values.numel():
        return dense
    target = dense if dense.is_contiguous() else dense.contiguous()
    flat, n = target.view(prod(sizes), prod(x.shape[len(sizes):])), values.shape[0]
    flat.index_add_(0, keys(x), values.reshape(n, flat.shape[1]))
    return dense if target is dense else dense.copy_(target)


# ------------------------------------------------------------------ products
def mul(input, other):
    """input · other: of a sparse tensor and a number, or a tensor of the same shape, or one that broadcasts to it. The result is sparse."""
    if not isinstance(input, Sparse):
        input, other = other, input
    if is_number(other):
        return times_number(input, other)
    if not isinstance(other, Sparse):
        return _times_dense(input, other)
    if isinstance(input, Compressed) or isinstance(other, Compressed):
        check(input.layout is other.layout, "mul", "sparse tensors of one layout", input.layout, other.layout)
        block = input.block() if input.layout in (sparse_bsr, sparse_bsc) else None
        return compress(mul(to_coo(input), to_coo(other)), input.layout, block)
    check(input.shape == other.shape, "mul", "sparse tensors of one shape", tuple(input.shape), tuple(other.shape))
    check(input.sparse_dim() == other.sparse_dim(), "mul", "equally many sparse dims", input.sparse_dim(), other.sparse_dim())
    kind, a, b = promote(input, other), input.detach().coalesce(), other.detach().coalesce()
    if a.parts[0] is b.parts[0]:
        out = a.like(a.parts[1].to(kind) * b.parts[1].to(kind))
    else:
        out = _intersection(a, b, kind)
    return recorded("Mul", out, [(input, lambda g, a, b: g * _conj(b)), (other, lambda g, a, b: g * _conj(a))], input, other)


def _intersection(a, b, kind):
    """The products at the places that both have."""
    if not a._nnz() or not b._nnz():
        return Coo.made(a.shape, a.parts[0][:, :0], a.parts[1][:0].to(kind), _coalesced=True)
    wanted, known = keys(a), keys(b)
    at = known_places(known, wanted)
    hits = (known.index_select(0, at) == wanted).nonzero().reshape(-1)
    values = a.parts[1].index_select(0, hits).to(kind) * b.parts[1].index_select(0, at.index_select(0, hits)).to(kind)
    return Coo.made(a.shape, a.parts[0].index_select(1, hits), values, _coalesced=True)


def _conj(x):
    return x.conj() if x.dtype.is_complex else x


def _conj_number(number):
    return _conj(number) if isinstance(number, Tensor) else number.conjugate() if isinstance(number, complex) else number


def times_number(x, number):
    """A sparse tensor times a number or a strided tensor without dims."""
    if isinstance(number, Tensor) and number.requires_grad:
        out = x.detach().like(x.parts[-1] * plain(number))
        return recorded("Mul", out, [(x, lambda g, x, n: g * _conj(n)), (number, lambda g, x, n: (g * _conj(x)).sum())], x, number)
    conj = _conj_number(number)
    return straight("Mul", x, x.detach().like(x.parts[-1] * number), lambda g: g * conj)


def _times_dense(x, dense):
    """A sparse tensor times a strided one: the sparse one's places."""
    check(broadcast_shapes("mul", x.shape, dense.shape) == tuple(x.shape), "mul", f"a strided tensor that broadcasts to {tuple(x.shape)}",
          tuple(dense.shape))
    wide, kind = dense if dense.shape == x.shape else dense.expand(tuple(x.shape)), promote(x, dense)
    found = (taken if isinstance(x, Coo) else taken_by_compressed)(plain(wide), x)
    out = x.detach().like(x.parts[-1].to(kind) * found.to(kind))
    return recorded("Mul", out, [(x, lambda g, x, d: g * _conj(d)), (wide, lambda g, x, d: g * _conj(x))], x, wide)


def divided(name):
    """Division by a number; `name` says how the quotient is rounded."""
    def divide(input, other):
        """input / other of a sparse tensor and a number."""
        if not isinstance(input, Sparse) or not is_number(other):
            shape = tuple(getattr(other, "shape", ()))
            raise RuntimeError(sentence("div", "a sparse tensor over a number or a tensor without dims", f"a divisor of shape {shape}"))
        if name == "floor":
            return _rounded(input, lambda v: v.floor_divide(other))
        if name == "trunc":
            return _rounded(input, lambda v: v.div(other, rounding_mode="trunc"))
        out = input.detach().like(input.parts[-1] / plain(other))
        if isinstance(other, Tensor) and other.requires_grad:
            of_number = (other, lambda g, x, n: -((g * _conj(x)).sum() / _conj(n * n)))
            return recorded("Div", out, [(input, lambda g, x, n: g / _conj(n)), of_number], input, other)
        conj = _conj_number(other)
        return straight("Div", input, out, lambda g: g / conj)

    return divide


def _rounded(x, f):
    x = x.coalesce() if isinstance(x, Coo) else x
    return x.detach().like(f(x.parts[-1].detach()))


# ------------------------------------------------------------------ functions that leave 0 as it is
LINEAR = {"neg": lambda v: -v, "conjugate": lambda v: v.conj()}
ZERO_KEEPING = """abs asin asinh atan atanh ceil erf erfinv expm1 floor isinf isnan isneginf isposinf log1p made_finite relu round_even sgn
    sign signbit sin sinh sqrt square tan tanh trunc""".split()


def unary(door):
    """A function of one argument with f(0) = 0, of the values of a coalesced tensor."""
    def apply(input, *args):
        x = input.coalesce() if isinstance(input, Coo) else input
        if not x.requires_grad:
            return x.like(door(x.parts[-1], *args))
        made = door(values_of(x), *args)
        return with_values(x.detach(), made)

    apply.__name__ = door.__name__
    return apply


def linear(name):
    """A function that is linear: it is that of each value, whether places are equal or not."""
    f = LINEAR[name]

    def apply(input):
        return straight(name.capitalize(), input, input.detach().like(f(input.parts[-1])), f if name == "neg" else lambda g: g.conj())

    return apply


def power(input, other):
    """The values of a sparse tensor to the power of a number other than 0."""
    if not isinstance(input, Sparse) or isinstance(other, Tensor):
        raise RuntimeError(sentence("pow", "a sparse tensor to the power of a number", type(other).__name__))
    check(other != 0, "pow", "another power than 0 of a sparse tensor, whose zeros stay", other)
    x = input.coalesce() if isinstance(input, Coo) else input
    return with_values(x.detach(), (values_of(x) if x.requires_grad else x.parts[-1]) ** other)


def empty_like(input, dtype=None, layout=None, device=None):
    """A tensor without values in the shape, layout, dtype and device of the input; or a strided one."""
    kind, device = input.dtype if dtype is None else types.as_dtype(dtype), input.device if device is None else device
    if layout is strided:
        return empty(tuple(input.shape), dtype=kind, device=device)
    made = without_values(input) if isinstance(input, Compressed) else input.detach()._zeros()
    return made.to(device, kind)
