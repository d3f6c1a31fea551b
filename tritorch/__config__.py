"""What tritorch is built with, under PyTorch's name: nothing is built."""


def show():
    """A line about each thing that matters to speed.

    >>> import tritorch; print(tritorch.__config__.show().splitlines()[0])
    tritorch, in Python alone:
    """
    import numpy as np

    from tritorch import __version__, version

    return f"tritorch, in Python alone:\n  - tritorch {__version__}\n  - numpy {np.__version__}, for the CPU\n  - CUDA {version.cuda}\n"


def parallel_info():
    """How many threads the CPU's operators use.

    >>> import tritorch; tritorch.__config__.parallel_info().startswith("threads: ")
    True
    """
    from tritorch.threads import get_num_threads

    return f"threads: {get_num_threads()}\n"
