"""Models cut into stages where their layers are named: traced as a graph, of which each stage gets a part."""
import inspect
from enum import Enum
from typing import NamedTuple

from tritorch import fx
from tritorch.distributed.pipelining.stage import PipelineStage
from tritorch.errors import check
from tritorch.nn.module import Module

_tracers = []                                                            # the tracer of the model that is being cut


class SplitPoint(Enum):
    """Whether a stage ends before a layer or behind it."""

    BEGINNING = 1
    END = 2


class PipeInfo(NamedTuple):
    """What a stage has to know of the whole."""

    graph: fx.Graph
    num_stages: int
    has_loss_and_backward: bool = False


def pipe_split():
    """Written into `forward` of a model: here a stage ends when `pipeline` cuts the model. Else it does nothing."""
    if _tracers:
        _tracers[-1].create_node("call_function", pipe_split, (), {})


def pipeline(module, mb_args, mb_kwargs=None, split_spec=None, split_policy=None):
    """Cut a model into stages, a `Pipe`: before or behind the layers that `split_spec` names, {"layers.3": SplitPoint.BEGINNING}, or where
    its `forward` calls `pipe_split`, or a `split_policy` has put such calls into its graph.

    What lies between the named layers is traced with symbols (`tritorch.fx`), the layers themselves are not looked into: they may do
    what they want. `mb_args` and `mb_kwargs` are a microbatch of arguments; what else `forward` takes keeps its defaults. What a later
    stage needs of an earlier one, as a skip connection does, travels through the stages between.

    Errors: ValueError for both ways at once, a name that is no layer, and a parameter that two stages would train apart.

    >>> import tritorch as torch
    >>> from tritorch.distributed.pipelining import SplitPoint, pipeline
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layers, self.head = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(4)]), torch.nn.Linear(3, 1)
    ...     def forward(self, x):
    ...         y = x
    ...         for layer in self.layers:
    ...             y = layer(y).relu()
    ...         return self.head(x + y)
    >>> x = torch.ones(2, 3)
    >>> net = Net()
    >>> pipe = pipeline(net, (x,), split_spec={"layers.2": SplitPoint.BEGINNING})
    >>> pipe.num_stages, sorted(dict(pipe.get_stage_module(1).named_parameters()))[:2], torch.equal(pipe(x), net(x))
    (2, ['head.bias', 'head.weight'], True)
    """
    check(split_spec is None or split_policy is None, "pipeline", "split_spec or split_policy", "both", error=ValueError)
    traced = _traced(module, mb_args, mb_kwargs or {}, split_spec)
    traced = split_policy(traced) if split_policy is not None else traced
    return Pipe(traced, _places(traced.graph, split_spec or {}))


class _Tracer(fx.Tracer):
    """Looks into those modules that a split point lies in; without split points into what is no layer of `nn`."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def is_leaf_module(self, m, module_qualified_name):
        if not self.names:
            return super().is_leaf_module(m, module_qualified_name)
        return not any(name.startswith(module_qualified_name + ".") for name in self.names)


def _traced(module, args, kwargs, spec):
    known = dict(module.named_modules())
    for name in spec or ():
        check(name in known and name, "pipeline", "names of layers in split_spec", repr(name), error=ValueError)
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    left = {name: p.default for name, p in inspect.signature(module.forward).parameters.items()
            if name not in given and p.default is not p.empty}
    _tracers.append(_Tracer(list(spec or ())))
    try:
        return fx.GraphModule(module, _tracers[-1].trace(module, left))
    finally:
        _tracers.pop()


def _places(graph, spec):
    """{node: the stage that it is in}; without what only marks where a stage ends."""
    places, stage = {}, 0
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is pipe_split:
            graph.erase_node(node)
            stage += 1
            continue
        point = spec.get(node.target) if node.op == "call_module" else None
        stage += point is SplitPoint.BEGINNING
        places[node] = stage
        stage += point is SplitPoint.END
    return places


class Pipe(Module):
    """A model in stages, `submod_0`, `submod_1`, …; called, it runs them in turn.

    `pipe.build_stage(k, device)` is the PipelineStage of one, for a schedule; `pipe.get_stage_module(k)` its module, whose parameters are
    those of the model, under the same names.
    """

    def __init__(self, traced, places):
        super().__init__()
        self.num_stages, self.graph = max(places.values()) + 1, traced.graph
        for k in range(self.num_stages):
            self.add_module(f"submod_{k}", _stage(traced, places, k, self.num_stages))
        self._hold_parameters_apart()

    def _hold_parameters_apart(self):
        seen = {}
        for k in range(self.num_stages):
            for name, p in self.get_stage_module(k).named_parameters():
                earlier = seen.setdefault(id(p), (k, name))
                check(earlier[0] == k, "pipeline", "every parameter in one stage", f"{name} in the stages {earlier[0]} and {k}",
                      error=ValueError)

    def forward(self, *args, **kwargs):
        """All stages in this process."""
        values = self.submod_0(*args, **kwargs)
        for k in range(1, self.num_stages):
            values = self.get_stage_module(k)(*values if isinstance(values, (tuple, list)) else (values,))
        return values

    def get_stage_module(self, stage_idx):
        """The module of a stage."""
        check(0 <= stage_idx < self.num_stages, "get_stage_module", f"a stage from 0 to {self.num_stages - 1}", stage_idx, error=ValueError)
        return getattr(self, f"submod_{stage_idx}")

    def info(self):
        """What `build_stage` wants to know."""
        return PipeInfo(self.graph, self.num_stages)

    def build_stage(self, stage_index, device, group=None):
        """The PipelineStage of a stage, its module moved to the device."""
        return build_stage(self.get_stage_module(stage_index), stage_index, self.info(), device, group)

    def print_readable(self):
        """Print what each stage does."""
        for k in range(self.num_stages):
            print(f"stage {k}:{self.get_stage_module(k).code}")


def build_stage(stage_module, stage_index, pipe_info, device, group=None):
    """The PipelineStage of a module that `Pipe.get_stage_module` gave, perhaps changed since, moved to the device."""
    return PipelineStage(stage_module.to(device), stage_index, pipe_info.num_stages, device, group=group)


def _stage(traced, places, k, stages):
    """The GraphModule of stage k."""
    graph, made = fx.Graph(), {}
    for node in _passed(traced.graph, places, k):
        made[node] = graph.placeholder(node.name)

    def here(node):                                                      # parameters and buffers are where they are used
        if node not in made and node.op == "get_attr":
            made[node] = graph.get_attr(node.target)
        return made[node]

    for node in [node for node, place in places.items() if place == k and node.op not in ("get_attr", "output")]:
        made[node] = graph.node_copy(node, here)
    if k == stages - 1:
        graph.output(fx.map_arg(traced.graph.output_node().args[0], here))
    else:
        out = [here(node) for node in _passed(traced.graph, places, k + 1)]
        graph.output(out[0] if len(out) == 1 else tuple(out))
    graph.lint()
    return fx.GraphModule(traced, graph, f"Stage{k}")


def _passed(graph, places, k):
    """The values that come to stage k from the stages before it, for itself or for those behind it."""
    goes_on = lambda node: places[node] < k and any(places[user] >= k for user in node.users)
    return [node for node in graph.nodes if k and node.op != "get_attr" and goes_on(node)]
