"""Around DistributedDataParallel: buffers, copies, uneven inputs, memory, half precision, clipping, compiled steps, a world of one."""
import copy
import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest
from ddp_models import Branches, Layers, filled, train
from worlds import world

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.distributed.algorithms import Join, Joinable, JoinHook
from tritorch.distributed.algorithms.ddp_comm_hooks import default_hooks
from tritorch.nn.parallel import DistributedDataParallel as DDP
from tritorch.utils import data


@pytest.fixture
def alone():
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Counting(nn.Module):
    """A layer with buffers of several kinds."""

    def __init__(self, rank):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        for name, value in (("number", torch.tensor(rank + 1)), ("nothing", torch.empty(0)), ("image", torch.ones(2, 3).t() * rank),
                            ("ignored", torch.tensor(rank + 10.0))):
            self.register_buffer(name, value)

    def forward(self, x):
        return self.layer(x) * self.image.sum()


def buffers(rank, size):
    inner, out = Counting(rank), []
    DDP._set_params_and_buffers_to_ignore_for_model(inner, ["ignored"])
    model = DDP(inner)

    def now():
        out.append((inner.number.item(), inner.image.tolist(), inner.ignored.item()))

    now()
    inner.number.add_(rank)
    inner.image = torch.full((3, 2), rank + 2.0)                         # exchanged
    y = model(torch.ones(1, 2))
    z = model(torch.ones(1, 2))                                          # takes over buffers that backward of y needs
    now()
    (y + z).sum().backward()
    with model.no_sync():
        model(torch.ones(1, 2))
    inner.number.add_(rank)
    model(torch.ones(1, 2))                                              # the pass before it was not reduced: nothing is taken over
    now()
    model(torch.ones(1, 2))
    now()
    kept = DDP(Counting(rank), forward_sync_buffers=False)
    kept.module.number.add_(rank)
    kept(torch.ones(1, 2))
    return out, kept.module.number.item(), model.will_sync_module_buffers(), kept.broadcast_buffers


def test_buffers_are_those_of_rank_0(tmp_path):
    (first, kept, will, flag), (second, also_kept, *_) = world(buffers, 2, tmp_path)
    assert [row[:2] for row in first] == [(1, [[0, 0]] * 3), (1, [[2, 2]] * 3), (1, [[2, 2]] * 3), (1, [[2, 2]] * 3)]
    assert [row[0] for row in second] == [1, 1, 2, 1] and second[1][1] == [[2, 2]] * 3
    assert [row[2] for row in first + second] == [10] * 4 + [11] * 4
    assert (kept, also_kept, will, flag) == (1, 2, True, False)


def copies(rank, size):
    model, x, out = DDP(filled(Branches(), torch.float64), find_unused_parameters=True), torch.full((2, 5), rank + 1.0).double(), []
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(x).square().sum().backward()
        out.append([p.grad.numpy() for p in list(other.parameters())[:5]])
    model(x).square().sum().backward()
    out.append([p.grad.numpy() for p in list(model.parameters())[:5]])
    assert list(model.state_dict())[0] == "module.scale" and all(p.grad is None for p in list(model.parameters())[5:])
    return out


def test_copies_reduce_by_themselves(tmp_path):
    first, second = world(copies, 2, tmp_path)
    for found in (*first, *second):
        assert all(np.array_equal(a, b) for a, b in zip(found, first[0]))


# ------------------------------------------------------------------ uneven inputs
class Counter(Joinable):
    """Counts over all ranks, and has a number to count with in ranks that have joined."""

    def __init__(self):
        super().__init__()
        self.count, self.joined, self.last = 0, 0, None

    def __call__(self):
        Join.notify_join_context(self)
        self.add(1)

    def add(self, n):
        total = torch.full((1,), n)
        dist.all_reduce(total)
        self.count += total.item()

    def join_hook(self, **kwargs):
        counter = self

        class Hook(JoinHook):
            def main_hook(self):
                counter.add(0)
                counter.joined += 1

            def post_hook(self, is_last_joiner):
                counter.last = is_last_joiner

        return Hook()

    join_device = torch.device("cpu")
    join_process_group = property(lambda self: dist.group.WORLD)


