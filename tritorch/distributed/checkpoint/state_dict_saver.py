"""Saving: every rank writes pieces that it has, each piece is written once."""
import enum
import os
import threading
from concurrent.futures import Future

from tritorch.autograd.modes import no_grad
from tritorch.device import cpu
from tritorch.distributed.checkpoint.default_planner import DefaultSavePlanner
from tritorch.distributed.checkpoint.filesystem import FileSystemWriter
from tritorch.distributed.checkpoint.flatten import flattened
from tritorch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from tritorch.distributed.checkpoint.pieces import piece_of
from tritorch.distributed.checkpoint.ranks import Ranks
from tritorch.distributed.checkpoint.stateful import Stateful
from tritorch.errors import check
from tritorch.shape import Size
from tritorch.tensor import Tensor


class AsyncCheckpointerType(enum.Enum):
    """Where `async_save` writes: in a thread of this process."""

    THREAD = "thread"
    PROCESS = "process"


class AsyncStagerType(enum.Enum):
    """How `async_save` copies."""

    BLOCKING = "blocking"


def save(state_dict, *, checkpoint_id=None, storage_writer=None, planner=None, process_group=None, no_dist=False, use_collectives=True):
    """Write a state dict to a folder, by all ranks of a group together; returns its Metadata.

    `state_dict`: tensors, DTensors, values (see `tritorch.save`), Stateful objects, and dictionaries and lists of them. Of a DTensor every
    rank writes its piece, unless another has the same; other tensors and values are taken to be the same on all ranks. `checkpoint_id` is
    the folder, or `storage_writer` a FileSystemWriter. The files are safetensors and JSON: nothing in them runs (PyTorch's are pickles,
    and are not read here). Replaces a checkpoint that is there, which is whole until the new one is. `no_dist`: this process alone.

    If a rank cannot, all raise CheckpointException.

    >>> import os, tempfile, tritorch as torch
    >>> import tritorch.distributed.checkpoint as dcp
    >>> folder = tempfile.mkdtemp()
    >>> saved = dcp.save({"model": torch.nn.Linear(2, 1), "step": 3}, checkpoint_id=folder, no_dist=True)
    >>> sorted(saved.state_dict_metadata)
    ['model.bias', 'model.weight', 'step']
    >>> state = {"step": 0}
    >>> dcp.load(state, checkpoint_id=folder, no_dist=True)
    >>> state
    {'step': 3}
    """
    check(use_collectives, "save", "use_collectives=True", "False", error=NotImplementedError)
    ranks = Ranks("save", process_group, no_dist)
    return Saving(states_of(state_dict), writer("save", storage_writer, checkpoint_id), planner, ranks).go(ranks.gathered)


def states_of(state_dict):
    """The state dicts of what has one."""
    return {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state_dict.items()}


def writer(name, storage_writer, checkpoint_id):
    """Where to write. RuntimeError where nobody said."""
    check(storage_writer is not None or checkpoint_id is not None, name, "a checkpoint_id or a storage_writer", "none")
    check(isinstance(storage_writer, (FileSystemWriter, type(None))), name, "a FileSystemWriter", type(storage_writer).__name__,
          error=TypeError)
    if storage_writer is None:
        return FileSystemWriter(os.fspath(checkpoint_id))
    storage_writer.reset(checkpoint_id)
    return storage_writer


