"""Numbers that depend on dynamic axes, as nodes of a graph: the size of a tensor, or whole-number arithmetic on such sizes.

What a number is made of is told from its values in several calls: it is the size that had the same values, or one or two sizes times and
plus whole numbers, a quotient that is rounded, a square root or its inverse. If it is none of these, the exporter refuses.
"""
import itertools
import math
from fractions import Fraction

from tritorch.dtype import types
from tritorch.tracing.sizes import Baked, Varying, leaves

QUOTIENTS = range(2, 65)
CURVES = {"Identity": lambda n: n, "Reciprocal": lambda n: 1 / n, "Sqrt": math.sqrt, "Log": math.log}


class Quantities:
    """What varies in a graph, by its values: `known` sizes as (value, dim), and `made`, the names of vectors that hold one number."""

    guessed = False                                                      # whether a number is no plain size: more calls have to tell

    def __init__(self, graph, last):
        self.last, self.graph, self.known, self.made = last, graph, {}, {}

    def learn(self, value):
        """The sizes of a value that is there now."""
        for dim, n in enumerate(value.shape):
            if isinstance(n, Varying):
                self.known.setdefault(n.values, (value, dim))

    def size(self, n):
        """A vector of one element: a size of an operand, before it is anything else."""
        node = self.graph.current
        for value in leaves(node.args) if node is not None else ():
            if n in value.shape and value in self.graph.names:
                return self.dim(value, value.shape.index(n))
        found = self.made.get(n.values)
        if found is None:
            found = self.made[n.values] = self.write(n.values)
        return found

    def dim(self, value, dim):
        """The size of a dim of a value."""
        if (value, dim) not in self.made:
            self.made[value, dim] = self.graph.op("Shape", value, start=dim, end=dim + 1)
        return self.made[value, dim]

    def write(self, values):
        if not all(float(v).is_integer() for v in values):
            raise Baked(str(Varying(values)))
        if values in self.known:
            value, dim = self.known[values]
            self.guessed |= value.node is not None
            return self.dim(value, dim)
        self.guessed = True
        for find in (self.line, self.product, self.sum, self.quotient, self.clipped):
            found = find(values)
            if found is not None:
                return found
        raise Baked(f"a number of {Varying(values)}, which is not made of sizes")

    def line(self, values):
        """(a · size + b) / c."""
        for known in self.known:
            found = _line(known, values)
            if found is not None:
                a, b = found
                c = math.lcm(a.denominator, b.denominator)
                return self.over(self.graph.plus(self.times(self.size(Varying(known)), int(a * c)), int(b * c)), c)
        return None

    def product(self, values):
        """size · size · a / b, and that of three sizes."""
        pairs = [(p, q) for k, p in enumerate(self.known) for q in [*self.known][k:]]
        for parts in [*pairs, *[(*pair, r) for pair in pairs[:200] for r in [*self.known][:12]]]:
            whole = [math.prod(n) for n in zip(*parts)]
            ratios = {Fraction(int(v), w) for v, w in zip(values, whole) if w}
            if len(ratios) == 1 and 0 not in whole:
                ratio, name = ratios.pop(), self.size(Varying(parts[0]))
                for part in parts[1:]:
                    name = self.graph.op("Mul", name, self.size(Varying(part)))
                return self.over(self.times(name, ratio.numerator), ratio.denominator)
        return None

    def sum(self, values):
        """size ± size + b."""
        for p in self.known:
            for q in self.known:
                for sign, kind in ((1, "Add"), (-1, "Sub")):
                    rest = {v - a - sign * b for v, a, b in zip(values, p, q)}
                    if p is not q and len(rest) == 1:
                        return self.graph.plus(self.graph.op(kind, self.size(Varying(p)), self.size(Varying(q))), int(rest.pop()))
        return None

    def quotient(self, values):
        """⌊(size + b) / c⌋, if one b and c alone are so."""
        for known in self.known:
            found = [(b, c) for c in QUOTIENTS for b in range(c) if all((n + b) // c == v for n, v in zip(known, values))]
            if len(found) == 1 or found and not self.last:               # more calls will tell
                b, c = found[0]
                return self.over(self.graph.plus(self.size(Varying(known)), b), c)
        return None

    def clipped(self, values):
        """min(size + b, c) and max(size + b, c); two sizes have to tell a b that is not 0."""
        low, high = min(values), max(values)
        for known in self.known:
            for kind, bound, end, f in (("Min", high, low, min), ("Max", low, high, max)):
                b = int(end - known[values.index(end)])
                sloped = {n for n, v in zip(known, values) if v != bound}
                if (b == 0 or len(sloped) > 1) and all(f(n + b, bound) == v for n, v in zip(known, values)):
                    return self.graph.op(kind, self.graph.plus(self.size(Varying(known)), b), self.graph.constant([bound]))
        return None

    def times(self, name, a):
        return name if a == 1 else self.graph.op("Mul", name, self.graph.constant([a]))

    def over(self, name, c):
        return name if c == 1 else self.graph.op("Div", name, self.graph.constant([c]))

    def number(self, n, dtype):
        """Without dims, in a dtype; floating ones may be a factor times a size, its inverse, root or logarithm."""
        if all(isinstance(v, int) for v in n.values):
            whole = self.graph.squeezed(self.size(n), 0)
            return whole if dtype is types.int64 else self.graph.cast(whole, dtype)
        self.guessed = True
        shifted = [tuple([m + b for m in known]) for b in (0, -1, 1) for known in self.known]
        for known, curve, inverse in itertools.product(shifted, CURVES, ("Identity", "Reciprocal")):
            try:
                factors = [v / CURVES[inverse](CURVES[curve](m)) for v, m in zip(n.values, known)]
            except (ValueError, ZeroDivisionError):
                continue
            if max(factors) - min(factors) <= 1e-12 * max(map(abs, factors)):
                return self.curved(known, (curve, inverse), factors[0], dtype)
        found = self.share(n.values, dtype)
        if found is not None:
            return found
        raise Baked(f"a number of {n}, which is not made of sizes")

    def share(self, values, dtype):
        """n / (n - 1), what makes a variance one of a sample, of a whole number n of sizes."""
        counts = tuple([round(v / (v - 1)) if v > 1 else 0 for v in values])
        if any(n < 2 or n / (n - 1) != v for n, v in zip(counts, values)):
            return None
        whole = self.size(Varying(counts))
        name, less = [self.graph.cast(self.graph.squeezed(x, 0), types.float64) for x in (whole, self.graph.plus(whole, -1))]
        name = self.graph.ratio(name, less)
        return name if dtype is types.float64 else self.graph.cast(name, dtype)

    def curved(self, known, kinds, factor, dtype):
        name = self.graph.cast(self.graph.squeezed(self.size(Varying(known)), 0), types.float64)
        for kind in kinds:
            name = name if kind == "Identity" else self.graph.op(kind, name)
        name = self.graph.op("Mul", name, self.graph.constant(factor, types.float64))
        return name if dtype is types.float64 else self.graph.cast(name, dtype)

    def constant(self, value):
        """A constant of Python numbers some of which vary."""
        parts = [self.graph.number(n, value.dtype) for n in value.elements]
        if value.ndim == 0:
            return parts[0]
        return self.graph.op("Concat", *[self.graph.unsqueezed(part, 0) for part in parts], axis=0)


def _line(sizes, values):
    """(a, b) with value = a · size + b, if there are such."""
    k = next((k for k in range(1, len(sizes)) if sizes[k] != sizes[0]), None)
    if k is None:
        return None
    a = Fraction(int(values[k] - values[0]), sizes[k] - sizes[0])
    b = int(values[0]) - a * sizes[0]
    return (a, b) if all(a * n + b == v for n, v in zip(sizes, values)) else None
