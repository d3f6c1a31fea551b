"""cuDNN is not used: convolutions and attention are kernels of our own, deterministic, their configurations from tables."""
import contextlib
import sys
import types

from tritorch.precision import get_float32_matmul_precision

enabled, benchmark, deterministic, benchmark_limit = False, False, True, 10   # may be set; nothing reads them


class _Switches(types.ModuleType):
    @property
    def allow_tf32(self):
        """Whether float32 convolutions round their operands to TF32: where matrix products do. Setting it changes nothing; use
        `tritorch.set_float32_matmul_precision`."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value):
        pass


def is_available():
    """Always False.

    >>> import tritorch; tritorch.backends.cudnn.is_available()
    False
    """
    return False


def version():
    """None: there is none."""
    return None


@contextlib.contextmanager
def flags(enabled=False, benchmark=False, benchmark_limit=10, deterministic=True, allow_tf32=True):
    """Context manager: the switches have these values inside."""
    names = ("enabled", "benchmark", "benchmark_limit", "deterministic")
    before = [globals()[name] for name in names]
    globals().update(zip(names, (enabled, benchmark, benchmark_limit, deterministic)))
    try:
        yield
    finally:
        globals().update(zip(names, before))


sys.modules[__name__].__class__ = _Switches
