"""Signs: what travels with every message of a call, so that ranks which call different things find it out."""
from tritorch.distributed.options import ReduceOp
from tritorch.dtype import ALL, uint8

CALLS = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "barrier",
         "monitored_barrier", "send")
REDUCING = (0, 1, 6)


def sign(call, dtype=uint8, op=ReduceOp.SUM, root=0, numel=0):
    """(call, dtype, op, root, elements) as numbers. Where ranks may give different sizes, `numel` is 0."""
    return CALLS.index(call), ALL.index(dtype), op.value, root, numel


def described(sign, nbytes):
    """A sign in words."""
    call, dtype, op, root, numel = sign
    if call >= len(CALLS) or dtype >= len(ALL):
        return "an unknown call"
    name, kind = CALLS[call], ALL[dtype]
    if name in ("barrier", "monitored_barrier"):
        return name
    details = [ReduceOp(op).name] * (call in REDUCING) + [f"root {root}"] * (name in ("reduce", "broadcast", "gather", "scatter"))
    return f"{name} of {numel or nbytes // kind.itemsize} {kind.name}{' (' + ', '.join(details) + ')' if details else ''}"
