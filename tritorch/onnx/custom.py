"""Rules of the caller's own, for operators that ONNX does not have, or that are to be written otherwise."""
import contextlib
import re

from tritorch.dispatch import registry
from tritorch.errors import sentence
from tritorch.onnx.errors import OnnxExporterError
from tritorch.onnx.modes import place
from tritorch.onnx.rules import STANDARD
from tritorch.tracing.tracer import Value

NAME = re.compile(r"[a-zA-Z0-9-_]+::[a-zA-Z-_]+[a-zA-Z0-9-_]*")
SUFFIXES = {"_i": int, "_f": float, "_s": str, "_t": None, "_is": list, "_fs": list, "_ss": list}
registered: dict = {}                                                    # name -> {first opset: rule}


def register_custom_op_symbolic(symbolic_name, symbolic_fn, opset_version):
    """Have `symbolic_fn(g, *arguments)` write the operator "namespace::name", of `tritorch.library` or "aten", from an opset on.

    `g.op("domain::Name", *inputs, alpha_f=0.5, outputs=1)` adds a node and returns its output, or a tuple; the suffix of an attribute is
    its type, as in PyTorch. Tensors arrive as terms, which can be added, multiplied …, have `dtype` and `shape`, and are inputs; all
    other arguments are what the call was given. "aten" names the operators of this package that have a card: see `tritorch.dispatch`.
    A name that no operator has is never asked for. Raises OnnxExporterError for one that is not of this form.

    >>> import tritorch as torch
    >>> torch.onnx.register_custom_op_symbolic("aten::mish", lambda g, x: g.op("acme::Mish", x, fast_i=1), 18)
    >>> torch.onnx.unregister_custom_op_symbolic("aten::mish", 18)
    """
    if not NAME.fullmatch(symbolic_name):
        raise OnnxExporterError(sentence("register_custom_op_symbolic", "a name domain::name", repr(symbolic_name)))
    registered.setdefault(symbolic_name, {})[opset_version] = symbolic_fn


def unregister_custom_op_symbolic(symbolic_name, opset_version):
    """Forget a rule."""
    registered.get(symbolic_name, {}).pop(opset_version, None)


def translations(table, opset):
    """{operator: rule} of what was registered for an opset, and of a `custom_translation_table`, whose functions take no graph: the
    functions of onnxscript's opsets that they call, or `tritorch.onnx.ops.symbolic`, write to the one that is being made."""
    rules = {}
    for name, versions in registered.items():
        since = [v for v in versions if v <= opset]
        if since:
            rules[name.removeprefix("aten::")] = _with_graph(versions[max(since)])
    for operator, f in (table or {}).items():
        if isinstance(f, (list, tuple)):
            raise TypeError(sentence("onnx.export", "one function for an operator of custom_translation_table", type(f).__name__))
        rules[_name_of(operator)] = _without_graph(f)
    return rules


def _name_of(operator):
    """What the trace calls an operator: a card, an overload of tritorch.ops, or what tritorch.library.custom_op made."""
    card = registry.get(getattr(operator, "__name__", None))
    if card is operator:
        return card.__name__
    overload = getattr(operator, "_opoverload", getattr(operator, "default", operator))
    name = overload.name() if callable(getattr(overload, "name", None)) else ""
    name = name if "::" in name else ""
    plain = name.removeprefix("aten::").partition(".")[0]
    if name.startswith("aten::") and plain in registry:
        return plain
    if not name or name.startswith("aten::"):
        raise ValueError(sentence("onnx.export", "operators of tritorch.library, or that have a card, in custom_translation_table",
                                  name or repr(operator)))
    return name.removesuffix(".default")


class Term(str):
    """A value in the graph that is being written: its name, which can be added to others. `dtype` and `shape` of arguments are known."""

    graph = dtype = shape = None

    def join(self, kind, other, turned=False):
        dtype = self.dtype or getattr(other, "dtype", None)
        pair = [self, other if isinstance(other, str) else self.graph.constant(other, dtype)]
        return term(self.graph, self.graph.op(kind, *(pair[::-1] if turned else pair)), dtype, self.shape)

    __add__, __sub__, __mul__, __truediv__, __pow__, __matmul__ = [
        lambda self, other, kind=kind: self.join(kind, other) for kind in ("Add", "Sub", "Mul", "Div", "Pow", "MatMul")]
    __radd__, __rsub__, __rmul__, __rtruediv__, __rpow__, __rmatmul__ = [
        lambda self, other, kind=kind: self.join(kind, other, True) for kind in ("Add", "Sub", "Mul", "Div", "Pow", "MatMul")]

    def __neg__(self):
        return term(self.graph, self.graph.op("Neg", self), self.dtype, self.shape)


def term(g, name, dtype=None, shape=None):
    made = Term(name)
    made.graph, made.dtype, made.shape = g, dtype, shape
    return made


class Writer:
    """The `g` of a symbolic function."""

    def __init__(self, graph):
        self.graph, self.opset = graph, graph.opset

    def op(self, kind, *inputs, outputs=1, **attributes):
        """A node; attributes may have a suffix that says their type."""
        dtype = next((x.dtype for x in inputs if isinstance(x, Term) and x.dtype is not None), None)
        names = [x if isinstance(x, str) or x is None else self.graph.constant(x, dtype) for x in inputs]
        domain, _, kind = kind.rpartition("::")
        domain = "" if domain in STANDARD else domain
        if domain:
            self.graph.domains.setdefault(domain, 1)
        found = {key[:-len(tail)] if (tail := _suffix(key)) else key: value for key, value in attributes.items()}
        made = self.graph.op(kind, *names, outputs=outputs, domain=domain, **found)
        return term(self.graph, made, dtype) if outputs == 1 else tuple([term(self.graph, x, dtype) for x in made])


def _suffix(key):
    return next((tail for tail in SUFFIXES if key.endswith(tail)), "")


def _terms(g, args):
    return [term(g, g.x(a), a.dtype, a.shape) if isinstance(a, Value) else tuple(_terms(g, a)) if isinstance(a, tuple) else a for a in args]


def _with_graph(f):
    return lambda g, *args: f(Writer(g), *_terms(g, args))


def _without_graph(f):
    def rule(g, *args):
        place.writer = Writer(g)
        try:
            with _evaluated(place.writer):
                return f(*_terms(g, args))
        finally:
            place.writer = None

    return rule


@contextlib.contextmanager
def _evaluated(writer):
    """Inside, onnxscript's operators, if there is onnxscript, are nodes of the graph."""
    try:
        from onnxscript.evaluator import default_as
    except ImportError:
        yield
        return
    with default_as(_Evaluator(writer)):
        yield


class _Evaluator:
    """What onnxscript asks to evaluate an operator, or a function made of them."""

    def __init__(self, writer):
        self.writer = writer

    def eval_op(self, op, args, kwargs):
        inputs, schema = list(args), op.op_schema
        for k, formal in enumerate(schema.inputs if schema is not None else ()):
            if formal.name in kwargs:
                inputs += [None] * (k + 1 - len(inputs))
                inputs[k] = kwargs[formal.name]
        names = {formal.name for formal in schema.inputs} if schema is not None else set()
        found = {key: value for key, value in kwargs.items() if key not in names and key != "_outputs"}
        return self.writer.op(f"{op.domain}::{op.name}" if op.domain else op.name, *inputs, outputs=kwargs.get("_outputs", 1), **found)

    def eval_function(self, function, args, kwargs):
        return function.function(*args, **kwargs)
