"""Marks of TorchScript that packages take from here: see `tritorch.jit`."""
from tritorch.jit import Final, _overload, _overload_method, export, ignore, is_scripting, unused  # noqa: F401
from tritorch.jit import script_method as _copy_to_script_wrapper  # noqa: F401
from tritorch.jit.annotations import BroadcastingList1, BroadcastingList2, BroadcastingList3  # noqa: F401
