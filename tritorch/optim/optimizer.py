"""Optimizer: parameter groups, the state that belongs to each parameter, and how both are saved."""
import functools
import itertools
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, TypeAlias

from tritorch.autograd.modes import enable_grad, no_grad
from tritorch.cuda.watching import watched
from tritorch.dtype import float32
from tritorch.errors import NoTensor, check, real_numbers, sentence
from tritorch.layout import others, strided
from tritorch.nn.hooks import add_hook
from tritorch.ops.create import full
from tritorch.profiler.recorder import record_function
from tritorch.tensor import Tensor, swaps

ParamsT: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
required = object()                                                      # a default that every group must give itself
_pre_hooks, _post_hooks = OrderedDict(), OrderedDict()                   # of all optimizers


class Optimizer:
    """Base of all optimizers. Subclasses give `step`, which reads `param_groups` and keeps what it remembers in `state[parameter]`.

    `params` is an iterable of tensors, of (name, tensor) pairs, or of dicts {"params": …, option: value, …}: the groups.
    `defaults` holds the options of groups that do not give their own.

    >>> import tritorch as torch
    >>> w, b = torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)
    >>> optimizer = torch.optim.SGD([{"params": w}, {"params": b, "lr": 0.5}], lr=0.1)
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.1, 0.5]
    """

    _step_supports_amp_scaling = False                                   # whether step() heeds self.found_inf, a tensor, by itself
    found_inf = None
    counts = ("step",)                                                   # the names of a state's scalars
    _opt_called = False

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "step" in cls.__dict__:
            cls.step = _hooked(cls.__dict__["step"])

    def __init__(self, params, defaults):
        check(not isinstance(params, Tensor), type(self).__name__, "an iterable of tensors or dicts", "a tensor", use="[tensor]",
              error=TypeError)
        self.defaults, self.state, self.param_groups = defaults, defaultdict(dict), []
        groups = _listed(type(self).__name__, "an iterable of tensors or dicts", params)
        check(groups, type(self).__name__, "parameters", "an empty parameter list", error=ValueError)
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    # -------------------------------------------------------------- groups
    def add_param_group(self, param_group):
        """Optimize more parameters: a dict with "params" and the options that differ from the defaults."""
        name = type(self).__name__
        check(isinstance(param_group, dict), name, "a dict as parameter group", type(param_group).__name__, error=TypeError)
        check("params" in param_group, name, "'params' in a parameter group", f"the keys {list(param_group)}", error=KeyError)
        group, params = dict(param_group), param_group["params"]
        check(not isinstance(params, set), name, "parameters in an order", "a set", use="a list", error=TypeError)
        params = [params] if isinstance(params, Tensor) else _listed(name, "an iterable of tensors as params", params)
        named = [isinstance(p, tuple) for p in params]
        if any(named):
            check(all(len(p) == 2 for p in params if isinstance(p, tuple)), name, "pairs (name, tensor)", "tuples of other lengths",
                  error=ValueError)
            check(all(named), name, "names for all parameters or for none", f"{sum(named)} of {len(named)} named", error=ValueError)
            group["param_names"], params = [n for n, _ in params], [p for _, p in params]
        for old in self.param_groups[:1]:
            check(("param_names" in old) == ("param_names" in group), name, "groups with names, or without, as the first has it",
                  "another kind", error=ValueError)
        for p in params:
            check(isinstance(p, Tensor), name, "tensors as parameters", type(p).__name__, error=TypeError)
            check(p.is_leaf or getattr(p, "retains_grad", False) or self.defaults.get("differentiable"), name, "leaf tensors as parameters",
                  "the result of an operator", error=ValueError)
        for option, default in self.defaults.items():
            check(default is not required or option in group, name, f"a value of {option} in the parameter group", "none", error=ValueError)
            group.setdefault(option, default)
        ids = {id(p) for p in params}
        if len(ids) < len(params):
            warnings.warn("a parameter stands twice in one group of the optimizer",
                          stacklevel=3)
        known = {id(p) for old in self.param_groups for p in old["params"]}
        check(not ids & known, name, "each parameter in one group", "some parameters in more than one parameter group", error=ValueError)
        self.param_groups.append({"params": params, **{k: v for k, v in group.items() if k != "params"}})

    def zero_grad(self, set_to_none=True):
        """Forget all gradients, or, without `set_to_none`, set them to 0."""
        swaps[1] += 1
        with record_function(f"Optimizer.zero_grad#{type(self).__name__}.zero_grad"):
            for group in self.param_groups:
                for p in group["params"]:
                    if set_to_none or p._grad is None:
                        p._grad = None
                    else:
                        p._grad = p._grad.detach().zero_()

    def step(self, closure=None):
        """Update the parameters from their gradients. `closure` computes the loss anew and is called first; its result is returned."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method step in the subclass")

    # -------------------------------------------------------------- saving
    def state_dict(self):
        """{"state": {number of the parameter: its state}, "param_groups": the groups with numbers in place of parameters}."""
        for hook in self._hooks["state_dict_pre"].values():
            hook(self)
        numbers = {id(p): k for k, p in reversed(list(enumerate(self._parameters())))}
        groups = [{**{key: v for key, v in g.items() if key != "params"}, "params": [numbers[id(p)] for p in g["params"]]}
                  for g in self.param_groups]
        out = {"state": {numbers[id(p)] if isinstance(p, Tensor) else p: s for p, s in self.state.items()}, "param_groups": groups}
        for hook in self._hooks["state_dict_post"].values():
            out = hook(self, out) or out
        return out

    @no_grad()
    def load_state_dict(self, state_dict):
        """Take over what `state_dict` returned, here or in PyTorch. State moves to the devices and floating dtypes of the parameters."""
        name = f"{type(self).__name__}.load_state_dict"
        check(isinstance(state_dict, dict), name, "a dict", type(state_dict).__name__, error=NoTensor)
        state_dict = dict(state_dict)
        for hook in self._hooks["load_state_dict_pre"].values():
            state_dict = hook(self, state_dict) or state_dict
        _check_saved(name, state_dict)
        saved = state_dict["param_groups"]
        check(len(saved) == len(self.param_groups), name, f"{len(self.param_groups)} parameter groups", len(saved), error=ValueError)
        for k, (new, old) in enumerate(zip(saved, self.param_groups)):
            check(len(new["params"]) == len(old["params"]), name, f"{len(old['params'])} parameters in group {k}", len(new["params"]),
                  error=ValueError)
        numbered = [(number, group) for group in saved for number in group["params"]]
        homes = {number: (p, group) for (number, group), p in zip(numbered, self._parameters())}
        state = defaultdict(dict)
        for number, values in state_dict["state"].items():
            p, group = homes.get(number, (number, None))
            state[p] = values if group is None else _settle(values, p, group, self.counts)
        for new, old in zip(saved, self.param_groups):
            names = {"param_names": old["param_names"]} if "param_names" in old else {}
            old.update({**deepcopy({k: v for k, v in new.items() if k not in ("params", "param_names")}), **names})
        self.state = state
        for hook in self._hooks["load_state_dict_post"].values():
            hook(self)

    def _parameters(self):
        return itertools.chain.from_iterable(g["params"] for g in self.param_groups)

    def __getstate__(self):
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state):
        self.__dict__.update(state)

    def __repr__(self):
        groups = [f"\nParameter Group {k}\n" + "".join([f"    {key}: {group[key]}\n" for key in sorted(group) if key != "params"])
                  for k, group in enumerate(self.param_groups)]
        return f"{type(self).__name__} ({''.join(groups)})"

    # -------------------------------------------------------------- hooks
    @functools.cached_property
    def _hooks(self):                                                    # also of optimizers around another, which skip __init__
        return {f"{kind}_{when}": OrderedDict() for kind in ("step", "state_dict", "load_state_dict") for when in ("pre", "post")}

    def register_step_pre_hook(self, hook):
        """Have `hook(optimizer, args, kwargs)` called before every step; it may return others. Returns a handle to remove it."""
        return add_hook(self._hooks["step_pre"], hook)

    def register_step_post_hook(self, hook):
        """Have `hook(optimizer, args, kwargs)` called after every step."""
        return add_hook(self._hooks["step_post"], hook)

    def register_state_dict_pre_hook(self, hook, prepend=False):
        """Have `hook(optimizer)` called before `state_dict`."""
        return add_hook(self._hooks["state_dict_pre"], hook, prepend)

    def register_state_dict_post_hook(self, hook, prepend=False):
        """Have `hook(optimizer, state_dict)` called on the result of `state_dict`; it may return another."""
        return add_hook(self._hooks["state_dict_post"], hook, prepend)

    def register_load_state_dict_pre_hook(self, hook, prepend=False):
        """Have `hook(optimizer, state_dict)` called before `load_state_dict`; it may return another state dict."""
        return add_hook(self._hooks["load_state_dict_pre"], hook, prepend)

    def register_load_state_dict_post_hook(self, hook, prepend=False):
        """Have `hook(optimizer)` called after `load_state_dict`."""
        return add_hook(self._hooks["load_state_dict_post"], hook, prepend)

    # -------------------------------------------------------------- for the subclasses
    def with_gradients(self, group):
        """The parameters of a group that have gradients. Of sparse ones, those that have one are left to `sparse_step`."""
        found = [p for p in group["params"] if p._grad is not None]
        return self._strided(found, group) if others else found

    sparse_step = None                                                   # the step of a parameter with a sparse gradient, if there is one

    def _strided(self, found, group):
        """Those whose gradients are strided, after the check whether sparse ones are welcome."""
        sparse, name = [p for p in found if p._grad.layout is not strided], type(self).__name__
        use = "SparseAdam" if name in ("Adam", "AdamW") else "SGD, Adagrad or SparseAdam"
        check(not sparse or self.sparse_step is not None, name, f"strided gradients ({name} does not support sparse gradients)",
              sparse[0]._grad.layout if sparse else None, use=use)
        check(not sparse or not group.get("weight_decay"), name, "no weight_decay, which is not compatible with sparse gradients",
              group.get("weight_decay"))
        return [p for p in found if p._grad.layout is strided] if sparse else found

    def _sparse_steps(self):
        """Update the parameters that have sparse gradients."""
        found = [(p, group) for group in self.param_groups for p in group["params"]
                 if p._grad is not None and p._grad.layout is not strided]
        if found and (self.found_inf is None or not self.found_inf.item()):
            for p, group in found:
                self.sparse_step(p, -p._grad if group["maximize"] else p._grad, group)


def register_optimizer_step_pre_hook(hook):
    """Have `hook(optimizer, args, kwargs)` called before every step of every optimizer."""
    return add_hook(_pre_hooks, hook)


def register_optimizer_step_post_hook(hook):
    """Have `hook(optimizer, args, kwargs)` called after every step of every optimizer."""
    return add_hook(_post_hooks, hook)


def step_hooks(optimizers):
    """The hooks that steps of these optimizers call, as dicts."""
    return [_pre_hooks, _post_hooks, *[o._hooks[kind] for o in optimizers for kind in ("step_pre", "step_post")]]


def _hooked(step):
    """`step` with its hooks around it."""
    @functools.wraps(step)
    def wrapped(*args, **kwargs):                                         # PyTorch's hooks find the optimizer among the arguments, too
        self = args[0]
        for hook in (*_pre_hooks.values(), *self._hooks["step_pre"].values()):
            changed = hook(self, args, kwargs)
            if changed is not None:
                check(isinstance(changed, tuple) and len(changed) == 2, "step", "None or (args, kwargs) from a step pre-hook", changed)
                args, kwargs = changed
        with record_function(f"Optimizer.step#{type(self).__name__}.step"):
            out = step(*args, **kwargs)
        for hook in (*self._hooks["step_post"].values(), *_post_hooks.values()):
            hook(self, args, kwargs)
        self._opt_called = True
        return out

    return wrapped


def _settle(value, parameter, group, counts, key=None):
    """State that was saved, as this parameter needs it: what is counted stays on the host unless the group wants it on the device.
    PyTorch counted in numbers before 1.12."""
    if key in counts and isinstance(value, (int, float)):
        value = full((), value, dtype=float32, device="cpu")
    if isinstance(value, Tensor):
        if key in counts:
            return value.to(parameter.device, float32, copy=True) if group.get("capturable") or group.get("fused") else value.clone()
        return value.to(parameter.device, parameter.dtype if parameter.is_floating_point() else value.dtype, copy=True)
    if isinstance(value, dict):
        return {k: _settle(v, parameter, group, counts, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_settle(v, parameter, group, counts) for v in value])
    return value


def _listed(name, rule, values):
    try:
        return list(values)
    except TypeError:
        raise TypeError(sentence(name, rule, type(values).__name__)) from None


def _check_saved(name, saved):
    """Raise unless this has the form of a state dict: whatever is in it, nothing was taken over yet."""
    for key in ("state", "param_groups"):
        check(key in saved, name, f"{key!r} in a state dict", f"the keys {list(saved)}", error=KeyError)
    groups, state = saved["param_groups"], saved["state"]
    check(isinstance(groups, (list, tuple)), name, "a list of param_groups", type(groups).__name__, error=TypeError)
    check(isinstance(state, dict), name, "a dict as state", type(state).__name__, error=NoTensor)
    for k, group in enumerate(groups):
        check(isinstance(group, dict), name, "dicts as param_groups", f"{type(group).__name__} at {k}", error=TypeError)
        check("params" in group, name, "'params' in a parameter group", f"the keys {list(group)}", error=KeyError)
    for number, values in state.items():
        check(not isinstance(number, int) or isinstance(values, dict), name, "a dict as the state of a parameter",
              f"{type(values).__name__} for {number}", error=TypeError)


def evaluated(closure):
    """The loss of a step's closure, computed with gradients; None without one."""
    if closure is None:
        return None
    check(callable(closure), "step", "a function as closure", type(closure).__name__, error=TypeError)
    with enable_grad():
        return closure()


