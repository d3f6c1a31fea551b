"""fully_shard between real processes: ranks with parts of parameters and of a batch train as one process does."""
import functools
import gc
import weakref

import fsdp_models as models
import numpy as np
import pytest
from fsdp_models import Block, Few, Inside, Language, Wrapped, batch, by_blocks, full, loss_of, once, sgd, train, twice, whole
from worlds import no_gpu, world  # noqa: F401

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from tritorch.distributed.tensor import Shard
from tritorch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

pytestmark = pytest.mark.usefixtures("no_gpu")


# ------------------------------------------------------------------ ways of training
def accumulated(model, step, *place, last=True):
    """Two passes, of which the gradients of the first stay in their ranks."""
    sharded = isinstance(model, FSDPModule)
    if sharded:
        model.set_requires_gradient_sync(False)
        model.set_is_last_backward(False)
        model.set_reshard_after_backward(last)
    first = loss_of(model, *batch(step + 50, *place))
    first.backward()
    if sharded:
        model.set_requires_gradient_sync(True)
        model.set_is_last_backward(True)
        model.set_reshard_after_backward(True)
    return first + once(model, step, *place)


def in_replicas(model, step, *place):
    """Two passes, of which the gradients of the first stay in their replicas, sharded."""
    if isinstance(model, FSDPModule):
        model.set_requires_all_reduce(False)
    first = once(model, step + 50, *place)
    if isinstance(model, FSDPModule):
        model.set_requires_all_reduce(True)
    return first + once(model, step, *place)


def early(model):
    """Explicit prefetching, one ahead in forward and two in backward."""
    blocks = list(model.blocks)
    for block, after in zip(blocks, blocks[1:]):
        block.set_modules_to_forward_prefetch([after])
    blocks[2].set_modules_to_backward_prefetch([blocks[1], blocks[0]])
    model.set_modules_to_forward_prefetch(blocks[:2])
    model.set_reduce_scatter_max_input_buffers(3)


def several(model, **options):
    """Groups of modules that are not below each other, and one inside of another."""
    fully_shard([model.norm, model.head], **options)
    fully_shard(model.blocks[1].mlp, **options)
    fully_shard([model.blocks[0], model.blocks[1]], **options)
    return fully_shard(model, **options)


def columns(model, **options):
    """Even columns instead of rows."""
    choose = lambda p: Shard(-1) if p.ndim == 2 and p.shape[1] % dist.get_world_size() == 0 else None
    return by_blocks(model, shard_placement_fn=choose, **options)


def replicated(shard, model, **options):
    """On a mesh of two replicas."""
    mesh = dist.init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return shard(model, mesh=mesh, **options)


