"""What a compiled function says of itself."""
from collections import Counter

from tritorch.profiler.operators import NAMES


def reported(compiled):
    """The text of `Compiled.report`."""
    lines = [f"{compiled.name}: {len(compiled.kinds)} kinds of calls", *compiled.notes]
    lines += [f"eager calls: {why}" for why in compiled.warned if all(why != kind.why for kind in compiled.kinds.values())]
    for number, kind in enumerate(compiled.kinds.values(), 1):
        arguments = ", ".join(kind.arguments) or "no tensors"
        if kind.why is not None:
            lines.append(f"{number}. ({arguments}) runs eagerly: {kind.why}")
        elif not kind.recordings:
            lines.append(f"{number}. ({arguments}) is being warmed up")
        for recording in kind.recordings:
            lines.append(f"{number}. ({arguments}) is replayed: {sum(recording.operators.values())} operators in one CUDA graph")
            lines += [f"   {count:5} × {pattern.name} in one kernel (rounding: {pattern.rounding})"
                      for pattern, count in Counter(recording.replaced).items()]
            lines += [f"   {count:5} × {name}" for name, count in recording.operators.most_common()]
    return "\n".join(lines)


def operators(events):
    """How often each operator that has work on the device ran, under PyTorch's names; views have none."""
    return Counter(NAMES.get(event[0], event[0]) for event in events if not _is_view(event))


def _is_view(event):
    """Whether an event made a tensor in memory that it was given."""
    _, args, into, made = event
    return into is None and isinstance(made, tuple) and any(isinstance(a, tuple) and a[:1] == made[:1] for a in args)
