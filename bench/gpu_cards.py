"""Every operator's workloads, as its card declares them, PyTorch's operator of the same name beside it where there is one."""
from bench import clock
from bench.cards import declared, measured


def work(sides, rehearse):
    """(name, function that returns rows) of every workload."""
    limits = (1.0, 1.0)
    for operator, label, arguments, nbytes, operations in declared("cuda", ""):
        def measure(operator=operator, label=label, arguments=arguments, nbytes=nbytes, operations=operations):
            values = arguments()
            calls = {"tritorch": lambda: operator(*values)}
            theirs = opponent(sides, operator, values, calls["tritorch"]())
            if theirs is not None:
                calls["torch"] = theirs
            us, _ = clock.microseconds(calls, {name: sides.library(name) for name in calls})
            seconds = {name: t / 1e6 for name, t in us.items()}
            return [measured(f"{operator.__name__}, {label}", nbytes, operations, seconds["tritorch"], seconds.get("torch"), limits)]

        yield f"{operator.__name__}, {label}", measure


def programs(sides):
    """Every workload once."""
    for operator, label, arguments, _, _ in declared("cuda", ""):
        def program(operator=operator, arguments=arguments):
            operator(*arguments())

        program.__name__ = f"{operator.__name__}, {label}"
        yield program


def opponent(sides, operator, values, ours):
    """A thunk, or None: no PyTorch on this device, no operator of that name, or its result has another shape."""
    if not sides.on_gpu:
        return None
    torch = sides.torch
    translated = [translate(torch, v) for v in values]
    for place in (torch, torch.nn.functional, torch.Tensor):
        function = getattr(place, operator.__name__, None)
        if function is not None:
            try:
                theirs = function(*translated)
            except (TypeError, RuntimeError, ValueError, IndexError, AttributeError):
                continue
            if getattr(theirs, "shape", None) == getattr(ours, "shape", 0):
                return lambda function=function: function(*translated)
    return None


def translate(torch, value):
    import tritorch

    if isinstance(value, tritorch.Tensor):
        return torch.from_dlpack(value.detach())
    if isinstance(value, tritorch.dtype):
        return getattr(torch, value.name)
    if isinstance(value, tritorch.device):
        return str(value)
    return tuple(translate(torch, v) for v in value) if isinstance(value, (tuple, list)) else value
