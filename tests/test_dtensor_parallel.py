"""Modules of DTensors: layers in tensor and sequence parallel, losses of logits that are cut, and what travels."""
import importlib
import warnings
from pathlib import Path

import pytest
from worlds import no_gpu, world  # noqa: F401

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.nn import functional as F

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.usefixtures("no_gpu")


def transformer(rank, size, train_tp):
    from tritorch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as mode:
        losses = train_tp.train(2, dist.init_device_mesh("cpu", (size,)))
    counts = mode.comm_module_counts["Transformer"]["forward"]
    return losses, counts, "Transformer.blocks.0.attention.out" in mode.get_parameter_info()


def test_a_transformer_in_parts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tutorials")
    train_tp = importlib.import_module("train_tp")
    alone = train_tp.train(2)
    for losses, counts, known in world(transformer, 2, tmp_path, train_tp):
        assert losses == pytest.approx(alone, rel=1e-5) and known
        # in each of 2 steps: attention and MLP of 2 blocks gather and scatter, so does what is before and behind them
        assert counts == {"reduce_scatter_tensor": 2 * (2 * 2 + 2), "all_gather_into_tensor": 2 * (2 * 2 + 1)}


def modules(rank, size):
    mesh = dist.init_device_mesh("cpu", (size,))
    styles(mesh)
    prepared(mesh, rank)
    distributed_modules(mesh)
    losses(mesh)
    watched(mesh, rank)
    mixed_precision(mesh)


def styles(mesh):
    """Layers in parallel against whole ones: results, gradients, placements."""
    from tritorch.distributed.tensor import Replicate, Shard
    from tritorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    whole = nn.ModuleDict({"mlp": nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), "table": nn.Embedding(7, 6, padding_idx=2)})
    parts = nn.ModuleDict({"mlp": nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), "table": nn.Embedding(7, 6, padding_idx=2)})
    parts.load_state_dict(whole.state_dict())
    out = ColwiseParallel(use_local_output=False), RowwiseParallel(use_local_output=False)
    parallelize_module(parts, mesh, {"mlp.0": out[0], "mlp.2": out[1], "table": RowwiseParallel(input_layouts=Replicate())})
    assert parts["mlp"][0].weight.placements == parts["mlp"][0].bias.placements == (Shard(0),)
    assert parts["mlp"][2].weight.placements == (Shard(1),) and parts["mlp"][2].bias.placements == (Replicate(),)
    index, results = torch.tensor([[0, 2, 6], [3, 3, 1]]), []
    for m in whole, parts:
        y = m["mlp"](m["table"](index))
        results.append(y if m is whole else y.full_tensor())
        (y ** 2).sum().backward()
    assert torch.allclose(*results, atol=1e-6)
    for (name, p), q in zip(whole.named_parameters(), parts.parameters()):
        assert torch.allclose(p.grad, q.grad.full_tensor(), atol=1e-5), name
    with pytest.raises(NotImplementedError, match="nn.Linear or nn.Embedding"):
        parallelize_module(nn.ReLU(), mesh, ColwiseParallel())
    with pytest.raises(RuntimeError, match="not distributed before"):
        parallelize_module(parts["table"], mesh, ColwiseParallel())
    with pytest.raises(RuntimeError, match="mixed tritorch.Tensor and DTensor"):
        nn.Sequential(parts["mlp"][1], torch.distributed.tensor.distribute_module(nn.Linear(6, 2), mesh))(torch.ones(3, 6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parallelize_module(parts, mesh, {"no.such": ColwiseParallel()})
        parallelize_module(parts, mesh)
    assert len(caught) == 2
    assert repr(ColwiseParallel()) == ("ColwiseParallel(input_layouts=(Replicate(),), output_layouts=(Shard(dim=-1),), "
                                       "use_local_output=True)")


class Sum(nn.Module):
    def forward(self, x, y, z=None):
        return x + y + (0 if z is None else z), 7


def prepared(mesh, rank):
    from tritorch.distributed.tensor import DTensor, Replicate, Shard
    from tritorch.distributed.tensor.parallel import PrepareModuleInputOutput, PrepareModuleOutput, parallelize_module

    sums = parallelize_module(Sum(), mesh, PrepareModuleInputOutput(
        input_layouts=(Shard(0), Replicate()), desired_input_layouts=(Replicate(), Replicate()), input_kwarg_layouts={"z": Shard(0)},
        desired_input_kwarg_layouts={"z": Replicate()}, output_layouts=(Replicate(), None), desired_output_layouts=(Shard(1), None)))
    x = torch.tensor([[1.0 + rank, 2.0]])
    y, seven = sums(x, torch.ones(2, 2), z=x)
    assert seven == 7 and y.tolist() == [[[3.0], [5.0]], [[5.0], [5.0]]][rank]
    with pytest.raises(ValueError, match="one for each layout"):
        sums(x)
    with pytest.raises(AssertionError, match="as many desired layouts"):
        PrepareModuleOutput(output_layouts=(Shard(0), None), desired_output_layouts=Shard(0))
    kept = parallelize_module(nn.Identity(), mesh, PrepareModuleOutput(
        output_layouts=Shard(0), desired_output_layouts=Replicate(), use_local_output=False))(x)
    assert isinstance(kept, DTensor) and kept.to_local().tolist() == [[1.0, 2.0], [2.0, 2.0]]


def distributed_modules(mesh):
    """Batches on several processes, weights on each: layers of many kinds give what they give alone."""
    from tritorch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor

    def batches(module, inputs, mesh):
        return tuple([x if isinstance(x, DTensor) else distribute_tensor(x, mesh, [Shard(0)]) for x in inputs])

    makers = {
        "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 6, 0.1, batch_first=True), torch.rand(3, 4, 4)),
        "images": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)),
                   torch.rand(4, 2, 6, 6)),
        "recurrent": (lambda: nn.LSTM(3, 4, batch_first=True), torch.rand(2, 3, 3)),
        "dropout": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout1d(0.5), nn.Softmax(-1)), torch.rand(3, 2, 3)),
    }
    for name, (make, x) in makers.items():
        whole = make()
        parts = make()
        parts.load_state_dict(whole.state_dict())
        distribute_module(parts, mesh, input_fn=batches)
        found = []
        for m in whole, parts:
            torch.manual_seed(4)
            y = m(x)
            y = y[0] if isinstance(y, tuple) else y
            y.exp().sum().backward()
            found.append(y.detach() if m is whole else y.detach().full_tensor())
        assert torch.allclose(*found, atol=1e-6), name
        for (key, p), q in zip(whole.named_parameters(), parts.parameters()):
            assert torch.allclose(p.grad, q.grad.full_tensor(), atol=1e-5), (name, key)
    state = parts.state_dict()
    assert all(isinstance(v, DTensor) for v in state.values())
    parts.load_state_dict(state)


