"""The calls of a module that `export` watches."""
import inspect

from tritorch.autograd.modes import enable_grad, no_grad
from tritorch.errors import sentence
from tritorch.export.recorder import Recorder
from tritorch.random import fork_rng
from tritorch.tensor import Tensor
from tritorch.tracing.axes import paths
from tritorch.tracing.sizes import Varying
from tritorch.tracing.tracer import Untraceable
from tritorch.utils import _pytree

PLAIN = (int, float, complex, bool, str, type(None))


class Parts:
    """What of a module a graph names: parameters, buffers and, as `constants`, tensors that are plain attributes."""

    def __init__(self, module):
        self.module = module
        self.parameters = dict(module.named_parameters(remove_duplicate=False))
        self.buffers = dict(module.named_buffers(remove_duplicate=False))
        self.constants, self.persistent = {}, set(module.state_dict())
        for path, part in module.named_modules():
            for name, value in vars(part).items():
                if isinstance(value, Tensor):
                    self.constants[f"{path}.{name}" if path else name] = value
        self.paths = {}
        for path, part in module.named_modules(remove_duplicate=False):
            self.paths.setdefault(id(part), path)

    @property
    def named(self):
        """[(name, tensor)] of all of them."""
        return [*self.parameters.items(), *self.buffers.items(), *self.constants.items()]


class _Attributes:
    """Tensors that the call assigns to attributes: buffers get their value in place, others are refused. All are as before afterwards."""

    def __init__(self, module):
        self.before = [(part, dict(part._buffers), {k: v for k, v in vars(part).items() if isinstance(v, Tensor)}, dict(part._parameters))
                       for part in module.modules()]

    def carry(self):
        """Write the buffers; inside of the trace."""
        for part, buffers, plain, parameters in self.before:
            for name, old in buffers.items():
                new = part._buffers.get(name)
                if new is not old and (old is None or new is None or new.shape != old.shape):
                    raise Untraceable(sentence("export", f"a buffer {name!r} of one shape", "another assigned",
                                               use="a slice of a larger one"))
                if new is not old:
                    part._buffers[name] = old
                    with no_grad():
                        old.copy_(new)
            now = {k: v for k, v in vars(part).items() if isinstance(v, Tensor)}
            changed = [name for name in {*now, *plain} if now.get(name) is not plain.get(name)]
            changed += [name for name, x in part._parameters.items() if parameters.get(name) is not x]
            if changed:
                raise Untraceable(sentence("export", "tensors assigned to buffers alone", f"{changed[0]!r} of {type(part).__name__}",
                                           use="register_buffer"))

    def restore(self):
        for part, buffers, plain, parameters in self.before:
            part._buffers.update(buffers)
            part._parameters.update(parameters)
            for name in [k for k, v in vars(part).items() if isinstance(v, Tensor) and k not in plain]:
                del vars(part)[name]
            vars(part).update(plain)


class Result:
    """What a call returned: its form, and for each leaf a Value or what is no tensor."""

    def __init__(self, leaves, spec):
        self.leaves, self.spec = leaves, spec


def call(parts, leaves, spec, inputs):
    """(the recorder, the values of the results, what was returned) of one call, with other tensors among the leaves of the arguments."""
    rest = iter(inputs)
    args, kwargs = spec.unflatten([next(rest).requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in leaves])
    recorder = Recorder(parts.named, inputs, parts.paths, parts.buffers)
    attributes = _Attributes(parts.module)
    try:
        with fork_rng(), enable_grad(), recorder.tracing():
            result = parts.module(*args, **kwargs)
            attributes.carry()
            made, out_spec = _pytree.tree_flatten(result)
            odd = [type(x).__name__ for x in made if not isinstance(x, (Tensor, *PLAIN))]
            if odd:
                raise Untraceable(sentence("export", "a result of tensors, numbers, and lists, tuples and dicts of them", odd[0],
                                           use="export.register_dataclass, or use_cache=False if it is a cache"))
            found = [recorder.given(x) if isinstance(x, Tensor) else x for x in made]
    finally:
        attributes.restore()
    values = [x for x, leaf in zip(found, made) if isinstance(leaf, Tensor)]
    return recorder, values, Result(found, out_spec), _ends(recorder, parts, inputs)


def _ends(recorder, parts, inputs):
    """What buffers and inputs hold in the end, of those that were written: ({name: value}, {number: value})."""
    buffers = {name: recorder.value(x) for name, x in parts.buffers.items() if recorder.written(x)}
    return buffers, {k: recorder.value(x) for k, x in enumerate(inputs) if recorder.written(x)}


def results(traces):
    """The leaves of the first call's result; numbers that differ in the others are `Varying`."""
    first, *others = [result for _, _, result, *_ in traces]
    if any(other.spec != first.spec for other in others):
        raise Untraceable(sentence("export", "results of one form whatever the sizes of dynamic axes are", "others"))
    found = []
    for leaf, *rest in zip(first.leaves, *[other.leaves for other in others]):
        if isinstance(leaf, PLAIN) and any(leaf != other and leaf == leaf for other in rest):
            if not all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in (leaf, *rest)):
                raise Untraceable(sentence("export", "results of one form whatever the sizes of dynamic axes are", repr(leaf)))
            leaf = Varying((leaf, *rest))
        found.append(leaf)
    return found


def named(module, args, kwargs):
    """The names of the arguments in their order, and [(name, path below it, leaf)]. TypeError, in Python's words, for arguments that
    forward does not take."""
    signature = inspect.signature(module.forward)
    signature.bind(*args, **kwargs)
    found, places = [], [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    for k, value in enumerate(args):
        parameter = places[min(k, next((i for i, p in enumerate(places) if p.kind is inspect.Parameter.VAR_POSITIONAL), k))]
        several = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        found.append((f"{parameter.name}_{k - places.index(parameter)}" if several else parameter.name, value))
    found += kwargs.items()
    return [name for name, _ in found], [(name, path, leaf) for name, value in found for path, leaf in paths(value)]
