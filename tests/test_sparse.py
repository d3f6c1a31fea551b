"""COO tensors against dense ones: duplicates, no values, no sparse dims, dense dims, on the CPU and the simulated GPU."""
import copy
import itertools
import pickle

import numpy as np
import pytest

import tritorch as torch

rng = np.random.default_rng(0)


def coo(shape, sparse_dim, n, dtype=torch.float64, device="cpu", **options):
    """A COO tensor with equal places, and the dense one."""
    indices = np.stack([rng.integers(0, m, n) for m in shape[:sparse_dim]]) if sparse_dim else np.zeros((0, n), np.int64)
    values = rng.integers(-4, 5, (n, *shape[sparse_dim:])).astype(np.float64)
    dense = np.zeros(shape) if sparse_dim else values.sum(0)
    if sparse_dim:
        np.add.at(dense, tuple(indices), values)
    made = torch.sparse_coo_tensor(torch.tensor(indices), torch.tensor(values).to(dtype), shape, device=device, **options)
    return made, torch.tensor(dense).to(dtype).to(device)


SHAPES = [((4, 5), 2, 9), ((4, 5), 1, 3), ((3, 2, 4), 2, 7), ((3,), 1, 0), ((2, 0), 2, 0), ((2, 3), 0, 2), ((), 0, 3), ((2, 3, 2), 3, 11)]


@pytest.mark.parametrize("shape, sparse_dim, n, device", [*[(*s, "cpu") for s in SHAPES], *[(*SHAPES[k], "cuda") for k in (0, 1, 3, 5)]])
def test_elementwise_functions_are_those_of_the_dense_tensor(cuda, shape, sparse_dim, n, device):
    x, dense = coo(shape, sparse_dim, n, device=device)
    other, more = coo(shape, sparse_dim, n, device=device)
    c = x.coalesce()
    assert torch.equal(x.to_dense(), dense) and torch.equal(c.to_dense(), dense) and c.is_coalesced()
    places = c.indices().cpu().array.T.tolist()
    assert places == sorted(places) and len({*map(tuple, places)}) == len(places)
    for made, wanted in ((x * 3, dense * 3), (x / 2, dense / 2), (-x, -dense), (x + other, dense + more), (x - other, dense - more),
                         (x.add(other, alpha=2), dense + 2 * more), (x * other, dense * more), (x * more, dense * more),
                         (x.tanh(), dense.tanh()), (x ** 2, dense ** 2), (x.abs(), dense.abs()), (c.relu(), dense.relu()),
                         (x.sin().to(torch.float32), dense.sin().float()), (x.clone(), dense), (c + other.coalesce(), dense + more)):
        assert made.is_sparse and made.layout is torch.sparse_coo
        assert torch.allclose(made.to_dense(), wanted)
    assert torch.allclose(more + x, dense + more) and torch.allclose(more - x, more - dense)
    assert torch.allclose(more.clone().add_(x, alpha=-2), more - 2 * dense)
    assert torch.equal(more.sparse_mask(c).to_dense(), more * (c * 0 + c.sparse_mask(c).like(c.values() * 0 + 1)).to_dense())
    assert torch.allclose(x.sum(), dense.sum()) and torch.allclose(x.norm(), dense.norm())


@pytest.mark.parametrize("shape, sparse_dim, n", SHAPES)
def test_dims(shape, sparse_dim, n):
    x, dense = coo(shape, sparse_dim, n)
    ndim = len(shape)
    for a, b in itertools.product(range(ndim), repeat=2):
        if (a < sparse_dim) is (b < sparse_dim):
            assert torch.equal(x.transpose(a, b).to_dense(), dense.transpose(a, b))
    for d in range(ndim):
        assert torch.equal(torch.cat([x, x * 2], d).to_dense(), torch.cat([dense, dense * 2], d))
        made = torch.sparse.sum(x, d)
        assert torch.equal(made.to_dense(), dense.sum(d)) and made.is_sparse is (sparse_dim > (1 if d < sparse_dim else 0))
        if shape[d]:
            assert torch.equal(x.select(d, -1).to_dense(), dense.select(d, -1))
            index = torch.tensor([shape[d] - 1, 0, 0])
            assert torch.equal(x.index_select(d, index).to_dense(), dense.index_select(d, index))
    for d in range(ndim + 1):
        assert torch.equal(x.unsqueeze(d).to_dense(), dense.unsqueeze(d))
        assert torch.equal(torch.stack([x, x], d).to_dense(), torch.stack([dense, dense], d))
    if 0 not in shape and ndim:
        assert torch.equal(dense.to_sparse(max(sparse_dim, 1)).to_dense(), dense)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.uint8, torch.bool])
