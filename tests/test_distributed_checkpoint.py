"""Checkpoints of several processes: what comes back, with as many of them or others, and what does not."""
import json
import os

import numpy as np
import pytest
from fsdp_models import Language, adamw, by_blocks, filled, full, once
from worlds import no_gpu, world  # noqa: F401

import tritorch as torch
import tritorch.distributed.checkpoint as dcp
from tritorch import distributed as dist
from tritorch import nn
from tritorch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from tritorch.distributed.checkpoint.stateful import Stateful
from tritorch.distributed.tensor import Replicate, Shard, distribute_tensor
from tritorch.nn.parallel import DistributedDataParallel

VALUES = {"step": 7, "lr": 1e-3, "none": None, "name": "täst", "betas": (0.9, 0.95), "list": [1, 2], "bad": float("inf"),
          "dtype": torch.bfloat16, "array": np.arange(3), "empty": {}, "flags": [True, {"deep": b"\x00\xff"}]}

pytestmark = pytest.mark.usefixtures("no_gpu")


class Counter:
    """A Stateful object of the user's."""

    def __init__(self, count):
        self.count, self.seen = count, torch.full((2,), float(count))

    def state_dict(self):
        return {"count": self.count, "seen": self.seen}

    def load_state_dict(self, state):
        self.count = state["count"]


def trained(rank, size, steps=2):
    """A model and its optimizer, sharded unless this process is alone."""
    model = filled(Language(depth=1), torch.float64)
    if size > 1:
        by_blocks(model)
    optimizer = adamw(model.parameters())
    for step in range(steps):
        once(model, step, rank, size)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


class App:
    """Model and optimizer as one object, as programs save them."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        of_model, of_optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": of_model, "optimizer": of_optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def facts(model, optimizer):
    """All numbers of a model and of its optimizer, whole, by name."""
    names = [name for name, _ in model.named_parameters()]
    state = {f"{name}.{key}": full(v) if isinstance(v, torch.Tensor) else v
             for name, p in zip(names, model.parameters()) for key, v in optimizer.state[p].items()}
    return {**{name: full(p) for name, p in model.named_parameters()}, **state, "lr": optimizer.param_groups[0]["lr"]}


def assert_same(mine, wanted):
    assert mine.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(mine[name], wanted[name], rtol=1e-12, atol=1e-12, err_msg=name)


# ------------------------------------------------------------------ between worlds
def saves(rank, size, path):
    app = App(*trained(rank, size))
    dcp.save({"app": app, "values": VALUES, "counter": Counter(3)}, checkpoint_id=path / "sync")
    future = dcp.async_save({"app": app, "values": VALUES}, storage_writer=dcp.FileSystemWriter(
        path / "async", single_file_per_rank=False, thread_count=2, sync_files=False))
    wanted = facts(app.model, app.optimizer)
    once(app.model, 5, rank, size)                                       # goes on, with collectives
    app.optimizer.step()
    assert future.result(20).state_dict_metadata.keys() >= {"values.step", "app.model.head.weight"}
    return wanted


def loads(rank, size, path):
    out = []
    for folder in ("sync", "async"):
        app = App(*trained(rank, size, steps=folder == "async"))
        app.optimizer.param_groups[0]["lr"] = 5.0
        state = {"app": app, "values": {key: None for key in VALUES if key != "empty"}, "counter": Counter(1)}
        state["values"]["flags"] = [None, {"deep": None}]
        if folder == "async":
            del state["counter"]
        dcp.load(state, checkpoint_id=path / folder)
        out.append(facts(app.model, app.optimizer))
        found = state["values"]
        assert np.array_equal(found.pop("array"), VALUES["array"])
        assert found == {key: value for key, value in VALUES.items() if key not in ("array", "empty")}
        assert folder == "async" or state["counter"].count == 3 and state["counter"].seen.tolist() == [3, 3]
    return out


def alone(work, path):
    """work(0, 1, path) in a world of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return work(0, 1, path)
    finally:
        dist.destroy_process_group()


def test_other_numbers_of_ranks(tmp_path):
    wanted = world(saves, 2, tmp_path, tmp_path)[0]
    for found in (alone(loads, tmp_path), *world(loads, 3, tmp_path, tmp_path)):
        for mine in found:
            assert_same(mine, wanted)
    files = os.listdir(tmp_path / "sync")
    assert len(files) == 3 and "metadata.json" in files and all(f.endswith((".safetensors", ".json")) for f in files)
    sizes = [os.path.getsize(tmp_path / "sync" / f) for f in files if f != "metadata.json"]
    assert max(sizes) < 1.2 * min(sizes)                                 # each rank wrote its share
    wanted = alone(saves, tmp_path)
    assert len(os.listdir(tmp_path / "sync")) == 2                       # the old files are gone
    assert_same(world(loads, 2, tmp_path, tmp_path)[1][0], wanted)


