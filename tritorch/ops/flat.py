"""The shortest way to a kernel: elementwise operators whose operands are laid out like their result and aligned.

The code, the grid and the count of such a launch follow from shape, dtypes and device, so one lookup finds them: on an idle device
`x + y` costs 0.9 µs more than an operator that does nothing. Everything else takes the general way.
"""
from tritorch.cuda import driver
from tritorch.cuda.stream import current_handle
from tritorch.cuda.trace import Trace, traces
from tritorch.dtype import types
from tritorch.tensor import Tensor

KEPT = 1024                                                              # kinds of calls remembered per operator
NUMBERS = {float, int}


def flat_unary(general, implementation):
    """`general(out, x, *attributes)`, an implementation for CUDA, with the short way where it is known."""
    known = _remembered()

    def run(out, x, *rest):
        a, b, strides = out.storage, x.storage, out.strides
        home = a.device
        if (x.strides == strides and x.shape == out.shape and b.device is home and not (x.offset or out.offset or traces)
                and not (a.ptr | b.ptr) & 15 and (not rest or all(rest))):
            key = out.shape, strides, out.dtype, x.dtype, home, rest
            found = known.get(key)
            if found:
                start, programs, tail = found
                try:
                    return start(programs, 1, 1, current_handle(home.index), [a.ptr, b.ptr, *tail])
                except Exception:
                    return general(out, x, *rest)                        # fails too, and says with which arguments
            if found is None:
                return _learn(known, key, implementation, (out, x), (out, x, *rest))
        general(out, x, *rest)

    return run


def flat_binary(general, implementation):
    """`general(out, x, y, *attributes)`, an implementation for CUDA, with the short way where it is known."""
    known = _remembered()

    def run(out, x, y, *rest):
        a, strides, shape = out.storage, out.strides, out.shape
        home = a.device
        if (isinstance(x, Tensor) and x.strides == strides and x.shape == shape and x.storage.device is home
                and not (x.offset or out.offset or traces) and (not rest or out.dtype.is_floating_point and all(rest))):
            b, head = x.storage, None
            if isinstance(y, Tensor):
                c = y.storage
                if y.strides == strides and y.shape == shape and c.device is home and not (y.offset or (a.ptr | b.ptr | c.ptr) & 15):
                    tensors, kind, head = (out, x, y), y.dtype, (a.ptr, b.ptr, c.ptr)
            elif y.__class__ in NUMBERS and x.dtype.compute is types.float32 and not (a.ptr | b.ptr) & 15:
                tensors, kind, head = (out, x), float, (a.ptr, b.ptr, float(y))          # the code does not depend on a float's value
            if head is not None:
                key = shape, strides, out.dtype, x.dtype, kind, home, rest
                found = known.get(key)
                if found:
                    start, programs, tail = found
                    try:
                        return start(programs, 1, 1, current_handle(home.index), [*head, *tail])
                    except Exception:
                        return general(out, x, y, *rest)                 # fails too, and says with which arguments
                if found is None:
                    return _learn(known, key, implementation, tensors, (out, x, y, *rest))
        general(out, x, y, *rest)

    return run


def _remembered():
    table = {}
    driver.call_tables.append(table)
    return table


def _learn(known, key, implementation, tensors, args):
    """Run the implementation; remember its launch if it was one in a row of programs, given destination, operands and what follows."""
    storages = [t.storage for t in tensors]
    with Trace(storages, [s.ptr for s in storages], storages[0].device) as trace:
        implementation(*args)
    if len(known) >= KEPT:
        known.clear()
    known[key] = False
    if trace.whole and len(trace.steps) == 1:
        start, programs, y, z, values, patches = trace.steps[0]
        if y == z == 1 and patches == [(k, storages.index(s), 0, None) for k, s in enumerate(storages)]:       # of x + x the first is named
            known[key] = start, programs, values[len(args) - len(key[-1]):]