def test_dtypes(dtype):
    indices, values = torch.tensor([[1, 0, 1, 1]]), torch.tensor([1, 0, 1, 1]).to(dtype)
    x = torch.sparse_coo_tensor(indices, values, (3,))
    wanted = torch.tensor([0, 3, 0]).to(dtype)
    assert x.dtype is dtype and torch.equal(x.to_dense(), wanted) and torch.equal(x.coalesce().to_dense(), wanted)
    assert (x * 2).dtype is (torch.ones(1, dtype=dtype) * 2).dtype and x.sum().dtype is wanted.sum().dtype
    assert (x / 2).dtype is (torch.ones(1, dtype=dtype) / 2).dtype and x.sin().dtype is wanted.sin().dtype


def test_printing():
    x = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 3))
    assert repr(x) == ("tensor(indices=tensor([[0, 1, 1],\n                       [2, 0, 2]]),\n       values=tensor([3., 4., 5.]),\n"
                       "       size=(2, 3), nnz=3, layout=tritorch.sparse_coo)")
    assert repr(torch.sparse_coo_tensor((2, 0), dtype=torch.float64, requires_grad=True)) == (
        "tensor(indices=tensor([], size=(2, 0)),\n       values=tensor([], size=(0,)),\n       size=(2, 0), nnz=0, dtype=tritorch.float64, "
        "layout=tritorch.sparse_coo,\n       requires_grad=True)")
    assert repr(x.to_sparse_csr()) == ("tensor(crow_indices=tensor([0, 1, 3]),\n       col_indices=tensor([2, 0, 2]),\n"
                                       "       values=tensor([3., 4., 5.]), size=(2, 3), nnz=3,\n       layout=tritorch.sparse_csr)")


def test_what_a_sparse_tensor_is():
    x = torch.sparse_coo_tensor([[0, 0], [1, 1]], [[1.0], [2.0]], (2, 3, 1))
    assert (x.sparse_dim(), x.dense_dim(), x._nnz(), x.numel(), len(x), x.stride()) == (2, 1, 2, 6, 2, (0, 0, 0))
    assert not x.is_coalesced() and not x.is_contiguous() and x.type() == "tritorch.sparse.FloatTensor"
    assert x.coalesce()._nnz() == 1 and x.coalesce().coalesce().indices().tolist() == [[0], [1]]
    y = torch.ones(2)
    assert (y.sparse_dim(), y.dense_dim(), y.is_sparse, y.layout) == (0, 1, False, torch.strided)
    kept = x._values()
    kept.mul_(10)                                                        # the parts are the tensor's memory
    assert x.to_dense()[0, 1].item() == 30
    assert torch.zeros(2, 3, layout=torch.sparse_coo)._nnz() == 0 and torch.zeros_like(x).shape == x.shape
    grown = x.clone().sparse_resize_((3, 3, 1), 2, 1)
    assert grown.shape == (3, 3, 1) and grown._nnz() == 2 and x.clone().sparse_resize_and_clear_((4, 2), 1, 1).dense_dim() == 1
    assert torch.sparse_coo_tensor([[1, 4]], [1.0, 2.0]).shape == (5,)
    assert torch.hsmm(torch.eye(2).to_sparse(), torch.ones(2, 3)).dense_dim() == 1


ERRORS = [
    ("torch.sparse_coo_tensor([[0, 1]], [1.0], (2,))", RuntimeError, "as many values as columns"),
    ("torch.sparse_coo_tensor([[0], [0]], [1.0], (2,))", RuntimeError, "as many sizes"),
    ("torch.sparse_coo_tensor([0], [1.0], (2,))", RuntimeError, "indices of 2 dims"),
    ("torch.sparse_coo_tensor([[5]], [1.0], (2,), check_invariants=True)", RuntimeError, "indices below the sizes"),
    ("torch.sparse_coo_tensor([[1, 0]], [1.0, 2.0], (2,), is_coalesced=True, check_invariants=True)", RuntimeError, "places in order"),
    ("x.indices()", RuntimeError, "a coalesced tensor"), ("x.values()", RuntimeError, "x.coalesce()"),
    ("x + torch.ones(2, 2)", RuntimeError, "use add(dense, sparse)"), ("x + 1", RuntimeError, "add(sparse, dense) is not supported"),
    ("x / x", RuntimeError, "over a number"), ("x.cos()", NotImplementedError, "cos: expected strided tensors, got one of layout"),
    ("x == x", NotImplementedError, "x.to_dense()"), ("torch.equal(x, x)", NotImplementedError, "strided"),
    ("torch.allclose(x, x)", NotImplementedError, "strided"), ("x.view(4)", NotImplementedError, "strided"),
    ("x[:, 1:]", NotImplementedError, "slice_dim"), ("x.numpy()", TypeError, "x.to_dense()"), ("x.tolist()", RuntimeError, "memory"),
    ("x.data_ptr()", RuntimeError, "an address"), ("torch.ones(2, 2).indices()", RuntimeError, "a tensor of layout sparse_coo"),
    ("torch.ones(2, 2).copy_(x)", RuntimeError, "strided"), ("x.copy_(torch.ones(2, 2))", RuntimeError, "a source of layout"),
    ("torch.ones(2)._nnz()", NotImplementedError, "sparse"), ("x @ torch.ones(3, 2)", RuntimeError, "a.shape[1] == b.shape[0]"),
    ("torch.cat([x, torch.ones(2, 2)])", RuntimeError, "sparse tensors"), ("x.requires_grad_().mul_(2)", RuntimeError, "a leaf"),
    ("torch.linalg.inv(x)", NotImplementedError, "strided"), ("x.fill_(1)", NotImplementedError, "strided"),
    ("bool(x)", RuntimeError, "1 element"), ("x.item()", RuntimeError, "1 element"),
    ("torch.sparse.sum(torch.ones(2))", RuntimeError, "a sparse tensor"), ("x ** 0", RuntimeError, "power"),
    ("torch.func.jvp(lambda v: torch.sparse_coo_tensor([[0]], v, (1,)).to_dense(), (torch.ones(1),), (torch.ones(1),))",
     NotImplementedError, "no forward mode"),
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_errors(cuda, device):
    for program, kind, words in ERRORS:
        x = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2))
        with torch.device(device), pytest.raises(kind) as caught:
            eval(program, {"torch": torch, "x": x.to(device)})
        assert words in str(caught.value), program


