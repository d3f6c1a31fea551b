"""What programs ask of torch._dynamo.utils."""
from tritorch.device import as_device


def is_compile_supported(device_type):
    """Whether `tritorch.compile` takes programs of such a device: those of all devices that there are.

    >>> is_compile_supported("cpu")
    True
    """
    return as_device(device_type) is not None