# ------------------------------------------------------------------ options
def options(rank, size):
    """Whole state dicts, and back into a model that is sharded otherwise."""
    model, optimizer = trained(rank, size)
    wanted = facts(model, optimizer)
    on_first = StateDictOptions(full_state_dict=True, cpu_offload=True)
    of_model, of_optimizer = get_state_dict(model, optimizer, options=on_first)
    assert bool(of_model) is bool(of_optimizer) is (rank == 0)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert all(type(x) is torch.Tensor and np.array_equal(x.numpy(), wanted[name]) for name, x in whole.items())
    flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=True))
    assert flat["state.head.weight.step"].item() == 2 and flat["param_groups.head.weight.lr"] == 1e-2

    other, its_optimizer = trained(rank, size, steps=0)
    keys = set_state_dict(other, its_optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer,
                          options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    assert not keys.missing_keys and not keys.unexpected_keys
    assert_same(facts(other, its_optimizer), wanted)
    assert once(other, 3, rank, size).item() == once(model, 3, rank, size).item()

    plain = filled(Language(depth=1), torch.float64)
    ddp, moments = DistributedDataParallel(plain), adamw(plain.parameters())
    everything = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    set_model_state_dict(ddp, whole)
    set_optimizer_state_dict(ddp, moments, everything)
    assert list(get_model_state_dict(ddp)) == list(whole)
    assert_same(facts(plain, moments), wanted)
    again, its_optimizer = trained(rank, size, steps=0)
    set_model_state_dict(again, get_model_state_dict(ddp), options=StateDictOptions(full_state_dict=True))
    set_optimizer_state_dict(again, its_optimizer, flat, options=StateDictOptions(full_state_dict=True))
    assert_same(facts(again, its_optimizer), wanted)


def test_whole_state_dicts(tmp_path):
    world(options, 2, tmp_path)


def test_of_one_process():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].weight.requires_grad_(False)
    first, second = torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[1].parameters(), momentum=0.9, lr=0.5)
    assert list(get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=True))) == ["0.bias", "1.weight", "1.bias"]
    with pytest.warns(FutureWarning, match="submodules is deprecated"):
        found = get_model_state_dict(model, submodules={model[1]}, options=StateDictOptions(keep_submodule_prefixes=False))
    assert list(found) == ["weight", "bias"]
    before = [p.detach().clone() for p in model.parameters()]
    state = get_optimizer_state_dict(model, [first, second])
    assert state["state"].keys() == {"0.bias", "1.weight", "1.bias"}
    assert [g["params"] for g in state["param_groups"]] == [["0.weight", "0.bias"], ["1.weight", "1.bias"]]
    assert all(map(torch.equal, before, model.parameters())) and second.param_groups[0]["lr"] == 0.5
    state["state"]["1.bias"]["momentum_buffer"] = torch.ones(1)
    state["param_groups"][1]["lr"] = 0.25
    set_optimizer_state_dict(model, [first, second], state)
    assert second.state[model[1].bias]["momentum_buffer"].item() == 1 and second.param_groups[0]["lr"] == 0.25
    assert first.param_groups[0]["lr"] == 1e-3
    del state["state"]["1.bias"]
    with pytest.raises(RuntimeError, match="a state of '1.bias', got none"):
        set_optimizer_state_dict(model, [first, second], state)
    set_optimizer_state_dict(model, [first, second], state, options=StateDictOptions(strict=False))
    with pytest.raises(RuntimeError, match="Missing"):
        set_model_state_dict(model, {"0.bias": torch.ones(3)})
    keys = set_model_state_dict(model, {"0.bias": torch.ones(3)}, options=StateDictOptions(strict=False))
    assert len(keys.missing_keys) == 3 and model[0].bias.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="full_state_dict=True with broadcast_from_rank0"):
        get_state_dict(model, first, options=StateDictOptions(broadcast_from_rank0=True))
    assert isinstance(model, Stateful) and isinstance(first, Stateful) and not isinstance(state, Stateful)


