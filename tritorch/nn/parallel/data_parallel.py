"""Modules on several devices of one process, for the one device that there is: the module's results and PyTorch's names of parameters."""
from tritorch.errors import check
from tritorch.nn.module import Module

__all__ = ["DataParallel", "data_parallel"]


class DataParallel(Module):
    """`module` on one device: batches are not split. Keys of the state dict begin with "module.", as in PyTorch.

    >>> import tritorch as torch
    >>> from tritorch import nn
    >>> model = nn.DataParallel(nn.Linear(3, 2))
    >>> model(torch.ones(4, 3)).shape, list(model.state_dict())
    (tritorch.Size([4, 2]), ['module.weight', 'module.bias'])
    """

    def __init__(self, module, device_ids=None, output_device=None, dim=0):
        super().__init__()
        check(len(device_ids or ()) < 2, "DataParallel", "one device (batches are not split)", device_ids)
        self.module = module

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


def data_parallel(module, inputs, device_ids=None, output_device=None, dim=0, module_kwargs=None):
    """module(*inputs) on the one device."""
    check(len(device_ids or ()) < 2, "data_parallel", "one device (batches are not split)", device_ids)
    return module(*(inputs if isinstance(inputs, tuple) else (inputs,)), **(module_kwargs or {}))
