"""Python's operators with operands of other kinds: numpy's arrays and objects that know tensors are asked, functions and others refuse."""
import operator

import numpy as np
import pytest

import tritorch as torch

X, A = torch.tensor([[4.0, 9.0], [1.0, 2.0]]), np.array([[2.0, 3.0], [4.0, 5.0]])


class Knows:
    def __radd__(self, other):
        return "added"

    def __rmatmul__(self, other):
        return "multiplied"


@pytest.mark.parametrize("f", [
    lambda x, a: x + a, lambda x, a: x - a, lambda x, a: x * a, lambda x, a: x / a, lambda x, a: x // a, lambda x, a: x % a,
    lambda x, a: x ** a, lambda x, a: x @ a, lambda x, a: x[0] @ a[0], lambda x, a: x[0] @ a, lambda x, a: x.long() * a[0],
])
def test_arrays_of_numpy(f):
    made = f(X, A)
    assert isinstance(made, torch.Tensor) and made.dtype is torch.float64
    np.testing.assert_allclose(made.numpy(), f(X.double(), torch.from_numpy(A)).numpy())


def test_functions_in_c_that_use_an_operator():
    """operator.add and sum ask the array, as + does; in place forms leave the tensor as it is, and its name for a new one."""
    x = X.clone()
    for made, want in ((operator.add(x, A), X + A), (sum([x, A]), X + A), (operator.truediv(x, A), X / A), (operator.mod(x, A), X % A),
                       (operator.matmul(x, A), X @ A), (operator.iadd(x, A), X + A), (operator.itruediv(x, A), X / A),
                       (operator.lshift(x.long(), A.astype(int)), X.long() << A.astype(int))):
        assert made.tolist() == want.tolist() and made.dtype is want.dtype and made is not x
    assert x.tolist() == X.tolist()
    y = x
    y /= A
    assert y.tolist() == (X / A).tolist() and y.dtype is torch.float64 and x.tolist() == X.tolist()
    for refused in (lambda: list(map(torch.add, [x], [A])), lambda: x.div_(A), lambda: operator.add(A, x), lambda: operator.add(x, [1])):
        with pytest.raises(TypeError):
            refused()


def test_an_array_divided_by_a_tensor():
    made = A / X
    assert made.dtype is torch.float64 and operator.truediv(A, X).tolist() == made.tolist()
    np.testing.assert_allclose(made.numpy(), A / X.numpy().astype(float), 1e-7)
    assert (np.float64(1.0) / X).dtype is torch.float32 and (2 / X).tolist() == (1 / (X / 2)).tolist()
    with pytest.raises(TypeError):
        "a" / X


def test_equality_with_arrays():
    assert (X == np.array([["a", "b"], ["c", "d"]])) is False
    assert (X == X.numpy()).all() and (X != A).all() and (X == A).dtype is torch.bool


def test_objects_that_know_tensors():
    assert X + Knows() == "added" and X @ Knows() == "multiplied" and X[0] @ Knows() == "multiplied"
    with pytest.raises(TypeError):
        X * Knows()


def test_functions_refuse_them():
    for f in torch.add, torch.mul, torch.div, torch.Tensor.mul, torch.Tensor.add_:
        with pytest.raises(TypeError, match="ndarray"):
            f(X.clone(), A)
    for f in (lambda: X + [1], lambda: X - "a", lambda: torch.add(X, Knows()), lambda: A - X):
        with pytest.raises(TypeError, match="expected tensors and numbers"):
            f()
    with pytest.raises(RuntimeError, match="use x.detach"):
        X.clone().requires_grad_() * A


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_the_order_of_old_optimizers(where, cuda):
    x, y = torch.ones(3, device=where), torch.tensor([1.0, 2.0, 4.0], device=where)
    calls = [(lambda: x.clone().add_(0.5, y), [1.5, 2, 3]), (lambda: torch.add(x, 2, y), [3, 5, 9]), (lambda: x.sub(0.5, y), [0.5, 0, -1]),
             (lambda: x.clone().sub_(2, y), [-1, -3, -7])]
    for call, expected in calls:
        with pytest.warns(UserWarning, match=r"(add|sub): \(alpha, other\) is the order of old programs"):
            assert call().tolist() == expected
    assert x[:1].add(0.5, y[1:2]).tolist() == [2.0]                        # of one element both orders say the same
    for wrong in (lambda: x.add(y, y), lambda: x.add_("a", y), lambda: x.mul(0.5, y)):
        with pytest.raises((RuntimeError, TypeError)):
            wrong()
    assert x.tolist() == [1, 1, 1]
