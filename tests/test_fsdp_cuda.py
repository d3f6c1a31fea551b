"""fully_shard on the simulated GPU, whose streams run in any order that events allow, by seed: a missing event shows."""
import os

import fake_nccl
import numpy as np
import pytest
from worlds import world

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from tritorch.distributed.fsdp import FullyShardedDataParallel as FSDP
from tritorch.distributed.fsdp.wrap import ModuleWrapPolicy

pytestmark = pytest.mark.skipif("TRITORCH_PTX" in os.environ, reason="the GPU made of PTX is a part of its process")
X = np.random.default_rng(0).normal(size=(2, 4, 5)).astype(np.float32)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x):
        return x + self.layer(x).tanh()


def made():
    model = nn.Sequential(*[Layer() for _ in range(3)])
    rng = np.random.default_rng(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=tuple(p.shape)).astype(np.float32)))
    return model


def steps(model, rank, size, device, event=False):
    """The parameters after two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x in X:
        model(torch.from_numpy(x[rank::size]).to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if event:
            model.set_post_optim_event(torch.cuda.current_stream().record_event())
    return [(p.full_tensor() if size > 1 else p).detach().cpu().numpy() for p in model.parameters()]


def sharded(mesh, **options):
    model = made()
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def by_nccl(rank, size):
    fake_nccl.install()
    out = []
    for seed in range(3):
        with torch.cuda.simulate(seed=size * seed + rank):
            mesh = dist.init_device_mesh("cuda", (2,), backend_override={0: "cpu:gloo,cuda:nccl"})
            both = dist.init_device_mesh("cuda", (2, 1), mesh_dim_names=("replicate", "shard"), backend_override={0: "nccl", 1: "nccl"})
            model = sharded(mesh, reshard_after_forward=True)
            assert all(p.is_cuda for p in model.parameters())
            out.append(steps(model, rank, size, "cuda", event=True))
            if seed == 0:
                model = sharded(mesh, offload_policy=CPUOffloadPolicy())
                assert all(p.is_cpu for p in model.parameters())
                out.append(steps(model, rank, size, "cuda"))
            elif seed == 1:
                model = sharded(both, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float64))
                model.set_reduce_scatter_max_input_buffers(2)
                out.append(steps(model, rank, size, "cuda"))
            else:
                with torch.cuda.stream(torch.cuda.Stream()):
                    out.append(steps(sharded(mesh), rank, size, "cuda"))
            del model
            torch.cuda.synchronize()
    return out


def by_wrapper(rank, size):
    """FullyShardedDataParallel. On the CPU nothing travels."""
    fake_nccl.install()
    out = []
    for seed, offload in enumerate((False, True)):
        with torch.cuda.simulate(seed=size * seed + rank):
            mesh = dist.init_device_mesh("cuda", (2,), backend_override={0: "nccl"})
            model = FSDP(made(), auto_wrap_policy=ModuleWrapPolicy({Layer}), device_mesh=mesh, cpu_offload=CPUOffload(offload))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for x in X:
                model(torch.from_numpy(x[rank::size])).square().mean().backward()
                assert model.clip_grad_norm_(1e6).is_cuda and all(p.is_cuda is not offload for p in model.parameters())
                optimizer.step()
                optimizer.zero_grad()
            whole, saved = model.state_dict(), FSDP.optim_state_dict(model, optimizer)["state"]
            assert all(saved[name]["momentum_buffer"].shape == x.shape for name, x in whole.items())
            model(torch.from_numpy(X[0])).sum().backward()
            with FSDP.summon_full_params(model, with_grads=True):
                assert all(p.is_cuda and p.grad.shape == p.shape for p in model.parameters())
            assert all(p.grad.to_local().is_cuda is not offload for p in model.parameters())
            out.append([x.cpu().numpy() for x in whole.values()])
            del model
            torch.cuda.synchronize()
    return out


def by_host(rank, size):
    with torch.cuda.simulate(seed=rank):
        return [steps(sharded(dist.init_device_mesh("cuda", (2,))), rank, size, "cuda")]


@pytest.mark.parametrize("way", [by_nccl, by_wrapper, by_host], ids=lambda f: f.__name__)
def test_ranks_train_as_one_process(way, tmp_path):
    wanted = steps(made(), 0, 1, "cpu")
    for ways in world(way, 2, tmp_path):
        for k, found in enumerate(ways):
            for mine, right in zip(found, wanted, strict=True):
                np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6, err_msg=f"{k}")
