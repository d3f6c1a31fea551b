"""An ONNX graph being written: nodes, constants, and the sizes that are known only when it runs.

Rules (`rules_*.py`) are functions `rule(g, *arguments of the operator)` that return the names of their results. Arguments are `Value`s,
numbers, tuples of them, or `Varying` numbers, which depend on dynamic axes: those only `g.size`, `g.sizes` and `g.number` take.
"""
import numpy as np

from tritorch.dtype import types
from tritorch.tensor import Tensor
from tritorch.tracing.quantities import Quantities
from tritorch.tracing.sizes import Baked, Varying
from tritorch.tracing.tracer import Untraceable, Value

# TensorProto.DataType by the name of the dtype: https://onnx.ai/onnx/intro/concepts.html#element-type
CODES = {name: code for code, name in enumerate("""float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64
    complex64 complex128 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz""".split(), 1)}
NAMED, FOLDED = "named", "folded"


def code_of(dtype):
    """The number that ONNX has for a dtype."""
    name = str(dtype).rpartition(".")[2]
    if name not in CODES:
        raise TypeError(f"onnx.export: expected a dtype that ONNX has, got {name}")
    return CODES[name]


def dtype_of(code):
    """The dtype of a number of ONNX."""
    return getattr(types, next(name for name, number in CODES.items() if number == code))


