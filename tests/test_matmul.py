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
       (lambda r: M.matrix_power(r(2, 3), 2), "square"), (lambda r: M.matrix_power(r(3, 3) * 0, -1), "inverted")]


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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype, atol", [("float32", 1e-4), ("bfloat16", 0.2), ("float64", 1e-10), ("int32", 0)])
def test_adding_to_itself(dtype, atol, device, cuda):
    """out = a @ b + out needs no memory of its own; an operand that is out, or lies elsewhere in it, does."""
    there = "cpu" if device == "cpu" else cuda
    x, a, b = [from_array(np.round(4 * draw(6, 6, seed=k))).to(getattr(T, dtype)).to(there) for k in range(3)]
    start, p, q = [number(v.to(T.float64)).copy() for v in (x, a, b)]
    before = T.cuda.memory_stats().get("allocation.all.allocated", 0)
    x.addmm_(a, b, beta=2)
    assert T.cuda.memory_stats().get("allocation.all.allocated", 0) == before
    np.testing.assert_allclose(number(x.to(T.float64)), p @ q + 2 * start, atol=atol)
    x.copy_(from_array(start))
    x.addmm_(x, b)
    np.testing.assert_allclose(number(x.to(T.float64)), start @ q + start, atol=atol)
    x.copy_(from_array(start))
    M.addmm(x.mT, a, b, out=x)
    np.testing.assert_allclose(number(x.to(T.float64)), p @ q + start.T, atol=atol)


def test_matrix_power():
    a = draw(2, 3, 3, dtype=np.float64)
    for n in (0, 1, 2, 5, -1):
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


def calls(program):
    """The names of the operators that a program calls."""
    names = []

    class Log(T.dispatch.Interpreter):
        def __call__(self, op, args, out):
            names.append(op.__name__)
            return self.proceed(op, args, out)

    with Log():
        program()
    return names


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gradients_that_meet_are_added_where_the_last_product_is_stored(device, cuda):
    """Of an input that several layers read, and of a weight that several steps use."""
    there = "cpu" if device == "cpu" else cuda
    x, w, v = [from_array(draw(*s, seed=k)).to(there).requires_grad_() for k, s in enumerate(((4, 3, 5), (5, 5), (4, 5, 6)))]
    h, u = x * 1, w * 1                                                  # not leaves
    out = (M.linear(h, u) * 1).sum() + (M.linear(h, u) * 2).sum() + (h @ v).square().sum() + M.baddbmm(h, h @ u, u.expand(4, 5, 5)).sum()
    names = calls(out.backward)
    a, b, c = [number(t).astype(np.float64) for t in (x, w, v)]
    ones, total = np.ones((4, 3, 5)), ((a @ b).reshape(-1, 5), a.reshape(-1, 5))
    np.testing.assert_allclose(number(w.grad), 3 * ones.reshape(-1, 5).T @ total[1] + total[0].T @ ones.reshape(-1, 5)
                               + total[1].T @ (ones @ b.T).reshape(-1, 5), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(number(x.grad), 3 * ones @ b + 2 * a @ c @ c.swapaxes(1, 2) + ones + ones @ b.T @ b.T, rtol=1e-4, atol=1e-5)
    assert names.count("addmm") >= 4 and names.count("add") <= 1        # the one: u is broadcast to a batch, whose gradient is a sum


def test_a_broadcast_operand_takes_no_gradient_on_its_way(cuda):
    """What arrived has the operand's shape; the product's is larger and summed behind the rule."""
    x, y = from_array(draw(1, 3, 4)).requires_grad_(), from_array(draw(5, 4, 2, seed=1))
    h = x * 1
    ((h @ y).sum() + (h @ y).sum() + h.sum()).backward()
    np.testing.assert_allclose(number(x.grad), 2 * (np.ones((5, 3, 2)) @ number(y).swapaxes(1, 2)).sum(0, keepdims=True) + 1, rtol=1e-5)


# ------------------------------------------------------------------ float32 results of half types
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_float32_result(dtype, device, cuda):
    there = "cpu" if device == "cpu" else cuda
    a, b, total = [from_array(draw(*s, seed=k)).to(there) for k, s in enumerate(((2, 17, 70), (2, 70, 9), (2, 17, 9)))]
    a, b = a.to(getattr(T, dtype)), b.to(getattr(T, dtype))
    x, y, start = [number(t.to(T.float64)) for t in (a, b, total)]
    made = M.bmm(a, b, T.float32)
    assert made.dtype is T.float32
    np.testing.assert_allclose(number(made), x @ y, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(number(M.mm(a[0], b[0], T.float32)), x[0] @ y[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(number(M.baddbmm(total, a, b, T.float32, beta=2, alpha=0.5)), 2 * start + 0.5 * x @ y, rtol=1e-5, atol=1e-5)
    assert M.baddbmm(total, a, b, T.float32, out=total) is total
    np.testing.assert_allclose(number(total), start + x @ y, rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="expected out_dtype .*float32, got tritorch.float64"):
        M.mm(a[0], b[0], T.float64)
    with pytest.raises(RuntimeError, match="addmm: expected input of dtype"):
        M.addmm(total[0], a[0], b[0])


def test_gradients_of_a_float32_result():
    a, b = [from_array(draw(*s)).to(T.bfloat16).requires_grad_() for s in ((3, 4), (4, 5))]
    start = from_array(draw(3, 5)).requires_grad_()
    M.addmm(start, a, b, T.float32, beta=2).sum().backward()
    assert (a.grad.dtype, b.grad.dtype, start.grad.dtype) == (T.bfloat16, T.bfloat16, T.float32)
    np.testing.assert_allclose(number(a.grad.float()), np.ones((3, 5)) @ number(b.float()).T, rtol=2 ** -8)


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


def test_vectors_of_one_number():
    x, row, column = T.tensor([2.0]), T.tensor([[3.0, 4.0]]), T.tensor([[3.0], [4.0]])
    assert M.linear(x, column).tolist() == (x @ row).tolist() == (column @ x).tolist() == [6.0, 8.0]
    assert M.linear(x, column, T.tensor([1.0, 0.0])).tolist() == [7.0, 8.0]
