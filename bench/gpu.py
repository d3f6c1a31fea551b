"""Every operator's workloads on a GPU, PyTorch beside them where it is installed: medians of CUDA events, taking turns."""
import importlib.util
import statistics

from bench import rows
from bench.cards import declared, measured

REPEATS = 20


def milliseconds(events, calls):
    """{name: median of REPEATS} for calls that take turns; `events` makes a timing event of the library of that name."""
    times = {name: [] for name in calls}
    for turn in range(REPEATS + 3):
        for name, call in calls.items():
            start, end = events[name](), events[name]()
            start.record()
            call()
            end.record()
            end.synchronize()
            if turn >= 3:
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(found) for name, found in times.items()}


class Opponent:
    """PyTorch's operator of the same name on the same arguments, where there is one."""

    def __init__(self):
        self.torch = None
        if importlib.util.find_spec("torch"):
            import torch

            self.torch = torch if torch.cuda.is_available() else None

    def call(self, operator, values, ours):
        """A thunk, or None: no PyTorch, no operator of that name, or its result has another shape."""
        if self.torch is None:
            return None
        translated = [self.translate(v) for v in values]
        for place in (self.torch, self.torch.nn.functional, self.torch.Tensor):
            function = getattr(place, operator.__name__, None)
            if function is not None:
                try:
                    theirs = function(*translated)
                except (TypeError, RuntimeError, ValueError, IndexError, AttributeError):
                    continue
                if getattr(theirs, "shape", None) == getattr(ours, "shape", 0):
                    return lambda function=function: function(*translated)
        return None

    def translate(self, value):
        import tritorch

        if isinstance(value, tritorch.Tensor):
            return self.torch.from_dlpack(value.detach())
        if isinstance(value, tritorch.dtype):
            return getattr(self.torch, value.name)
        if isinstance(value, tritorch.device):
            return str(value)
        return tuple(map(self.translate, value)) if isinstance(value, (tuple, list)) else value


def limits(tritorch, events):
    """Measured in this run: GB/s of a device copy, read and written, and TFLOP/s of a bf16 product of 8192³."""
    x, y = (tritorch.empty(1 << 28, device="cuda") for _ in range(2))
    copy = milliseconds(events, {"tritorch": lambda: y.copy_(x)})["tritorch"]
    a = tritorch.randn(8192, 8192, device="cuda", dtype=tritorch.bfloat16)
    product = milliseconds(events, {"tritorch": lambda: a @ a})["tritorch"]
    return 2 * 4 * (1 << 28) / 1e6 / copy, 2 * 8192**3 / 1e9 / product


def main(args):
    import tritorch
    from tritorch.cuda import driver

    if not tritorch.cuda.is_available() or driver.current().name != "nvidia":
        print("gpu: expected an NVIDIA GPU, got none; `python -m bench host cards` measure without one")
        return
    opponent = Opponent()
    events = {"tritorch": lambda: tritorch.cuda.Event(enable_timing=True)}
    if opponent.torch is not None:
        events["torch"] = lambda: opponent.torch.cuda.Event(enable_timing=True)
    measured_limits, found = limits(tritorch, events), []
    for operator, label, arguments, nbytes, operations in declared("cuda", args.only):
        values = arguments()
        calls = {"tritorch": lambda operator=operator, values=values: operator(*values)}
        theirs = opponent.call(operator, values, calls["tritorch"]())
        if theirs is not None:
            calls["torch"] = theirs
        ms = milliseconds(events, calls)
        seconds = {name: t / 1e3 for name, t in ms.items()}
        name = f"{operator.__name__}, {label}"
        found.append(measured(name, nbytes, operations, seconds["tritorch"], seconds.get("torch"), measured_limits))
        print(name, rows.number(found[-1].ours), found[-1].unit, rows.number(found[-1].ratio), flush=True)
    version = opponent.torch and f"torch {opponent.torch.__version__}"
    rows.record("gpu", found, "python -m bench gpu", tritorch.cuda.get_device_name(), version,
                f"copy {measured_limits[0]:.0f} GB/s, matmul {measured_limits[1]:.0f} TFLOP/s", keep=not (args.quick or args.only))