def uneven(rank, size):
    out, x = [], torch.ones(1, 1)
    for divides, options in ((True, {}), (False, {}), (True, {"find_unused_parameters": True}), (False, {"static_graph": True})):
        inner = nn.Sequential(nn.Linear(1, 1, bias=False), nn.SyncBatchNorm(1).eval())
        inner[1].requires_grad_(False)
        torch.nn.init.ones_(inner[0].weight)
        inner[1].running_mean.fill_(rank)
        model = DDP(inner, **options)
        optimizer, found = torch.optim.SGD(model.parameters(), lr=1.0), []
        with model.join(divide_by_initial_world_size=divides):
            for k in range(1 + 2 * rank):
                optimizer.zero_grad()
                model(x * (k + 1)).sum().backward()
                found.append(round(inner[0].weight.grad.item(), 3))
                optimizer.step()
        out.append((found, round(inner[0].weight.item(), 3), inner[1].running_mean.item()))
        assert not model._join_config.enable
    counter = Counter()
    with Join([counter]):
        for _ in range(3 - rank):
            counter()
    with pytest.raises(RuntimeError, match="exhausted"), Join([DDP(nn.Linear(1, 1))], throw_on_early_termination=True) as _:
        model = DDP(nn.Linear(1, 1))
        with model.join(throw_on_early_termination=True):
            for _ in range(1 + rank):
                model(x)
    with model.join(enable=False):
        model(x)
    with pytest.raises(ValueError, match="at least one joinable"):
        Join([])
    return out, counter.count, counter.joined, counter.last


def test_ranks_with_fewer_inputs_join(tmp_path):
    (first, *counts), (second, *other_counts) = world(uneven, 2, tmp_path)
    assert counts == [5, 0, True] and other_counts == [5, 1, False]
    for (short, weight, mean), (long, other_weight, other_mean), factor in zip(first, second, (1, 2, 1, 2)):
        assert len(short) == 1 and long == [1, factor * 1.0, factor * 1.5] and weight == other_weight == round(1 - sum(long), 3)
        assert mean == other_mean == 0


def test_parts_of_datasets():
    """Without a number of ranks a sampler asks the world."""
    with pytest.raises(ValueError, match="init_process_group"):
        data.DistributedSampler(range(5))


def sampled(rank, size):
    sampler = data.DistributedSampler(range(7), drop_last=rank == 9, seed=3)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    return sampler.rank, sampler.num_replicas, len(sampler), orders


def test_samplers_know_their_rank(tmp_path):
    first, second = world(sampled, 2, tmp_path)
    assert first[:3] == (0, 2, 4) and second[:3] == (1, 2, 4)
    assert first[3][0] == first[3][2] != first[3][1] and set(first[3][0] + second[3][0]) == set(range(7))


# ------------------------------------------------------------------ memory
def forgotten(rank, size, option):
    """Models, reducers, buckets and gradients go with the last reference, and their hooks with them."""
    gc.collect()
    gc.disable()
    try:
        inner = Layers()
        model = DDP(inner, **{option: True} if option != "hook" else {})
        if option == "hook":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        assert model.reducer.buckets[0].flat is None                     # memory comes when it is needed
        watched = [weakref.ref(o) for o in (model, model.reducer, *model.reducer.buckets)]
        for _ in range(2):
            y = model(torch.ones(2, 5))
            y.sum().backward()
            watched += [weakref.ref(o) for p in model.parameters() for o in (p.grad, p.grad.storage)]
            watched += [weakref.ref(b.flat.storage) for b in model.reducer.buckets if b.flat is not None]
            assert (model.reducer.buckets[0].flat is None) is (size == 1 and option not in ("gradient_as_bucket_view", "hook"))
            model.zero_grad(set_to_none=True)
        hook = model.reducer.handles[0].hooks
        del model, y
        assert not [o() for o in watched if o() is not None] and not hook
        inner(torch.ones(2, 5)).sum().backward()
        model, watched = DDP(inner), [weakref.ref(p) for p in inner.parameters()]
        model(torch.ones(2, 5)).sum().backward()
        del model, inner
        assert not [p() for p in watched if p() is not None]
    finally:
        gc.enable()


OPTIONS = ["init_sync", "gradient_as_bucket_view", "static_graph", "find_unused_parameters", "hook"]


def test_memory_goes_without_the_collector(alone, tmp_path):
    for option in OPTIONS:
        forgotten(0, 1, option)


def test_memory_goes_without_the_collector_in_two_ranks(tmp_path):
    world(lambda rank, size: [forgotten(rank, size, option) for option in OPTIONS], 2, tmp_path)


# ------------------------------------------------------------------ half precision
def scaled(rank, size):
    """Whether the step was skipped, and the scale, in steps of which rank 1 has an infinite input in the second."""
    inner = filled(Layers(), torch.float32)
    model, out = DDP(inner), []
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(3):
        x = torch.full((2, 5), float("inf") if rank and step == 1 else 1.0 + rank)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        before = inner.layers[0].weight.detach().clone()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        out.append((torch.equal(before, inner.layers[0].weight), scaler.get_scale(), bool(norm.isfinite())))
    return out, [p.detach().numpy() for p in inner.parameters()]


def test_all_ranks_skip_a_step_with_an_infinite_gradient_in_one(tmp_path):
    (first, one), (second, other) = world(scaled, 2, tmp_path)
    assert first == second == [(False, 64, True), (True, 32, False), (False, 32, True)]
    assert all(np.array_equal(a, b) for a, b in zip(one, other))


