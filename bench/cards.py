"""Every operator's workloads, as its card declares them: GB/s where memory is the limit, TFLOP/s where arithmetic is."""
import time

import numpy as np

from bench import rows
from bench.timing import race

LONGEST = 2.0                                                    # seconds: heavier workloads are a GPU's, not measured on a CPU
ARITHMETIC = 50                                                  # operations a byte from which on arithmetic is the limit


def declared(device, only):
    """(operator, label, thunk that makes its arguments, bytes, operations) of every workload."""
    import tritorch
    from tritorch.dispatch import registry

    tritorch.manual_seed(0)
    make = maker(tritorch, device)
    for name, operator in sorted(registry.items()):
        if rows.asked(only, name) and operator.workloads_body is not None:
            for label, arguments, nbytes, operations in operator.workloads_body(make):
                yield operator, label, arguments, nbytes, operations


def maker(torch, device):
    """`make` of the cards, drawing large tensors where they will be used; gradients are not what a workload times."""
    def make(*shape, dtype=torch.float32, low=None, high=None, positive=False, integer=False, grad=False, complex=False):
        if integer:
            drawn = torch.randint(-5 if low is None else low, 5 if high is None else high, shape, device=device)
            return drawn if dtype is torch.float32 else drawn.to(dtype)
        if positive:
            low, high = 0.5 if low is None else low, 2.0 if high is None else high
        drawn = torch.randn(*shape, device=device) if low is None else torch.rand(*shape, device=device) * (high - low) + low
        return torch.complex(drawn, drawn) if complex else drawn.to(dtype)

    return make


def measured(name, nbytes, operations, seconds, opponent, limits):
    """The row of a workload that took `seconds`."""
    arithmetic = operations > ARITHMETIC * max(nbytes, 1)
    amount, unit, limit = (operations / 1e12, "TFLOP/s", limits[1]) if arithmetic else (nbytes / 1e9, "GB/s", limits[0])
    return rows.row(name, unit, amount / seconds, amount / opponent if opponent else None, "torch", limit=limit)


def cpu_limits():
    """Measured on this machine: GB/s of a copy, read and written, and TFLOP/s of a float32 product."""
    source = np.ones(1 << 26, np.float32)
    target, square = np.empty_like(source), np.ones((2048, 2048), np.float32)
    seconds = race({"copy": lambda: np.copyto(target, source), "matmul": lambda: square @ square}, rounds=3)
    return 2 * source.nbytes / 1e9 / seconds["copy"], 2 * 2048**3 / 1e12 / seconds["matmul"]


def main(args):
    limits, found = cpu_limits(), []
    print(f"limits measured here: {limits[0]:.1f} GB/s, {limits[1]:.3f} TFLOP/s", flush=True)
    for operator, label, arguments, nbytes, operations in declared("cpu", args.only):
        if nbytes / 1e9 / limits[0] + operations / 1e12 / limits[1] < LONGEST / 10:
            values = arguments()
            start = time.perf_counter()
            operator(*values)                                    # also the warm-up
            if time.perf_counter() - start < LONGEST:
                seconds = race({"ours": lambda operator=operator, values=values: operator(*values)}, rounds=1 if args.quick else 3)["ours"]
                found.append(measured(f"{operator.__name__}, {label}", nbytes, operations, seconds, None, limits))
                print(found[-1].name, rows.number(found[-1].ours), found[-1].unit, flush=True)
    rows.record("cards", found, "python -m bench cards", f"copy {limits[0]:.1f} GB/s, matmul {limits[1]:.3f} TFLOP/s",
                keep=not (args.quick or args.only))
