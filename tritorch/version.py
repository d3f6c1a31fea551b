"""Versions, under the names of torch.version."""
from importlib import metadata

from tritorch import __version__  # noqa: F401

hip = xpu = None                                                         # GPUs of other makers are not supported
debug = False


def _cuda():
    """The CUDA version that kernels are made for: that of the bindings to its driver; None without them."""
    try:
        return ".".join(metadata.version("cuda-bindings").split(".")[:2])
    except metadata.PackageNotFoundError:
        return None


cuda = _cuda()
