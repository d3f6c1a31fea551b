"""State dicts of models with units: their names are those of the model alone."""
from tritorch.autograd.modes import no_grad
from tritorch.device import cpu
from tritorch.distributed.checkpoint.whole import Fitting
from tritorch.distributed.fsdp.api import StateDictType
from tritorch.distributed.fsdp.module import state_of
from tritorch.distributed.fsdp.state_types import PREFIX, WRAPPED, clean, rename
from tritorch.distributed.fsdp.summoned import wholes
from tritorch.distributed.tensor.dtensor import made
from tritorch.tensor import Tensor


@no_grad()
def saved(unit, state_dict, prefix, _):
    """After a wrapper was saved: plain names, and what the settings want of the unit's tensors."""
    rename(state_dict, prefix + PREFIX, prefix)
    metadata = getattr(state_dict, "_metadata", {})
    metadata[prefix[:-1]] = metadata.pop(prefix + WRAPPED, metadata.get(prefix[:-1]))
    rename(metadata, prefix + PREFIX, prefix)
    state, kind, config = state_of(unit), unit._state_dict_type, unit._state_dict_config
    groups = [] if state.summoned else state.groups
    shards = {id(cut.sharded.storage): cut for group in groups for cut in group.cuts}
    buffers = {id(module._buffers[name].storage): dtype for (module, name), dtype in state.buffer_dtypes.items()}
    full = {}
    for group in groups if kind is StateDictType.FULL_STATE_DICT else ():
        full.update(wholes(group))
    for key in [key for key, x in state_dict.items() if key.startswith(prefix) and isinstance(x, Tensor)]:
        x = state_dict[key]
        if id(x.storage) in shards:
            x = in_form(x, kind, full.get(shards[id(x.storage)]), config.offload_to_cpu)
        else:
            x = x.to(buffers.get(id(x.storage), x.dtype))
            x = x.to(cpu) if config.offload_to_cpu else x
        state_dict[key] = x
    if getattr(config, "rank0_only", False) and unit.rank != 0:
        for key in [key for key in state_dict if key.startswith(prefix)]:
            del state_dict[key]


def in_form(x, kind, whole, offload):
    """What a state dict has of a DTensor."""
    if kind is StateDictType.SHARDED_STATE_DICT:
        local = x.storage.local
        return made(local.to(cpu), x.device_mesh, x.placements, tuple(x.shape)) if offload and local.device is not cpu else x
    x = x.storage.local.detach() if kind is StateDictType.LOCAL_STATE_DICT else whole
    return x.to(cpu) if offload else x


@no_grad()
def loading(unit, state_dict, prefix, *_):
    """Before a wrapper is loaded: this rank's part of its tensors, under the names in it."""
    state, kind = state_of(unit), unit._state_dict_type
    own = {} if state.summoned else {id(cut.sharded): cut for group in state.sharded() for cut in group.cuts}
    for name, p in unit._modules[WRAPPED].named_parameters(remove_duplicate=False) if own else ():
        key = prefix + clean(name)
        if id(p) in own and isinstance(state_dict.get(key), Tensor):
            state_dict[key] = part(state_dict[key], p, kind)
    rename(state_dict, prefix, prefix + PREFIX)


def part(x, like, kind):
    """This rank's part of a tensor, as a DTensor like another; the tensor itself if its shape is not that of the other."""
    if kind is StateDictType.LOCAL_STATE_DICT and tuple(x.shape) == tuple(like.storage.local.shape):
        return made(x.detach(), like.device_mesh, like.placements, tuple(like.shape))
    return Fitting.fit(x, like)
