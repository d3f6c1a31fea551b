"""State dicts of optimizers of models with units: by names and whole or in parts, and back to what an optimizer can load."""
import warnings
from types import SimpleNamespace

from tritorch.autograd.modes import no_grad
from tritorch.autograd.places import stacklevel
from tritorch.device import cpu
from tritorch.distributed.checkpoint.whole import Fitting, mapped
from tritorch.distributed.fsdp.api import OptimStateKeyType, StateDictType
from tritorch.distributed.fsdp.state_types import clean, settings, shard, units_of
from tritorch.distributed.fsdp.summoned import whole_of
from tritorch.distributed.fsdp.unit_states import in_form, part
from tritorch.distributed.tensor import DTensor
from tritorch.errors import check


def ordered(model, optim=None, optim_input=None):
    """The parameters in the order of an optimizer's numbers; without one, in that of the model."""
    if optim is not None:
        return [p for group in optim.param_groups for p in group["params"]]
    if optim_input is None:
        return list(model.parameters())
    return [p for group in optim_input for p in (group["params"] if isinstance(group, dict) else [group])]


def names_of(model, parameters):
    """The names of parameters, without those of wrappers."""
    shard(model)
    names = {p: clean(name) for name, p in model.named_parameters()}
    check(all(p in names for p in parameters), "optim_state_dict", "an optimizer of the model's parameters", "one of others",
          use="an optimizer that is made after FullyShardedDataParallel", error=KeyError)
    return [names[p] for p in parameters]


@no_grad()
def by_name(model, optim, optim_state_dict, optim_input, kind, rank0_only, offload):
    """The state dict of an optimizer with names in the place of numbers, of tensors as the type says."""
    found = optim.state_dict() if optim_state_dict is None else optim_state_dict
    names = names_of(model, ordered(model, optim, optim_input))
    units = units_of(model)
    drops = rank0_only and units and units[0].rank != 0

    def one(x, _):
        if isinstance(x, DTensor):
            whole = whole_of(x, units[0].compute_device) if kind is StateDictType.FULL_STATE_DICT else None    # all ranks take part
            return None if drops else in_form(x, kind, whole, offload)
        return None if drops else (x.to(cpu) if offload else x).detach().clone()                    # mostly counts of steps, which go on

    state = {names[key] if isinstance(key, int) else key: mapped(one, value) for key, value in found["state"].items()}
    if drops:
        return {}
    groups = [{**group, "params": [names[k] if isinstance(k, int) else k for k in group["params"]]} for group in found["param_groups"]]
    return {**found, "state": state, "param_groups": groups}


@no_grad()
def to_load(model, optim, optim_state_dict, optim_input, kind, from_rank0, named):
    """What an optimizer can load, of the state dict by names: numbers, and of tensors this rank's part. `from_rank0`: the others need
    not have anything."""
    found = Fitting(SimpleNamespace(full_state_dict=True, broadcast_from_rank0=from_rank0), optim_state_dict or {}).everywhere()
    parameters = ordered(model, optim, optim_input)
    numbers, state = {name: k for k, name in enumerate(names_of(model, parameters))}, {}
    for key, values in found["state"].items():
        if key not in numbers:
            if named or not isinstance(key, str):
                state[key] = values
            continue
        p = parameters[numbers[key]]
        state[key if named else numbers[key]] = mapped(lambda x, like, p=p: fitted(x, like, p, kind), values,
                                                       {} if optim is None else optim.state.get(p, {}))
    groups = [{**group, "params": sorted(numbers[name] for name in group["params"] if name in numbers)}
              for group in found["param_groups"]]
    if named:
        names = list(numbers)
        groups = [{**group, "params": [names[k] for k in group["params"]]} for group in groups]
    return {**found, "state": state, "param_groups": sorted(groups, key=lambda group: group["params"][:1]) if not named else groups}


def fitted(x, like, parameter, kind):
    """A tensor of a parameter's state: in parts where the optimizer has it so, or the parameter is and has its shape."""
    for one in (like, parameter):
        if isinstance(one, DTensor) and x.ndim > 0:
            local = kind is StateDictType.LOCAL_STATE_DICT and tuple(x.shape) == tuple(one.storage.local.shape)
            if local or tuple(x.shape) == tuple(one.shape):
                return part(x, one, kind)
    return x