class Graph:
    """The graph of a trace. `op` adds a node, the rest makes its inputs."""

    def __init__(self, onnx, opset, last):
        self.onnx, self.opset, self.nodes, self.initializers, self.domains = onnx, opset, [], {}, {}
        self.names, self.counts, self.constants, self.current = {}, {}, {}, None
        self.types, self.quantities, self.odd = {}, Quantities(self, last), set()    # odd: names of what has not the shape of the value

    # -------------------------------------------------------------- nodes
    def fresh(self, stem):
        """A name that nobody has."""
        k = self.counts[stem] = self.counts.get(stem, -1) + 1
        name = f"{stem}_{k}" if k else stem
        return name if name not in self.initializers and name not in self.types else self.fresh(stem)

    def op(self, kind, *inputs, outputs=1, domain="", **attributes):
        """A node `kind`; None is an input left out. The name of its output, or a tuple of names."""
        names = [self.fresh(f"{self.current.name if self.current else 'size'}_{kind}".lower()) for _ in range(outputs)]
        for key, value in attributes.items():
            if isinstance(value, Varying) or isinstance(value, (tuple, list)) and any(isinstance(v, Varying) for v in value):
                raise Baked(f"{key} of {kind}, {value}")
        found = {k: v for k, v in attributes.items() if v is not None}
        given = ["" if x is None else self.x(x) for x in inputs]
        while given and not given[-1]:
            given.pop()
        self.nodes.append(self.onnx.helper.make_node(kind, given, names, domain=domain, **found))
        for name in names:
            self.types[name] = None
        return names[0] if outputs == 1 else tuple(names)

    def x(self, value):
        """The name of a value: of a result, an input, a parameter, or a constant."""
        if isinstance(value, str):
            return value
        found = self.names.get(value)
        if found is None:
            if value.depends or value.node is not None and not value.same and not value.elements:
                raise Untraceable(f"result {value.index} of {value.node.name}, which ONNX does not have")
            found = self.names[value] = self.quantities.constant(value) if value.elements else self.initializer(value)
        return found

    def initializer(self, value):
        if not value.same:
            raise Baked("a constant of another shape or with other elements for every size of a dynamic axis")
        if value.node is None and value.name is not None:
            return self.weight(value.name, value.tensor)
        return self.constant(value.tensor)

    def weight(self, name, tensor):
        """A parameter or buffer under its own name."""
        if name not in self.initializers:
            self.initializers[name] = self.proto(name, tensor), NAMED
        return name

    def constant(self, value, dtype=None):
        """A tensor, or numbers in a list, as a constant."""
        if not isinstance(value, Tensor):
            value = types_array(value, dtype or types.int64)
        else:
            value, dtype = value.detach().cpu().array, value.dtype
        key = str(dtype), value.shape, value.tobytes()
        if key not in self.constants:
            name = self.constants[key] = self.fresh("constant")
            self.initializers[name] = self.raw(name, value, dtype or types.int64), FOLDED
        return self.constants[key]

    def proto(self, name, tensor):
        return self.raw(name, tensor.detach().cpu().array, tensor.dtype)

    def raw(self, name, array, dtype):
        return self.onnx.TensorProto(name=name, dims=array.shape, data_type=code_of(dtype), raw_data=np.ascontiguousarray(array).tobytes())

    # -------------------------------------------------------------- what rules ask of their call
    @property
    def out(self):
        """The first result of the operator that is being written."""
        return self.current.outs[0]

    def cast(self, value, dtype):
        """A value, or a number as a constant without dims, in a dtype."""
        if isinstance(value, Value):
            return self.x(value) if value.dtype is dtype else self.op("Cast", value, to=code_of(dtype))
        if isinstance(value, Varying):
            return self.number(value, dtype)
        if isinstance(value, str):
            return self.op("Cast", value, to=code_of(dtype))
        return self.constant(value, dtype)

    def like(self, value):
        """In the dtype of the result."""
        return self.cast(value, self.out.dtype)

    def operands(self, *values):
        """All of them in the dtype that they promote to."""
        dtype = types.promote(*[v.tensor if isinstance(v, Value) else v.values[0] if isinstance(v, Varying) else v for v in values])
        return [self.cast(v, dtype) for v in values]

    def ints(self, *values):
        """int64 numbers as a vector."""
        return self.sizes(values)

    # -------------------------------------------------------------- sizes
    def size(self, n):
        """A size as a vector of one element."""
        return self.quantities.size(n) if isinstance(n, Varying) else self.constant([int(n)])

    def sizes(self, shape):
        """Sizes as a vector."""
        if not any(isinstance(n, Varying) for n in shape):
            return self.constant([int(n) for n in shape])
        parts, plain = [], []
        for n in [*shape, None]:
            if isinstance(n, Varying) or n is None:
                parts += [self.constant(plain)] if plain else []
                parts += [self.size(n)] if n is not None else []
                plain = []
            else:
                plain.append(int(n))
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def number(self, n, dtype):
        """A number that may vary, without dims, in a dtype."""
        return self.quantities.number(n, dtype) if isinstance(n, Varying) else self.constant(n, dtype)

    def shape_of(self, value):
        """The shape of a value as a vector."""
        return self.op("Shape", value) if any(isinstance(n, Varying) for n in value.shape) else self.sizes(value.shape)

    def reshape(self, x, shape):
        """x in another shape, in which one size may be -1."""
        if sum(isinstance(n, Varying) for n in shape) == 1 and -1 not in [n for n in shape if not isinstance(n, Varying)]:
            shape = [-1 if isinstance(n, Varying) else n for n in shape]
        if -1 in shape and 0 in shape:
            return self.op("Reshape", x, self.sizes(shape), allowzero=1)
        return self.op("Reshape", x, self.sizes(shape))

    # -------------------------------------------------------------- steps that many rules take
    def plus(self, name, n):
        """A number added to sizes."""
        return name if n == 0 else self.op("Add", name, self.constant([n]))

    def ratio(self, name, divisor):
        """One floating number over another."""
        return self.op("Div", name, divisor)

    def permuted(self, x, dims):
        return self.op("Transpose", x, perm=[int(d) for d in dims])

    def unsqueezed(self, x, *dims):
        return self.op("Unsqueeze", x, self.constant([*dims]))

    def squeezed(self, x, *dims):
        return self.op("Squeeze", x, self.constant([*dims]))

    def sliced(self, x, dim, start, stop, step=1):
        """x[start:stop:step] along a dim."""
        return self.op("Slice", x, self.size(start), self.size(stop), self.constant([dim]), self.constant([step]))

    def reduced(self, kind, x, dims, keepdim):
        """ReduceSum, ReduceMax, … over dims. Since opset 18 all of them take these as an input."""
        return self.op(kind, x, self.constant(dims), keepdims=int(keepdim)) if dims else self.x(x)


def types_array(value, dtype):
    """Numbers of Python as an array."""
    return np.asarray(value).astype(dtype.numpy)
