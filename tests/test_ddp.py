"""DistributedDataParallel between real processes: ranks with parts of a batch train as one process does, and bit for bit alike."""
import numpy as np
import pytest
from ddp_models import Branches, Checkpointed, Images, Layers, Tied, accumulated, train, two_forwards
from worlds import world

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from tritorch.nn.parallel import DistributedDataParallel as DDP

UNUSED, STATIC = {"find_unused_parameters": True}, {"static_graph": True}
WAYS = [
    (Images, {}), (lambda: Images(norm=True), {}), (Tied, {}), (Branches, UNUSED), (Branches, STATIC), (Checkpointed, {}),
    (lambda: Checkpointed(True), {}), (lambda: Checkpointed(times=3), {}), (lambda: Checkpointed(True, 3), STATIC), (Layers, {}),
    (Layers, {"passes": two_forwards}), (Layers, {"passes": accumulated}), (Layers, {"bucket_cap_mb": 1e-4}), (Layers, {"clip": 0.1}),
    (Layers, {"bucket_cap_mb_list": [1e-4, 2e-4], "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-2)}), (Branches, UNUSED | STATIC),
    (Layers, {"batched_grad_copy": True, "init_sync": False}), (Branches, UNUSED | {"skip_all_reduce_unused_params": True}),
]


def all_ways(rank, size, dtype, as_view):
    return [train(make, rank, size, dtype, gradient_as_bucket_view=as_view, **options) for make, options in WAYS]


@pytest.mark.parametrize("dtype, size, as_view", [("float64", 2, False), ("float32", 4, True)])
@pytest.mark.filterwarnings("ignore:DistributedDataParallel. find_unused")
def test_ranks_train_as_one_process(dtype, size, as_view, tmp_path):
    dtype = getattr(torch, dtype)
    first, *others = world(all_ways, size, tmp_path, dtype, as_view)
    ours = {"passes", "clip", "optimizer"}
    for k, (make, options) in enumerate(WAYS):
        alone = train(make, 0, 1, dtype, **{name: value for name, value in options.items() if name in ours})
        for mine, theirs, wanted in zip(first[k], zip(*[other[k] for other in others]), alone):
            assert all(np.array_equal(mine, t) for t in theirs)
            tolerance = 1e-12 if dtype is torch.float64 else 2e-6
            np.testing.assert_allclose(mine, wanted, rtol=tolerance, atol=tolerance)


def gradients(rank, size, **options):
    """What a model of two layers has got, of which rank 1 uses one, and by outputs of which one is in no loss."""
    out = []
    for use in (lambda m, x: m(x, rank == 0), lambda m, x: m(x, False), lambda m, x: (m(x, False), m(x, True))[0]):
        model = DDP(Branches(), find_unused_parameters=True, **options)
        for p in model.parameters():
            torch.nn.init.ones_(p)
        use(model, torch.ones(2, 5)).sum().backward()
        out.append([None if p.grad is None else p.grad.sum().item() for p in model.parameters()])
    return out


@pytest.mark.parametrize("as_view", [False, True])
def test_unused_parameters_keep_their_gradients(as_view, tmp_path):
    first, second = world(lambda rank, size: gradients(rank, size, gradient_as_bucket_view=as_view), 2, tmp_path)
    assert first == second
    some, left, also_left = first
    assert None not in some[:7] and some[4] == some[6] == 3 and some[7:] == [None, None]          # scale, hidden, left, right, never
    assert left[5:] == [None] * 4 and also_left == left


# ------------------------------------------------------------------ buckets
def buckets(rank, size):
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 3).double(), nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last))
    model[2].weight.requires_grad_(rank < 9)
    seen = []
    ddp = DDP(model, bucket_cap_mb=0.001)
    default = DDP(nn.Sequential(*[nn.Linear(512, 512) for _ in range(3)])).reducer.buckets
    listed = DDP(nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)]), bucket_cap_mb_list=[0.0005, 0.002]).reducer.buckets

    def hook(state, bucket):
        grads, params = bucket.gradients(), bucket.parameters()
        seen.append((state, bucket.index(), bucket.is_last(), bucket.buffer().numel(), [tuple(g.shape) for g in grads]))
        assert all(g.dtype is p.dtype and g.shape == p.shape and g.stride() == p.stride() for g, p in zip(grads, params))
        future = torch.futures.Future()
        future.set_result(bucket.buffer() * 10)
        return future

    ddp.register_comm_hook("state", hook)
    loss = model[0](torch.ones(1, 100)).sum() + model[1](torch.ones(1, 100).double()).sum().float()
    ddp.module.forward = lambda: loss + model[2](torch.ones(1, 2, 3, 3)).sum()
    ddp().backward()
    with pytest.raises(RuntimeError, match="one hook, got a second"):
        ddp.register_comm_hook(None, hook)
    with pytest.raises(TypeError, match="a hook that can be called"):
        DDP(model).register_comm_hook(None, 3)
    return (seen, model[2].bias.grad.tolist(), [[tuple(p.shape) for p in b.parameters] for b in default],
            [len(b.parameters) for b in listed])


