"""parallelize_module: styles for the submodules that a plan names."""
import warnings
from fnmatch import fnmatch

from tritorch.distributed.tensor.distribute import mesh_around
from tritorch.distributed.tensor.parallel.style import ParallelStyle
from tritorch.errors import check


def parallelize_module(module, device_mesh=None, parallelize_plan=None, *, src_data_rank=0):
    """Apply a style to a module, or styles to its submodules, in place, and return it.

    `parallelize_plan`: a style, or a dict of them by the names of submodules, in which * and ? stand for any characters between dots
    ("layers.*.w1"); "" is the module itself. `device_mesh` has one dim: `mesh["tp"]` of one that has several. Parameters get the values
    of rank `src_data_rank`, or with None keep those that each process has.
    """
    mesh = mesh_around("cpu") if device_mesh is None else device_mesh
    if parallelize_plan is None:
        warnings.warn("parallelize_module: expected a parallelize_plan, got none; nothing is done", stacklevel=2)
        return module
    if isinstance(parallelize_plan, ParallelStyle):
        parallelize_plan.src_data_rank = src_data_rank
        return parallelize_plan._apply(module, mesh)
    check(isinstance(parallelize_plan, dict), "parallelize_module", "a ParallelStyle or a dict of them as parallelize_plan",
          type(parallelize_plan).__name__, error=TypeError)
    for path, style in parallelize_plan.items():
        found = [module]
        for token in path.split(".") if path else ():
            found = [child for m in found for name, child in m.named_children() if fnmatch(name, token)]
        if not found:
            warnings.warn(f"parallelize_module: expected names of submodules of {type(module).__name__} in the plan, got {path!r}, which "
                          "none has; nothing is done for it", stacklevel=2)
        for submodule in found:
            parallelize_module(submodule, mesh, style, src_data_rank=src_data_rank)
    return module
