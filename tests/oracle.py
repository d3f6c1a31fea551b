"""The same program under tritorch and under PyTorch: values, shapes, dtypes, gradients and exception types must agree."""
import numpy as np
import pytest

import tritorch

torch = pytest.importorskip("torch")

FLOATS = ("float32", "float64", "float16", "bfloat16")
WHOLES = ("int64", "int32", "int16", "int8", "uint8")
EVERY = (*FLOATS, *WHOLES, "bool")
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 7.25, 1e-7, -1e-7, 88.0, -88.0, 1e10, np.inf, -np.inf,
                    np.nan])
TOLERANCE = {"float64": 1e-11, "float32": 3e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
ERRORS = (RuntimeError, TypeError, ValueError, IndexError, OverflowError, AttributeError)


def name_of(dtype):
    return str(dtype).rpartition(".")[2]


def draw(*shape, dtype="float32", seed=0, low=None, high=None):
    """An array of random numbers: near N(0, 1), whole numbers in [-9, 9) (unsigned: [0, 18)), or even bools."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in WHOLES:
        low, high = (0 if dtype == "uint8" else -9) if low is None else low, (18 if dtype == "uint8" else 9) if high is None else high
        return rng.integers(low, high, shape).astype(dtype)
    values = rng.standard_normal(shape) if low is None else rng.uniform(low, high, shape)
    return np.asarray(values).astype("float64" if dtype == "float64" else "float32")


def tensor(lib, value, dtype=None, device="cpu"):
    """A tensor of a library with the values of an array, cast by that library."""
    made = lib.tensor(value)
    made = made if dtype is None else made.to(getattr(lib, dtype))
    return made.to(device) if lib is tritorch else made


def outcome(program, lib, *inputs):
    """What a program returns, or the error that it raises."""
    try:
        return program(lib, *inputs)
    except ERRORS as error:
        return error


def same(ours, theirs, rtol=None, atol=None, what="", dtypes=True, signs=True):
    """Raise unless two outcomes agree; `signs`: zeros too must have the same sign."""
    if isinstance(theirs, Exception):
        assert isinstance(ours, Exception), f"{what}: PyTorch raises {type(theirs).__name__}: {str(theirs)[:200]}; here {ours}"
        kinds = (RuntimeError,) if isinstance(theirs, NotImplementedError) else type(theirs)
        raised = f"{type(theirs).__name__}: {str(theirs)[:200]}"
        assert isinstance(ours, kinds), f"{what}: {type(ours).__name__}: {ours}; PyTorch raises {raised}"
    elif isinstance(ours, Exception):
        raise AssertionError(f"{what}: {type(ours).__name__}: {ours}; PyTorch gives {theirs}") from ours
    elif isinstance(theirs, torch.Tensor):
        _same_tensors(ours, theirs, rtol, atol, what, dtypes, signs)
    elif isinstance(theirs, (tuple, list)) and not isinstance(theirs, torch.Size):
        assert isinstance(ours, type(theirs)) or isinstance(ours, tuple), f"{what}: a {type(ours).__name__} for a {type(theirs).__name__}"
        assert len(ours) == len(theirs), f"{what}: {len(ours)} results for {len(theirs)}"
        for k, (o, t) in enumerate(zip(ours, theirs)):
            same(o, t, rtol, atol, f"{what}[{k}]", dtypes, signs)
    elif isinstance(theirs, float):
        assert isinstance(ours, float) and np.isclose(ours, theirs, rtol=rtol or 1e-6, atol=atol or 0,
                                                      equal_nan=True), f"{what}: {ours} for {theirs}"
    elif isinstance(theirs, torch.dtype):
        assert name_of(ours) == name_of(theirs), f"{what}: {ours} for {theirs}"
    elif isinstance(theirs, torch.Size):
        assert tuple(ours) == tuple(theirs), f"{what}: {ours} for {theirs}"
    else:
        assert ours == theirs and type(ours) is type(theirs), f"{what}: {ours!r} for {theirs!r}"


def _same_tensors(ours, theirs, rtol, atol, what, dtypes, signs):
    assert isinstance(ours, tritorch.Tensor), f"{what}: {type(ours).__name__} for a tensor"
    assert tuple(ours.shape) == tuple(theirs.shape), f"{what}: shape {tuple(ours.shape)} for {tuple(theirs.shape)}"
    kind = name_of(theirs.dtype)
    assert not dtypes or name_of(ours.dtype) == kind, f"{what}: {ours.dtype} for {theirs.dtype}"
    got, want = ours.detach().cpu(), theirs.detach()
    if theirs.dtype.is_floating_point:
        tolerance = TOLERANCE[kind] if rtol is None else rtol
        got, want = got.double().numpy(), want.double().numpy()
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * 0.03 if atol is None else atol, err_msg=what)
        zeros = (want == 0) & (got == 0)
        assert not signs or np.array_equal(np.signbit(got[zeros]),
                                           np.signbit(want[zeros])), f"{what}: zeros of other signs:\n{got}\nfor\n{want}"
    else:
        np.testing.assert_array_equal(got.numpy(), want.numpy(), err_msg=what)


def agree(program, *inputs, grad=False, device="cpu", rtol=None, atol=None, what="", dtypes=True, signs=True):
    """Run program(lib, tensors…) under both libraries on the same inputs, arrays or (array, dtype).

    `grad`: the gradients too, of all inputs or of those whose numbers it names.
    """
    inputs = [x if isinstance(x, tuple) else (x, None) for x in inputs]
    made = [[tensor(lib, *x, device) if lib is tritorch else tensor(lib, *x) for x in inputs] for lib in (tritorch, torch)]
    if grad:
        for tensors in made:
            for k, x in enumerate(tensors):
                if x.dtype.is_floating_point and (grad is True or k in grad):
                    x.requires_grad_()
    ours, theirs = outcome(program, tritorch, *made[0]), outcome(program, torch, *made[1])
    same(ours, theirs, rtol, atol, what, dtypes, signs)
    if grad and not isinstance(theirs, Exception):
        gradients = [_gradients(lib, out, tensors, device) for lib, out, tensors in zip((tritorch, torch), (ours, theirs), made)]
        for k, (o, t) in enumerate(zip(*gradients)):
            assert (o is None) == (t is None), f"{what}: gradient {k}: {o} for {t}"
            if t is not None:
                same(o, t, rtol and 10 * rtol, atol and 10 * atol, f"{what}: gradient {k}", dtypes, signs=False)
    return ours


def _gradients(lib, out, tensors, device):
    outs = [o for o in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(o, lib.Tensor) and o.requires_grad]
    leaves = [x for x in tensors if x.requires_grad]
    if not outs or not leaves:
        return [None] * len(leaves)
    weights = [tensor(lib, draw(*o.shape, seed=100 + k), name_of(o.dtype), device)
               if lib is tritorch else tensor(lib, draw(*o.shape, seed=100 + k), name_of(o.dtype))
               for k, o in enumerate(outs)]
    return [g if g is None or lib is tritorch else g + 0 for g in lib.autograd.grad(outs, leaves, weights, allow_unused=True)]