class Saving:
    """A state dict on its way. All ranks know beforehand who writes what, so that in the end nothing has to be told but that it is done."""

    def __init__(self, state_dict, storage, planner, ranks):
        self.storage, self.ranks = storage, ranks
        lowest = (planner or DefaultSavePlanner()).dedup_save_to_lowest_rank
        self.pieces, self.checkpoint = {}, None
        found = ranks.gathered(lambda: self._mine(state_dict))
        self.checkpoint = found[0][0]
        self.metadata = self._planned([facts for _, facts in found], lowest)

    def _mine(self, state_dict):
        """(name of the checkpoint, by rank 0; {name: what this rank has of it})."""
        flat, ways = flattened(state_dict)
        facts = {}
        for name, value in flat.items():
            if not isinstance(value, Tensor):
                facts[name] = ways[name], self.storage.value(name, value)
                continue
            found = piece_of(value)
            if found is not None:
                self.pieces[name] = found[1]
                facts[name] = ways[name], (value.dtype, tuple(value.shape)), (tuple(found[0]), tuple(found[1].shape), found[1].nbytes)
            else:
                facts[name] = ways[name], (value.dtype, tuple(value.shape)), None
        return self.storage.prepare() if self.ranks.rank == 0 else None, facts

    def _planned(self, facts, lowest):
        """The Metadata, and with it who writes what."""
        out, loads, writes = Metadata({}, {}, {}, StorageMeta(str(self.storage.checkpoint_id)), "1"), [0] * len(facts), [[] for _ in facts]
        for name in dict.fromkeys(name for mine in facts for name in mine):
            having = [(r, mine[name]) for r, mine in enumerate(facts) if name in mine]
            way, what, *_ = having[0][1]
            out.planner_data[name] = way
            if len(having[0][1]) == 2:
                out.state_dict_metadata[name], out.storage_data[name, None] = BytesStorageMetadata(), what
                continue
            check(all(len(one) == 3 and one[1] == what for _, one in having), "save", f"one dtype and shape of {name!r} on all ranks",
                  [one[1] for _, one in having])
            made = out.state_dict_metadata[name] = TensorStorageMetadata(TensorProperties(what[0]), Size(what[1]))
            for (offsets, sizes, nbytes), owners in _by_piece(having).items():
                rank = owners[0] if lowest else min(owners, key=lambda r: (loads[r], r))
                loads[rank] += nbytes
                writes[rank].append((name, offsets))
                made.chunks.append(ChunkStorageMetadata(Size(offsets), Size(sizes)))
        for rank, names in enumerate(writes):
            for key, place in zip(names, self.storage.places(rank, names, self.checkpoint)):
                out.storage_data[key[0], Size(key[1])] = place
        self.names = writes[self.ranks.rank]
        return out

    def go(self, together):
        """Write, and when all have, say so. `together(call)` calls on each rank and waits for all."""
        places = self.storage.places(self.ranks.rank, self.names, self.checkpoint)
        together(lambda: self.storage.write(places, [self.pieces[name] for name, _ in self.names]))
        self.pieces = {}
        together(lambda: self.storage.finish(self.metadata) if self.ranks.rank == 0 else None)
        return self.metadata


def _by_piece(having):
    """{(offsets, sizes, bytes): the ranks that have it}."""
    out = {}
    for rank, (_, _, piece) in having:
        if piece is not None:
            out.setdefault(piece, []).append(rank)
    return out


def async_save(state_dict, *, checkpoint_id=None, storage_writer=None, planner=None, process_group=None,
               async_checkpointer_type=AsyncCheckpointerType.THREAD, no_dist=False, use_collectives=True):
    """`save` beside the program: it returns when all is copied to host memory, and writes in a thread. Returns a Future of the Metadata
    (`concurrent.futures`). The program may go on with collectives: ranks tell each other through the store when they are done.

    >>> import tempfile, tritorch as torch
    >>> import tritorch.distributed.checkpoint as dcp
    >>> dcp.async_save({"x": torch.ones(2)}, checkpoint_id=tempfile.mkdtemp(), no_dist=True).result().state_dict_metadata["x"].size
    tritorch.Size([2])
    """
    check(use_collectives, "async_save", "use_collectives=True", "False", error=NotImplementedError)
    check(async_checkpointer_type is AsyncCheckpointerType.THREAD, "async_save", "AsyncCheckpointerType.THREAD", async_checkpointer_type,
          error=NotImplementedError)
    ranks = Ranks("async_save", process_group, no_dist)
    saving = Saving(states_of(state_dict), writer("async_save", storage_writer, checkpoint_id), planner, ranks)
    with no_grad():
        saving.pieces = {name: saving.pieces[name].clone() if saving.pieces[name].device is cpu else saving.pieces[name].to(cpu)
                         for name, _ in saving.names}
    future, turn = Future(), iter(range(1 << 30))
    future.set_running_or_notify_cancel()

    def work():
        try:
            future.set_result(saving.go(lambda call: ranks.agreed(call, f"checkpoint/{saving.checkpoint}/{next(turn)}")))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="checkpoint").start()
    return future


__all__ = ["AsyncCheckpointerType", "AsyncStagerType", "async_save", "save"]
