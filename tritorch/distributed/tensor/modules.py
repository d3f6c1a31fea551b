"""Modules whose parameters are DTensors."""
from tritorch import nn
from tritorch.distributed.tensor.distribute import distribute_tensor, mesh_around
from tritorch.distributed.tensor.dtensor import DTensor
from tritorch.distributed.tensor.spec import whole_on_all
from tritorch.errors import check

__all__ = ["distribute_module"]


def distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None):
    """Make all parameters and buffers of a module DTensors, in place, and return it.

    `partition_fn(name, submodule, mesh)` is called for each submodule and may replace its parameters; what it leaves is replicated.
    `input_fn(module, inputs, mesh)` and `output_fn(module, outputs, mesh)` see what goes in and comes out, and may return others.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.tensor import distribute_module
    >>> mesh = dist.init_device_mesh("cpu", (1,))
    >>> distribute_module(torch.nn.Linear(2, 2), mesh).weight.placements
    (Replicate(),)
    >>> dist.destroy_process_group()
    """
    check(not getattr(module, "_distribute_module_applied", False), "distribute_module", "a module that was not distributed before",
          type(module).__name__)
    mesh = mesh_around("cpu") if device_mesh is None else device_mesh
    for name, submodule in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, submodule, mesh)
        _replicate(submodule, mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda module, inputs: input_fn(module, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda module, inputs, outputs: output_fn(module, outputs, mesh))
    module._distribute_module_applied = True
    return module


def _replicate(module, mesh):
    """What of a module's own tensors is not a DTensor yet, on each process."""
    for name, p in module._parameters.items():
        if p is not None and not isinstance(p, DTensor):
            module.register_parameter(name, nn.Parameter(distribute_tensor(p, mesh, whole_on_all(mesh)), requires_grad=p.requires_grad))
    for name, b in module._buffers.items():
        if b is not None and not isinstance(b, DTensor):
            module._buffers[name] = distribute_tensor(b.detach(), mesh, whole_on_all(mesh))
