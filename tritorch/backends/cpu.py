"""The CPU: numpy."""
import platform


def get_cpu_capability():
    """The processor's architecture; numpy chooses the widest instructions by itself.

    >>> import tritorch; isinstance(tritorch.backends.cpu.get_cpu_capability(), str)
    True
    """
    return platform.machine()