def test_copies_and_files(tmp_path):
    x = torch.sparse_coo_tensor([[0, 1, 0], [1, 0, 1]], [1.0, 2.0, 3.0], (2, 2))
    for y in (x, x.coalesce().requires_grad_(), x.to_sparse_csr(), torch.ones(2, 4).to_sparse_bsr((1, 2)),
              torch.ones(2, 4).to_sparse_bsr(2)):
        torch.save({"a": [y], "b": y.values() if not y.is_sparse else y._values()}, tmp_path / "f")
        for z in (pickle.loads(pickle.dumps(y)), copy.deepcopy(y), copy.copy(y), torch.load(tmp_path / "f")["a"][0]):
            assert repr(z) == repr(y) and z is not y and z.requires_grad is y.requires_grad
            assert y.layout is not torch.sparse_coo or z.is_coalesced() == y.is_coalesced()
    model, other = torch.nn.Module(), torch.nn.Module()
    model.register_buffer("adjacency", x)
    other.register_buffer("adjacency", torch.zeros(2, 2, layout=torch.sparse_coo))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.double().adjacency.to_dense(), x.to_dense().double())


def test_a_file_that_lies_is_refused(tmp_path):
    torch.save(torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (2,)), tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    for old, new in ((b"sparse_coo", b"sparse_moo"), (b'"sparse_coo\\",[2]', b'"sparse_coo\\",[1]')):
        assert old in data
        (tmp_path / "g").write_bytes(data.replace(old, new))
        with pytest.raises(torch.serialization.FileFormatError):
            torch.load(tmp_path / "g")


def test_softmax_counts_missing_elements_as_minus_infinity():
    x, dense = coo((4, 5), 2, 9)
    c = x.coalesce()
    there = c.like(c.values() * 0 + 1).to_dense() > 0
    for d in (0, 1):
        wanted = dense.masked_fill(~there, -float("inf")).softmax(d).nan_to_num()
        assert torch.allclose(torch.sparse.softmax(x, d).to_dense(), wanted)
        logs = torch.sparse.log_softmax(x, d)
        assert torch.allclose(logs.like(logs.values().exp()).to_dense(), wanted)
    h, dense = coo((4, 5), 1, 3)
    assert torch.allclose(torch.sparse.softmax(h, 1).to_dense(), h.coalesce().like(h.coalesce().values().softmax(1)).to_dense())


def test_diagonals():
    made = torch.sparse.spdiags(torch.arange(9).reshape(3, 3), torch.tensor([0, -1, 2]), (4, 3))
    assert made.to_dense().tolist() == [[0, 0, 8], [3, 1, 0], [0, 4, 2], [0, 0, 5]]
    assert torch.sparse.spdiags(torch.ones(2), torch.tensor(0), (2, 2), torch.sparse_csr).is_sparse_csr
    with pytest.raises(RuntimeError, match="no two"):
        torch.sparse.spdiags(torch.ones(2, 2), torch.tensor([1, 1]), (2, 2))


def test_assert_close_compares_the_parts():
    x = torch.eye(2).to_sparse()
    close = torch.testing.assert_close
    close(x, x * 1.0000001)
    close(x, torch.eye(2), check_layout=False)
    for other, words in ((x * 2, "not close"), (torch.eye(2), "layout"), (torch.eye(2)[[1, 0]].to_sparse(), "not close"),
                         (torch.ones(2, 2).to_sparse(), "not"), (x.to_sparse_csr(), "layout")):
        with pytest.raises(AssertionError, match=words):
            close(x, other)
