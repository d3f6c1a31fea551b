"""FullyShardedDataParallel: PyTorch's first wrapper of sharded models, over the machinery of `fully_shard`."""
import contextlib
import functools
import warnings

from tritorch.autograd.places import stacklevel
from tritorch.distributed.fsdp import optimizer_states
from tritorch.distributed.fsdp.api import (  # noqa: F401
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    OptimStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from tritorch.distributed.fsdp.flat_parameter import FlatParameter, Handle
from tritorch.distributed.fsdp.module import state_of
from tritorch.distributed.fsdp.norms import clip
from tritorch.distributed.fsdp.state_types import CHECKPOINTED, PREFIX, WRAPPED, clean, of_type, set_type, settings, units_of
from tritorch.distributed.fsdp.summoned import summon
from tritorch.distributed.fsdp.unit_states import loading, saved
from tritorch.distributed.fsdp.units import HYBRID, NAME, begin_unit, device_for, mesh_for
from tritorch.distributed.fsdp.without_precision import in_float32
from tritorch.distributed.fsdp.wrap import _or_policy, _Policy, _recursive_wrap, _wrap_chosen, transformer_auto_wrap_policy
from tritorch.errors import check
from tritorch.nn.container import ModuleDict, ModuleList
from tritorch.nn.module import Module
from tritorch.profiler.recorder import record_function

FSDP_WRAPPED_MODULE, FSDP_PREFIX = WRAPPED, PREFIX


class FullyShardedDataParallel(Module):
    """`module` with its parameters in parts, one a rank, but for the time in which it computes with them. Parameters of modules below
    that are wrapped themselves (by hand, or by `auto_wrap_policy`: see `fsdp.wrap`) are gathered with those, the others with this one.
    New programs call `fully_shard`, whose machinery this is. Zhao et al., "PyTorch FSDP", VLDB 2023.

    Before forward of a unit its parameters are gathered, and before its backward once more; after that gradients are averaged over all
    ranks, and the optimizer, made after this or with `use_orig_params` before, steps on this rank's part. The result is that of one
    process with all batches.

    * `sharding_strategy`: a ShardingStrategy; in a world of one it becomes NO_SHARD. HYBRID_SHARD wants a `device_mesh` of two dims,
      (replicas, shards), a tuple of such process groups, (shards, replicas), or a policy: then nodes are replicas of each other.
    * `mixed_precision`: a MixedPrecision; with a policy, batch norms become units of their own that compute in float32.
    * `cpu_offload`: CPUOffload(offload_params=True) for shards on the CPU. `device_id`: where the module computes.
    * `ignored_modules`, `ignored_states` (modules or parameters): what stays as it is.
    * `param_init_fn(module)` gives memory to modules on meta; `sync_module_states`: all ranks take over what rank 0 has.
    * `backward_prefetch=None` gathers nothing early in backward. BACKWARD_POST does what BACKWARD_PRE does, and `forward_prefetch` and
      `limit_all_gathers` change nothing: they are about time and memory alone, and the machinery has an order of its own.

    Outside of forward and backward, parameters have the names that they have in the module, with "_fsdp_wrapped_module." in them, and
    are DTensors of their full shapes, with and without `use_orig_params`. This differs from PyTorch, which has flat pieces, and without
    `use_orig_params` one FlatParameter of all of a unit. What optimizers compute element by element is the same; `_flat_param` tells
    what accelerate asks of one. Uniform dtypes and `requires_grad` in a unit are not needed. State dicts have the names of the module
    alone, and whole tensors unless `state_dict_type` says otherwise; SHARDED_STATE_DICT has DTensors, LOCAL_STATE_DICT their parts.

    Raises ValueError for a mesh that does not fit the strategy, for modules that a policy would wrap twice and for parameters of no dims,
    NotImplementedError for `keep_low_precision_grads`.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist, nn
    >>> from tritorch.distributed.fsdp import FullyShardedDataParallel as FSDP
    >>> from tritorch.distributed.fsdp.wrap import ModuleWrapPolicy
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id="cpu")
    >>> model(torch.ones(5, 3)).sum().backward()
    >>> list(model.state_dict()), model[2].bias.grad.to_local()
    (['0.weight', '0.bias', '2.weight', '2.bias'], tensor([5., 5.]))
    >>> dist.destroy_process_group()
    """

    def __init__(self, module, process_group=None, sharding_strategy=None, cpu_offload=None, auto_wrap_policy=None,
                 backward_prefetch=BackwardPrefetch.BACKWARD_PRE, mixed_precision=None, ignored_modules=None, param_init_fn=None,
                 device_id=None, sync_module_states=False, forward_prefetch=False, limit_all_gathers=True, use_orig_params=False,
                 ignored_states=None, device_mesh=None):
        """Long: the arguments of PyTorch's."""
        super().__init__()
        if isinstance(module, (ModuleList, ModuleDict)):
            warnings.warn(f"{NAME}: nothing gathers the parameters of a container without a forward, {type(module).__name__}",
                          stacklevel=stacklevel())
        self.mixed_precision, self.cpu_offload = mixed_precision or MixedPrecision(), cpu_offload or CPUOffload()
        check(not self.mixed_precision.keep_low_precision_grads, NAME, "keep_low_precision_grads=False", "True", error=NotImplementedError)
        self.sharding_strategy = strategy = sharding_strategy or ShardingStrategy.FULL_SHARD
        self._ignored_modules, self._ignored_params = ignored(ignored_modules, ignored_states)
        self.compute_device = device_for(module, device_id, device_mesh)
        mesh = mesh_for(strategy, process_group, device_mesh, auto_wrap_policy is not None, self.compute_device.type)
        if mesh.size() == 1 and strategy is not ShardingStrategy.NO_SHARD:
            self.sharding_strategy = ShardingStrategy.NO_SHARD
        self._device_mesh, self._use_orig_params = mesh, use_orig_params
        self.backward_prefetch, self.forward_prefetch, self.limit_all_gathers = backward_prefetch, forward_prefetch, limit_all_gathers
        if auto_wrap_policy is not None:
            wrap_below(module, auto_wrap_policy, self._ignored_modules, {
                "sharding_strategy": strategy, "cpu_offload": cpu_offload, "backward_prefetch": backward_prefetch,
                "mixed_precision": mixed_precision, "param_init_fn": param_init_fn, "device_id": device_id, "device_mesh": mesh,
                "sync_module_states": sync_module_states, "forward_prefetch": forward_prefetch, "limit_all_gathers": limit_all_gathers,
                "use_orig_params": use_orig_params, "ignored_states": self._ignored_params})
        meshes = begin_unit(self, module, mesh, self.compute_device, precision=self.mixed_precision, offload=self.cpu_offload,
                            param_init_fn=param_init_fn, sync_module_states=sync_module_states)
        state_of(self).prefetches = backward_prefetch is not None
        shards, replicas = meshes.shards, meshes.replicas
        self.process_group = replicas if replicas is not None and strategy not in HYBRID else shards
        self.rank, self.world_size, self._inter_node_pg = self.process_group.rank(), self.process_group.size(), replicas
        self._state_dict_type, self._state_dict_config = StateDictType.FULL_STATE_DICT, FullStateDictConfig()
        self._optim_state_dict_config = FullOptimStateDictConfig()
        self._register_state_dict_hook(saved)
        self.register_load_state_dict_pre_hook(loading)
        self._fsdp_wrapped_module = module

    # -------------------------------------------------------------- the module inside
    @property
    def module(self):
        """The wrapped module, without a wrapper of activations between."""
        inside = self._modules[WRAPPED]
        return inside._modules.get(CHECKPOINTED, inside)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if WRAPPED not in vars(self).get("_modules", ()):
                raise
            return getattr(self.module, name)

    def __getitem__(self, key):
        return self.module[key]

    def forward(self, *args, **kwargs):
        with record_function("FullyShardedDataParallel.forward"):
            return self._modules[WRAPPED](*args, **kwargs)

    @staticmethod
    def fsdp_modules(module, root_only=False):
        """The wrappers in a module, itself included; `root_only`: those that are in no other."""
        found = units_of(module)
        inside = {below for unit in found for below in unit.modules() if below is not unit}
        return [unit for unit in found if not root_only or unit not in inside]

    def check_is_root(self):
        """Whether this is the outermost wrapper. Asked before the first forward pass, of the outermost one first."""
        state_of(self).begin()
        return state_of(self).is_root

    _is_root = property(lambda self: state_of(self).is_root)
    _has_params = property(lambda self: bool(state_of(self).groups))
    _flat_param = property(lambda self: FlatParameter(state_of(self)) if self._has_params else None)
    _handle = property(lambda self: Handle(self._flat_param) if self._has_params else None)

    # -------------------------------------------------------------- whole parameters
    @staticmethod
    def summon_full_params(module, recurse=True, writeback=True, rank0_only=False, offload_to_cpu=False, with_grads=False):
        """A context in which a module has its whole parameters, under their plain names, in the dtype of the shards: with `recurse` those
        of all units in it. What is written to them stays with `writeback`; with `with_grads` they have their gradients. `rank0_only`: of
        rank 0 alone; `offload_to_cpu`: on the CPU. The objects are others than outside. No forward pass may begin inside.
        NotImplementedError for `writeback` with `rank0_only` and for `with_grads` with `offload_to_cpu`.

        >>> import tritorch as torch
        >>> from tritorch import distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1)
        >>> model = FullyShardedDataParallel(torch.nn.Linear(2, 1), device_id="cpu")
        >>> with FullyShardedDataParallel.summon_full_params(model):
        ...     [(name, tuple(p.shape)) for name, p in model.named_parameters()]
        [('weight', (1, 2)), ('bias', (1,))]
        >>> dist.destroy_process_group()
        """
        units = units_of(module) if recurse else [m for m in [module] if isinstance(m, FullyShardedDataParallel)]
        return summon([state_of(unit) for unit in units], "summon_full_params", writeback, rank0_only, offload_to_cpu, with_grads)

    def apply(self, fn):
        """Call `fn(module)` for every module below, then for this one, while they have their whole parameters."""
        with self.summon_full_params(self, recurse=False):
            return super().apply(fn)

    def named_parameters(self, *args, **kwargs):
        """All parameters with their names: plain ones inside of `summon_full_params`."""
        return self._named(super().named_parameters(*args, **kwargs))

    def named_buffers(self, *args, **kwargs):
        """All buffers with their names: plain ones inside of `summon_full_params`."""
        return self._named(super().named_buffers(*args, **kwargs))

    def _named(self, found):
        for name, x in found:
            yield clean(name) if state_of(self).summoned else name, x

    def _apply(self, *args, **kwargs):
        states = [state_of(unit) for unit in units_of(self)]
        for state in states:
            state.sharded()
        made = super()._apply(*args, **kwargs)
        for state in states:
            state.sharded()
        return made

    # -------------------------------------------------------------- gradients
    @contextlib.contextmanager
    def no_sync(self):
        """A context whose backward passes leave each rank its own gradients: they add up, of the size of the whole parameters, until one
        outside of it. RuntimeError for an inner unit."""
        check(self.check_is_root(), "no_sync", "the outermost unit", "an inner one")
        groups = [group for unit in units_of(self) for group in state_of(unit).groups]
        before = [(group, group.reduce_grads, group.all_reduce_grads) for group in groups]
        for group in groups:
            group.reduce_grads = group.all_reduce_grads = False
        try:
            yield
        finally:
            for group, reduces, all_reduces in before:
                group.reduce_grads, group.all_reduce_grads = reduces, all_reduces

    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        """Scale all gradients in place so that their norm, as one vector, is at most `max_norm`; returns what it was. All ranks call it.
        Sums are in float32 at least. RuntimeError for an inner unit."""
        check(self.check_is_root(), "clip_grad_norm_", "the outermost unit", "an inner one")
        if all(p.grad is None for p in self.parameters()):
            warnings.warn(f"{NAME}.clip_grad_norm_: no gradients on rank {self.rank}", stacklevel=stacklevel())
        return clip(list(self.parameters()), max_norm, norm_type, self.compute_device)

    def register_comm_hook(self, state, hook):
        """Let a hook say what becomes of the gradients of each unit, flat and not yet divided: `hook(state, whole, part)` puts into
        `part` what this rank gets of the average, `hook(state, whole)` for NO_SHARD changes it in place. Both have gaps of zeros between
        parameters. AssertionError for an inner unit, a second hook and hybrid strategies, ValueError for what cannot be called."""
        name = "register_comm_hook"
        check(self.check_is_root(), name, "the outermost unit", "an inner one", error=AssertionError)
        check(callable(hook), name, "a hook that can be called", type(hook).__name__, error=ValueError)
        for unit in units_of(self):
            check(unit.sharding_strategy not in HYBRID, name, "no hybrid strategy", unit.sharding_strategy.name, error=AssertionError)
            for group in state_of(unit).groups:
                check(group.comm_hook is None, name, "one hook", "a second", error=AssertionError)
                group.comm_hook = functools.partial(hook, state)

    # -------------------------------------------------------------- state dicts
    @staticmethod
    def set_state_dict_type(module, state_dict_type, state_dict_config=None, optim_state_dict_config=None):
        """Say how the state dicts of a model and of its optimizer are made; returns the StateDictSettings of before. RuntimeError for
        configurations of another type."""
        return set_type(module, state_dict_type, state_dict_config, optim_state_dict_config)

    @staticmethod
    def get_state_dict_type(module):
        """The StateDictSettings of a model. AssertionError where units differ."""
        return settings(module)

    @staticmethod
    def state_dict_type(module, state_dict_type, state_dict_config=None, optim_state_dict_config=None):
        """A context with what `set_state_dict_type` says.

        >>> import tritorch as torch, warnings
        >>> from tritorch import distributed as dist
        >>> from tritorch.distributed.fsdp import FullStateDictConfig
        >>> dist.init_process_group("gloo", rank=0, world_size=1)
        >>> model = FullyShardedDataParallel(torch.nn.Linear(2, 1), device_id="cpu")
        >>> with warnings.catch_warnings(action="ignore"):
        ...     with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
        ...         list(model.state_dict())
        ['weight', 'bias']
        >>> dist.destroy_process_group()
        """
        return of_type(module, state_dict_type, state_dict_config, optim_state_dict_config)

    optim_state_dict = staticmethod(optimizer_states.optim_state_dict)
    optim_state_dict_to_load = staticmethod(optimizer_states.optim_state_dict_to_load)
    full_optim_state_dict = staticmethod(optimizer_states.full_optim_state_dict)
    sharded_optim_state_dict = staticmethod(optimizer_states.sharded_optim_state_dict)
    shard_full_optim_state_dict = staticmethod(optimizer_states.shard_full_optim_state_dict)
    scatter_full_optim_state_dict = staticmethod(optimizer_states.scatter_full_optim_state_dict)
    flatten_sharded_optim_state_dict = staticmethod(optimizer_states.flatten_sharded_optim_state_dict)
    rekey_optim_state_dict = staticmethod(optimizer_states.rekey_optim_state_dict)


def ignored(modules, states):
    """(modules, parameters) that are left alone. ValueError for both arguments, and for wrappers among them."""
    check(modules is None or not states, NAME, "ignored_modules or ignored_states", "both", error=ValueError)
    given = list(states or modules or ())
    found = {below for m in given if isinstance(m, Module) for below in m.modules()}
    check(not any(isinstance(m, FullyShardedDataParallel) for m in found), NAME, "ignored modules without units", "one", error=ValueError)
    return found, {p for m in found for p in m.parameters()} | {p for p in given if not isinstance(p, Module)}


def wrap_below(module, policy, ignored_modules, arguments):
    """Wrap what a policy chooses below a module. ValueError where something is wrapped already."""
    check(not units_of(module), NAME, "modules without units for auto_wrap_policy", "some", error=ValueError)
    precision, classes = arguments["mixed_precision"], ()
    if precision is not None:
        classes = tuple(in_float32(module, tuple(precision._module_classes_to_ignore)))
    if isinstance(policy, _Policy):
        chosen = policy._run_policy(module, ignored_modules, arguments)
        for below in module.modules():
            if classes and isinstance(below, classes) and below not in ignored_modules:
                chosen[below] = {**chosen.get(below, arguments), "mixed_precision": None}
        _wrap_chosen(module, chosen, FullyShardedDataParallel)
        return
    if classes:
        too = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=classes)
        policy = functools.partial(_or_policy, policies=[policy, too])
    _recursive_wrap(module, policy, FullyShardedDataParallel, ignored_modules, arguments["ignored_states"], only_wrap_children=True,
                    **arguments)
