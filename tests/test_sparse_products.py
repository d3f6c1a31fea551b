"""Products with sparse matrices, compressed layouts, and the gradients of both, on the CPU and the simulated GPU."""
import itertools

import numpy as np
import pytest

import tritorch as torch
from tritorch.autograd import gradcheck, gradgradcheck

rng = np.random.default_rng(1)
INDICES, VALUES = [[3, 0, 1, 3, 3], [0, 2, 1, 0, 2]], [1.0, 2.0, -3.0, 4.0, 0.5]        # an empty row, equal places, no order
LAYOUTS = {"coo": (), "csr": (), "csc": (), "bsr": ((2, 1),), "bsc": ((2, 3),)}


def numbers(*shape, dtype=torch.float64, device="cpu"):
    return torch.tensor(rng.standard_normal(shape)).to(dtype).to(device)


def matrix(dtype=torch.float64, device="cpu"):
    return torch.sparse_coo_tensor(torch.tensor(INDICES), torch.tensor(VALUES).to(dtype), (4, 3), device=device)


def in_layout(x, layout):
    return getattr(x, "to_sparse_" + layout)(*LAYOUTS[layout])


@pytest.mark.parametrize("layout, device", [*[(layout, "cpu") for layout in LAYOUTS], ("coo", "cuda"), ("csr", "cuda"), ("bsc", "cuda")])
def test_products_in_all_layouts(cuda, layout, device):
    x = in_layout(matrix(device=device), layout)
    dense, wide, tall = x.to_dense(), numbers(3, 5, device=device), numbers(2, 4, device=device)
    assert torch.allclose(dense, matrix(device=device).to_dense()) and x.layout is getattr(torch, "sparse_" + layout)
    for y, z in ((x @ wide, dense @ wide), (torch.mm(x, wide), dense @ wide), (torch.sparse.mm(x, wide), dense @ wide),
                 (tall @ x, tall @ dense), (x @ wide[:, 0], dense @ wide[:, 0]), (x @ numbers(5, 3, device=device).T * 0, dense @ wide * 0),
                 (torch.addmm(numbers(5, device=device) * 0 + 1, x, wide, beta=2, alpha=3), 2 + 3 * dense @ wide),
                 (torch.nn.functional.linear(wide.T, x), wide.T @ dense.T), (x.t() @ tall.T, dense.T @ tall.T),
                 (x @ wide.to(device).T.contiguous().T[:, ::2], (dense @ wide)[:, ::2]), (x @ wide[:, :0], dense @ wide[:, :0])):
        assert not y.is_sparse and y.layout is torch.strided
        assert torch.allclose(y, z), (y, z)
    both = torch.sparse.mm(x, x.t())
    assert both.layout is (torch.sparse_coo if layout == "coo" else x.layout) and torch.allclose(both.to_dense(), dense @ dense.T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_dtypes(cuda, dtype, device):
    x, dense = matrix(dtype, device), numbers(3, 4, device=device).mul(3).to(dtype)
    wanted = x.to_dense().to(torch.complex128) @ dense.to(torch.complex128)
    made = x @ dense
    assert made.dtype is dtype and torch.allclose(made.to(torch.complex128), wanted, rtol=1e-2 if dtype.itemsize == 2 else 1e-5)


def test_batches():
    x = torch.stack([matrix(), matrix() * 2, matrix() * 0])
    y = numbers(3, 3, 2)
    assert torch.allclose(torch.bmm(x, y), x.to_dense() @ y)
    full = numbers(2, 4, 6)
    for layout, args in LAYOUTS.items():
        if layout != "coo":
            z = getattr(full, "to_sparse_" + layout)(*args)
            assert torch.equal(z.to_dense(), full) and torch.equal(z.to_sparse().to_dense(), full)
            assert torch.equal(z.transpose(1, 2).to_dense(), full.transpose(1, 2)) and z.values().shape[0] == 2
            hybrid = getattr(full, "to_sparse_" + layout)(*[(1, 2)] * len(args), dense_dim=1)
            assert hybrid.dense_dim() == 1 and torch.equal(hybrid.to_dense(), full)
    with pytest.raises(RuntimeError, match="as many values in every matrix"):
        torch.stack([torch.eye(2), torch.zeros(2, 2)]).to_sparse_csr()


def test_compressed_elementwise():
    for layout, other in itertools.product(list(LAYOUTS)[1:], LAYOUTS):
        x = in_layout(matrix(), layout)
        dense = x.to_dense()
        assert torch.equal(in_layout(x, other).to_dense(), dense)
        for y, z in ((x * 2, dense * 2), (x + x, dense * 2), (x + in_layout(matrix().t().t().mul(3), layout), dense * 4), (-x, -dense),
                     (x * x, dense ** 2), (x * dense, dense ** 2), (x.sin(), dense.sin()), (x / 4, dense / 4), (x.clone(), dense)):
            assert y.layout is x.layout and torch.allclose(y.to_dense(), z)
        assert torch.allclose(dense + x, 2 * dense) and torch.allclose(x.sum(), dense.sum())


def test_compressed_errors():
    good = dict(crow_indices=[0, 1, 2], col_indices=[0, 1], values=[1.0, 2.0], size=(2, 2))
    for wrong, words in ((dict(crow_indices=[0, 1]), "one compressed index more"), (dict(values=[1.0]), "a value for each"),
                         (dict(size=(2, 2, 2)), "2 sizes"), (dict(crow_indices=[0.0, 1.0, 2.0]), "int64 or int32"),
                         (dict(crow_indices=[1, 1, 2]), "begin with 0"), (dict(crow_indices=[0, 1, 1]), "end with 2"),
                         (dict(crow_indices=[0, 3, 2]), "do not fall"), (dict(col_indices=[0, 2]), "below 2"),
                         (dict(crow_indices=[0, 2, 2], col_indices=[1, 0]), "rise within")):
        with pytest.raises(RuntimeError, match=words):
            torch.sparse_csr_tensor(**{**good, **wrong}, check_invariants=True)
    x = torch.sparse_csr_tensor(**good)
    for ask, words in ((x.ccol_indices, "sparse_csc or sparse_bsc"), (x.indices, "sparse_coo"), (x.coalesce, "sparse_coo"),
                       (x.stride, "strided")):
        with pytest.raises(RuntimeError, match=words):
            ask()
    with pytest.raises(RuntimeError, match="blocks of"):
        torch.ones(3, 2).to_sparse_bsr((2, 2))


# ------------------------------------------------------------------ gradients
def leaf(x):
    return x.detach().requires_grad_()


FUNCTIONS = [
    lambda x, y: torch.sparse.mm(x, y), lambda x, y: x @ y, lambda x, y: torch.sparse.softmax(x, 1).to_dense() @ y,
    lambda x, y: torch.sparse.mm(x, x.t() * 2), lambda x, y: x * x + x, lambda x, y: (x * y.T[:1]).sum(), lambda x, y: x.tanh(),
    lambda x, y: torch.sparse.sum(x, 0), lambda x, y: x.index_select(0, torch.tensor([1, 1, 3])), lambda x, y: torch.cat([x, x * 2], 1),
    lambda x, y: x[3], lambda x, y: x.t().coalesce().values() ** 2, lambda x, y: x.to_sparse_csr() @ y, lambda x, y: y @ y.T @ x.t(),
    lambda x, y: torch.sparse.addmm(y[:1] * 2, x, y, alpha=2),
    lambda x, y: torch.sparse.sampled_addmm(x.to_sparse_csr(), x.to_dense(), y @ y.T, beta=0.5), lambda x, y: x.norm(),
]


@pytest.mark.parametrize("k, masked", [(k, True) for k in range(len(FUNCTIONS))] + [(k, False) for k in (0, 1, 4, 8, 12)])
def test_gradients(k, masked):
    x, y = leaf(matrix().coalesce()), leaf(numbers(3, 2))
    assert torch.sparse.as_sparse_gradcheck(gradcheck)(FUNCTIONS[k], (x, y), masked=masked)
    if masked and k in (0, 4, 11):
        assert torch.sparse.as_sparse_gradcheck(gradgradcheck)(FUNCTIONS[k], (x, y), masked=masked)


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "bsc"])
def test_gradients_of_compressed_tensors(layout):
    x, y = leaf(in_layout(matrix(), layout)), leaf(numbers(3, 2))
    check = torch.sparse.as_sparse_gradcheck(gradcheck)
    for f in (lambda x, y: torch.sparse.mm(x, y), lambda x, y: x @ y, lambda x, y: x.to_dense() * 2, lambda x, y: x.values() ** 2,
              lambda x, y: (x * 3 + x).sin()):
        assert check(f, (x, y), masked=True)