def rate_of(group, parameters):
    """A group's learning rate: a number, or the tensor on the parameters' device, so that a captured step reads it anew. In a step that
    is being compiled a number, or a tensor elsewhere, becomes such a tensor too, which follows it."""
    lr, device = group["lr"], parameters[0].device
    if isinstance(lr, Tensor) and lr.device == device and device.type != "cpu":
        return lr
    if watched.watcher is not None and parameters[0].is_cuda:
        return watched.watcher.rate(group, parameters[0])
    return lr.item() if isinstance(lr, Tensor) else lr


def check_options(name, **options):
    """ValueError unless the options lie where the method makes sense: [0, ∞) with NaN refused, [0, 1) for `betas`, which are two. TypeError
    for what is no number."""
    for option, value in options.items():
        if option == "betas":
            pair_of_numbers(name, option, value)
        else:
            real_numbers(name, **{option: value})
        check(not isinstance(value, Tensor) or value.numel() == 1, name, f"{option} as a number or a tensor of one element",
              getattr(value, "shape", None), error=ValueError)
        if option == "betas":
            check(all(0 <= b < 1 for b in value), name, "0 ≤ beta < 1", value, error=ValueError)
        else:
            check(value >= 0, name, f"{option} ≥ 0", value, error=ValueError)


def pair_of_numbers(name, option, value):
    """TypeError unless the value of an option is a sequence of numbers, ValueError unless it has two."""
    check(isinstance(value, (tuple, list)), name, f"two numbers as {option}", repr(value), error=TypeError)
    check(len(value) == 2, name, f"two numbers as {option}", len(value), error=ValueError)
    real_numbers(name, **{f"{option}[{k}]": v for k, v in enumerate(value)})


def check_switches(name, foreach, fused, differentiable):
    """PyTorch's choices of implementation: there is one here, so they are accepted, but for a fused one that is differentiable."""
    check(not (foreach and fused), name, "foreach or fused", "both")
    check(not (fused and differentiable), name, "fused or differentiable", "both")
