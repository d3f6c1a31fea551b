"""Which axes of the inputs are dynamic, from `dynamic_shapes` or `dynamic_axes`, and how inputs are called."""
import inspect

from tritorch.compiler.containers import parts
from tritorch.errors import sentence
from tritorch.tensor import Tensor
from tritorch.tracing.dims import Dim, Hint
from tritorch.tracing.probes import Axis
from tritorch.utils import _pytree


def named_leaves(model, args, kwargs):
    """[(name of the parameter, path below it, leaf)] of the arguments of a call, in their order."""
    signature = inspect.signature(model.forward)
    bound = signature.bind(*args, **kwargs).arguments
    found = []
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            for key, part in value.items():
                found += [(key, path, leaf) for path, leaf in paths(part)]
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            for k, part in enumerate(value):
                found += [(f"{name}_{k}", path, leaf) for path, leaf in paths(part)]
        else:
            found += [(name, path, leaf) for path, leaf in paths(value)]
    return found


def paths(tree, path=()):
    """(path, leaf) of dicts, lists, tuples and other containers."""
    found = parts(tree)
    if found is None:
        return [(path, tree)]
    if isinstance(tree, dict):
        keys = list(tree)
    else:
        keys = getattr(tree, "_fields", None) or (range(len(found[0])) if isinstance(tree, (list, tuple)) else names_of(tree, *found))
    return [leaf for key, part in zip(keys, found[0]) for leaf in paths(part, (*path, key))]


def names_of(tree, children, context):
    """The names of the children of a dataclass or of another class, their numbers if they have none."""
    keyed = _pytree._keyed.get(type(tree))
    if keyed is not None:
        return [getattr(key, "name", getattr(key, "key", getattr(key, "idx", k))) for k, (key, _) in enumerate(keyed(tree)[0])]
    return context if isinstance(context, list) and len(context) == len(children) else range(len(children))


def input_name(name, path):
    """That of a tensor in containers that are the argument `name`."""
    return "_".join(map(str, (name, *path)))


def input_names(leaves, given):
    """The names of the tensors among the leaves; those of the parameters where the caller gives none."""
    names = [input_name(name, path) for name, path, leaf in leaves if isinstance(leaf, Tensor)]
    given = list(given or ())
    if len(given) > len(names):
        raise ValueError(sentence("onnx.export", f"at most {len(names)} input_names", given))
    return given + names[len(given):]


def below(spec, key):
    """What a tree of specifications has for a child of a container."""
    if spec is None:
        return None
    return getattr(spec, key) if isinstance(key, str) and hasattr(spec, key) and not isinstance(spec, dict) else spec[key]


class Axes:
    """The dynamic axes of a call: `found` are Axis, those of one name being one. `outputs` are {(output, dim): name}. Errors name `who`
    asks."""

    def __init__(self, leaves, names, who):
        self.who = who
        self.tensors = [leaf for *_, leaf in leaves if isinstance(leaf, Tensor)]
        self.names, self.found, self.outputs, self.leaves = names, {}, {}, leaves

    def add(self, k, dim, spec, automatic):
        """Axis `dim` of the k-th tensor is as `spec` says: a Dim, a name, a hint, or None and an int for one that stays as it is."""
        x = self.tensors[k]
        if spec is None or spec is Dim.STATIC or isinstance(spec, int) and not isinstance(spec, bool):
            return
        if not -x.ndim <= dim < x.ndim:
            raise ValueError(sentence(self.who, f"dynamic axes among the {x.ndim} of {self.names[k]}", dim))
        dim %= x.ndim
        spec, optional = Dim(spec) if isinstance(spec, str) else spec, spec is Dim.AUTO
        if isinstance(spec, Hint):
            spec = Dim(automatic)
        if not isinstance(spec, Dim):
            raise TypeError(sentence(self.who, "a Dim, a name, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, an int or None for an axis",
                                     repr(spec)))
        name, size = spec.__name__, x.shape[dim] // spec.factor
        axis = self.found.setdefault(name, Axis(name, size, spec.min, spec.max, name == automatic))
        if axis.size * spec.factor != x.shape[dim]:
            raise ValueError(sentence(self.who, f"one size of all axes named {name!r}, {axis.size}, times {spec.factor}",
                                      f"{x.shape[dim]} of {self.names[k]}"))
        axis.places.append((k, dim, spec.factor))
        axis.optional = optional

    def labels(self):
        """{sizes in the calls: name}."""
        return {tuple([n * factor for n in axis.values]): axis.name if factor == 1 else f"{factor}*{axis.name}"
                for axis in self.found.values() for factor in (1, *[f for *_, f in axis.places])}

    def of_shapes(self, shapes):
        """From `dynamic_shapes`: by parameter, or in their order, and below them as the arguments are nested."""
        if not isinstance(shapes, dict):
            order = list(dict.fromkeys(name for name, *_ in self.leaves))
            shapes = dict(zip(order, shapes))
        known = {name for name, *_ in self.leaves}
        for name, spec in list(shapes.items()):                          # *args, which PyTorch names as one
            if name not in known and isinstance(spec, (list, tuple)) and f"{name}_0" in known:
                del (shapes := dict(shapes))[name]
                shapes.update({f"{name}_{k}": part for k, part in enumerate(spec)})
        unknown = [name for name in shapes if name not in known]
        if unknown:
            raise ValueError(sentence(self.who, f"dynamic_shapes of {', '.join(sorted(known))}", *unknown))
        k = -1
        for name, path, leaf in self.leaves:
            if not isinstance(leaf, Tensor):
                continue
            k += 1
            spec = shapes.get(name)
            for key in path:
                spec = below(spec, key)
            if isinstance(spec, Hint):                                   # of all its axes
                spec = [spec] * leaf.ndim
            for dim, what in (spec or {}).items() if isinstance(spec, dict) else enumerate(spec or ()):
                self.add(k, dim, what, f"{self.names[k]}_dim_{dim}")

    def of_axes(self, axes, output_names):
        """From `dynamic_axes`: by the names of inputs and outputs, {dim: name} or a list of dims."""
        for name, spec in axes.items():
            dims = spec.items() if isinstance(spec, dict) else [(d, f"{name}_dynamic_axes_{k}") for k, d in enumerate(spec, 1)]
            if name in self.names:
                for dim, label in dims:
                    self.add(self.names.index(name), dim, label, label if not isinstance(spec, dict) else None)
            elif name in (output_names or ()):
                self.outputs.update({(name, dim): label for dim, label in dims})
            else:
                known = ", ".join([*self.names, *(output_names or ())])
                raise ValueError(sentence(self.who, f"dynamic_axes of inputs and outputs, {known}", repr(name)))

    def tied(self):
        """Whether axes without names of their own could be one because they are of one size: then they are."""
        by_size, changed = {}, False
        for name, axis in list(self.found.items()):
            if axis.automatic and axis.size in by_size:
                by_size[axis.size].places += axis.places
                del self.found[name]
                changed = True
            elif axis.automatic:
                by_size[axis.size] = axis
        return changed
