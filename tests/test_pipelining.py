"""Pipelines between real processes: the stages of a model, in all schedules, train as the whole of it does in one process."""
import csv
import importlib
import os
from datetime import timedelta
from pathlib import Path

import fake_nccl
import numpy as np
import pytest
from worlds import no_gpu, world  # noqa: F401

import tritorch as torch
from tritorch import distributed as dist
from tritorch import nn
from tritorch.autograd.halves import inputs_first
from tritorch.distributed import pipelining
from tritorch.distributed.fsdp import fully_shard
from tritorch.distributed.pipelining import PipelineStage
from tritorch.distributed.pipelining.microbatch import TensorChunkSpec, merge_chunks, split_args_kwargs_into_chunks, sum_reducer
from tritorch.distributed.pipelining.orders import Action, Kind, joined, with_messages
from tritorch.distributed.pipelining.schedules import NAMES, get_schedule_class
from tritorch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.usefixtures("no_gpu")
WIDTH, STEPS = 5, 2
SINGLE, MULTI, IN_A_V = ("GPipe", "1F1B"), ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble"), ("ZBVZeroBubble", "DualPipeV")


class Part(nn.Module):
    """A stage that passes several tensors on, one of which needs no gradient, and one that the next stage does not use."""

    def __init__(self, k):
        super().__init__()
        self.k, self.norm, self.layers = k, nn.LayerNorm(WIDTH), nn.Sequential(nn.Linear(WIDTH, 7), nn.GELU(), nn.Linear(7, WIDTH))
        self.fixed = nn.Linear(WIDTH, WIDTH).requires_grad_(k != 1)

    def forward(self, x, count=None, unused=None, scale=1.0):
        x = x + self.layers(self.norm(x)) + self.fixed(x) * scale
        return x, (torch.zeros(len(x), dtype=torch.int64) if count is None else count) + self.k, x * 2


def parts(number):
    """The stages of a model with the same numbers in all processes."""
    rng = np.random.default_rng(3)
    made = [Part(k).double() for k in range(number)]
    with torch.no_grad():
        for p in [p for part in made for p in part.parameters()]:
            p.copy_(torch.from_numpy(rng.normal(size=tuple(p.shape)) * 0.5))
    return made


def batch(step, rows):
    rng = np.random.default_rng(step)
    return torch.from_numpy(rng.normal(size=(rows, WIDTH))), torch.from_numpy(rng.normal(size=(rows, WIDTH)))


def loss_of(output, target, factor=1.0):
    return nn.functional.mse_loss(output[0], target) * factor + output[2].square().mean()


def alone(number, n, rows):
    """(losses, outputs, gradients of all parameters) of one process that adds up microbatches."""
    modules, losses, outputs = parts(number), [], []
    for step in range(STEPS):
        x, target = batch(step, rows)
        for piece, wanted in zip(x.tensor_split(n), target.tensor_split(n)):
            values = (piece,)
            for module in modules:
                values = module(*values, scale=0.5)
            loss = loss_of(values, wanted, 2.0)
            (loss / n).backward()
            losses.append(loss.item())
            outputs.append(values[0].detach().numpy())
    return losses, np.concatenate(outputs), [[grad_of(p) for p in module.parameters()] for module in modules]


def grad_of(p):
    if p.grad is None:
        return None
    return (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad).numpy().copy()


def stages_of(name, rank, size, number, wrap=lambda module: module, group=None):
    """(the schedule's class, the stages of a rank)."""
    kind = get_schedule_class(name)
    modules = parts(number)
    mine = [k for k in range(number) if kind.home(k, size) == rank]
    return kind, [PipelineStage(wrap(modules[k]), k, number, "cpu", group=group) for k in mine]


