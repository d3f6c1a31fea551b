"""PyTorch's tensors without memory for traces. There are none here: the device meta has such tensors."""


def is_fake(x):
    """Always False."""
    return False