# ------------------------------------------------------------------ pieces and errors
def spreads(rank, size, path):
    """Of a mesh of two dims each piece is written once; it comes back into others."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    x = torch.arange(35.0).view(5, 7)
    ways = [(Replicate(), Shard(0)), (Shard(0), Shard(1)), (Shard(1), Shard(1)), (Replicate(), Replicate()), (Shard(0), Replicate())]
    state = {str(k): distribute_tensor(x + k, mesh, way) for k, way in enumerate(ways)}
    state |= {"plain": x, "none": torch.zeros(0, 3), "scalar": torch.tensor(2, dtype=torch.int16), "nested": [{"t": x[0]}, [x[1]]]}
    saved = dcp.save(state, checkpoint_id=path)
    for k in range(len(ways)):
        again = {str(k): distribute_tensor(torch.zeros(5, 7, dtype=torch.float64), mesh, ways[k - 2])}
        dcp.load(again, checkpoint_id=path)
        assert (again[str(k)].full_tensor() == x + k).all()
    again = {"plain": torch.empty(7, 5).t(), "none": torch.ones(0, 3), "scalar": torch.tensor(0),
             "nested": [{"t": torch.zeros(7)}, [torch.zeros(7)]]}
    dcp.load(again, checkpoint_id=path)
    assert (again["plain"] == x).all() and again["scalar"].item() == 2 and (again["nested"][1][0] == x[1]).all()
    return {name: len(what.chunks) for name, what in saved.state_dict_metadata.items()}


def fails(rank, size, path):
    """One rank cannot: all hear of it, and the old checkpoint stays."""
    found = []
    for state in ({"x": torch.ones(2 + rank)}, {"x": object() if rank == 1 else 1}):
        with pytest.raises((dcp.CheckpointException, RuntimeError)) as caught:
            dcp.save(state, checkpoint_id=path)
        found.append(str(caught.value))
    writer = dcp.FileSystemWriter(path)
    if rank == 1:
        writer.write = lambda *_: 1 / 0
    with pytest.raises(dcp.CheckpointException, match="division by zero") as caught:
        dcp.async_save({"x": torch.ones(2)}, storage_writer=writer).result(20)
    assert list(caught.value.failures) == [1] and isinstance(caught.value.failures[1][0], ZeroDivisionError)
    state = {"0": torch.zeros(5, 7 + rank)}
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.load(state, checkpoint_id=path)
    return [*found, str(caught.value)]


def test_pieces_and_failures(tmp_path):
    for counts in world(spreads, 4, tmp_path, tmp_path / "mesh"):
        assert counts == {"0": 2, "1": 4, "2": 4, "3": 1, "4": 2, "plain": 1, "none": 1, "scalar": 1, "nested.0.t": 1, "nested.1.0": 1}
    kept = (tmp_path / "mesh" / "metadata.json").read_bytes()
    for shapes, kinds, load in world(fails, 2, tmp_path, tmp_path / "mesh"):
        assert "one dtype and shape of 'x' on all ranks" in shapes and "(rank 1)" in kinds and "got object" in kinds
        assert "(rank 1)" in load and "'0' of shape (5, 8) in the checkpoint, got (5, 7)" in load
    assert (tmp_path / "mesh" / "metadata.json").read_bytes() == kept


def test_errors_of_one_process(tmp_path):
    with pytest.warns(UserWarning, match="there is no process group"):
        dcp.save({"x": torch.ones(2), "v": 1}, checkpoint_id=tmp_path)
    load = lambda state, **options: dcp.load(state, checkpoint_id=tmp_path, no_dist=True, **options)
    for state, text in (({"y": torch.ones(2)}, "'y' in the checkpoint, got none"), ({"v": torch.ones(1)}, "a tensor under 'v'"),
                        ({"x": 3}, "a value under 'x'"), ({"x": torch.ones(3)}, "of shape (3,) in the checkpoint, got (2,)")):
        with pytest.raises(dcp.CheckpointException, match="load") as caught:
            load(state)
        assert text in str(caught.value)
    state = {"y": 5, "x": torch.zeros(2)}
    load(state, planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
    assert state["y"] == 5 and state["x"].tolist() == [1, 1]
    with pytest.raises(dcp.CheckpointException, match="a folder without a checkpoint"):
        dcp.save({"x": 1}, storage_writer=dcp.FileSystemWriter(tmp_path, overwrite=False), no_dist=True)
    with pytest.raises(dcp.CheckpointException, match="one value for each name"):
        dcp.save({"a": {"b": 1}, "a.b": 2}, checkpoint_id=tmp_path, no_dist=True)
    for call in (lambda: dcp.save({}, no_dist=True), lambda: dcp.load({}, no_dist=True)):
        with pytest.raises(RuntimeError, match="a checkpoint_id or a storage_"):
            call()
    outside = {"path": ["x"], "dtype": "F32", "shape": [2], "chunks": [{"offset": [0], "shape": [2], "file": "../x", "name": "x"}]}
    escape = {"format": "tritorch.distributed.checkpoint", "version": 1, "entries": {"x": outside}}
    for wrong in (b"{}", b"not json", json.dumps(escape).encode()):
        (tmp_path / "metadata.json").write_bytes(wrong)
        with pytest.raises(dcp.CheckpointException, match="expected"):
            load({"x": torch.zeros(2)})


# ------------------------------------------------------------------ folders of safetensors files
def sharded(rank, size, path):
    mesh = dist.init_device_mesh("cpu", (size,))
    whole = {"a": torch.arange(10.0).reshape(5, 2), "b": torch.arange(3), "c": torch.tensor(2.5).bfloat16()}
    state = {"a": distribute_tensor(whole["a"], mesh, [Shard(0)]), "b": distribute_tensor(whole["b"], mesh, [Replicate()]), "c": whole["c"]}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(path / "pieces", save_distributed=True))
    again = {"a": distribute_tensor(torch.zeros(5, 2), mesh, [Shard(1)]), "b": torch.zeros(3, dtype=torch.int64)}
    dcp.load(again, storage_reader=dcp.HuggingFaceStorageReader(path / "pieces"))
    assert torch.equal(again["a"].full_tensor(), whole["a"]) and torch.equal(again["b"], whole["b"])
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(path / "joined", {"a": 2, "b": 1, "c": 1}, save_distributed=True,
                                                                enable_consolidation=True))


def test_pieces_in_safetensors_files(tmp_path):
    world(sharded, 2, tmp_path, tmp_path)
    assert sorted(os.listdir(tmp_path / "pieces")) == [f"shard-0000{r}-model-00001-of-00001.safetensors" for r in (1, 2)]
    index = json.loads((tmp_path / "joined" / "model.safetensors.index.json").read_text())
    names = [f"model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    assert index == {"metadata": {"total_size": 40 + 24 + 2}, "weight_map": {"a": names[1], "b": names[0], "c": names[0]}}
    small, large = (torch.safetensors.load_file(tmp_path / "joined" / name) for name in names)
    assert large.keys() == {"a"} and torch.equal(large["a"], torch.arange(10.0).reshape(5, 2))
    assert torch.equal(small["b"], torch.arange(3)) and small["c"].dtype is torch.bfloat16 and small["c"].shape == ()


def test_whole_tensors_in_safetensors_files(tmp_path):
    state = {"model": {"a": torch.rand(2, 3), "b": torch.rand(4).half()}}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(tmp_path, {"model.a": 1, "model.b": 2}), no_dist=True)
    again = {"model": {"a": torch.zeros(2, 3), "b": torch.zeros(4).half()}}
    dcp.load(again, storage_reader=dcp.HuggingFaceStorageReader(tmp_path), no_dist=True)
    assert all(torch.equal(again["model"][k], state["model"][k]) for k in "ab")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert index == {f"model.{k}": f"model-0000{i}-of-00002.safetensors" for i, k in enumerate("ab", 1)}
    for state, mapping, kind in (({"step": 3}, None, dcp.CheckpointException), ({"x": torch.ones(2)}, {"y": 1}, RuntimeError)):
        with pytest.raises(kind):
            dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(tmp_path / "bad", mapping), no_dist=True)
    assert not list((tmp_path / "bad").glob("*.safetensors"))


@pytest.mark.parametrize("distributed", [False, True])
def test_safetensors_files_of_pytorch(tmp_path, distributed):
    theirs, numpy = pytest.importorskip("torch"), np.random.default_rng(0).standard_normal((3, 4))
    from torch.distributed import checkpoint as their_dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

    their_dcp.save({"x": theirs.tensor(numpy)}, storage_writer=HuggingFaceStorageWriter(str(tmp_path), save_distributed=distributed),
                   no_dist=True)
    state = {"x": torch.zeros(3, 4, dtype=torch.float64)}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(tmp_path), no_dist=True)
    assert np.array_equal(state["x"].numpy(), numpy)
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(tmp_path / "b", save_distributed=distributed), no_dist=True)
    back = {"x": theirs.zeros(3, 4, dtype=theirs.float64)}
    their_dcp.load(back, storage_reader=HuggingFaceStorageReader(str(tmp_path / "b")), no_dist=True)
    assert np.array_equal(back["x"].numpy(), numpy)
