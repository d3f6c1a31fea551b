"""Batch norms that keep no running statistics, as `grad` over samples and `vmap` need them; and tensors without wrappers."""
from tritorch.errors import tensors
from tritorch.nn.norm import _BatchNorm
from tritorch.storage import Batched


def replace_all_batch_norm_modules_(root):
    """Have all batch norms inside of a module normalize by the batch alone, without running statistics, and return the module.

    >>> import tritorch as torch
    >>> model = torch.func.replace_all_batch_norm_modules_(torch.nn.Sequential(torch.nn.BatchNorm1d(2)))
    >>> model[0].running_mean is None, model[0].track_running_stats
    (True, False)
    """
    for module in root.modules():
        if isinstance(module, _BatchNorm):
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root


def debug_unwrap(tensor, *, recurse=True):
    """Of a tensor inside of `vmap` that of all samples, along its first dim; with `recurse` that of all vmaps around. Others as they are.

    >>> import tritorch as torch
    >>> y = torch.vmap(lambda x: print(x.shape, torch.func.debug_unwrap(x).shape) or x)(torch.ones(3, 2))
    tritorch.Size([2]) tritorch.Size([3, 2])
    """
    tensors("debug_unwrap", tensor=tensor)
    while type(tensor.storage) is Batched:
        tensor = Batched.shown(tensor)[1]
        if not recurse:
            break
    return tensor
