"""The state of an optimizer out of a checkpoint, before there is one to fill."""
from tritorch.autograd.modes import no_grad
from tritorch.distributed.checkpoint.flatten import nested
from tritorch.distributed.checkpoint.metadata import TensorStorageMetadata
from tritorch.distributed.checkpoint.state_dict_loader import load
from tritorch.distributed.tensor import DTensor
from tritorch.ops.create import empty, zeros_like

__all__ = ["load_sharded_optimizer_state_dict"]


@no_grad()
def load_sharded_optimizer_state_dict(model_state_dict, optimizer_key, storage_reader, planner=None):
    """{optimizer_key: the state dict by names that was saved under this key}. Tensors of the shape of their parameter are spread as it is
    in `model_state_dict`, whose values are DTensors; of each rank they have its part. `FSDP.optim_state_dict_to_load` takes the rest of
    the way to the optimizer."""
    metadata, room = storage_reader.read_metadata(), {}
    for name, saved in metadata.state_dict_metadata.items():
        way = metadata.planner_data[name]
        if way[0] == optimizer_key:
            room[name] = place_for(saved, model_state_dict.get(way[2]) if len(way) > 2 else None)
    state = nested(room, metadata.planner_data)
    load(state, storage_reader=storage_reader, planner=planner)
    return state


def place_for(saved, like):
    """A tensor to be filled; None for a value that is none."""
    if not isinstance(saved, TensorStorageMetadata):
        return None
    kind = saved.properties.dtype
    if isinstance(like, DTensor) and tuple(like.shape) == tuple(saved.size):
        return zeros_like(like, dtype=kind)
    return empty(tuple(saved.size), dtype=kind)
