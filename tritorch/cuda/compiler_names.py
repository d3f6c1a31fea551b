"""Names of Gluon that came after Triton 3.6, in which kernels here are written: later versions know some under other names alone, or say
of the older ones that they are gone."""
import contextlib
import importlib

GLUON = "triton.experimental.gluon.language"
NAMES = (                                                                # where, in something of it, the older name, the newer
    (f"{GLUON}._core", "shared_memory_descriptor", "_reinterpret", "reinterpret"),
    (f"{GLUON}.nvidia.ampere.async_copy", "", "async_copy_global_to_shared", "async_load"),
    (f"{GLUON}.nvidia.hopper.tma", "", "async_copy_global_to_shared", "async_load"),
    (f"{GLUON}.nvidia.hopper.tma", "", "async_copy_shared_to_global", "async_store"),
    (GLUON, "", "thread_barrier", "barrier"))


@contextlib.contextmanager
def older():
    """Inside, the older names mean what the newer ones do; Gluon as it was after it."""
    with contextlib.ExitStack() as stack:
        for module, part, old, new in NAMES:
            home = importlib.import_module(module)
            home = getattr(home, part) if part else home
            if hasattr(home, new):
                before = vars(home).get(old)
                stack.callback(delattr, home, old) if before is None else stack.callback(setattr, home, old, before)
                setattr(home, old, getattr(home, new))
        yield
