"""Loading: every rank reads what its pieces have in common with those that were saved."""
import os

from tritorch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from tritorch.distributed.checkpoint.filesystem import FileSystemReader
from tritorch.distributed.checkpoint.flatten import flattened, put
from tritorch.distributed.checkpoint.metadata import TensorStorageMetadata, decoded
from tritorch.distributed.checkpoint.pieces import piece_of
from tritorch.distributed.checkpoint.ranks import Ranks
from tritorch.distributed.checkpoint.stateful import Stateful
from tritorch.errors import check
from tritorch.tensor import Tensor


def load(state_dict, *, checkpoint_id=None, storage_reader=None, planner=None, process_group=None, no_dist=False):
    """Fill a state dict from a folder that `save` wrote, with as many ranks or with others, sharded as then or otherwise.

    Tensors in it get the saved values, in place, in their own dtypes; of a DTensor every rank reads its piece alone. Other values are
    replaced. A Stateful object gets back its state dict, so filled. Names in the checkpoint that the state dict has not are left alone.
    `checkpoint_id` is the folder, or `storage_reader` a FileSystemReader. See `save` for an example.

    CheckpointException on all ranks if one of them cannot: a name is missing (but for `DefaultLoadPlanner(allow_partial_load=True)`), a
    shape is another, a file is broken.
    """
    check(storage_reader is not None or checkpoint_id is not None, "load", "a checkpoint_id or a storage_reader", "none")
    check(isinstance(storage_reader, (FileSystemReader, type(None))), "load", "a FileSystemReader", type(storage_reader).__name__,
          error=TypeError)
    if storage_reader is None:
        storage_reader = FileSystemReader(os.fspath(checkpoint_id))
    else:
        storage_reader.reset(checkpoint_id)
    ranks = Ranks("load", process_group, no_dist)
    states = {key: state_dict[key].state_dict() if isinstance(state_dict[key], Stateful) else state_dict[key]
              for key in sorted(state_dict)}                             # state dicts may take collectives: in one order
    ranks.gathered(lambda: fill(states, storage_reader, planner or DefaultLoadPlanner()))
    for key, state in states.items():
        if isinstance(state_dict[key], Stateful):
            state_dict[key].load_state_dict(state)
        else:
            state_dict[key] = state


def fill(state_dict, reader, planner):
    """Fill a state dict by this rank alone. Everything is checked before anything is changed."""
    metadata = reader.read_metadata()
    flat, ways = flattened(state_dict)
    wanted, values = [], []
    for name, value in flat.items():
        saved = metadata.state_dict_metadata.get(name)
        if saved is None:
            check(planner.allow_partial_load, "load", f"{name!r} in the checkpoint", "none of that name",
                  use="DefaultLoadPlanner(allow_partial_load=True)")
        elif isinstance(value, Tensor):
            check(isinstance(saved, TensorStorageMetadata), "load", f"a tensor under {name!r} in the checkpoint", "a value")
            check(tuple(saved.size) == tuple(value.shape), "load", f"{name!r} of shape {tuple(value.shape)} in the checkpoint",
                  tuple(saved.size), error=ValueError)
            found = piece_of(value)
            if found is not None:
                wanted.append((name, *found))
        else:
            check(not isinstance(saved, TensorStorageMetadata), "load", f"a value under {name!r} in the checkpoint", "a tensor",
                  use="a tensor of its shape in the state dict")
            values.append((ways[name], decoded(metadata.storage_data[name, None])))
    reader.read(wanted, metadata)
    for way, value in values:
        put(state_dict, way, value)


__all__ = ["load"]