def test_buckets_go_from_the_last_parameter_to_the_first(tmp_path):
    first, second = world(buckets, 2, tmp_path)
    assert first == second
    seen, grad, default, listed = first
    assert seen == [("state", 0, False, 10_100 + 57, [(3,), (3, 2, 3, 3), (100,), (100, 100)]),
                    ("state", 1, True, 303, [(3,), (3, 100)])]
    assert grad == [10, 10, 10]                                          # what the hook made, not divided
    assert default == [[(512,), (512, 512)], [(512,), (512, 512), (512,), (512, 512)]]
    assert listed == [2, 4, 2]


def many_hooks(rank, size):
    from tritorch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks

    def with_nothing(state, bucket):
        return None

    out, local, alone = [], [], [torch.distributed.new_group([k]) for k in range(size)]
    for hook in (None, hooks.allreduce_hook, hooks.fp16_compress_hook, hooks.bf16_compress_hook,
                 hooks.fp16_compress_wrapper(hooks.allreduce_hook), hooks.bf16_compress_wrapper(hooks.allreduce_hook)):
        torch.manual_seed(0)
        model = DDP(nn.Linear(4, 3), gradient_as_bucket_view=rank == 9)
        if hook:
            model.register_comm_hook(None, hook)
        for _ in range(2):
            (model(torch.full((2, 4), rank + 1.0)).square().sum()).backward()
        out.append(model.module.weight.grad.numpy())
    for state in (PostLocalSGDState(None, alone[rank], 2), PostLocalSGDState(None, None, 2, False)):
        torch.manual_seed(0)
        model = DDP(nn.Linear(4, 3))
        model.register_comm_hook(state, post_localSGD_hook)
        for _ in range(2):
            (model(torch.full((2, 4), rank + 1.0)).square().sum()).backward()
        out.append(model.module.weight.grad.numpy().copy())
        assert state.iter == 2
        model.zero_grad()
        (model(torch.full((2, 4), rank + 1.0)).sum()).backward()
        local.append(model.module.weight.grad.tolist())
        facts = model._get_ddp_logging_data()
        assert facts["rank"] == rank and facts["world_size"] == size and facts["module_name"] == "Linear"
    model = DDP(nn.Linear(1, 1))
    model.register_comm_hook(None, with_nothing)
    with pytest.raises(RuntimeError, match="a Future from the communication hook, got NoneType"):
        model(torch.ones(1, 1)).backward()
    return out, local


def test_communication_hooks(tmp_path):
    (first, mine), (second, other) = world(many_hooks, 2, tmp_path)
    assert mine == [[[2.0] * 4] * 3] * 2 and other == [[[4.0] * 4] * 3] * 2     # neither hears of the other any more
    assert all(np.array_equal(first[0], late) for late in first[6:])
    assert all(np.array_equal(a, b) for a, b in zip(first, second))
    plain, same, half, brain, half_wrapped, brain_wrapped = first[:6]
    assert np.array_equal(plain, same) and np.array_equal(half, half_wrapped) and np.array_equal(brain, brain_wrapped)
    np.testing.assert_allclose(half, plain, rtol=3e-3)
    np.testing.assert_allclose(brain, plain, rtol=2e-2)
    assert not np.array_equal(half, plain) and not np.array_equal(brain, half)


def views(rank, size):
    model = DDP(Layers(), gradient_as_bucket_view=True)
    x = torch.full((2, 5), rank + 1.0)
    model(x).sum().backward()
    grads = [p.grad for p in model.parameters()]
    memory = {id(g.storage) for g in grads}
    model.zero_grad(set_to_none=False)
    model(x).sum().backward()
    same = all(p.grad is g for p, g in zip(model.parameters(), grads))
    model.zero_grad()
    model(x).sum().backward()
    return len(memory), same, all(p.grad.storage is g.storage for p, g in zip(model.parameters(), grads)), dist.get_rank()


def test_gradients_are_views_of_buckets(tmp_path):
    assert [found[:3] for found in world(views, 2, tmp_path)] == [(1, True, True)] * 2


