"""assert_close and make_tensor."""
import numpy as np

from tritorch.device import as_device
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.layout import strided
from tritorch.ops import create
from tritorch.tensor import Tensor

_TOLERANCE = {types.float64: (1e-7, 1e-7), types.float32: (1.3e-6, 1e-5), types.float16: (1e-3, 1e-5), types.bfloat16: (1.6e-2, 1e-5)}


def wide(x):
    """The values of a tensor as a numpy array in float64, or as they are if whole."""
    array = x.detach().cpu().array
    return array.astype(np.complex128 if x.dtype.is_complex else np.float64) if x.dtype.has_gradients else array


def assert_close(actual, expected, *, rtol=None, atol=None, equal_nan=False, check_device=True, check_dtype=True, check_layout=True,
                 check_stride=False, msg=None):
    """Raise AssertionError unless |actual - expected| ≤ atol + rtol·|expected| everywhere (and shape, dtype, device and layout agree).

    Tensors, numbers, and sequences and mappings of them; the default tolerances are those of the less precise dtype. Sparse tensors of one
    layout must have equal indices.

    >>> import tritorch as torch; torch.testing.assert_close(torch.ones(2), torch.ones(2) + 1e-7)
    """
    if isinstance(expected, dict):
        _must(actual.keys() == expected.keys(), f"keys {sorted(map(str, actual))} are not {sorted(map(str, expected))}", msg)
        pairs = [(actual[k], expected[k]) for k in expected]
    elif isinstance(expected, (list, tuple)):
        _must(len(actual) == len(expected), f"{len(actual)} items are not {len(expected)}", msg)
        pairs = list(zip(actual, expected))
    else:
        a, e = [x if isinstance(x, Tensor) else create.tensor(x) for x in (actual, expected)]
        _must(not check_layout or a.layout is e.layout, f"layout {a.layout} is not {e.layout}", msg)
        for x, y, exact in _parts(a, e):
            limits = (0.0, 0.0) if exact else (rtol, atol)
            _pair(x, y, *limits, equal_nan, check_device, check_dtype, check_stride, msg)
        return
    for a, e in pairs:
        assert_close(a, e, rtol=rtol, atol=atol, equal_nan=equal_nan, check_device=check_device, check_dtype=check_dtype,
                     check_layout=check_layout, check_stride=check_stride, msg=msg)


def _parts(a, e):
    """The strided tensors to compare, and whether they must be equal: of sparse tensors the parts."""
    if a.layout is e.layout is strided or a.shape != e.shape:
        return [(a, e, False)]
    if a.layout is not e.layout:
        return [(a.to_dense(), e.to_dense(), False)]
    return [(create.tensor(a._nnz()), create.tensor(e._nnz()), True), *[(x, y, x is not a.parts[-1]) for x, y in zip(a.parts, e.parts)]]


def _pair(actual, expected, rtol, atol, equal_nan, check_device, check_dtype, check_stride, msg):
    check((rtol is None) == (atol is None), "assert_close", "both rtol and atol, or neither", rtol, atol, error=ValueError)
    a, e = actual, expected
    _must(a.shape == e.shape, f"shape {tuple(a.shape)} is not {tuple(e.shape)}", msg)
    _must(not check_dtype or a.dtype is e.dtype, f"dtype {a.dtype} is not {e.dtype}", msg)
    _must(not check_device or a.device is e.device, f"device {a.device} is not {e.device}", msg)
    _must(not check_stride or a.strides == e.strides, f"strides {a.strides} are not {e.strides}", msg)
    if a.is_meta or e.is_meta:                                           # there are no values to compare
        return
    if rtol is None:
        pairs = [_TOLERANCE.get(x.dtype.to_real(), (0.0, 0.0)) for x in (a, e)]
        rtol, atol = max(p[0] for p in pairs), max(p[1] for p in pairs)
    x, y = wide(a), wide(e)
    good = np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan) if x.dtype.kind in "fc" or rtol or atol else x == y
    if not good.all():
        worst = np.unravel_index(np.argmax(np.where(good, 0, np.nan_to_num(np.abs(x.astype(np.result_type(x, float)) - y), nan=np.inf))),
                                 x.shape)
        _must(False, f"{int((~good).sum())} of {x.size} elements are not close; the worst is {x[worst]} for {y[worst]} at "
                     f"{tuple(map(int, worst))} "
                     f"(rtol {rtol}, atol {atol})", msg)


def _must(ok, sentence, msg):
    if not ok:
        raise AssertionError(msg(sentence) if callable(msg) else msg or f"assert_close: {sentence}")


def make_tensor(*shape, dtype, device=None, low=None, high=None, requires_grad=False, noncontiguous=False, exclude_zero=False,
                memory_format=None, seed=None):
    """A tensor of random numbers in [low, high): by default [-9, 9), [0, 10) for uint8, bools evenly."""
    shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    rng = np.random.default_rng(seed)
    low, high = (0 if dtype is types.uint8 else -9) if low is None else low, (10 if dtype is types.uint8 else 9) if high is None else high
    full = (*shape[:-1], 2 * shape[-1]) if noncontiguous and shape else shape
    if dtype is types.bool:
        values = rng.integers(0, 2, full)
    elif dtype.is_complex:
        values = rng.uniform(low, high, full) + 1j * rng.uniform(low, high, full)
    elif dtype.is_floating_point:
        values = rng.uniform(low, high, full)
    else:
        values = rng.integers(int(low), int(high), full)
    if exclude_zero:
        values = np.where(values == 0, 1, values)
    out = create.tensor(np.asarray(values)).to(as_device(device), dtype)
    out = out[..., ::2] if full != shape else out
    return out.requires_grad_() if requires_grad else out
