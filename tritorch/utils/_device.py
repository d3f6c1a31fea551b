"""PyTorch's class for the device that is current inside of a `with` block."""
from tritorch.device import as_device

__all__ = ["DeviceContext"]


class DeviceContext:
    """Context manager: `with DeviceContext(device)` is `with tritorch.device(device)`.

    >>> import tritorch as torch
    >>> from tritorch.utils._device import DeviceContext
    >>> with DeviceContext("meta"):
    ...     torch.ones(2).device
    device(type='meta')
    """

    def __init__(self, device):
        self.device = as_device(device)

    def __enter__(self):
        self.device.__enter__()
        return self

    def __exit__(self, *exception):
        return self.device.__exit__(*exception)
