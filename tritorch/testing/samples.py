"""The samples of an operator's card: drawn, moved to other devices, dtypes and memory layouts, and how near results must be."""
import numpy as np

from tritorch.device import device
from tritorch.dtype import types
from tritorch.ops import create
from tritorch.tensor import Tensor
from tritorch.testing.compare import wide


# ------------------------------------------------------------------ drawing samples
class Maker:
    """Draws the tensors of samples: `make(3, 4)` is floating, near N(0, 1), and takes part in gradients; with `complex` both its parts."""

    def __init__(self, dtype=types.float32, seed=0):
        self.dtype, self.rng = dtype, np.random.default_rng(seed)

    def __call__(self, *shape, dtype=None, low=None, high=None, positive=False, integer=False, grad=True, complex=False):
        if integer:
            values = self.rng.integers(-5 if low is None else low, 5 if high is None else high, shape)
            return create.tensor(values, dtype=dtype or types.int64)
        if positive:
            low, high = 0.5 if low is None else low, 2.0 if high is None else high
        dtype = dtype or (self.dtype.to_complex() if complex else self.dtype)
        values = self._draw(shape, low, high) + (1j * self._draw(shape, low, high) if dtype.is_complex else 0)
        out = create.tensor(np.asarray(values), dtype=dtype)
        return out.requires_grad_() if grad and dtype.has_gradients else out

    def _draw(self, shape, low, high):
        return self.rng.standard_normal(shape) if low is None else self.rng.uniform(low, high, shape)


def samples_of(op, dtype=types.float32, seed=0):
    """(args) of every sample, all parameters in order, drawn with floating tensors of `dtype`."""
    for sample in op.samples_body(Maker(dtype, seed)):
        sample = sample if isinstance(sample, tuple) else (sample,)
        keywords = sample[-1] if sample and isinstance(sample[-1], dict) else {}
        args = list(sample[:-1] if keywords or (sample and isinstance(sample[-1], dict)) else sample)
        for name, default in zip(op.names[len(args):], op.defaults[len(args):]):
            args.append(keywords.get(name, default))
        yield args


def each_tensor(fn, args):
    """args with fn applied to every tensor, those in tuples included."""
    return [fn(a) if isinstance(a, Tensor) else tuple([fn(v) if isinstance(v, Tensor) else v for v in a]) if isinstance(a, tuple) else a
            for a in args]


def tensors_in(args):
    return [v for a in args for v in (a if isinstance(a, tuple) else (a,)) if isinstance(v, Tensor)]


def leaves(args, to=None, dtype=None):
    """Fresh leaves with the values of args, on a device, floating ones in a dtype."""

    def fresh(x):
        kind = x.dtype if dtype is None or not x.dtype.has_gradients else dtype.to_complex() if x.dtype.is_complex else dtype
        out = x.detach().to(to or x.device, kind, copy=True)
        return out.requires_grad_() if x.requires_grad else out

    out = each_tensor(fresh, args)
    return out if to is None else [to if isinstance(a, device) else a for a in out]


def results(out):
    return list(out) if isinstance(out, tuple) else [out]


def describe(op, args):
    def show(a):
        if isinstance(a, Tensor):
            return f"{a.dtype.name}{tuple(a.shape)}" + ("" if a.is_contiguous() else f" strides {a.strides}")
        return "(" + ", ".join(map(show, a)) + ")" if isinstance(a, tuple) else repr(a)

    return f"{op.__name__}({', '.join(map(show, args))})"


# ------------------------------------------------------------------ comparing
def tolerance(dtype):
    """How far a result of a dtype may lie from the float64 reference on the same rounded inputs, relative to the size of the results."""
    return {types.float64: 1e-12, types.float32: 2e-5, types.float16: 4e-3, types.bfloat16: 3e-2}.get(dtype.to_real(), 0.0)


def assert_near(got, want, what, tol):
    """Values near, NaN and infinities equal; whole numbers exact."""
    x, y = wide(got), wide(want)
    assert x.shape == y.shape, f"{what}: shape {x.shape} for {y.shape}"
    if x.dtype.kind == y.dtype.kind == "c":
        x, y = [np.stack([v.real, v.imag], -1) for v in (x, y)]
    if x.dtype.kind != "f" or y.dtype.kind != "f":
        assert np.array_equal(x, y), f"{what}: {x} for {y}"
        return
    finite = np.isfinite(y)
    assert np.array_equal(np.isnan(x), np.isnan(y)), f"{what}: NaN in other places: {x} for {y}"
    assert np.array_equal(x[np.isinf(y)], y[np.isinf(y)]), f"{what}: other infinities: {x} for {y}"
    if finite.any():
        scale = np.abs(y[finite]).max()
        worst = np.abs(x[finite] - y[finite]) - tol * np.abs(y[finite])
        assert worst.max() <= tol * max(scale, 1e-3), f"{what}: off by {worst.max():g} at size {scale:g} (tolerance {tol:g})\n{x}\nfor\n{y}"


# ------------------------------------------------------------------ layouts
def layouts(x):
    """The same values stored otherwise: column-major, with an offset and gaps, and, where the values allow it, with stride 0."""
    if x.ndim >= 2:
        yield "transposed", _leaf(x.detach().transpose(-1, -2).clone().transpose(-1, -2), x)
    if x.ndim >= 1:
        wide_shape = (*x.shape[:-1], 2 * x.shape[-1] + 1)
        gapped = create.zeros(wide_shape, dtype=x.dtype, device=x.device)
        part = gapped[..., 1::2]
        part.copy_(x.detach())
        yield "gapped", _leaf(part.detach(), x)
    else:
        two = create.zeros(2, dtype=x.dtype, device=x.device)
        two[1].copy_(x.detach())
        yield "offset", _leaf(two.detach()[1].detach(), x)


def _leaf(t, like):
    return t.requires_grad_() if like.requires_grad else t


def expanded(x):
    """A tensor of the same shape whose first dim has stride 0."""
    return _leaf(x.detach()[:1].clone().expand(x.shape).detach(), x)


def replaced(args, k, j, new):
    """args with the j-th tensor of argument k replaced."""
    out = list(args)
    if isinstance(out[k], tuple):
        out[k] = (*out[k][:j], new, *out[k][j + 1:])
    else:
        out[k] = new
    return out


def places(args):
    for k, a in enumerate(args):
        if isinstance(a, Tensor):
            yield k, 0, a
        elif isinstance(a, tuple):
            for j, v in enumerate(a):
                if isinstance(v, Tensor):
                    yield k, j, v
