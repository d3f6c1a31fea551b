"""The CPU: numpy, and compiled kernels where `tritorch.cpu.native` is on."""
import platform


def get_cpu_capability():
    """The processor's architecture; numpy chooses the widest instructions by itself.

    >>> import tritorch; isinstance(tritorch.backends.cpu.get_cpu_capability(), str)
    True
    """
    return platform.machine()