# ------------------------------------------------------------------ several passes
def passes(rank, size):
    """The gradient of one weight after each backward pass."""
    def weight():
        return DDP(nn.Linear(1, 1, bias=False))

    x, out = torch.full((1, 1), rank + 1.0), []
    model = weight()
    y = model(x)
    y.backward(retain_graph=True)
    out.append(model.module.weight.grad.item())
    y.backward()
    out.append(model.module.weight.grad.item() - rank)                   # not reduced: no forward pass asked for it
    model = weight()
    y, z = model(x), model(10 * x)
    y.backward()
    z.backward()
    out.append(model.module.weight.grad.item() - 10 * rank)
    model = weight()
    with model.no_sync():
        model(x).backward()
        out.append(model.module.weight.grad.item() - rank)
    with torch.no_grad():
        model(x)
    model(x).backward()
    out.append(model.module.weight.grad.item())
    (g,) = torch.autograd.grad(model(x), model.module.weight)
    model(x).sum().backward()
    out += [g.item() - rank, model.module.weight.grad.item()]
    with pytest.raises(RuntimeError, match="without create_graph=True"):
        model(x).backward(create_graph=True)
    model = weight()
    model.requires_grad_(False)
    model.requires_grad_(True)
    model(x).backward()
    return [*out, model.module.weight.grad.item()]


def test_one_reduction_a_forward_pass(tmp_path):
    assert world(passes, 2, tmp_path) == [[1.5, 2.5, 11.5, 1, 3, 1, 4.5, 1.5]] * 2


def wrong(rank, size):
    x, found = torch.ones(2, 5), []

    def error(call):
        with pytest.raises(RuntimeError) as caught:
            call()
        found.append(str(caught.value))

    model = DDP(Branches())
    model(x).sum().backward()
    error(lambda: model(x))
    model = DDP(Checkpointed(True, 2))
    error(lambda: model(x).sum().backward())
    model = DDP(Branches(), static_graph=True)
    model(x).sum().backward()
    error(lambda: model(x, True).sum().backward())
    model = DDP(Branches(), static_graph=True)
    (model(x) + model(x, True)).sum().backward()
    model(x).sum().backward()
    error(lambda: model(x))
    error(lambda: DDP(nn.Linear(2, 2 + rank)))
    error(lambda: DDP(nn.Sequential(*[nn.Linear(2, 2) for _ in range(1 + rank)])))
    error(lambda: DDP(nn.Linear(2, 2, dtype=[torch.float32, torch.float64][rank])))
    error(lambda: DDP(nn.ReLU()))
    error(lambda: DDP(nn.LazyLinear(3)))
    error(lambda: DDP(nn.Linear(1, 1), process_group=dist.new_group([0, 1])).__getstate__())
    for options in ({"device_ids": [0]}, {"device_ids": [0, 1]}, {"mixed_precision": 1}):
        with pytest.raises((ValueError, NotImplementedError), match="expected"):
            DDP(nn.Linear(1, 1), **options)
    mesh = dist.init_device_mesh("cpu", (2,))
    assert DDP(nn.Linear(1, 1), device_mesh=mesh).process_group is mesh.get_group()
    error(lambda: DDP(nn.Linear(1, 1), device_mesh=mesh, process_group=dist.group.WORLD))
    error(lambda: DDP(nn.Linear(1, 1), device_mesh=dist.init_device_mesh("cpu", (2, 1))))
    for options in ({"broadcast_buffers": False}, {"check_reduction": True}):
        with pytest.warns(FutureWarning, match="deprecated"):
            DDP(nn.Linear(1, 1), **options)
    with pytest.warns(UserWarning, match="changes nothing beside static_graph"):
        DDP(nn.Linear(1, 1), **UNUSED, **STATIC)
    return found


def test_errors(tmp_path):
    first, second = world(wrong, 2, tmp_path)
    assert first == second
    for text, wanted in zip(first, (
            "got none for right.weight, right.bias, never.weight, never.bias; use find_unused_parameters=True",
            "one complete gradient of again.weight", "got a gradient more of right.",
            "none for right.weight, right.bias; use static_graph=False",
            "of shape (2, 2) (float32, strides (2, 1)) in rank 0 and weight of shape (3, 2)",
            "got 2 in rank 0 and 4 in rank 1", "(float64, strides (2, 1)) in rank 1", "that requires a gradient", "of known shapes",
            "the default process group", "a process_group or a device_mesh", "a device_mesh of one dim"), strict=True):
        assert wanted in text