def pipelined(rank, size, name, per_rank, n, rows, wrap=lambda module: module, group=None, share=slice(None)):
    """The same of one rank of a pipeline: losses and outputs in the last one, gradients of its own stages."""
    kind, stages = stages_of(name, rank, size, size * per_rank, wrap, group)
    schedule = kind(stages if per_rank > 1 or name not in SINGLE else stages[0], n, loss_fn=loss_of)
    losses, outputs = [], []
    for step in range(STEPS):
        x, target = [part[share] for part in batch(step, rows)]
        found = [None]
        out = schedule.step(*[x] if stages[0].is_first else (), target=target if any(s.is_last for s in stages) else None, losses=found,
                            loss_kwargs={"factor": 2.0}, scale=0.5)
        if out is not None:
            losses += [loss.item() for loss in found]
            outputs.append(out[0].numpy())
            assert out[1].tolist() == [sum(range(size * per_rank))] * len(x) and not out[0].requires_grad
    return losses, outputs, {stage.stage_index: [grad_of(p) for p in stage.submod.parameters()] for stage in stages}


def several(rank, size, cases):
    return [pipelined(rank, size, *case) for case in cases]


CASES = {2: [(name, 1, n, rows) for name in SINGLE for n, rows in ((2, 7), (5, 5))]
         + [(name, 2, n, rows) for name in MULTI for n, rows in ((4, 6),)] + [(name, 2, n, 8) for name in IN_A_V for n in (4, 7)],
         3: [("1F1B", 1, 4, 9), ("Interleaved1F1B", 3, 3, 4), ("InterleavedZeroBubble", 1, 6, 7), ("InterleavedZeroBubble", 2, 6, 6),
             ("ZBVZeroBubble", 2, 2, 3), ("DualPipeV", 2, 6, 6)]}


def hold(ranks, number, n, rows, near=1e-12):
    """What the ranks found against one process."""
    losses, outputs, gradients = alone(number, n, rows)
    mine = [rank for rank in ranks if rank[0]]
    assert len(mine) == 1
    np.testing.assert_allclose(mine[0][0], losses, rtol=near)
    np.testing.assert_allclose(np.concatenate(mine[0][1]), outputs, rtol=near, atol=near)
    found = {k: grads for rank in ranks for k, grads in rank[2].items()}
    assert sorted(found) == list(range(number))
    for k, wanted in enumerate(gradients):
        for g, right in zip(found[k], wanted, strict=True):
            assert (g is None) == (right is None)
            if g is not None:
                np.testing.assert_allclose(g, right, rtol=near, atol=near)


@pytest.mark.parametrize("size", [2, 3])
def test_all_schedules_train_as_one_process(size, tmp_path):
    ranks = world(several, size, tmp_path, CASES[size])
    for k, (_, per_rank, n, rows) in enumerate(CASES[size]):
        hold([rank[k] for rank in ranks], size * per_rank, n, rows)


