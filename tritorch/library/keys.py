"""Dispatch keys by PyTorch's names, and the guard by which operators leave some of them out."""
import contextlib
import enum

from tritorch import amp
from tritorch.errors import check
from tritorch.library.overload import below_autograd


class DispatchKey(enum.Enum):
    """What the functions of an operator stand under: see `tritorch.library.Library.impl`."""

    CPU, CUDA, Meta = "CPU", "CUDA", "Meta"
    Autograd, AutogradCPU, AutogradCUDA = "Autograd", "AutogradCPU", "AutogradCUDA"
    AutocastCPU, AutocastCUDA, AutocastXPU, AutocastMPS = "AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS"


class DispatchKeySet:
    """Some of them. `a | b` is the union, `key in a.keys` asks for one.

    >>> import tritorch as torch
    >>> both = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
    >>> with torch.autocast("cpu"), torch._C._ExcludeDispatchKeyGuard(both):
    ...     torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype
    tritorch.float32
    """

    def __init__(self, key):
        self.keys = frozenset([key])

    def __or__(self, other):
        out = DispatchKeySet(None)
        out.keys = self.keys | other.keys
        return out

    def has(self, key):
        """Whether key is one of them."""
        return key in self.keys


@contextlib.contextmanager
def excluded(keys):
    """Inside, autocast is off for the devices of the Autocast keys, and operators go past what stands under Autograd with its keys.
    Raises NotImplementedError for the keys of devices."""
    with contextlib.ExitStack() as stack:
        for key in sorted(k.value for k in keys.keys):
            check(key.startswith("Auto"), "_ExcludeDispatchKeyGuard", "keys of autocast and autograd", key, error=NotImplementedError)
            if key.startswith("Autograd"):
                stack.enter_context(below_autograd())
            elif key in ("AutocastCPU", "AutocastCUDA"):
                stack.enter_context(amp.autocast(key.removeprefix("Autocast").lower(), enabled=False))
        yield
