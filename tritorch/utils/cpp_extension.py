"""Names of torch.utils.cpp_extension, by which programs ask for kernels in C++ and CUDA. They cannot be built here: a kernel is Triton's.

>>> from tritorch.utils.cpp_extension import CUDA_HOME
>>> CUDA_HOME is None
True
"""
__all__ = ["load", "load_inline"]

CUDA_HOME = None


def load(name, sources, **options):
    """Raises NotImplementedError."""
    raise NotImplementedError(f"load: expected a kernel in Triton, got {name!r} in C++; use tritorch.library for operators of your own")


def load_inline(name, cpp_sources, **options):
    """Raises NotImplementedError."""
    load(name, cpp_sources)
