"""fully_shard: parameters, gradients and the optimizer's state in parts, one a rank."""
from tritorch import cuda
from tritorch import distributed as dist
from tritorch.autograd.modes import no_grad
from tritorch.device import cpu
from tritorch.device import device as Device
from tritorch.distributed.fsdp.group import Group
from tritorch.distributed.fsdp.meshes import NAME, Meshes
from tritorch.distributed.fsdp.module import FSDPModule, state_of
from tritorch.distributed.fsdp.parameter import Cut
from tritorch.distributed.fsdp.policies import MixedPrecisionPolicy, OffloadPolicy
from tritorch.distributed.fsdp.state import State
from tritorch.distributed.tensor import Shard
from tritorch.errors import check
from tritorch.nn.container import ModuleDict, ModuleList
from tritorch.nn.module import Module
from tritorch.nn.parameter import UninitializedParameter

_classes: dict = {}                                                      # of sharded modules, by the class that they had


def fully_shard(module, *, mesh=None, reshard_after_forward=None, shard_placement_fn=None, mp_policy=MixedPrecisionPolicy(),  # noqa: B008
                offload_policy=OffloadPolicy(), ignored_params=None):    # noqa: B008
    """Shard the parameters of a module, or of a list of modules which are gathered together, over the ranks of a mesh; returns it.

    Parameters that are in no module below to which it was applied before are one group: apply it to the blocks of a model first, then to
    the model. Each becomes a DTensor, of which every rank has ceil(n / ranks) rows of dim 0 (or of the dim in the `Shard` that
    `shard_placement_fn(parameter)` returns, whose size the ranks divide). Before the forward pass of a module its group is gathered, and
    once more before its backward pass; after that gradients are averaged, and each rank has in `.grad` those of its shards. An optimizer
    made of `module.parameters()` afterwards steps on the shards, as one of a single process with all batches would. Rajbhandari et al.,
    "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020; Zhao et al., "PyTorch FSDP", VLDB 2023.

    * `mesh`: a DeviceMesh of one dim (by default all ranks), or of two with names: (replicas, shards), where shards are the same in all
      replicas and gradients are averaged over both.
    * `reshard_after_forward`: whether the whole parameters are given back between forward and backward; None: unless the module is the
      outermost one. A number: they stay sharded, among so many ranks.
    * `mp_policy`: a MixedPrecisionPolicy. `offload_policy`: CPUOffloadPolicy() for shards on the CPU.
    * `ignored_params`: a set of parameters that stay what they are.

    The module is of another class then, FSDP and its name, a subclass of its own and of FSDPModule. Parameters that modules share must be
    in one group. They may be frozen, be used several times, be in `utils.checkpoint`, and be DTensors of tensor parallelism on another
    part of the same mesh, whose parts are cut then. Raises ValueError for meshes of more dims, for containers without a forward and for
    parameters of no dims, NotImplementedError for uneven shards of other dims than 0.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist, nn
    >>> from tritorch.distributed.fsdp import fully_shard
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> for layer in (model[0], model[2]):
    ...     _ = fully_shard(layer, mesh=dist.init_device_mesh("cpu", (1,)))
    >>> _ = fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    >>> model(torch.ones(5, 3)).sum().backward()
    >>> type(model).__name__, model[2].bias.placements, model[2].bias.grad.to_local()
    ('FSDPSequential', (Shard(dim=0),), tensor([5., 5.]))
    >>> dist.destroy_process_group()
    """
    modules = tuple(outermost(module)) if not isinstance(module, Module) else (module,)
    for one in modules:
        check(not isinstance(one, (ModuleList, ModuleDict)) or type(one).forward is not Module.forward, NAME, "a module that has a forward",
              type(one).__name__, error=ValueError)
        check(state_of(one) is None, NAME, "a module to which it was not applied before", type(one).__name__, error=AssertionError)
    mesh = default_mesh() if mesh is None else mesh
    meshes, device = Meshes(mesh), cpu if mesh.device_type == "cpu" else Device(mesh.device_type, cuda.current_device())
    automatic = reshard_after_forward is None
    home, ignored = meshes.after_forward(True if automatic else reshard_after_forward), set(ignored_params or ())
    places, buffers = found_in(modules, ignored)
    to_device([*places, *buffers], device)
    state = State(modules, device, mp_policy, automatic)
    with no_grad():
        cuts = [Cut(p, where, meshes, placement(shard_placement_fn, p)) for p, where in places.items()]
        if cuts:
            state.groups.append(Group(cuts, modules, meshes, home, device, mp_policy, offload_policy))
    for one in modules:
        kind = type(one)
        if kind not in _classes:
            _classes[kind] = type("FSDP" + kind.__name__, (FSDPModule, kind), {})
        one.__class__ = _classes[kind]
    return module


fully_shard.state = state_of


def default_mesh():
    """All ranks, on GPUs where there are some."""
    dist.init_process_group() if not dist.is_initialized() else None
    return dist.init_device_mesh("cuda" if cuda.is_available() else "cpu", (dist.get_world_size(),))


def outermost(modules):
    """The modules of a list that are in no other of it."""
    modules = list(dict.fromkeys(modules))
    check(modules and all(isinstance(m, Module) for m in modules), NAME, "a module or a list of modules", modules, error=ValueError)
    inside = {below for m in modules for below in m.modules() if below is not m}
    return [m for m in modules if m not in inside]


def placement(choose, parameter):
    """The Shard that a function wants for a parameter, or None. ValueError for something else."""
    found = None if choose is None else choose(parameter)
    check(found is None or isinstance(found, Shard), NAME, "a Shard or None from shard_placement_fn", repr(found), error=ValueError)
    return found


def managed(modules):
    """The modules below, themselves included, that belong to no other group: children first."""
    found = {}                                                           # in order, each once
    for module in modules:
        _add_managed(module, found)
    return list(found)


def _add_managed(module, found):
    for child in module.children():
        if child not in found and state_of(child) is None:
            _add_managed(child, found)
    found.setdefault(module)


def found_in(modules, ignored):
    """({parameter: [(module, name)] of all places that have it}, buffers) of a group."""
    places, buffers = {}, {}
    for module in managed(modules):
        for name, p in module._parameters.items():
            if p is None or p in ignored:
                continue
            check(not isinstance(p, UninitializedParameter), NAME, "parameters of known shapes", name,
                  use="a forward pass of the module before")
            check(p.ndim > 0, NAME, "parameters of at least one dim", name, use="one element instead of a scalar", error=ValueError)
            places.setdefault(p, []).append((module, name))
        buffers.update((id(b), b) for b in module._buffers.values() if b is not None)
    return places, list(buffers.values())


def to_device(tensors, device):
    """Move parameters and buffers, the same objects, to a device; those without memory stay without."""
    for x in tensors:
        if x.device is not device and not x.is_meta:
            x.data = x.to(device)
