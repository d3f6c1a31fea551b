"""ZeroRedundancyOptimizer: parts of an optimizer in several processes do what one does, and its state is saved as that of one."""
import copy

import numpy as np
import pytest
from ddp_models import Layers, filled
from worlds import world

import tritorch as torch
from tritorch import distributed as dist
from tritorch.distributed.algorithms import Join
from tritorch.distributed.optim import ZeroRedundancyOptimizer
from tritorch.nn.parallel import DistributedDataParallel as DDP

X = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 5)))
OPTIMIZERS = [(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.AdamW, {"lr": 0.01}), (torch.optim.RMSprop, {"lr": 0.01})]


def steps(model, optimizer, x, count=3):
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(count):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()


def groups(model):
    first, *others = model.parameters()
    return [{"params": [first], "weight_decay": 0.1}, {"params": others}]


def train(rank, size, as_view):
    out = []
    for kind, options in OPTIMIZERS:
        inner = filled(Layers(), torch.float64)
        model = DDP(inner)
        optimizer = ZeroRedundancyOptimizer(groups(inner), kind, parameters_as_bucket_view=as_view, **options)
        steps(model, optimizer, X[rank * 4:rank * 4 + 4])
        held = sum(p.numel() for p in optimizer.optim.state)
        assert 0 < held < sum(p.numel() for p in inner.parameters()) * 0.7
        optimizer.consolidate_state_dict(to=1)
        if rank != 1:
            with pytest.raises(RuntimeError, match="consolidate_state_dict"):
                optimizer.state_dict()
        saved = [optimizer.state_dict() if rank == 1 else None]
        dist.broadcast_object_list(saved, src=1)
        again = copy.deepcopy(inner)
        other = ZeroRedundancyOptimizer(groups(again), kind, lr=9.0)
        other.load_state_dict(saved[0])
        steps(DDP(again), other, X[rank * 4:rank * 4 + 4])
        out.append((optimizer.param_groups[1]["lr"], saved[0], [p.detach().numpy() for p in (*inner.parameters(), *again.parameters())]))
    return out


def whole(kind, options):
    model = filled(Layers(), torch.float64)
    optimizer = kind(groups(model), **options)
    steps(model, optimizer, X)
    again = copy.deepcopy(model)
    other = kind(groups(again), lr=9.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(again, other, X)
    return optimizer.param_groups[1]["lr"], optimizer.state_dict(), [p.detach().numpy() for p in (*model.parameters(), *again.parameters())]


def same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for k in a:
            same(a[k], b[k])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for v, w in zip(a, b):
            same(v, w)
    elif isinstance(a, (torch.Tensor, np.ndarray, float)):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-12)
    else:
        assert a == b


@pytest.mark.parametrize("as_view", [False, True])
def test_parts_do_what_one_optimizer_does(as_view, tmp_path):
    first, second = world(train, 2, tmp_path, as_view)
    for mine, theirs, (kind, options) in zip(first, second, OPTIMIZERS):
        assert all(np.array_equal(a, b) for a, b in zip(mine[2], theirs[2]))
        same(mine, whole(kind, options))


def around(rank, size):
    params = [torch.full((n,), 1.0, requires_grad=True) for n in (4, 3, 2, 1)]
    optimizer = ZeroRedundancyOptimizer(params[:3], torch.optim.SGD, lr=1.0)
    optimizer.add_param_group({"params": params[3:], "lr": 0.5})
    mine = [[p.numel() for p in group["params"]] for group in optimizer.optim.param_groups]

    def closure():
        optimizer.zero_grad()
        loss = sum(p.sum() for p in params)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    values = [p.tolist() for p in params]
    with Join([optimizer]):
        for _ in range(1 + rank):
            Join.notify_join_context(optimizer)
            closure()
            optimizer.step()
    with pytest.raises(NotImplementedError, match="overlap_with_ddp"):
        ZeroRedundancyOptimizer(params, torch.optim.SGD, overlap_with_ddp=True, lr=1.0)
    with pytest.raises(ValueError, match="empty parameter list"):
        ZeroRedundancyOptimizer([], torch.optim.SGD, lr=1.0)
    few = ZeroRedundancyOptimizer(params[:1], torch.optim.Adam, lr=1.0)                           # one rank has no parameter
    few.step()
    few.consolidate_state_dict()
    return mine, loss.item(), values, [p.detach().numpy() for p in params], len(few.state_dict()["state"]) if rank == 0 else 1


def test_groups_closures_and_joined_ranks(tmp_path):
    (mine, *first), (theirs, *second) = world(around, 2, tmp_path)
    assert mine == [[4], [1]] and theirs == [[3, 2], []]
    assert first[:2] == second[:2] == [10.0, [[0.0] * 4, [0.0] * 3, [0.0] * 2, [0.5]]]
    assert all(np.array_equal(a, b) for a, b in zip(first[2], second[2])) and first[3] == 1


def uneven(rank, size):
    inner = filled(Layers(), torch.float64)
    model = DDP(inner)
    optimizer = ZeroRedundancyOptimizer(inner.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    with Join([model, optimizer], divide_by_initial_world_size=False):
        for k in range(1 + 2 * rank):
            optimizer.zero_grad()
            model(X[k * 2 + rank:k * 2 + rank + 1]).square().mean().backward()
            optimizer.step()
    return [p.detach().numpy() for p in inner.parameters()]


def test_a_joined_rank_updates_its_part(tmp_path):
    first, second = world(uneven, 2, tmp_path)
    model = filled(Layers(), torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for rows in (X[:2], X[3:4], X[5:6]):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    for a, b, p in zip(first, second, model.parameters()):
        assert np.array_equal(a, b)
        np.testing.assert_allclose(a, p.detach().numpy(), rtol=1e-10)


def test_no_world():
    with pytest.raises(ValueError, match="init_process_group"):
        ZeroRedundancyOptimizer([torch.ones(1, requires_grad=True)], torch.optim.SGD, lr=1.0)
