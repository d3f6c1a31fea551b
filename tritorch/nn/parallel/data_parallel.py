"""Modules on several devices, for the one device that there is: a wrapper with the module's results and PyTorch's names of parameters."""
import contextlib

from tritorch.distributed import is_initialized
from tritorch.errors import check
from tritorch.nn.module import Module

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]


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


class DistributedDataParallel(Module):
    """`module` in a world of one process (see tritorch.distributed): its gradients are the sums over all ranks already.

    Raises ValueError before `init_process_group`. Keys of the state dict begin with "module.", as in PyTorch; the arguments that
    say how gradients travel are accepted and change nothing.
    """

    def __init__(self, module, device_ids=None, output_device=None, dim=0, broadcast_buffers=None, init_sync=True, process_group=None,
                 bucket_cap_mb=None, find_unused_parameters=False, check_reduction=False, gradient_as_bucket_view=False,
                 static_graph=False, delay_all_reduce_named_params=None, param_to_hook_all_reduce=None, mixed_precision=None,
                 device_mesh=None, skip_all_reduce_unused_params=False, bucket_cap_mb_list=None, batched_grad_copy=False,
                 forward_sync_buffers=None):
        super().__init__()
        check(is_initialized(), "DistributedDataParallel", "the default process group", "none", error=ValueError,
              use="distributed.init_process_group() first")
        self.module = module
        self.require_backward_grad_sync = True

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self):
        """A context in which gradients are not summed over the ranks: it changes nothing."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before
