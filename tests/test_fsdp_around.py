"""What modules can do besides once they are sharded: state dicts, casts, own forward methods, errors, and a start after one."""
import copy

import fsdp_models as models
import numpy as np
import pytest
from fsdp_models import Block, Language, by_blocks, full, once
from worlds import no_gpu, world  # noqa: F401

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from tritorch.distributed.fsdp import (
    FSDPModule,
    UnshardHandle,
    fully_shard,
    register_fsdp_forward_method,
    share_comm_ctx,
)
from tritorch.distributed.tensor import DTensor, Shard

pytestmark = pytest.mark.usefixtures("no_gpu")


def gradients(model):
    return [None if p.grad is None else full(p.grad) for p in model.parameters()]


def unused(rank, size):
    """Ranks use different layers; a layer that none uses."""
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.never = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return (self.left if rank == 0 else self.right)(x)

    model = fully_shard(models.filled(Either(), torch.float64))
    model.set_reduce_scatter_unused_params(True)
    model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    assert [full(layer.bias.grad).tolist() for layer in (model.left, model.right, model.never)] == [[1.0] * 3, [1.0] * 3, [0.0] * 3]
    alike = fully_shard(models.filled(nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})["a"], torch.float64))
    alike.weight.requires_grad_(False)
    alike(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    assert alike.weight.grad is None and full(alike.bias.grad).tolist() == [2.0] * 3


def parameters(rank, size):
    """What a module shows: shards as a rule, whole ones between unshard and reshard."""
    model = models.filled(Block(), torch.float64)
    wanted = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    names, shared = list(wanted), fully_shard(model)
    assert shared is model and type(model).__name__ == "FSDPBlock" and isinstance(model, Block) and isinstance(model, FSDPModule)
    assert fully_shard.state(model) is model._get_fsdp_state() and list(dict(model.named_parameters())) == names
    for name, p in model.named_parameters():
        assert isinstance(p, DTensor) and isinstance(p, nn.Parameter) and p.placements == (Shard(0),)
        assert p.shape == wanted[name].shape and np.array_equal(full(p), wanted[name])
        assert p.to_local().shape[0] == -(-p.shape[0] // size) or rank == size - 1
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert model.unshard() is None
    for name, p in model.named_parameters():
        assert type(p) is nn.Parameter and np.array_equal(p.detach().numpy(), wanted[name])
    model.reshard()
    handle = model.unshard(async_op=True)
    assert isinstance(handle, UnshardHandle) and handle.wait() is None and type(model.qkv.weight) is nn.Parameter
    assert all(isinstance(p, DTensor) for p in model.state_dict().values())            # asking for it shards
    assert isinstance(model.qkv.weight, DTensor) and model.qkv.weight is optimizer.param_groups[0]["params"][names.index("qkv.weight")]
    chosen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    part = fully_shard(chosen, ignored_params={chosen[1].weight})[:2]
    assert type(part) is nn.Sequential and type(chosen[1].weight) is nn.Parameter and isinstance(chosen[1].bias, DTensor)


def states(rank, size):
    """Loading and casting change the shards, which are then gathered."""
    model, x = fully_shard(models.filled(nn.Linear(4, 5), torch.float64)), torch.ones(2, 4, dtype=torch.float64)
    before = model(x)
    saved = {name: p.detach().clone() for name, p in model.state_dict().items()}
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    model.reshard()                                                      # a root stays whole after forward
    assert torch.allclose(model(x), 2 * before, atol=1e-14)
    for assign in (False, True):
        with torch.no_grad():
            model.reshard()
            for p in model.parameters():
                p.zero_()
        model.load_state_dict(saved, assign=assign)
        assert torch.equal(model(x), before)
        model(x).sum().backward()
        assert full(model.bias.grad).tolist() == [2.0] * 5
        model.zero_grad()
    model.float()
    assert {p.dtype for p in model.parameters()} == {torch.float32} and torch.allclose(model(x.float()).double(), before, atol=1e-6)
    model.to("cpu").double()
    model(x).sum().backward()
    assert model.weight.dtype is model.weight.grad.dtype is torch.float64 and full(model.weight.grad).tolist() == [[2.0] * 4] * 5


def methods(rank, size):
    """Forward by other names, alone and beside others; roots that share streams; a hook on the averages."""
    model = fully_shard(models.filled(Block(), torch.float64), reshard_after_forward=True)
    register_fsdp_forward_method(model, "attend")
    register_fsdp_forward_method(nn.Linear(1, 1), "no matter")
    x = torch.ones(1, 3, 6, dtype=torch.float64)
    y = Block.attend(models.filled(Block(), torch.float64), x)
    assert torch.equal(model.attend(x), y) and isinstance(model.out.weight, DTensor)
    model.attend(x).sum().backward()
    assert model.mlp[1].weight.grad is None and model.qkv.weight.grad is not None
    other = fully_shard(models.filled(Block(), torch.float64))
    other.set_all_reduce_hook(lambda g: g.mul_(10))
    other.set_gradient_divide_factor(2 * size)
    share_comm_ctx([model, other])
    other(model(x)).sum().backward()
    hooked = full(other.mlp[3].bias.grad)
    np.testing.assert_allclose(hooked, [15.0] * 6)                       # 3 of each rank, times 10, over 2
    again = models.filled(Block(), torch.float64)
    assert fully_shard([again.norm, again.qkv])[1] is again.qkv
    fully_shard(again)(x).sum().backward()
    assert again.norm._get_fsdp_state() is again.qkv._get_fsdp_state() and full(again.qkv.bias.grad).shape == (18,)


def fails(rank, size):
    """After an error in forward or backward the module can start anew."""
    model, calm = models.filled(Language(depth=2), torch.float64), models.filled(Language(depth=2), torch.float64)
    by_blocks(model)
    model.set_requires_gradient_sync(False)
    once(model, 3, rank, size)
    model.set_requires_gradient_sync(True)
    handles = [model.blocks[1].register_forward_hook(lambda *_: 1 / 0), None]
    with pytest.raises(ZeroDivisionError):
        once(model, 0, rank, size)
    handles[0].remove()
    model.reset_iter_state()
    handle = model.blocks[0].mlp[1].register_full_backward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        once(model, 0, rank, size)
    handle.remove()
    with pytest.raises(RuntimeError, match="the root of what fully_shard"):
        model.blocks[0].reset_iter_state()
    model.reset_iter_state()
    model.zero_grad()
    once(model, 0, rank, size)
    once(calm, 0)
    for mine, p in zip(gradients(model), calm.parameters()):
        np.testing.assert_allclose(mine, p.grad.numpy(), rtol=1e-12, atol=1e-12)


def refused(rank, size):
    """Calls that are refused, and in what words. Long, for there are many."""
    line, mesh = nn.Linear(2, 2), dist.init_device_mesh("cpu", (size,))
    three = dist.init_device_mesh("cpu", (size, 1, 1))
    for call, kind, text in (
            (lambda: fully_shard(nn.ModuleList([line])), ValueError, "a module that has a forward"),
            (lambda: fully_shard([]), ValueError, "a module or a list of modules"),
            (lambda: fully_shard(line, mesh=three), ValueError, "of 1 or 2 dims"),
            (lambda: fully_shard(line, mesh=dist.init_device_mesh("cpu", (size, 1))), AssertionError, "mesh_dim_names"),
            (lambda: fully_shard(line, reshard_after_forward=3), ValueError, "that divides 2"),
            (lambda: fully_shard(line, reshard_after_forward="yes"), ValueError, "a bool or a number"),
            (lambda: fully_shard(nn.Linear(3, 2), shard_placement_fn=lambda p: Shard(p.ndim - 1)), NotImplementedError, "2 divides"),
            (lambda: fully_shard(nn.Linear(2, 2), shard_placement_fn=lambda p: 1), ValueError, "a Shard or None"),
            (lambda: fully_shard(nn.Linear(2, 2), shard_placement_fn=lambda p: Shard(5)), AssertionError, "Shard of a dim"),
            (lambda: copy.deepcopy(fully_shard(nn.Linear(2, 2))), AssertionError, "that is not sharded"),
            (lambda: register_fsdp_forward_method(fully_shard(nn.Linear(2, 2)), "none"), ValueError, "a method of"),
            (lambda: share_comm_ctx([line]), ValueError, "that fully_shard was applied to")):
        with pytest.raises(kind, match=text):
            call()
    scalar = nn.Module()
    scalar.p = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ValueError, match="of at least one dim, got p"):
        fully_shard(scalar)
    done = fully_shard(line, mesh=mesh)
    for call, kind, text in (
            (lambda: fully_shard(done), AssertionError, "not applied before"),
            (lambda: done.set_reshard_after_forward(1), ValueError, "a bool"),
            (lambda: done.set_modules_to_forward_prefetch([nn.Linear(1, 1)]), ValueError, "that fully_shard was applied to"),
            (lambda: done.set_reduce_scatter_max_input_buffers(True), TypeError, "an int"),
            (lambda: done.set_reduce_scatter_max_input_buffers(0), ValueError, "at least 1")):
        with pytest.raises(kind, match=text):
            call()
    tied = Language(tied=True)
    fully_shard(tied.embedding)
    fully_shard(tied)
    with pytest.raises(ValueError, match="each parameter in one group"):
        once(tied.double(), 0)
    inner = fully_shard(Language(depth=1).double().blocks[0])
    inner(torch.ones(1, 2, 6).double())
    with pytest.raises(RuntimeError, match="a first forward pass through the outermost"):
        fully_shard(nn.Sequential(inner))(torch.ones(1, 2, 6).double())
    viewed = fully_shard(nn.Sequential(nn.Linear(2, 2), nn.Flatten(0)))
    with pytest.warns(UserWarning, match="returned a view"):
        viewed(torch.ones(2, 2)).sum().backward()
    with pytest.warns(UserWarning, match="leaves parameters gathered"):
        fully_shard(nn.Linear(2, 2), reshard_after_forward=1)


def deferred(rank, size):
    """A model without memory gets that of its shards alone, and numbers by one rank or by all."""
    wanted = models.filled(Language(depth=1), torch.float64)
    saved, step = {name: p.clone() for name, p in wanted.state_dict().items()}, once(wanted, 0)
    for tells in (False, True):
        with torch.device("meta"):
            model = by_blocks(Language(depth=1).double())
        with pytest.raises(RuntimeError, match=r"parameters with memory, got \['embedding.weight', .* on meta"):
            once(model, 0, rank, size)
        model.reset_iter_state()
        if not tells:
            model.to_empty(device="cpu")
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=tells)
        set_model_state_dict(model, saved if rank == 0 or not tells else {}, options=options)
        loss = once(model, 0, rank, size)
        assert abs(models.average(loss.detach()).item() - step.item()) < 1e-12
        for mine, p in zip(gradients(model), wanted.parameters()):
            np.testing.assert_allclose(mine, p.grad.numpy(), rtol=1e-12, atol=1e-12)


def has_meta():
    try:
        return torch.empty(0, device="meta").is_meta
    except RuntimeError:
        return False


def everything(rank, size):
    for check in (unused, parameters, states, methods, fails, refused, *[deferred] * has_meta()):
        check(rank, size)


def test_around(tmp_path):
    world(everything, 2, tmp_path)
