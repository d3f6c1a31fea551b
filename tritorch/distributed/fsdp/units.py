"""Units of FullyShardedDataParallel: a wrapped module, and of the parameters in it those that no unit below has, as one group."""
import os
import weakref

import numpy as np

from tritorch import cuda
from tritorch import distributed as dist
from tritorch.autograd.modes import no_grad
from tritorch.autograd.modes import state as modes
from tritorch.device import as_device, cpu
from tritorch.device import device as Device
from tritorch.distributed.device_mesh import DeviceMesh, init_device_mesh
from tritorch.distributed.fsdp.api import ShardingStrategy
from tritorch.distributed.fsdp.containers import cast
from tritorch.distributed.fsdp.group import Group
from tritorch.distributed.fsdp.meshes import Meshes
from tritorch.distributed.fsdp.parameter import Cut
from tritorch.distributed.fsdp.policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from tritorch.distributed.fsdp.sharding import found_in, managed, to_device
from tritorch.distributed.fsdp.state import State
from tritorch.distributed.world import new_group
from tritorch.errors import check
from tritorch.nn.parallel.synchronize import broadcast
from tritorch.utils.swapping import swap_tensors

NAME = "FullyShardedDataParallel"
HYBRID = ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2
AGAIN = ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD       # after forward parameters are sharded, and gathered for backward
DIMS = "replicate", "shard"
_lone: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()           # by group: the group of this process alone


class UnitState(State):
    """The state of one unit, which its wrapper has as `_fsdp_state`."""

    def __init__(self, wrapper, device, precision, automatic):
        policy = MixedPrecisionPolicy(precision.param_dtype, precision.reduce_dtype or precision.param_dtype)
        super().__init__([wrapper], device, policy, automatic)
        self.precision, self.summoned, self.buffer_dtypes = precision, False, {}     # the dtypes that buffers had, by (module, name)

    def begin(self):
        if self.is_root is None:
            super().begin()
            for state in reversed(self.iteration.all()):                 # inner ones first: buffers belong to the innermost unit
                if isinstance(state, UnitState):
                    state.cast_buffers()

    def cast_buffers(self):
        """Buffers have another dtype from the first pass on."""
        kind, wrapper = self.precision.buffer_dtype, self.modules[0]()
        for module in managed([wrapper]) if kind is not None else ():
            for name, buffer in module._buffers.items() if module not in wrapper._ignored_modules else ():
                if buffer is not None and buffer.dtype.is_floating_point and buffer.dtype is not kind:
                    self.buffer_dtypes[module, name] = buffer.dtype
                    setattr(module, name, buffer.to(kind))

    def _before(self, module, args, kwargs):
        check(not self.summoned, f"{NAME}.forward", "no forward pass inside of summon_full_params", "one", error=ValueError)
        return super()._before(module, args, kwargs)

    def _cast_inputs(self, args, kwargs):
        of = self.precision
        casts = of.cast_forward_inputs or self.is_root and of.cast_root_forward_inputs
        return cast(of.param_dtype, (args, kwargs)) if casts and of.param_dtype is not None else (args, kwargs)

    def _root_after(self, output):
        output = super()._root_after(output)
        if not modes.grad and modes.run is None:                         # no backward pass comes, after which modules would show shards
            for state in self.iteration.all():
                for group in state.groups:
                    group.reshard(entirely=True)
        return output

    def title(self):
        return type(self.modules[0]().module).__name__

    def sharded(self):
        """The groups (one, or none), after the module has got its shards back."""
        for group in self.groups:
            group.reshard(entirely=True)
            group.adopt()
        return self.groups


def begin_unit(wrapper, module, mesh, device, *, precision, offload, param_init_fn, sync_module_states):
    """Shard what no unit inside of a module has, for its wrapper."""
    materialize(module, wrapper._ignored_modules, device, param_init_fn)
    places, buffers = found_in((module,), wrapper._ignored_params)
    to_device([*places, *buffers], device)
    meshes, again = Meshes(mesh), wrapper.sharding_strategy in AGAIN
    if sync_module_states:
        for group in (meshes.shards, meshes.replicas):
            if group is not None and group.size() > 1:
                broadcast([*places, *buffers], group, 0)
    state = UnitState(wrapper, device, precision, again)
    with no_grad():
        cuts = [cut_of(p, where, meshes) for p, where in places.items()]
        if cuts:
            policy = CPUOffloadPolicy() if offload.offload_params else OffloadPolicy()
            state.groups.append(Group(cuts, (module,), meshes, meshes.after_forward(again), device, state.mp_policy, policy))
    return meshes


