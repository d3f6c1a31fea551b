"""What a graph with dynamic axes computes at sizes that it was not made of, held against the module."""
import numpy as np

from tritorch.errors import sentence
from tritorch.export.recording import Parts, call
from tritorch.tracing.calls import inputs_of
from tritorch.tracing.tracer import Untraceable, Value

NARROW = 1e-2, 1e-3                                                      # how far numbers of 2 and of more bytes may be apart


class Proof:
    """Compares the module of `parts` with that of a program, at sizes of the axes. Both run on copies; neither is changed."""

    def __init__(self, parts, program, leaves, spec, axes):
        self.parts, self.graph, self.leaves, self.spec, self.axes = parts, Parts(program.module(check_guards=False)), leaves, spec, axes

    def ranges(self):
        """Have axes begin at the smallest size from which on the two are alike, of 0, 1 and 2, and see that they are so further on.

        Raises Untraceable where they are not.
        """
        base = {axis: axis.first() for axis in self.axes.found.values()}
        for axis in base:
            for n in (1, 0):
                if axis.low <= n and self.alike({**base, axis: n}) is not True:
                    axis.low = n + 1
                    break
        far = {axis: axis.first() + 9 + 2 * k for k, axis in enumerate(base)}
        allowed = all(axis.high is None or n <= axis.high for axis, n in far.items())
        if base and allowed and self.alike(far) is False:
            named = ", ".join([f"{axis.name} = {n}" for axis, n in far.items()])
            raise Untraceable(sentence("export", "a program whose sizes depend on those of its inputs in a simple way",
                                       f"other results for {named} than its graph's", use="Dim(min=, max=), or a static axis"))

    def alike(self, sizes):
        """Whether both do the same; None where the module takes no inputs of these sizes."""
        inputs = inputs_of(self.axes, sizes)
        copies = [x.clone() for x in inputs]
        try:
            wanted = self.outcome(self.parts, inputs)
        except Exception:                                                # whatever a program says to sizes that it cannot take
            return None
        try:
            return same(wanted, self.outcome(self.graph, copies))
        except Exception:                                                # nor does the graph take them
            return False

    def outcome(self, parts, inputs):
        _, _, result, (buffers, changed) = call(parts, self.leaves, self.spec, inputs)
        return [*result.leaves, *[buffers[name] for name in sorted(buffers)], *[changed[k] for k in sorted(changed)]]


def same(wanted, found):
    """Whether two lists of values and numbers are alike."""
    return len(wanted) == len(found) and all(map(equal, wanted, found))


def equal(a, b):
    """Whether two values, or numbers, are alike."""
    if not isinstance(a, Value) or not isinstance(b, Value):
        return type(a) is type(b) and (a == b or a != a)
    x, y = a.tensor, b.tensor
    if x.shape != y.shape or x.dtype is not y.dtype:
        return False
    x, y = [t.detach().cpu().array.astype(np.complex128) for t in (x, y)]
    apart = NARROW[a.dtype.itemsize > 2] * np.abs(x[np.isfinite(x)]).max(initial=0)
    return np.allclose(x, y, rtol=0, atol=apart, equal_nan=True)