# ------------------------------------------------------------------ one process
def test_a_world_of_one_is_the_module(alone):
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        inner = filled(Layers(), torch.float64)
        got = DDP(inner, **options)
        wanted, x = copy.deepcopy(inner), torch.randn(4, 5).double()
        for model in (got, wanted):
            model(x).square().sum().backward()
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(inner.parameters(), wanted.parameters()))
    assert repr(got).startswith("DistributedDataParallel(\n  (module): Layers(")
    model = DDP(Branches())
    model(torch.ones(2, 5)).sum().backward()
    with pytest.raises(RuntimeError, match="got none for right.weight"):
        model(torch.ones(2, 5))


def test_no_world():
    with pytest.raises(ValueError, match="init_process_group"):
        DDP(nn.Linear(1, 1))
    assert train(Layers, 0, 1)                                           # what the other tests compare with needs none


# ------------------------------------------------------------------ two models, GPUs, compiled steps
def two_models(rank, size):
    """A model whose output another one reads: both are reduced in one backward pass, or in one each."""
    first, second = DDP(filled(Layers(), torch.float64)), DDP(filled(nn.Linear(3, 2), torch.float64), gradient_as_bucket_view=True)
    x, out = torch.full((2, 5), rank + 1.0).double(), []
    for detached in (False, True):
        h = first(x)
        y = second(h.detach() if detached else h)
        (y.square().sum() + (h.sum() if detached else 0)).backward()
        out.append([p.grad.numpy().copy() for p in (*first.parameters(), *second.parameters())])
        first.zero_grad()
        second.zero_grad()
    return out


def test_two_models_in_one_pass(tmp_path):
    first, second = world(two_models, 2, tmp_path)
    wanted = [[sum(g) / 2 for g in zip(*rows)] for rows in zip(*[alone_with_two(rank) for rank in range(2)])]
    for mine, theirs, means in zip(first, second, wanted):
        for a, b, mean in zip(mine, theirs, means):
            assert np.array_equal(a, b)
            np.testing.assert_allclose(a, mean, rtol=1e-12)


def alone_with_two(rank):
    dist.init_process_group("gloo", rank=0, world_size=1)
    try:
        return two_models(rank, 1)
    finally:
        dist.destroy_process_group()


def on_a_gpu(rank, size, device):
    """Steps of a compiled function, and what it says of them."""
    if device == "cuda":
        torch.cuda.simulate()
    inner = filled(nn.Sequential(nn.Linear(5, 4), nn.SyncBatchNorm(4), nn.Tanh(), nn.Linear(4, 3)), torch.float32).to(device)
    model = DDP(inner, device_ids=[0] if device == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for k in range(2):
            x = torch.from_numpy(np.random.default_rng(k).normal(size=(4, 5)).astype(np.float32))[rank * 2:rank * 2 + 2]
            step(x.to(device), torch.tensor([0, 1], device=device))
    if device == "cuda":
        assert model(x).device == inner[0].weight.device and (model.device_ids, model.output_device) == ([0], 0)       # it moves x
    return [p.detach().cpu().numpy() for p in inner.parameters()], [str(w.message) for w in said]


def test_gpus_and_compiled_steps(tmp_path):
    """A step that other processes wait for is not captured: it runs eagerly, and says so."""
    pytest.importorskip("triton")
    (first, told), (second, _) = world(on_a_gpu, 2, tmp_path, "cuda")
    (wanted, said), _ = world(on_a_gpu, 2, tmp_path, "cpu")
    for a, b, w in zip(first, second, wanted):
        assert np.array_equal(a, b)
        np.testing.assert_allclose(a, w, rtol=1e-5, atol=1e-6)
    assert said == [] and len(told) == 1 and "the all_reduce of gradients in DistributedDataParallel" in told[0]


def compiled_inside(rank, size):
    torch.cuda.simulate()
    out = []
    for compile in (lambda model: model, torch.compile):
        inner = filled(Layers(), torch.float32).cuda()
        module = compile(inner)
        model, optimizer = DDP(module), torch.optim.SGD(inner.parameters(), lr=0.1)
        for k in range(5):
            optimizer.zero_grad()
            model(torch.full((2, 5), k - rank, device="cuda", dtype=torch.float32)).square().sum().backward()
            optimizer.step()
        out.append([p.detach().cpu().numpy() for p in inner.parameters()])
    return out, "is replayed" in module.report()


def test_a_compiled_module_inside(tmp_path):
    pytest.importorskip("triton")
    first, second = world(compiled_inside, 2, tmp_path)
    for (eager, compiled), replayed in (first, second):
        assert replayed and all(np.array_equal(a, b) and np.array_equal(a, w) for a, b, w in zip(eager, compiled, first[0][0]))