def losses(mesh):
    """Cross entropy of logits whose classes, or samples, are on several processes."""
    from tritorch.distributed.tensor import Replicate, Shard, distribute_tensor
    from tritorch.distributed.tensor.debug import CommDebugMode
    from tritorch.distributed.tensor.parallel import loss_parallel

    torch.manual_seed(2)
    weights = dict(weight=torch.rand(7) + 0.5, label_smoothing=0.2)
    for shape, options in (((5, 7), {}), ((5, 7), weights), ((3, 5, 4), dict(reduction="sum")),
                           ((1, 3), dict(ignore_index=2, reduction="none"))):
        x, target = torch.randn(shape, requires_grad=True), torch.randint(shape[1], (shape[0], *shape[2:]))
        target.reshape(-1)[0] = options.get("ignore_index", 1)
        loss = F.cross_entropy(x, target, **options)
        (g,) = torch.autograd.grad(loss.sum(), x)
        for place in (Shard(1), Shard(0), Replicate()):
            d = distribute_tensor(x.detach(), mesh, [place]).requires_grad_()
            with loss_parallel(), CommDebugMode() as mode:
                found = F.cross_entropy(d, target, **options)
            assert place == Shard(0) or "all_gather_into_tensor" not in mode.get_comm_counts()
            found.sum().backward()
            assert torch.allclose(found.full_tensor(), loss, atol=1e-6), (shape, place)
            assert torch.allclose(d.grad.full_tensor(), g, atol=1e-6), (shape, place)
            assert d.grad.placements == (place,)
    with pytest.raises(IndexError, match="class indices"), loss_parallel():
        F.cross_entropy(distribute_tensor(torch.ones(2, 4), mesh, [Shard(1)]), torch.tensor([0, 4]))


def watched(mesh, rank):
    from tritorch.distributed.tensor import Replicate, Shard, experimental, ones
    from tritorch.distributed.tensor.debug import CommDebugMode, visualize_sharding

    x = ones(4, 4, device_mesh=mesh, placements=[Shard(0)])
    with CommDebugMode() as mode:
        y = x @ ones(4, 4, device_mesh=mesh)                             # rows: nothing travels
        z = (x.redistribute(placements=[Shard(1)]) @ x).sum()            # pieces of what is summed: a sum of one element is left
        assert mode.get_comm_counts() == {"all_to_all_single": 1} and z.item() == 64 and mode.get_total_counts() == 2
    assert y.placements == (Shard(0),)
    w = ones(3, 4, device_mesh=mesh).requires_grad_()
    for cut in (0, 1):                                                   # rows of whichever dim: their gradients are summed up at last
        with CommDebugMode() as mode:
            (g,) = torch.autograd.grad(F.linear(ones(4, 4, 4, device_mesh=mesh, placements=[Shard(cut)]), w).sum(), w)
            assert not mode.get_total_counts() and g.full_tensor().tolist() == [[16.0] * 4] * 3
    with experimental.implicit_replication():
        assert (x * torch.arange(4.0)).full_tensor().sum() == 24
    @experimental.local_map(out_placements=([Shard(0)], None), in_placements=([Shard(0)], None))
    def rows(x, factor):
        return x * factor, len(x)

    y, count = rows(x, 3)
    assert count == 2 and y.placements == (Shard(0),) and y.full_tensor().sum() == 48 and rows(torch.ones(1), 2)[1] == 1
    with pytest.raises(ValueError, match="redistribute_inputs=True"):
        rows(y.redistribute(placements=[Shard(1)]), 3)
    visualize_sharding(x)
    visualize_sharding(x.redistribute(placements=[Replicate()]).sum(0))


def mixed_precision(mesh):
    from tritorch.distributed.tensor import Shard, distribute_module, distribute_tensor

    model = distribute_module(nn.Linear(4, 4), mesh)
    x = distribute_tensor(torch.rand(3, 4), mesh, [Shard(0)])
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
        loss = F.mse_loss(y.float(), x)
    loss.backward()
    assert y.dtype is torch.bfloat16 and model.weight.grad.dtype is torch.float32
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), 0.1)
    before = model.weight.full_tensor().detach().clone()
    scaler.scale(loss.detach().requires_grad_() * 0 + model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, model.weight.full_tensor())


def test_modules(tmp_path):
    world(modules, 2, tmp_path)
