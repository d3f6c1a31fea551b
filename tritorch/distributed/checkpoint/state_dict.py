"""State dicts of models and optimizers whose names are those of the model alone, however it is wrapped, sharded and numbered.

>>> import tritorch as torch
>>> from tritorch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
>>> model = torch.nn.Linear(2, 1)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
>>> of_model, of_optimizer = get_state_dict(model, optimizer)
>>> list(of_model), of_optimizer["param_groups"][0]["params"]
(['weight', 'bias'], ['weight', 'bias'])
>>> set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
<All keys matched successfully>
"""
import warnings
from dataclasses import dataclass, replace

from tritorch.autograd.modes import no_grad
from tritorch.autograd.places import stacklevel
from tritorch.distributed.checkpoint.whole import Fitting, mapped, whole
from tritorch.distributed.fsdp.state_types import CHECKPOINTED, WRAPPED, as_shards, shard
from tritorch.errors import check
from tritorch.nn.parallel.distributed import DistributedDataParallel
from tritorch.nn.state_dict import IncompatibleKeys
from tritorch.ops.create import tensor, zeros_like
from tritorch.optim.optimizer import Optimizer
from tritorch.tensor import Tensor

__all__ = ["StateDictOptions", "get_model_state_dict", "get_optimizer_state_dict", "get_state_dict", "set_model_state_dict",
           "set_optimizer_state_dict", "set_state_dict"]


@dataclass
class StateDictOptions:
    """`full_state_dict`: whole tensors instead of DTensors. `cpu_offload`: on the CPU; with both, on rank 0 alone, the others get {}.
    `ignore_frozen_params`: without parameters that require no gradient. `strict`: names that are missing or too many are errors.
    `broadcast_from_rank0`: in `set_…`, rank 0 has all, whole, and the others need not have anything. `flatten_optimizer_state_dict`: one
    dictionary of names like "state.layer.weight.exp_avg". `keep_submodule_prefixes`: whether names under `submodules` begin with theirs."""

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False


def get_model_state_dict(model, *, submodules=None, options=None):
    """The state dict of a model."""
    options = _checked("get_model_state_dict", options)
    with no_grad():
        with as_shards(model):
            state = {_plain_name(model, key): value for key, value in model.state_dict().items()}
        if options.ignore_frozen_params:
            for key, p in model.named_parameters():
                if not p.requires_grad:
                    state.pop(_plain_name(model, key), None)
        if submodules:
            state = _below(model, submodules, state, options.keep_submodule_prefixes)
        return whole(state, options)


def get_optimizer_state_dict(model, optimizers, *, submodules=None, options=None):
    """The state dict of an optimizer of a model, or of several as one, with names in the place of numbers. An optimizer without a state
    yet gets one, by a step that changes nothing."""
    options = _checked("get_optimizer_state_dict", options)
    optimizers = (optimizers,) if isinstance(optimizers, Optimizer) else tuple(optimizers)
    names = _names(model)
    with no_grad():
        out = {"state": {}, "param_groups": []}
        for optimizer in optimizers:
            _init_optim_state(optimizer)
            found = optimizer.state_dict()
            numbers = {k: names[p] for k, p in enumerate(optimizer._parameters())}
            out["state"].update({numbers.get(k, k): dict(values) if isinstance(values, dict) else values
                                 for k, values in found["state"].items()})
            out["param_groups"] += [{**group, "params": [numbers[k] for k in group["params"]]} for group in found["param_groups"]]
        if options.flatten_optimizer_state_dict:
            out = _flat(out)
        return whole(out, options)


def get_state_dict(model, optimizers, *, submodules=None, options=None):
    """(the state dict of the model, that of the optimizers)."""
    return (get_model_state_dict(model, submodules=submodules, options=options),
            get_optimizer_state_dict(model, optimizers, submodules=submodules, options=options))


def set_model_state_dict(model, model_state_dict, *, options=None):
    """Load what `get_model_state_dict` returned, with other processes or other options. Returns the missing and unexpected keys.
    RuntimeError for such keys with `strict`."""
    options = _checked("set_model_state_dict", options)
    if not model_state_dict and not options.broadcast_from_rank0:
        return IncompatibleKeys([], [])
    with no_grad(), as_shards(model):
        own, fitting = model.state_dict(), Fitting(options, model_state_dict)
        keys = {_plain_name(model, key): key for key in own}
        state = {keys.get(name, name): fitting.of(name, own.get(keys.get(name))) for name in fitting.names}
        return model.load_state_dict(state, strict=options.strict, assign=fitting.assigns)


def set_optimizer_state_dict(model, optimizers, optim_state_dict, *, options=None):
    """Load what `get_optimizer_state_dict` returned, with other processes or other options. RuntimeError where the state of a parameter is
    missing, with `strict`."""
    options = _checked("set_optimizer_state_dict", options)
    optimizers = (optimizers,) if isinstance(optimizers, Optimizer) else tuple(optimizers)
    names = _names(model)
    with no_grad():
        state = Fitting(options, optim_state_dict).everywhere()
        for optimizer in optimizers:
            _init_optim_state(optimizer)
            _load(optimizer, [names[p] for p in optimizer._parameters()], state, options)


