"""Checkpoints of several processes: what comes back, with as many of them or others, and what does not."""
import json
import os

import numpy as np
import pytest
from fsdp_models import Language, adamw, by_blocks, filled, full, once
from worlds import world

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
        assert np.array_equal(found.pop("array"), VALUES["array"]) and found == {k: v for k, v in VALUES.items() if k not in ("array", "empty")}
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