def beside_tensor_parallelism(model, **options):
    """Layers that pairs of ranks have cut between them already."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    for block in model.blocks:
        parallelize_module(block.mlp, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
    return by_blocks(model, mesh=mesh["dp"], **options)


def in_pairs(model, step, rank, size):
    """Ranks of a pair have the same part of the batch."""
    return once(model, step, rank // 2, max(size // 2, 1))


def own_optimizers(model, step, *place):
    """The optimizer steps in backward, as soon as the gradient of a shard is there."""
    if step == 0:
        for p in model.parameters():
            step_of = torch.optim.SGD([p], lr=0.1).step
            p.register_post_accumulate_grad_hook(lambda p, step_of=step_of: (step_of(), setattr(p, "grad", None)))
    return once(model, step, *place)


WAYS = {
    2: [
        (Language, {"reshard_after_forward": False, "optimizer": sgd}),
        (Language, {"reshard_after_forward": True, "passes": twice}),
        (Language, {"shard": whole, "clip": 0.1}),
        (Language, {"passes": functools.partial(accumulated, last=False), "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float64)}),
        (Language, {"setup": early, "steps": 3}),
        (Language, {"shard": columns}),
        (Language, {"passes": own_optimizers}),
        (Language, {"offload_policy": CPUOffloadPolicy()}),
        (functools.partial(Language, tied=True), {"optimizer": sgd}),
        (functools.partial(Language, again=False), {"passes": twice}),
        (functools.partial(Language, again=True), {"passes": twice}),
        (functools.partial(Language, Inside), {}),
        (functools.partial(Language, Wrapped), {}),
        (Few, {"shard": whole, "setup": lambda model: model.set_unshard_in_backward(True)}),
    ],
    4: [
        (Language, {"shard": several, "passes": accumulated}),
        (Few, {"shard": whole, "steps": 3}),
        (Language, {"reshard_after_forward": 2, "passes": twice}),
        (functools.partial(Language, functools.partial(Block, inner=14)), {"shard": beside_tensor_parallelism,
         "passes": in_pairs, "reshard_after_forward": True}),
        (Language, {"shard": functools.partial(replicated, by_blocks), "clip": 0.1}),
        (Language, {"shard": functools.partial(replicated, by_blocks), "passes": in_replicas}),
    ],
}
OURS = {"passes", "clip", "optimizer", "steps"}


def all_ways(rank, size):
    return [train(make, rank, size, **options) for make, options in WAYS[size]]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_train_as_one_process(size, tmp_path):
    first, *others = world(all_ways, size, tmp_path)
    for k, (make, options) in enumerate(WAYS[size]):
        losses, parameters = train(make, 0, 1, **{name: value for name, value in options.items() if name in OURS})
        for rank in others:
            assert all(np.array_equal(mine, theirs) for mine, theirs in zip(first[k][1], rank[k][1])), k
        np.testing.assert_allclose(first[k][0], losses, rtol=1e-12, err_msg=f"{k}")
        for mine, wanted in zip(first[k][1], parameters, strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=1e-12, atol=1e-12, err_msg=f"{k}")


# ------------------------------------------------------------------ dtypes
class Seen(nn.Module):
    """A layer that tells in which dtypes it computes."""

    def __init__(self):
        super().__init__()
        self.layer, self.dtypes = nn.Linear(4, 3), []
        self.register_buffer("shift", torch.ones(3, dtype=torch.float64))

    def forward(self, x, count=None):
        self.dtypes.append((x.dtype, self.layer.weight.dtype, self.shift.dtype, None if count is None else count.dtype))
        return self.layer(x) + self.shift.to(x.dtype)


def mixed(rank, size):
    out = []
    for policy in (MixedPrecisionPolicy(param_dtype=torch.float32), MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float64),
                   MixedPrecisionPolicy(torch.float16, cast_forward_inputs=False), MixedPrecisionPolicy(reduce_dtype=torch.float32)):
        model = models.filled(Seen(), torch.float64)
        fully_shard(model, mp_policy=policy)
        x = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)[rank::size]
        x = x if policy.cast_forward_inputs else x.half()
        for again in (False, True):
            model.set_requires_gradient_sync(again)
            y = model(x, count=torch.tensor(1))
            y.square().sum().backward()
        grads = [p.grad for p in model.parameters()]
        out.append((model.dtypes[0], y.dtype, [g.dtype for g in grads], [full(g) for g in grads], full(model.layer.weight)))
    return out


def test_mixed_precision(tmp_path):
    first, second = world(mixed, 2, tmp_path)
    model = models.filled(Seen(), torch.float64)
    for _ in range(2):
        model(torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)).square().sum().div(2).backward()
    wanted, f64, i64 = [p.grad.numpy() for p in model.parameters()], torch.float64, torch.int64
    kinds = [((torch.float32, torch.float32, f64, i64), torch.float32), ((torch.bfloat16, torch.bfloat16, f64, i64), f64),
             ((torch.float16, torch.float16, f64, i64), torch.float16), ((f64, f64, f64, i64), f64)]
    for (dtypes, y, of_grads, grads, weight), kind, near in zip(first, kinds, (1e-6, 2e-2, 3e-3, 1e-6)):
        assert (dtypes, y) == kind and of_grads == [f64, f64]
        assert np.array_equal(weight, model.layer.weight.detach().numpy())                # shards keep all digits
        for mine, right in zip(grads, wanted):
            np.testing.assert_allclose(mine, right, rtol=near, atol=near * np.abs(right).max())
            assert near > 1e-3 or not np.array_equal(mine, right)                         # float32 has been on the way


# ------------------------------------------------------------------ memory
def alive(model):
    """Bytes of whole parameters that there are, by group."""
    groups = [group for module in model.modules() if isinstance(module, FSDPModule) for group in module._get_fsdp_state().groups]
    under_way = lambda group: sum(one.buffer.nbytes for one in group.gathered[0]) if group.gathered else 0
    return [under_way(group) + sum(flat.storage.nbytes for flat in group.flats if flat.storage is not None) for group in groups]


def peaks(rank, size):
    """At most how many groups were whole at a time, in forward, in backward and afterwards."""
    out = []
    for reshard in (True, False):
        model, seen = models.filled(Language(depth=4), torch.float64), []
        by_blocks(model, reshard_after_forward=reshard)
        for block in model.blocks:
            block.mlp.register_forward_hook(lambda *_: seen.append(sum(n > 0 for n in alive(model))))
            block.mlp.register_full_backward_hook(lambda *_: seen.append(sum(n > 0 for n in alive(model))))
        loss = loss_of(model, *batch(0, rank, size))
        forward, between = max(seen), sum(n > 0 for n in alive(model))
        seen.clear()
        loss.backward()
        out.append((forward, between, max(seen), sum(alive(model))))
    return out


def test_only_the_groups_in_use_are_whole(tmp_path):
    for found in world(peaks, 2, tmp_path):
        assert found == [(2, 0, 3, 0), (5, 5, 5, 0)]                     # the model's own, a block's, and one that comes early in backward


def lifetimes(rank, size):
    """What is left of models that nobody knows any more, without the garbage collector: their parameters, gathered and not."""
    gc.collect()
    gc.disable()
    watched = []
    for make in (Language, functools.partial(Language, again=False), functools.partial(Language, Wrapped)):
        model = by_blocks(models.filled(make(), torch.float32))
        register_fsdp_forward_method(model.blocks[0], "extra_repr")
        model.blocks[1].set_modules_to_forward_prefetch([model.blocks[2]])
        optimizer = models.adamw(model.parameters())
        once(model, 0, rank, size)
        optimizer.step()
        state = model.state_dict()
        loss = loss_of(model, *batch(1, rank, size))                     # nothing comes back through this
        groups = [group for module in model.modules() if isinstance(module, FSDPModule) for group in module._get_fsdp_state().groups]
        watched += [weakref.ref(x) for group in groups for cut in group.cuts for x in (cut.sharded, cut.full)]
        watched += [weakref.ref(flat.memory.storage) for group in groups for flat in group.flats] + [weakref.ref(model)]
        del model, optimizer, state, loss, groups
    left = [type(ref()).__name__ for ref in watched if ref() is not None]
    gc.enable()                                                          # not before: the collector may come at once
    return left, len(watched)


def test_memory_goes_by_reference_count(tmp_path):
    for left, count in world(lifetimes, 2, tmp_path):
        assert left == [] and count > 100
