"""Calls of a program with inputs of several sizes, as one trace."""
import math

from tritorch.errors import sentence
from tritorch.tracing.probes import probe, resized
from tritorch.tracing.sizes import check_results, merged, outline
from tritorch.tracing.tracer import Untraceable

AFFORDABLE = 1 << 20                                                     # elements of inputs that are larger than the sample's


def together(axes, trace, warn, more=False):
    """([what `trace(inputs)` gives and the sizes], all of it as one trace) of calls with other sizes of the dynamic axes, or of `more`.

    `trace` gives (tracer, values of the results, …). `warn(sentence, axis)` is told of an axis whose small sizes the trace leaves out.
    """
    try:
        found = _traces(axes, trace, warn, more)
    except Untraceable:
        if not axes.tied():
            raise
        found = _traces(axes, trace, warn, more)
    one = merged([tracer for tracer, *_ in found])
    check_results([values for _, values, *_ in found])
    return found, one


def inputs_of(axes, chosen):
    """Copies of the tensors for sizes of the axes, {axis: size}."""
    changes = _changes(chosen)
    return [resized(x, changes[k]) if k in changes else x.detach().clone() for k, x in enumerate(axes.tensors)]


def _changes(chosen):
    changes = {}
    for axis, n in chosen.items():
        for k, dim, factor in axis.places:
            changes.setdefault(k, {})[dim] = n * factor
    return changes


def _traces(axes, trace, warn, more):
    dynamic = list(axes.found.values())

    def affordable(chosen):
        changes = _changes(chosen)
        return sum(math.prod(changes[k].get(d, n) for d, n in enumerate(axes.tensors[k].shape)) for k in changes) <= AFFORDABLE

    found = probe(dynamic, lambda chosen: (*trace(inputs_of(axes, chosen)), dict(chosen)), affordable, more)
    found = _without_small(found, axes.who, warn)
    for axis in dynamic:
        axis.values = tuple([chosen[axis] for *_, chosen in found])
    return found


def _without_small(found, who, warn):
    """Without calls of sizes below the sample's in which other operators ran: pooling by a window that is everything is a mean."""
    first, kept = found[0], found[:4]
    for one in found[4:]:
        smaller = [(axis, n) for axis, n in one[-1].items() if n < first[-1][axis]]
        if smaller and _calls(one) != _calls(first):
            axis, n = smaller[0]
            warn(sentence(who, f"the same operators for size {n} of the dynamic axis {axis.name!r}", "others",
                          use=f"Dim(min=), or the model for sizes near {first[-1][axis]} and above alone"), axis)
        else:
            kept.append(one)
    return kept


def _calls(traced):
    return [(node.name, outline(node.args)) for node in traced[0].nodes]