def set_state_dict(model, optimizers, *, model_state_dict, optim_state_dict, options=None):
    """Load both. Returns the missing and unexpected keys of the model."""
    set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return set_model_state_dict(model, model_state_dict, options=options)


def _checked(name, options):
    options = replace(options) if options is not None else StateDictOptions()
    check(options.full_state_dict or not options.broadcast_from_rank0, name, "full_state_dict=True with broadcast_from_rank0", "False",
          error=ValueError)
    return options


# ------------------------------------------------------------------ names
def _plain_name(model, name):
    """A name without the steps that lead into a wrapper."""
    here, out = model, []
    for step in name.split("."):
        if not (step == "module" and isinstance(here, DistributedDataParallel) or step in ("_orig_mod", WRAPPED, CHECKPOINTED)):
            out.append(step)
        here = getattr(here, step, None)
    return ".".join(out)


def _names(model):
    """{parameter: its name}."""
    shard(model)
    return {p: _plain_name(model, name) for name, p in model.named_parameters()}


def _below(model, submodules, state, prefixes):
    warnings.warn("get_state_dict: submodules is deprecated; choose among the names of the state dict", FutureWarning,
                  stacklevel=stacklevel())
    wanted = [_plain_name(model, name) + "." for name, module in model.named_modules() if module in submodules]
    return {name if prefixes else name[len(p):]: value for name, value in state.items() for p in wanted if name.startswith(p)}


# ------------------------------------------------------------------ optimizers
def _init_optim_state(optimizer):
    """Let an optimizer make its state, by a step with gradients and a learning rate of 0; nothing happens to one that has gradients."""
    parameters = list(optimizer._parameters())
    if optimizer.state or any(p.grad is not None for p in parameters):
        return
    rates = [group.get("lr") for group in optimizer.param_groups]
    for p in parameters:
        if p.requires_grad:
            p.grad = zeros_like(p)
    for group in optimizer.param_groups:
        if "lr" in group:
            group["lr"] = tensor(0.0) if isinstance(group["lr"], Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates):
        if "lr" in group:
            group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)


def _load(optimizer, names, state, options):
    """Load into one of several optimizers what is of its parameters."""
    numbers, known = {name: k for k, name in enumerate(names)}, optimizer.state_dict()
    if "state" not in state:
        state = _deep(state, names, known)
    found, saved = {}, state["state"]
    for name, k in numbers.items():
        if name in saved:
            found[k] = mapped(lambda x, like: Fitting.fit(x, like) if options.full_state_dict else x, saved[name], known["state"].get(k))
        elif options.strict and k in known["state"]:
            check(False, "set_optimizer_state_dict", f"a state of {name!r}", "none", use="StateDictOptions(strict=False)")
    groups = []
    for group in known["param_groups"]:
        first = names[group["params"][0]] if group["params"] else None
        of_it = next((g for g in state["param_groups"] if first in g["params"] or first is None and not g["params"]), {})
        groups.append({**group, **of_it, "params": group["params"]})
    optimizer.load_state_dict({"state": found, "param_groups": groups})


def _flat(state):
    """One dictionary of names."""
    out = dict(_named("state", state["state"]))
    for group in state["param_groups"]:
        for name in group["params"]:
            out.update({f"param_groups.{name}.{key}": value for key, value in group.items() if key != "params"})
    return out


def _named(prefix, value):
    """(name, value) of all numbers and tensors in dictionaries."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _named(f"{prefix}.{key}", inner)
        return
    check(isinstance(value, (Tensor, int, float)), "get_optimizer_state_dict", "tensors and numbers to flatten", type(value).__name__,
          error=NotImplementedError)
    yield prefix, value


def _taken(flat, prefix, like):
    """What lies under a name, in dictionaries like these."""
    if isinstance(like, dict):
        return {key: _taken(flat, f"{prefix}.{key}", inner) for key, inner in like.items()}
    check(prefix in flat, "set_optimizer_state_dict", f"{prefix!r} in the state dict", "none")
    return flat[prefix]


def _deep(flat, names, known):
    """What `_flat` made flat, for the parameters of one optimizer, whose state dict is `known`."""
    state = {names[k]: _taken(flat, f"state.{names[k]}", values) for k, values in known["state"].items()}
    groups = []
    for group in known["param_groups"]:
        mine = [names[k] for k in group["params"]]
        keys = [key for key in group if key != "params"] if mine else []
        groups.append({"params": mine, **{key: flat[f"param_groups.{mine[0]}.{key}"] for key in keys}})
    return {"state": state, "param_groups": groups}
