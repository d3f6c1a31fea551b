"""Versions, under the names of torch.version."""
from importlib import metadata

from tritorch.torch_version import __version__, release  # noqa: F401

tritorch = release                                                       # our own, where __version__ begins with PyTorch's
hip = rocm = xpu = None                                                  # GPUs of other makers are not supported
debug = False


def _cuda():
    """The CUDA version that kernels are made for: that of the bindings to its driver; None without them."""
    try:
        return ".".join(metadata.version("cuda-bindings").split(".")[:2])
    except metadata.PackageNotFoundError:
        return None


cuda = _cuda()
