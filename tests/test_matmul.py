"""Matrix products: what the cards cannot know. PyTorch as an oracle, ranks, precision."""
import numpy as np
import pytest

import tritorch as T
from tritorch.ops import matmul as M
from tritorch.ops import products
from tritorch.precision import get_float32_matmul_precision, set_float32_matmul_precision
from tritorch.tensor import from_array


def draw(*shape, dtype=np.float32, seed=0):
    rng = np.random.default_rng([seed, *shape])
    values = rng.standard_normal(shape) if np.dtype(dtype).kind == "f" else rng.integers(-100, 100, shape)
    return np.asarray(values).astype(dtype)


def number(x):
    return x.detach().cpu().array


RANKS = [
    ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (2, 3, 4)), ((2, 5, 3), (3,)), ((2, 3), (3, 4)), ((2, 5, 3), (3, 4)),
    ((5, 3), (2, 3, 4)), ((2, 1, 5, 3), (4, 3, 2)), ((0,), (0,)), ((2, 0), (0, 3)), ((0, 3), (3,)), ((2, 0, 3), (3, 4)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize("a, b", RANKS)
def test_every_rank_is_pytorchs(a, b):
    torch = pytest.importorskip("torch")
    x, y = draw(*a, dtype=np.float64), draw(*b, dtype=np.float64, seed=1)
    ours, theirs = [from_array(v.copy()).requires_grad_() for v in (x, y)], [torch.from_numpy(v.copy()).requires_grad_() for v in (x, y)]
    out, want = ours[0] @ ours[1], theirs[0] @ theirs[1]
    assert tuple(out.shape) == tuple(want.shape)
    np.testing.assert_allclose(number(out), want.detach().numpy(), atol=1e-12)
    weights = draw(*want.shape, dtype=np.float64, seed=2)
    (out * from_array(weights)).sum().backward()
    (want * torch.from_numpy(weights)).sum().backward()
    for mine, other in zip(ours, theirs):
        np.testing.assert_allclose(number(mine.grad), other.grad.numpy(), atol=1e-12)


BAD = [(lambda r: M.matmul(r(3, 4), r(5, 6)), r"matmul: expected input.shape\[-1\] == other.shape\[-2\], got \(3, 4\) and \(5, 6\)"),
       (lambda r: M.matmul(r(2, 3, 4), r(5, 6)), r"matmul: expected input.shape\[-1\] == other.shape\[-2\], got \(2, 3, 4\) and \(5, 6\)"),
       (lambda r: M.matmul(r(3), r(4)), "matmul: .*, got"), (lambda r: M.matmul(r(), r(4)), "at least one dim"),
       (lambda r: M.mm(r(2, 3, 4), r(4, 5)), "mm: expected tensors of 2 and 2 dims"),
       (lambda r: M.bmm(r(2, 3, 4), r(1, 4, 5)), "equal batches"),
       (lambda r: M.mv(r(3, 4), r(5)), "matmul"), (lambda r: M.dot(r(3, 4), r(5)), "dot: expected tensors of 1 and 1 dims"),
       (lambda r: M.addmm(r(3), r(3, 4), r(4, 5)), "addmm"), (lambda r: M.linear(r(3, 4), r(5, 6)), "linear: expected input.shape"),
       (lambda r: M.inner(r(3), r(5, 4)), "inner"), (lambda r: M.outer(r(3), r(5, 4)), "outer"),
       (lambda r: M.matrix_power(r(2, 3), 2), "square")]


@pytest.mark.parametrize("call, sentence", BAD)
def test_misfits_raise_one_sentence(call, sentence):
    with pytest.raises(RuntimeError, match=sentence):
        call(lambda *shape: from_array(draw(*shape)))


NAMES = [
    ("mm", (2, 3), (3, 4)), ("bmm", (2, 3, 4), (2, 4, 5)), ("mv", (2, 3), (3,)), ("dot", (4,), (4,)), ("vdot", (4,), (4,)),
    ("inner", (2, 3, 4), (5, 4)), ("inner", (), (5, 4)), ("outer", (3,), (4,)), ("ger", (3,), (4,)), ("kron", (2, 3), (3, 2)),
    ("kron", (2,), (3, 2, 2)), ("chain_matmul", (2, 3), (3, 5), (5, 4), (4, 1)), ("addmm", (3, 5), (3, 4), (4, 5)),
    ("addmm", (5,), (3, 4), (4, 5)), ("addmv", (3,), (3, 4), (4,)), ("addmv", (1,), (3, 4), (4,)),
    ("addbmm", (3, 5), (2, 3, 4), (2, 4, 5)), ("baddbmm", (2, 3, 5), (2, 3, 4), (2, 4, 5)), ("baddbmm", (5,), (2, 3, 4), (2, 4, 5)),
    ("addr", (3, 4), (3,), (4,)),
]


@pytest.mark.parametrize("name, shapes", [(n, s) for n, *s in NAMES])
def test_names_are_pytorchs(name, shapes):
    torch = pytest.importorskip("torch")
    arrays = [draw(*s, dtype=np.float64, seed=k) for k, s in enumerate(shapes)]
    factors = [{}, {"beta": 0.5, "alpha": -2.0}, {"beta": 0}] if name.startswith(("add", "badd")) else [{}]
    for keywords in factors:
        want = getattr(torch, name)(*[torch.from_numpy(a) for a in arrays], **keywords).numpy()
        np.testing.assert_allclose(number(getattr(M, name)(*[from_array(a) for a in arrays], **keywords)), want, atol=1e-12)
        out = from_array(np.full(want.shape, np.nan))
        assert getattr(M, name)(*[from_array(a) for a in arrays], out=out, **keywords) is out
        np.testing.assert_allclose(number(out), want, atol=1e-12)


def test_in_place_and_ignored_input():
    a, b = draw(3, 4), draw(4, 5)
    x = from_array(np.full((3, 5), np.nan, np.float32))
    np.testing.assert_allclose(number(x.addmm_(from_array(a), from_array(b), beta=0)), a @ b, rtol=1e-6)
    np.testing.assert_allclose(number(x.addmm_(from_array(a), from_array(b), alpha=2)), 3 * (a @ b), rtol=1e-5)


def test_matrix_power():
    a = draw(2, 3, 3, dtype=np.float64)
    for n in (0, 1, 2, 5):
        np.testing.assert_allclose(number(M.matrix_power(from_array(a), n)), np.linalg.matrix_power(a, n), atol=1e-12)


@pytest.mark.parametrize("shapes", [((4, 3), (4, 2), (5, 3, 2)), ((2, 3, 3), (2, 3, 2), (4, 3, 2)), ((3,), (2,), (1, 3, 2))])
def test_bilinear_is_its_sum(shapes):
    x, y, w = [draw(*s, dtype=np.float64, seed=k) for k, s in enumerate(shapes)]
    bias = draw(w.shape[0], dtype=np.float64)
    want = np.einsum("...i,nij,...j->...n", x, w, y) + bias
    np.testing.assert_allclose(number(M.bilinear(*map(from_array, (x, y, w, bias)))), want, atol=1e-12)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_integers_wrap(dtype, cuda):
    a, b = draw(9, 40, dtype=np.int64).astype(dtype), draw(40, 11, dtype=np.int64, seed=1).astype(dtype)
    for x, y in ((a, b), (a[:1], b), (a, b[:, :1])):
        assert (number(from_array(x.copy()) @ from_array(y.copy())) == x @ y).all()
        assert (number(from_array(x.copy()).to(cuda) @ from_array(y.copy()).to(cuda)) == x @ y).all()


def test_refused_dtypes():
    with pytest.raises(NotImplementedError, match="a dtype that can be multiplied and added"):
        from_array(np.ones((2, 2), bool)) @ from_array(np.ones((2, 2), bool))
    with pytest.raises(RuntimeError, match="operands of one dtype, got tritorch.float32 and tritorch.float64"):
        from_array(draw(2, 2)) @ from_array(draw(2, 2, dtype=np.float64))


def test_a_gradient_of_a_shared_matrix_is_one_product():
    """(b, m, k) @ (k, n): no (b, k, n) gradient is made and summed afterwards."""
    x, w = from_array(draw(4, 3, 5)).requires_grad_(), from_array(draw(5, 2)).requires_grad_()
    shapes = []

    class Log(T.dispatch.Interpreter):
        def __call__(self, op, args, out):
            result = self.proceed(op, args, out)
            shapes.append((op.__name__, tuple(result.shape) if hasattr(result, "shape") else None))
            return result

    with Log():
        (x @ w).sum().backward()
    assert not any(shape == (4, 5, 2) for _, shape in shapes)
    np.testing.assert_allclose(number(w.grad), number(x).reshape(12, 5).T @ np.ones((12, 2)), rtol=1e-5)


# ------------------------------------------------------------------ precision
def test_precision_setting():
    assert get_float32_matmul_precision() == "highest"
    try:
        for name, dot in (("high", "tf32"), ("medium", "bf16"), ("highest", "ieee")):
            set_float32_matmul_precision(name)
            assert get_float32_matmul_precision() == name and products.gemm.__globals__["dot_precision"](T.float32) == dot
            assert products.gemm.__globals__["dot_precision"](T.float64) == "ieee"
        with pytest.raises(RuntimeError, match="'highest', 'high' or 'medium', got 'low'"):
            set_float32_matmul_precision("low")
    finally:
        set_float32_matmul_precision("highest")


@pytest.mark.parametrize("dtype, eps", [("float32", 2.0 ** -24), ("float64", 2.0 ** -53), ("float16", 2.0 ** -11), ("bfloat16", 2.0 ** -8)])
def test_error_against_float64(dtype, eps, cuda):
    """|error| ≤ (one rounding of the result) + (K roundings of the sum in the type it is kept in) of Σ |a| |b|."""
    kind, K = getattr(T, dtype), 300
    a, b = [from_array(draw(*s, dtype=np.float64)).to(kind) for s in ((33, K), (K, 20))]
    x, y = [v.to(T.float64).array for v in (a, b)]
    bound = eps * np.abs(x @ y) + K * min(eps, 2.0 ** -24) * (np.abs(x) @ np.abs(y))
    for device in ("cpu", cuda):
        out = a.to(device) @ b.to(device)
        assert out.dtype is kind and (np.abs(number(out.to(T.float64)) - x @ y) <= bound).all()


def test_medium_precision_rounds_operands_to_bfloat16(cuda):
    a, b = draw(20, 40), draw(40, 18)
    rounded = [number(from_array(v).to(T.bfloat16).to(T.float32)) for v in (a, b)]
    try:
        set_float32_matmul_precision("medium")
        out = number(from_array(a).to(cuda) @ from_array(b).to(cuda))
    finally:
        set_float32_matmul_precision("highest")
    np.testing.assert_allclose(out, rounded[0] @ rounded[1], rtol=1e-5, atol=1e-5)
