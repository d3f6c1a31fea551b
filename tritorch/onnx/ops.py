"""Nodes of ONNX in a model: what `export` writes, whatever the operator is. Called outside of it they give zeros.

>>> import tritorch as torch
>>> torch.onnx.ops.symbolic("acme::Twice", (torch.ones(2),), {"fast": True}, dtype=torch.float32, shape=(2,))
tensor([0., 0.])
"""
from tritorch.cuda.watching import watched
from tritorch.onnx.graph import dtype_of
from tritorch.onnx.modes import place
from tritorch.onnx.rules import STANDARD, rule
from tritorch.ops.create import zeros
from tritorch.tracing.tracer import Custom

__all__ = ["symbolic", "symbolic_multi_out"]


SYMBOLIC = Custom("onnx_symbolic")


def symbolic(domain_op, /, inputs, attrs=None, *, dtype, shape, version=None, metadata_props=None):
    """The output, of a dtype and shape, of an operator "Domain::Name" on tensors (None: left out), with numbers, strings and lists of
    them as attributes. `version` is that of the domain."""
    return symbolic_multi_out(domain_op, inputs, attrs, dtypes=(dtype,), shapes=(shape,), version=version, metadata_props=metadata_props)[0]


def symbolic_multi_out(domain_op, /, inputs, attrs=None, *, dtypes, shapes, version=None, metadata_props=None):
    """Several outputs: see `symbolic`. Raises RuntimeError unless there are as many dtypes as shapes, ValueError for a name without ::."""
    domain, _, kind = domain_op.rpartition("::")
    if not domain or not kind:
        raise ValueError(f"symbolic: expected a name domain::name, got {domain_op!r}")
    if len(dtypes) != len(shapes):
        raise RuntimeError(f"symbolic: expected as many dtypes as shapes, got {len(dtypes)} and {len(shapes)}")
    dtypes = [dtype_of(d) if isinstance(d, int) else d for d in dtypes]
    if place.writer is not None:                                         # a rule that is being asked
        made = place.writer.op(domain_op, *inputs, outputs=len(dtypes), **(attrs or {}))
        return made if isinstance(made, tuple) else (made,)

    def make():
        return tuple([zeros(tuple(shape), dtype=dtype) for dtype, shape in zip(dtypes, shapes)])

    if watched.tracer is None:
        return make()
    attributes = tuple([(key, tuple(v) if isinstance(v, list) else v) for key, v in (attrs or {}).items()])
    return watched.tracer.noted(SYMBOLIC, (domain_op, tuple(inputs), attributes, version), make)


@rule("onnx_symbolic")
def onnx_symbolic(g, kind, inputs, attributes, version):
    domain, _, kind = kind.rpartition("::")
    domain = "" if domain in STANDARD else domain
    if domain:
        g.domains[domain] = version or g.domains.get(domain, 1)
    values = {key: int(v) if isinstance(v, bool) else v for key, v in attributes}
    return g.op(kind, *inputs, outputs=len(g.current.outs), domain=domain, **values)
