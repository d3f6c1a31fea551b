"""Numbers that depend on dynamic axes, as nodes of a graph: the size of a tensor, or arithmetic on such sizes."""
import math
import operator

from tritorch.tracing.quantities import Quantities
from tritorch.tracing.sizes import Baked, Varying

KINDS = {"Mul": operator.mul, "Add": operator.add, "Sub": operator.sub, "Div": operator.floordiv, "Min": min, "Max": max, "Sqrt": math.sqrt,
         "Log": math.log}


class Arithmetic:
    """What `Quantities` writes to: `names` are the nodes of values."""

    def __init__(self, builder, last):
        self.builder, self.names, self.current, self.quantities = builder, builder.env, None, Quantities(self, last)

    def node(self, n, node):
        """The number of a node's arguments that varies."""
        self.current = node
        if any(isinstance(v, (bool, str)) for v in n.values):
            raise Baked(f"a choice of {n}")
        if all(isinstance(v, int) for v in n.values):
            return self.quantities.size(n)
        return self.quantities.number(n, None)

    # -------------------------------------------------------------- what Quantities asks for
    def op(self, kind, *inputs, start=None, end=None):
        if kind == "Shape":
            return self.builder.size_of(inputs[0], start)
        if kind == "Reciprocal":
            return self.builder.number(operator.truediv, (1, inputs[0]))
        return self.builder.number(KINDS[kind], inputs)

    def plus(self, name, n):
        return name if n == 0 else self.op("Add", name, n)

    def ratio(self, name, divisor):
        return self.builder.number(operator.truediv, (name, divisor))

    def constant(self, value, dtype=None):
        return value[0] if isinstance(value, list) else value

    def squeezed(self, name, dim):
        return name

    def cast(self, name, dtype):
        return name


def label(n, axes):
    """A size as text: the name of an axis, or how it follows from one."""
    if not isinstance(n, Varying):
        return str(n)
    known = axes.labels()
    if n.values in known:
        return known[n.values]
    for name, axis in axes.found.items():
        (a, *_), (b, *_) = axis.values, n.values
        pairs = list(zip(axis.values, n.values))
        other = next(((c, d) for c, d in pairs if c != a), None)
        if other is None or (other[1] - b) % (other[0] - a):
            continue
        slope = (other[1] - b) // (other[0] - a)
        rest = b - slope * a
        if all(slope * c + rest == d for c, d in pairs):
            return (f"{slope}*" if slope != 1 else "") + name + (f" {'+' if rest > 0 else '-'} {abs(rest)}" if rest else "")
    return "?"