def test_where_gradients_are_sparse():
    """As in PyTorch: `torch.sparse.mm` gives the sparse matrix a gradient of its places, `torch.mm` a strided one."""
    y = torch.arange(6.0).reshape(3, 2)
    x = leaf(matrix(torch.float32))
    torch.sparse.mm(x, y).sum().backward()
    assert x.grad.is_sparse and x.grad.to_dense().tolist() == [[0, 0, 9], [0, 5, 0], [0, 0, 0], [1, 0, 9]]
    torch.mm(x, y).sum().backward()                                      # and the sum of both is strided
    assert x.grad.tolist() == [[1, 5, 18], [1, 10, 9], [1, 5, 9], [2, 5, 18]]
    values = torch.tensor(VALUES, requires_grad=True)
    made = torch.sparse_coo_tensor(INDICES, values, (4, 3))
    assert not made.is_leaf
    (made * 2 @ y).sum().backward()
    assert values.grad.tolist() == [2, 18, 10, 2, 18]
    dense = leaf(torch.ones(4, 3))
    torch.sparse.sum(dense * matrix(torch.float32)).backward()
    assert dense.grad.is_sparse and torch.equal(dense.grad.to_dense(), matrix(torch.float32).to_dense())
    (dense.to_sparse() * 2).to_dense().sum().backward()
    assert torch.equal(dense.grad, matrix(torch.float32).to_dense() + 2)


def test_a_function_of_the_user_may_save_a_sparse_tensor():
    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, x):
            ctx.save_for_backward(a)
            return torch.sparse.mm(a, x)

        @staticmethod
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            return None, a.t() @ g

    x = leaf(numbers(3, 2))
    Times.apply(matrix(), x).sum().backward()
    assert torch.equal(x.grad, matrix().to_dense().sum(0).unsqueeze(1).expand(3, 2))


def test_forward_mode_through_the_dense_operand():
    x, t = numbers(3, 2), numbers(3, 2)
    for f in (lambda y: matrix() @ y, lambda y: torch.sparse.mm(matrix(), y)):
        out, tangent = torch.func.jvp(f, (x,), (t,))
        assert torch.allclose(tangent, matrix() @ t) and torch.allclose(out, matrix() @ x)


def test_saved_operands_must_not_change():
    y = leaf(numbers(3, 2))
    z = y * 1
    out = torch.sparse.mm(leaf(matrix().coalesce()), z)
    z.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = (matrix() @ y).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        out.backward()
