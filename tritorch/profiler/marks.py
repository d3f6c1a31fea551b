"""`tritorch.ops.profiler`: one call begins what another ends, where `record_function` would be a block. PyTorch's own programs write so."""
from tritorch.ops.namespaces import OpOverload, add
from tritorch.profiler.recorder import record_function


def enter(name, args=None):
    """Begin what profilers show under a name; the result is for `_record_function_exit`.

    >>> import tritorch as torch
    >>> with torch.profiler.profile() as prof:
    ...     mark = torch.ops.profiler._record_function_enter_new("three")
    ...     y = torch.full((2,), 3.0)
    ...     torch.ops.profiler._record_function_exit(mark)
    >>> [e.name for e in prof.events() if e.cpu_parent is not None and e.cpu_parent.name == "three"]
    ['aten::fill_']
    """
    return record_function(name, args).__enter__()


def leave(record):
    """End what `enter` began."""
    record.__exit__(None, None, None)


for _name, _overload, _function in (("_record_function_enter", "default", enter), ("_record_function_enter_new", "default", enter),
                                    ("_record_function_exit", "_RecordFunction", leave)):
    add(OpOverload("profiler", _name, _overload, _function), "profiler", _name, _overload)
