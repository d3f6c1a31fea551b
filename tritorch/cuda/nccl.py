"""What programs ask of NVIDIA's library for communication between GPUs, which comes with nccl4py (`pip install tritorch[nccl]`)."""
import importlib.util

from tritorch.errors import sentence

__all__ = ["is_available", "version"]


def is_available(tensors=()):
    """Whether nccl4py is installed, and each of the tensors is on a GPU of its own, dense and contiguous."""
    places = [x.device for x in tensors]
    fit = all(x.is_cuda and not x.is_sparse and x.is_contiguous() for x in tensors)
    return fit and len(set(places)) == len(places) and importlib.util.find_spec("nccl") is not None


def version():
    """The library's version as (major, minor, patch). RuntimeError where it is not installed."""
    try:
        from nccl.core import get_version

        found = get_version().libnccl
    except ImportError:
        found = None
    if found is None:
        raise RuntimeError(sentence("version", "NCCL", "no library of that name", use="pip install tritorch[nccl]"))
    return found.version.release
