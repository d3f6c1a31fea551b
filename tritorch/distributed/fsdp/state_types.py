"""Which state dicts models with units have: whole tensors, those of this rank, or DTensors."""
import contextlib
import warnings

from tritorch.autograd.places import stacklevel
from tritorch.distributed.fsdp import api
from tritorch.distributed.fsdp.api import StateDictSettings, StateDictType
from tritorch.distributed.fsdp.module import state_of
from tritorch.distributed.fsdp.units import UnitState
from tritorch.errors import check

WRAPPED, CHECKPOINTED = "_fsdp_wrapped_module", "_checkpoint_wrapped_module"
PREFIX = WRAPPED + "."
CONFIGS = {
    StateDictType.FULL_STATE_DICT: (api.FullStateDictConfig, api.FullOptimStateDictConfig),
    StateDictType.LOCAL_STATE_DICT: (api.LocalStateDictConfig, api.LocalOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (api.ShardedStateDictConfig, api.ShardedOptimStateDictConfig),
}


def units_of(model):
    """The wrappers in a model, itself included, outer ones first."""
    return [m for m in model.modules() if isinstance(state_of(m), UnitState)]


def shard(model):
    """Let all modules show their shards, which are what optimizers know."""
    for state in filter(None, map(state_of, model.modules())):
        for group in state.groups:
            group.reshard(entirely=True)


def clean(name):
    """The name of a parameter without the steps that lead into wrappers."""
    return name.replace(PREFIX, "").replace(CHECKPOINTED + ".", "")


def rename(names, old, new):
    """Let what begins with one prefix begin with another, in place."""
    for name in [name for name in names if name.startswith(old)]:
        names[new + name[len(old):]] = names.pop(name)


def settings(model):
    """How the state dicts of a model are made, None without units. AssertionError where units differ."""
    found = [StateDictSettings(u._state_dict_type, u._state_dict_config, u._optim_state_dict_config) for u in units_of(model)]
    check(all(one == found[0] for one in found), "get_state_dict_type", "the same settings in all units", found, error=AssertionError)
    return found[0] if found else None


def set_type(model, kind, of_model=None, of_optimizer=None):
    """Say how the state dicts of a model are to be made; returns how they were. RuntimeError for a configuration of another type."""
    warnings.warn("FSDP.state_dict_type and FSDP.set_state_dict_type are deprecated; use get_state_dict and set_state_dict of "
                  "distributed.checkpoint.state_dict", FutureWarning, stacklevel=stacklevel())
    kinds, before = CONFIGS[kind], settings(model)
    for given, wanted, what in zip((of_model, of_optimizer), kinds, ("state_dict_config", "optim_state_dict_config")):
        check(given is None or type(given) is wanted, "set_state_dict_type", f"a {what} of type {wanted.__name__} for {kind.name}",
              type(given).__name__)
    put(model, StateDictSettings(kind, of_model or kinds[0](), of_optimizer or kinds[1]()))
    return before or StateDictSettings(None, None, None)


def put(model, new):
    """Let all units have the same settings."""
    for unit in units_of(model):
        unit._state_dict_type, unit._state_dict_config = new.state_dict_type, new.state_dict_config
        unit._optim_state_dict_config = new.optim_state_dict_config


@contextlib.contextmanager
def of_type(model, *given):
    """A context with settings."""
    before = set_type(model, *given)
    try:
        yield
    finally:
        put(model, before)


@contextlib.contextmanager
def as_shards(model):
    """A context in which a model's state dict has the DTensors themselves."""
    before = settings(model)
    put(model, StateDictSettings(StateDictType.SHARDED_STATE_DICT, api.ShardedStateDictConfig(), api.ShardedOptimStateDictConfig(False)))
    try:
        yield
    finally:
        if before is not None:
            put(model, before)