# ------------------------------------------------------------------ beside data parallelism
def beside(rank, size):
    """Two pipelines of two ranks, each with half of the rows of every microbatch; stages are replicas, or sharded."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    data, pipe, out = mesh["dp"], mesh["pp"].get_group(), []
    ways = (lambda module: DistributedDataParallel(module, process_group=data.get_group()), lambda module: fully_shard(module, mesh=data))
    for name, per_rank, way in (("1F1B", 1, ways[0]), ("1F1B", 1, ways[1]), ("InterleavedZeroBubble", 2, ways[0]),
                                ("ZBVZeroBubble", 2, ways[1])):
        share = slice(data.get_local_rank() * 4, data.get_local_rank() * 4 + 4)
        out.append(pipelined(mesh["pp"].get_local_rank(), 2, name, per_rank, 4, 8, way, pipe, share))
    return out


def test_replicas_and_shards_of_stages(tmp_path):
    ranks = world(beside, 4, tmp_path)
    for k in range(4):
        per_rank = 1 if k < 2 else 2
        _, _, wanted = alone(2 * per_rank, 8, 8)                         # eight microbatches of one row are two times four
        for rank in ranks:
            for index, grads in rank[k][2].items():
                for g, right in zip(grads, wanted[index], strict=True):
                    if right is not None:
                        np.testing.assert_allclose(g, right, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------ on the simulated GPU, whose streams run in any order
def on_gpus(rank, size):
    fake_nccl.install()
    out = []
    for seed, (name, per_rank) in enumerate((("1F1B", 1), ("InterleavedZeroBubble", 2), ("ZBVZeroBubble", 2))):
        with torch.cuda.simulate(seed=size * seed + rank):
            group = dist.init_device_mesh("cuda", (2,), backend_override={0: "cpu:gloo,cuda:nccl"}).get_group()
            kind, count = get_schedule_class(name), size * per_rank
            layers = [nn.Sequential(part.norm, part.layers).float().cuda() for part in parts(count)]
            mine = [PipelineStage(layers[k], k, count, "cuda", group=group) for k in range(count) if kind.home(k, size) == rank]
            schedule = kind(mine if per_rank > 1 else mine[0], 4, loss_fn=nn.functional.mse_loss)
            x, target = [part.float().cuda() for part in batch(0, 8)]
            for _ in range(2):
                schedule.step(*[x] if mine[0].is_first else [], target=target if any(stage.is_last for stage in mine) else None)
            out.append({stage.stage_index: [p.grad.cpu().numpy() for p in stage.submod.parameters()] for stage in mine})
            del schedule, mine, layers
    return out


@pytest.mark.skipif("TRITORCH_PTX" in os.environ, reason="the GPU made of PTX is a part of its process")
def test_stages_on_gpus(tmp_path):
    ranks = world(on_gpus, 2, tmp_path)
    for k, count in enumerate((2, 4, 4)):
        layers = [nn.Sequential(part.norm, part.layers).float() for part in parts(count)]
        x, target = [part.float() for part in batch(0, 8)]
        for piece, wanted in [*zip(x.split(2), target.split(2))] * 2:
            (nn.functional.mse_loss(nn.Sequential(*layers)(piece), wanted) / 4).backward()
        found = {stage: grads for rank in ranks for stage, grads in rank[k].items()}
        for stage, layer in enumerate(layers):
            for g, p in zip(found[stage], layer.parameters(), strict=True):
                np.testing.assert_allclose(g, p.grad.numpy(), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ the tutorial
def tutorial(rank, size, train_pipeline):
    return train_pipeline.train(2, "DualPipeV", rank, size, show=rank == 0)


def test_the_tutorial(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "tutorials")
    train_pipeline = importlib.import_module("train_pipeline")
    first, second = world(tutorial, 2, tmp_path, train_pipeline)
    (alone,) = world(tutorial, 1, tmp_path, train_pipeline)
    assert first == pytest.approx(alone, rel=1e-5) and second == []
    lines, waits = train_pipeline.timeline({rank: pipelining.schedules.orders.gpipe(rank, 2, 1, 2) for rank in range(2)}, 2)
    assert lines == [" F0 F1 .  .  .  B0 B0 B1 B1", " .  F0 F1 B0 B0 B1 B1 .  . "] and waits == 6 / 18


# ------------------------------------------------------------------ evaluation, wrong input
def other_uses(rank, size):
    _, (stage,) = stages_of("GPipe", rank, size, size)
    schedule, losses, out = pipelining.ScheduleGPipe(stage, 2, loss_fn=loss_of), [], []
    x, target = batch(0, 6)
    inputs, target = [x] if rank == 0 else [], target if rank else None
    found = schedule.eval(*inputs, target=target, losses=losses)
    out.append((None if found is None else found[0].numpy(), [loss.item() for loss in losses]))
    assert not any(p.grad is not None for p in stage.submod.parameters())
    schedule.step(*inputs, target=target)
    before = [grad_of(p) for p in stage.submod.parameters()]
    assert schedule.step(*inputs, target=target, return_outputs=False) is None
    out.append((before, [grad_of(p) for p in stage.submod.parameters()]))
    out.append(refused(lambda: schedule.step(*[x[:5]] if rank == 0 else [], target=target)) if rank == 0 else None)
    return out


def refused(call):
    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value)


def failing(rank, size):
    _, (stage,) = stages_of("GPipe", rank, size, size)
    schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=loss_of)
    if rank == 1:
        return refused(lambda: schedule.step(target=torch.zeros(4, 3, dtype=torch.float64)))
    with pytest.raises(dist.DistBackendError):
        schedule.step(batch(0, 4)[0])
    return None


def test_evaluation_and_several_steps(tmp_path):
    ranks = world(other_uses, 2, tmp_path)
    (found, losses), (before, after), _ = ranks[1]
    modules, (x, target) = parts(2), batch(0, 6)
    for piece, wanted, loss in zip(x.split(3), target.split(3), losses, strict=True):
        output = modules[1](*modules[0](piece))
        np.testing.assert_allclose(loss, loss_of(output, wanted).item(), rtol=1e-12)
    np.testing.assert_allclose(found[3:], output[0].detach().numpy(), rtol=1e-12)
    assert ranks[0][0][1] == [] and all(g is None or np.allclose(2 * g, h, rtol=1e-12) for g, h in zip(before, after))
    assert "microbatch 1 to leave stage 0 as in the first step" in ranks[0][2] and "(2, 5)" in ranks[0][2]


def test_a_stage_that_fails_says_which_it_is(tmp_path):
    first, second = world(failing, 2, tmp_path, timeout=timedelta(seconds=3))
    assert first is None and "3" in second


def test_one_process_has_all_stages(tmp_path):
    (found,) = world(several, 1, tmp_path, [("LoopedBFS", 3, 4, 9), ("InterleavedZeroBubble", 4, 3, 3), ("GPipe", 1, 2, 3)])
    for (_, per_rank, n, rows), one in zip([("LoopedBFS", 3, 4, 9), ("InterleavedZeroBubble", 4, 3, 3), ("GPipe", 1, 2, 3)], found):
        hold([one], per_rank, n, rows)


@pytest.fixture
def here(no_gpu):  # noqa: F811
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_wrong_input(here):
    stage = PipelineStage(nn.Linear(2, 2), 0, 1, "cpu")
    x, loss = torch.zeros(4, 2), nn.functional.mse_loss
    schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=loss)
    for error, text, call in (
            (ValueError, "a stage_index from 0 to 1, got 2", lambda: PipelineStage(nn.Linear(2, 2), 2, 2, "cpu")),
            (ValueError, "at least as many microbatches as stages", lambda: pipelining.Schedule1F1B(
                PipelineStage(nn.Linear(2, 2), 0, 3, "cpu"), 2)),
            (ValueError, "the stages of rank 0", lambda: pipelining.ScheduleGPipe(PipelineStage(nn.Linear(2, 2), 1, 2, "cpu"), 2)),
            (ValueError, "2 stages a rank, got 1", lambda: pipelining.ScheduleZBVZeroBubble([stage], 2)),
            (ValueError, "at least 2 rows", lambda: schedule.step(x[:1], target=x[:1])),
            (ValueError, "a target", lambda: schedule.step(x)),
            (TypeError, "a list for losses", lambda: schedule.step(x, target=x, losses=())),
            (RuntimeError, "stage 0 failed in the forward pass of microbatch 0", lambda: schedule.step(x[:, :1], target=x)),
            (ValueError, "one of 1F1B", lambda: get_schedule_class("zigzag")),
            (RuntimeError, "as in 2F0", lambda: Action.from_str("F2")),
            (RuntimeError, "no rank waits for ever", lambda: with_messages({0: [Action(0, Kind.FULL_BACKWARD, 0)]}, lambda k: 0, 1))):
        with pytest.raises(error, match=text):
            call()
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"use eval\(\)"):
        schedule.step(x, target=x)
    assert schedule.step(x, target=x).shape == (4, 2)                    # and nothing is left of what has failed


def test_orders_from_files(here, tmp_path):
    stages = [PipelineStage(nn.Linear(2, 2), k, 2, "cpu") for k in range(2)]
    schedule = pipelining.ScheduleLoopedBFS(stages, 2, loss_fn=nn.functional.mse_loss)
    assert repr(schedule) == "rank 0: 0F0 0F1 1F0 1F1 1B1 1B0 0B1 0B0"
    schedule._dump_csv(tmp_path / "order.csv")
    (row,) = csv.reader(open(tmp_path / "order.csv"))
    assert row[:3] == ["0F0", "0F1", "1F0"]
    schedule.step(torch.ones(2, 2), target=torch.zeros(2, 2))
    wanted = [p.grad.clone() for stage in stages for p in stage.submod.parameters()]
    (tmp_path / "own.csv").write_text("0F0,1F0,1B0,0F1,1F1,0I0,1I1,0B1,0W0,1W1\n")
    schedule._load_csv(tmp_path / "own.csv")
    for stage in stages:
        stage.submod.zero_grad()
    schedule.step(torch.ones(2, 2), target=torch.zeros(2, 2))
    for g, p in zip(wanted, [p for stage in stages for p in stage.submod.parameters()]):
        torch.testing.assert_close(p.grad, g)


def test_gradients_of_weights_that_layers_compute_themselves(here):
    calls, first, last = [], PipelineStage(nn.Linear(2, 2), 0, 2, "cpu"), nn.Linear(2, 2)
    stages = [first, PipelineStage(last, 1, 2, "cpu", dw_builder=lambda: lambda: calls.append(len(calls)))]
    pipelining.ScheduleInterleavedZeroBubble(stages, 3, loss_fn=nn.functional.mse_loss).step(torch.ones(3, 2), target=torch.zeros(3, 2))
    assert calls == [0, 1, 2]


# ------------------------------------------------------------------ microbatches
def test_microbatches():
    x, y = torch.arange(10).view(5, 2), torch.arange(6).view(2, 3)
    specs = (TensorChunkSpec(0), [TensorChunkSpec(1), None]), {"z": None}
    args, kwargs = split_args_kwargs_into_chunks((x, [y, "text"]), {"z": y}, 2, *specs)
    assert [a[0].tolist() for a in args] == [x[:3].tolist(), x[3:].tolist()] and [a[1][0].shape[1] for a in args] == [2, 1]
    assert [a[1][1] for a in args] == ["text"] * 2 and all(k["z"] is y for k in kwargs)
    merged = merge_chunks([{"a": x[:3], "b": 1.0, "c": 7}, {"a": x[3:], "b": 2.5, "c": 7}],
                          {"a": TensorChunkSpec(0), "b": sum_reducer, "c": None})
    assert merged["a"].equal(x) and (merged["b"], merged["c"]) == (3.5, 7)
    for error, call in ((ValueError, lambda: split_args_kwargs_into_chunks((x,), None, 2, (TensorChunkSpec(0),) * 2)),
                        (TypeError, lambda: split_args_kwargs_into_chunks(("text",), None, 2, (TensorChunkSpec(0),))),
                        (ValueError, lambda: merge_chunks([{"a": 1}, {"a": 2}], {"a": None}))):
        with pytest.raises(error):
            call()


def test_names():
    assert all(get_schedule_class(name.upper()) is kind for name, kind in NAMES.items())
    assert TensorChunkSpec.from_dict({"x": 1})["x"].split_dim == 1 and repr(TensorChunkSpec(2)) == "TensorChunkSpec(2)"
    order = [Action(0, kind, 1) for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)]
    assert str(joined(order)) == "[0F1, 0B1]" and Action.from_str(" 3RECV_B2 ") == Action(3, Kind.RECV_B, 2)


# ------------------------------------------------------------------ the two halves of a backward pass
def test_halves_do_what_backward_does():
    first, beside_it = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 3)).double(), nn.Linear(5, 3).double()
    x, z = [torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    leaves = [p for module in (first, beside_it) for p in module.parameters()]

    def outputs():
        y = first(x) + beside_it(x)
        top, where = torch.stack([y, y * 2]).max(0)
        return y, beside_it.weight.sum() * top.sum(0, keepdim=True), beside_it.weight * 2, torch.cat([y, z[:, :3]])

    seeds = [torch.randn_like(y) for y in outputs()]
    torch.autograd.backward(outputs(), seeds)
    wanted, of_x, of_z = [p.grad for p in leaves], x.grad, z.grad
    for p in (*leaves, x, z):
        p.grad = None
    (g, none), later = inputs_first(outputs(), [x, torch.ones(1, requires_grad=True)], seeds)
    assert none is None and not any(p.grad is not None for p in (*leaves, x, z))
    torch.testing.assert_close(g, of_x)
    later()
    assert x.grad is None
    torch.testing.assert_close([p.grad for p in (*leaves, z)], [*wanted, of_z])
