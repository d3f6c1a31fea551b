"""What tritorch is built with, under PyTorch's name: nothing is built."""


def show():
    """A line about each thing that matters to speed.

    >>> import tritorch; print(tritorch.__config__.show().splitlines()[0])
    tritorch, in Python alone:
    """
    import numpy as np

    from tritorch import version

    facts = f"tritorch {version.tritorch}", f"numpy {np.__version__}, for the CPU", f"CUDA {version.cuda}"
    return "".join(["tritorch, in Python alone:\n", *[f"  - {fact}\n" for fact in facts]])


def parallel_info():
    """How many threads the CPU's operators use.

    >>> import tritorch; tritorch.__config__.parallel_info().startswith("threads: ")
    True
    """
    from tritorch.threads import get_num_threads

    return f"threads: {get_num_threads()}\n"