def cut_of(parameter, places, meshes):
    """Cut a parameter. The object becomes that of this rank's part: an optimizer may hold it already."""
    cut, attributes = Cut(parameter, places, meshes, None), dict(vars(parameter))
    swap_tensors(parameter, cut.sharded)
    cut.sharded = parameter
    cut.register(parameter)
    for name, value in attributes.items():
        if name not in vars(parameter):
            setattr(parameter, name, value)
    return cut


def materialize(module, ignored, device, param_init_fn):
    """Give memory to what is on meta in a module: by a function of each module in it, or by `to_empty` and `reset_parameters`."""
    inside = [m for m in reversed(managed((module,))) if m not in ignored]
    tensors = lambda m: [x for x in [*m._parameters.values(), *m._buffers.values()] if x is not None]
    if not any(x.is_meta for m in inside for x in tensors(m)):
        return
    for m in inside:
        if param_init_fn is not None:
            param_init_fn(m)
        elif tensors(m):
            m.to_empty(device=device, recurse=False)
            m.reset_parameters()


# ------------------------------------------------------------------ where
def device_for(module, device_id, mesh):
    """Where a module computes: as told, or on the GPU on which it is, or on the current one if there are some."""
    if isinstance(device_id, int):
        return Device("cuda", device_id)
    if device_id is not None:
        found = as_device(device_id)
        return found if found is cpu or found.index is not None else Device(found.type, cuda.current_device())
    for p in module.parameters():
        if p.device is not cpu and not p.is_meta:
            return p.device
    on_gpu = cuda.is_available() if mesh is None else mesh.device_type != "cpu"
    return Device("cuda", cuda.current_device()) if on_gpu else cpu


def mesh_for(strategy, process_group, mesh, wraps, kind):
    """The mesh of a sharding strategy: of one dim, or of two, (replicas, shards). `wraps`: a policy makes the units below, of which all
    get the same mesh. ValueError for a mesh that does not fit."""
    check(process_group is None or mesh is None, NAME, "a process_group or a device_mesh", "both", error=ValueError)
    hybrid = strategy in HYBRID
    if hybrid and mesh is None:
        check(process_group is not None or wraps, NAME, f"a device_mesh or process groups for {strategy.name}", "neither", error=ValueError)
        return nodes(kind) if process_group is None else replicated(*process_group, kind)
    if mesh is None:
        dist.init_process_group() if not dist.is_initialized() else None
        mesh = DeviceMesh.from_group(dist.group.WORLD if process_group is None else process_group, kind)
    alone = mesh.ndim == 2 and mesh.size(1) == 1
    check(mesh.ndim == 2 if hybrid else mesh.ndim == 1 or alone, NAME, f"a device_mesh of {1 + hybrid} dims for {strategy.name}", mesh,
          error=ValueError)
    if strategy is ShardingStrategy.NO_SHARD and mesh.ndim == 1 and mesh.size() > 1:
        return whole_on_each(mesh)
    if mesh.ndim == 2 and mesh.mesh_dim_names is None:
        return DeviceMesh(kind, mesh.mesh, mesh_dim_names=DIMS, _groups=mesh.get_all_groups())
    return mesh


def nodes(kind):
    """Replicas on nodes, of which each has as many ranks as it has GPUs, or as its launcher has started processes."""
    size, local = dist.get_world_size(), int(os.environ.get("LOCAL_WORLD_SIZE", 0)) or cuda.device_count() or 1
    check(size % local == 0, NAME, f"a world of nodes of {local} processes each", size, use="device_mesh", error=ValueError)
    return init_device_mesh(kind, (size // local, local), mesh_dim_names=DIMS)


def replicated(shards, replicas, kind):
    """The mesh of two groups, counted evenly along both."""
    ranks = np.asarray(replicas.ranks)[:, None] - dist.get_rank() + np.asarray(shards.ranks)
    return DeviceMesh(kind, ranks, mesh_dim_names=DIMS, _groups=[replicas, shards])


def whole_on_each(mesh):
    """Each rank has all: a mesh of replicas of one shard."""
    group = mesh.get_group(0)
    if group not in _lone:
        _lone[group] = new_group([dist.get_rank()], use_local_synchronization=True)
    return DeviceMesh(mesh.device_type, mesh.mesh.view(-1, 1), mesh_dim_names=DIMS, _groups=[group, _lone[group]])
