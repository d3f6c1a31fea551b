"""Sparse gradients from embeddings to optimizers, and a graph network, against the same with dense tensors and PyTorch's numbers."""
import numpy as np
import pytest

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F

ROWS, INDEX = [[0.0, 0.1], [0.2, 0.3], [0.4, 0.5], [0.6, 0.7]], [[1, 3, 1]]


def with_gradient():
    w = nn.Parameter(torch.tensor(ROWS))
    w.grad = torch.sparse_coo_tensor(INDEX, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], (4, 2))
    return w


# what PyTorch 2.13 makes of rows 1 and 3 in two steps
STEPS = [
    ("SGD", {}, [-1.0, -1.3, 0.0, -0.1]), ("SGD", dict(momentum=0.9), [-1.54, -2.02, -0.27, -0.46]),
    ("SGD", dict(momentum=0.9, nesterov=True), [-2.566, -3.388, -0.783, -1.144]), ("SGD", dict(maximize=True), [1.4, 1.9, 1.2, 1.5]),
    ("SGD", dict(momentum=0.9, dampening=0.5), [-1.24, -1.62, -0.12, -0.26]),
    ("Adagrad", {}, [0.0292893, 0.1292893, 0.4292893, 0.5292893]),
    ("Adagrad", dict(maximize=True), [0.3707107, 0.4707107, 0.7707107, 0.8707107]),
    ("SparseAdam", {}, [0.0, 0.1, 0.4, 0.5]), ("SparseAdam", dict(maximize=True), [0.4, 0.5, 0.8, 0.9]),
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name, options, wanted", STEPS)
def test_steps_are_those_of_pytorch(cuda, name, options, wanted, device):
    w = with_gradient()
    with torch.no_grad():
        w.data, grad = w.data.to(device), w.grad.to(device)
    w.grad = grad
    optimizer = getattr(torch.optim, name)([w], lr=0.1, **options)
    for _ in range(2):
        optimizer.step()
    assert torch.allclose(w[[1, 3]].flatten().cpu(), torch.tensor(wanted), atol=1e-6)
    assert torch.equal(w[[0, 2]].cpu(), torch.tensor(ROWS)[[0, 2]])
    optimizer.zero_grad(set_to_none=False)
    assert w.grad._nnz() == 0
    copied = getattr(torch.optim, name)([w], lr=0.1, **options)
    copied.load_state_dict(optimizer.state_dict())
    assert repr(copied.state_dict()) == repr(optimizer.state_dict())


def test_optimizers_that_want_strided_gradients_say_so():
    for name in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adadelta", "ASGD", "Adafactor", "Muon"):
        w = with_gradient()
        with pytest.raises(RuntimeError, match=f"{name} does not support sparse gradients"):
            getattr(torch.optim, name)([w]).step()
        assert torch.equal(w.detach(), torch.tensor(ROWS))
    for name in ("SGD", "Adagrad"):
        with pytest.raises(RuntimeError, match="weight_decay"):
            getattr(torch.optim, name)([with_gradient()], weight_decay=0.1).step()
    w = with_gradient()
    w.grad = w.grad.to_dense()
    with pytest.raises(RuntimeError, match="use Adam"):
        torch.optim.SparseAdam([w]).step()
    with pytest.raises(ValueError, match="strided parameters"):
        torch.optim.SparseAdam([torch.eye(2).to_sparse().requires_grad_()])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gradients_of_embeddings(cuda, device):
    index, weights = torch.tensor([[1, 2, 2], [4, 0, 1]], device=device), torch.arange(12.0, device=device).reshape(2, 3, 2)
    tables = [nn.Embedding(5, 2, padding_idx=2, sparse=sparse, device=device) for sparse in (True, False)]
    for _ in range(2):                                                   # the second time gradients are added
        for table in tables:
            (table(index) * weights).sum().backward()
    sparse, dense = [t.weight.grad for t in tables]
    assert sparse.is_sparse and sparse.sparse_dim() == 1 and torch.equal(sparse.to_dense(), dense)
    for table in tables:
        (table.weight * 3).sum().backward()                              # sparse and strided
    assert torch.equal(tables[0].weight.grad, tables[1].weight.grad)
    tables[0].zero_grad()
    ((tables[0].weight * 3).sum() + (tables[0](index[1]) * 2).sum()).backward()
    assert tables[0].weight.grad.tolist() == [[5, 5], [5, 5], [3, 3], [3, 3], [5, 5]]
    with pytest.raises(RuntimeError, match="scale_grad_by_freq"):
        F.embedding(index, tables[0].weight, scale_grad_by_freq=True, sparse=True).sum().backward()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_of_bags(cuda, mode, device):
    index, offsets = torch.tensor([1, 2, 4, 0, 1], device=device), torch.tensor([0, 3, 3], device=device)
    found = []
    for sparse in (True, False):
        table = torch.arange(10.0, device=device).reshape(5, 2).requires_grad_()
        factors = torch.tensor([1.0, 2, 3, 4, 5], device=device, requires_grad=True) if mode == "sum" else None
        out = F.embedding_bag(index, table, offsets, mode=mode, sparse=sparse, per_sample_weights=factors, padding_idx=2)
        (out * torch.tensor([[1.0, 2], [3, 4], [5, 6]], device=device)).sum().backward()
        assert table.grad.is_sparse is sparse
        found.append((out.detach(), table.grad.to_dense(), *([] if factors is None else [factors.grad])))
    for a, b in zip(*found):
        assert torch.allclose(a, b)


def test_sparse_gradients_elsewhere():
    w = with_gradient()
    assert torch.nn.utils.clip_grad_norm_([w], 1.0).item() == pytest.approx((36 + 64 + 9 + 16) ** 0.5)
    assert w.grad.is_sparse and w.grad.coalesce().values().norm().item() == pytest.approx(1, abs=1e-5)
    table = torch.ones(4, 2, requires_grad=True)
    (g,) = torch.autograd.grad(F.embedding(torch.tensor([1]), table, sparse=True).sum(), table)
    assert g.is_sparse
    F.embedding(torch.tensor([1]), table.exp() * 2, sparse=True).sum().backward()        # rules of strided tensors get strided gradients
    assert torch.allclose(table.grad, torch.tensor([[0.0], [2 * np.e], [0], [0]]).expand(4, 2))
    seen = []
    table.register_hook(lambda g: seen.append(g.layout))
    F.embedding(torch.tensor([1]), table, sparse=True).sum().backward()
    assert seen == [torch.sparse_coo]


def test_gradient_of_gather():
    x, index = torch.ones(3, 4, requires_grad=True), torch.tensor([[0, 3], [1, 1], [2, 0]])
    (x.gather(1, index, sparse_grad=True) * torch.arange(6.0).reshape(3, 2)).sum().backward()
    assert x.grad.is_sparse and x.grad.to_dense().tolist() == [[0, 0, 0, 1], [0, 5, 0, 0], [5, 0, 4, 0]]


def graph(n=40, classes=3):
    """Labels, features and the normalised adjacency matrix of a random graph whose classes cluster."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, n)
    edges = np.triu(rng.random((n, n)) < np.where(labels[:, None] == labels, 0.3, 0.03), 1)
    edges = edges | edges.T | np.eye(n, dtype=bool)
    features = torch.tensor((rng.standard_normal((n, 5)) + labels[:, None]).astype(np.float32))
    places = torch.tensor(np.stack(np.nonzero(edges)))
    adjacency = torch.sparse_coo_tensor(places, torch.ones(places.shape[1]), (n, n)).coalesce()
    scale = torch.sparse.sum(adjacency, 1).to_dense() ** -0.5
    values = adjacency.values() * scale[places[0]] * scale[places[1]]
    return torch.tensor(labels), features, torch.sparse_coo_tensor(places, values, (n, n)).coalesce()


class GraphNetwork(nn.Module):
    """Two graph convolutions (Kipf and Welling 2017)."""

    def __init__(self, adjacency):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = torch.sparse.mm(self.adjacency, self.first(x)).relu() if self.adjacency.layout is not torch.strided \
            else (self.adjacency @ self.first(x)).relu()
        return self.adjacency @ self.second(hidden)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_graph_network_learns_as_with_a_dense_matrix(cuda, device):
    labels, features, adjacency = graph()
    losses = {}
    for layout, matrix in (("dense", adjacency.to_dense()), ("coo", adjacency), ("csr", adjacency.to_sparse_csr())):
        torch.manual_seed(0)
        model = GraphNetwork(matrix).to(device)
        assert model.adjacency.device.type == device and model.adjacency.layout is matrix.layout
        optimizer, losses[layout] = torch.optim.Adam(model.parameters(), lr=0.05), []
        for _ in range(6 if device == "cuda" else 40):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(features.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses[layout].append(loss.item())
    assert np.allclose(losses["coo"], losses["dense"], rtol=1e-4) and np.allclose(losses["csr"], losses["dense"], rtol=1e-4)
    assert losses["coo"][-1] < losses["coo"][0] * (0.9 if device == "cuda" else 0.3)


def test_a_step_of_a_graph_network_is_one_cuda_graph(cuda):
    adjacency = torch.sparse_coo_tensor([[0, 1, 2, 2], [1, 0, 2, 0]], [1.0, 2.0, 3.0, 4.0], (3, 3), device="cuda").coalesce()
    x, found = torch.arange(6.0, device="cuda").reshape(3, 2), []
    for wrap in (lambda f: f, lambda f: torch.compile(f, fullgraph=True)):
        w = torch.eye(2, device="cuda").requires_grad_()

        def step(x, w=w):
            w.grad = None
            loss = torch.sparse.mm(adjacency, x @ w).square().mean()
            loss.backward()
            with torch.no_grad():
                w.sub_(w.grad, alpha=1e-3)
            return loss

        call = wrap(step)
        found.append([call(x).item() for _ in range(3)])
    assert found[0] == found[1] and found[0][-1] < found[0][0]