def rekeyed(state_dict, kind, model, optim_input, optim):
    """A state dict by numbers or by names, as wanted, for a model that need not be sharded. ValueError for keys of both kinds."""
    check(kind in tuple(OptimStateKeyType), "rekey_optim_state_dict", "an OptimStateKeyType", kind, error=AssertionError)
    names = names_of(model, ordered(model, optim, optim_input))
    keys = {*map(type, state_dict["state"])}
    check(len(keys) < 2, "rekey_optim_state_dict", "keys of one type", sorted(k.__name__ for k in keys), error=ValueError)
    wanted = str if kind is OptimStateKeyType.PARAM_NAME else int
    change = dict(enumerate(names)) if wanted is str else {name: k for k, name in enumerate(names)}
    new = lambda key: key if isinstance(key, wanted) else change[key]
    return {**state_dict, "state": {new(key): value for key, value in state_dict["state"].items()},
            "param_groups": [{**group, "params": sorted(map(new, group["params"]))} for group in state_dict["param_groups"]]}


# ------------------------------------------------------------------ under PyTorch's names
def optim_state_dict(model, optim, optim_state_dict=None, group=None):
    """The state dict of an optimizer, or what became of one, by names of parameters and as `set_state_dict_type` says. All ranks call it;
    with `rank0_only` the others than rank 0 get {}. KeyError for an optimizer of other parameters.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.fsdp import FullyShardedDataParallel as FSDP
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> model = FSDP(torch.nn.Linear(2, 1), device_id="cpu")
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> model(torch.ones(3, 2)).sum().backward(); optimizer.step()
    >>> saved = FSDP.optim_state_dict(model, optimizer)
    >>> saved["state"]["weight"]["momentum_buffer"]
    tensor([[3., 3.]])
    >>> optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, saved))
    >>> dist.destroy_process_group()
    """
    found = settings(model)
    config = found.optim_state_dict_config
    return by_name(model, optim, optim_state_dict, None, found.state_dict_type, getattr(config, "rank0_only", False), config.offload_to_cpu)


def optim_state_dict_to_load(model, optim, optim_state_dict, is_named_optimizer=False, load_directly=False, group=None):
    """What `optim.load_state_dict` takes, of what `optim_state_dict` returned; with `load_directly` it is loaded. With `rank0_only` rank 0
    sends it to the others."""
    found = settings(model)
    out = to_load(model, optim, optim_state_dict, None, found.state_dict_type, getattr(found.optim_state_dict_config, "rank0_only", False),
                  is_named_optimizer)
    if load_directly:
        optim.load_state_dict(out)
    return out


def deprecated(name, use):
    """Say that a function has a successor."""
    warnings.warn(f"FullyShardedDataParallel.{name} is deprecated; use {use}", FutureWarning, stacklevel=stacklevel())


def full_optim_state_dict(model, optim, optim_input=None, rank0_only=True, group=None):
    """The state dict of an optimizer by names, with whole tensors on the CPU. Deprecated."""
    deprecated("full_optim_state_dict", "optim_state_dict")
    return by_name(model, optim, None, optim_input, StateDictType.FULL_STATE_DICT, rank0_only, True)


def sharded_optim_state_dict(model, optim, group=None):
    """The state dict of an optimizer by names, with DTensors. Deprecated."""
    deprecated("sharded_optim_state_dict", "optim_state_dict")
    return by_name(model, optim, None, None, StateDictType.SHARDED_STATE_DICT, False, True)


def shard_full_optim_state_dict(full_optim_state_dict, model, optim_input=None, optim=None):
    """What an optimizer can load, of a state dict with whole tensors that each rank has. Deprecated."""
    deprecated("shard_full_optim_state_dict", "optim_state_dict_to_load")
    return to_load(model, optim, full_optim_state_dict, optim_input, StateDictType.FULL_STATE_DICT, False, False)


def scatter_full_optim_state_dict(full_optim_state_dict, model, optim_input=None, optim=None, group=None):
    """The same of a state dict that rank 0 alone need have; the others may pass None. Deprecated."""
    deprecated("scatter_full_optim_state_dict", "optim_state_dict_to_load")
    return to_load(model, optim, full_optim_state_dict, optim_input, StateDictType.FULL_STATE_DICT, True, False)


def flatten_sharded_optim_state_dict(sharded_optim_state_dict, model, optim):
    """The same of a state dict with DTensors. Deprecated."""
    deprecated("flatten_sharded_optim_state_dict", "optim_state_dict_to_load")
    return to_load(model, optim, sharded_optim_state_dict, None, StateDictType.SHARDED_STATE_DICT, False, False)


def rekey_optim_state_dict(optim_state_dict, optim_state_key_type, model, optim_input=None, optim=None):
    """The state dict of an optimizer by names (OptimStateKeyType.PARAM_NAME) or numbers (PARAM_ID), for a model that is not sharded."""
    return rekeyed(optim_state_dict, optim_state_key_type, model, optim_input, optim)
