"""The gradient graph: one node for each recorded call, freed by reference count alone.

A node keeps what its rules name, as snapshots: a tensor's memory, layout, version and place in the graph, but never the
tensor object, so that no cycle can form when that object is written in place and gets a new history.
"""
import sys
from importlib import import_module
from typing import NamedTuple

from tritorch.autograd import modes, places
from tritorch.autograd.crossing import note
from tritorch.autograd.hooks import Handle, hooks_of, register_multi_grad_hook
from tritorch.autograd.modes import state
from tritorch.autograd.saved import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from tritorch.autograd.snapshot import PACKED, as_it_was, holds_memory, pack, restore
from tritorch.autograd.ways import flat_edges
from tritorch.errors import GradientError, check
from tritorch.storage import next_seq
from tritorch.tensor import Leaf, Tensor, empty, refresh

inside = places.inside
cuda_streams = import_module("tritorch.cuda.stream")                     # tritorch.cuda.stream is the function of that name
SELF = object()                                                          # edge of a view that was written in place: into its own old values


class _LeavesToo(type):
    """The ends of the graph are nodes to users."""

    def __instancecheck__(cls, x):
        return type.__instancecheck__(cls, x) or cls is Node and type(x) is Leaf


class Node(metaclass=_LeavesToo):
    """One recorded call. `edges` go to the inputs: False for an argument that is no tensor, None for one that needs no gradient,
    an edge (node, output index, shape, dtype), or a list of edges for an argument of several tensors. `shapes` are the (shape,
    dtype, device) of the outputs, `streams` what they were made on where that is not the default stream."""

    __slots__ = ("seq", "outputs", "edges", "hooks", "shapes", "trace", "streams", "_metadata", "__weakref__")
    saved = ()

    def pull(self, grads, useful=None, as_output=None):
        """(edge, gradient) for every input, from the gradients of the outputs (None where none arrived).
        Rules none of whose edges lead to a node in `useful` may be left out. `as_output` gives saved outputs their history
        where it is not this node."""
        raise GradientError(f"{self.name()}: expected a node with a gradient rule")

    def name(self):
        """What the node is called in errors and printed tensors."""
        return type(self).__name__

    @property
    def metadata(self):
        """A dict for whatever the user wants to keep with the node."""
        try:
            return self._metadata
        except AttributeError:
            self._metadata = {}
            return self._metadata

    @property
    def next_functions(self):
        """(node, output index) of every input, (None, 0) where it needs no gradient."""
        return tuple((e[0], e[1]) if e else (None, 0) for e in flat_edges(self.edges) if e is not False)

    def _sequence_nr(self):
        return self.seq

    def release(self):
        """Drop what was saved: backward does so as it goes, unless the graph is retained."""

    def register_hook(self, fn):
        """Call `fn(grad_inputs, grad_outputs)` after the node ran; what it returns replaces the gradients of the inputs."""
        return Handle(hooks_of(self).after, fn)

    def register_prehook(self, fn):
        """Call `fn(grad_outputs)` before the node runs; what it returns replaces them."""
        return Handle(hooks_of(self).before, fn)

    def __repr__(self):
        return f"<{self.name()} object at {id(self):#x}>"


Leaf.register_hook, Leaf.register_prehook = Node.register_hook, Node.register_prehook


class OpNode(Node):
    """A recorded operator call: the plan says which rules run, `saved` holds what they name."""

    __slots__ = ("plan", "saved", "frame")

    def name(self):
        base = "".join(part.capitalize() for part in self.plan.op.__name__.split("_"))
        return base + "Backward0"

    @property
    def saved_tensors(self):
        """The tensors that the rules named, as they are saved."""
        return tuple(v for v in [restore(self, v, k) for k, v in enumerate(self.saved or ())] if isinstance(v, Tensor))

    def saved_as(self, k):
        """What the k-th saved value is called, and by which operator."""
        return self.plan.saved_names[k], self.plan.op.__name__

    def pull(self, grads, useful=None, as_output=None):
        plan, saved = self.plan, self.saved
        if saved is None:
            raise GradientError(f"{plan.op.__name__}: expected a graph whose saved tensors are still there, but backward has freed them; "
                                "use retain_graph=True to go through the graph a second time")
        if plan.single is not None and as_output is None:                # most nodes: one rule of one gradient that gives one
            fn, sources, target = plan.single
            edge, g = self.edges[target], grads[0]
            if useful is None or type(edge) is tuple and edge[0] in useful:
                if not saved:
                    return ((edge, fn(g)),)
                values = [restore(self, v, k) if v.__class__ in PACKED else v for k, v in enumerate(saved)]
                return ((edge, fn(*[values[s] if s >= 0 else g for s in sources])),)
        if as_output is not None and state.run is not None:
            state.run.node = None                                        # what arrives is not the gradient of this node's own output
        if len(grads) > 1 and not getattr(plan.op, "some_gradients", False):
            grads = [self.zeros(k) if g is None and k in plan.needs_g else g for k, g in enumerate(grads)]
        out, values = [], [restore(self, v, k) if v.__class__ in PACKED else v for k, v in enumerate(saved)]
        if as_output is not None:
            for k, _ in plan.saved_outputs:
                values[k] = as_output(values[k])
        edges = self.edges
        for fn, sources, targets in plan.rules:
            if useful is not None and not any(e and (e[0] in useful or e[0] is SELF) for e in flat_edges([edges[t] for t in targets])):
                continue
            result = fn(*[values[s] if s >= 0 else grads[~s] for s in sources])
            if len(targets) == 1:
                if edges[targets[0]]:
                    out.append((edges[targets[0]], result))
            else:
                out += [(edges[t], r) for t, r in zip(targets, result) if edges[t]]
        return out

    def zeros(self, k):
        return empty(*self.shapes[k]).zero_()

    def release(self):
        if any(map(holds_memory, self.saved or ())):
            self.saved = None                                            # a node that kept no tensor can go again

    def __getattr__(self, name):
        """`_saved_x`: what the rules named, under the operator's names, or PyTorch's `self` and `result`."""
        if name.startswith("_saved_"):
            names, want = self.plan.saved_names, name[7:]
            want = {"self": self.plan.op.names[0], "result": self.plan.op.returns[0]}.get(want, want) if want not in names else want
            if want in names:
                check(self.saved is not None, self.plan.op.__name__, "saved tensors that are still there",
                      "a graph that backward has freed", use="retain_graph=True")
                k = names.index(want)
                return restore(self, self.saved[k], k)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class HolomorphicNode(OpNode):
    """A call with complex outputs of an operator whose rules are those of a real function. Where f is holomorphic, the gradient of a real
    loss is g · conj(f′), which is conj(conj(g) · f′): the rules are asked between two conjugations."""

    __slots__ = ()

    def pull(self, grads, useful=None, as_output=None):
        grads = [None if g is None else g.conj() for g in grads]
        return [(edge, [v if v is None else v.conj() for v in g] if type(edge) is list else g if g is None else g.conj())
                for edge, g in OpNode.pull(self, grads, useful, as_output)]


def conjugating(node):
    """Make the node of a holomorphic operator with a complex output what conjugates gradients; always True."""
    if node.plan.op.complex == "holomorphic":
        node.__class__ = HolomorphicNode
    return True


ARG, OUTPUT = "input", "output"                                          # where a saved value comes from; else it is one of these
FACTS = {"shape": lambda x: x.shape, "strides": lambda x: x.strides, "offset": lambda x: x.offset, "dtype": lambda x: x.dtype,
         "device": lambda x: x.storage.device}


def _source(want, names, returns):
    """(where, index) of what a rule names: an input, an output, or only a fact of an input."""
    if want in names:
        return ARG, names.index(want)
    if want in returns:
        return OUTPUT, returns.index(want)
    name, _, fact = want.rpartition("_")
    return fact, names.index(name)


def facts(names):
    """What a rule may name besides inputs and outputs: `x_shape`, `x_dtype`, … keep no memory alive."""
    return tuple(f"{n}_{fact}" for n in names for fact in FACTS)


class Plan:
    """What a call does in the backward pass when a given set of its inputs needs gradients: made once per operator and set."""

    __slots__ = ("op", "rules", "saves", "single", "saved_outputs", "saved_names", "needs_g", "inputs", "covers", "outputs", "first_alone",
                 "lone")

    def __init__(self, op, mask):
        self.op = op
        names, returns, gnames = op.names, op.returns, op.gnames
        self.inputs = [i for i in range(len(names)) if mask >> i & 1]
        needed = {names[i] for i in self.inputs}
        chosen = [r for r in op.rules_for(needed) if needed.intersection(r[2])]
        covered = {n for r in chosen for n in r[2]}
        self.inputs = [i for i in self.inputs if names[i] in covered]
        slots, self.saves, self.saved_names, self.rules, self.needs_g = {}, [], [], [], set()
        for fn, wants, inputs in chosen:
            sources = []
            for w in wants:
                if w in gnames:
                    self.needs_g.add(gnames.index(w))
                    sources.append(~gnames.index(w))
                else:
                    if w not in slots:
                        slots[w] = len(self.saves)
                        self.saves.append(_source(w, names, returns))
                        self.saved_names.append(w)
                    sources.append(slots[w])
            self.rules.append((fn, sources, [names.index(n) for n in inputs]))
        self.outputs, self.first_alone = [k in self.needs_g for k in range(len(returns))], self.needs_g <= {0}
        rule = self.rules[0] if len(self.rules) == 1 and self.first_alone and len(self.rules[0][2]) == 1 else None
        self.single = None if rule is None or rule[1] != [~0] and not self.saves else (rule[0], rule[1], rule[2][0])
        self.saved_outputs = [(k, which) for k, (source, which) in enumerate(self.saves) if source is OUTPUT]
        self.covers = len(self.inputs) == mask.bit_count()
        self.lone = self.first_alone and self.outputs[0] and not self.saved_outputs


class Plans(dict):
    """An operator's plans by mask: which of its inputs need gradients."""

    __slots__ = ("op",)

    def __init__(self, op):
        self.op = op

    def __missing__(self, mask):
        made = self[mask] = Plan(self.op, mask)
        return made


def record(op, args, outs, depth=3):
    """Make the node of a call if one of its inputs needs a gradient that a rule can give, and hang it on the outputs. `depth`: how many
    frames below the node is made the user called."""
    mask, bit, edges = 0, 1, []
    for a in args:
        if isinstance(a, Tensor):
            if a.base is not None and a.base.node is not a.base_node:
                refresh(a)
            node = a.node
            if node is None:
                edges.append(None)
            else:
                mask |= bit
                edges.append((node, a.index, a.shape, a.dtype))
        elif type(a) is tuple and (several := _edges(a)) and any(several):
            mask |= bit
            edges.append(several)
        else:
            edges.append(False)
        bit += bit
    if not mask:
        return
    plan = op.plans[mask]
    if not plan.rules:
        return
    node = make_node(plan, args, edges, None, depth)
    if plan.lone and not cuda_streams.used:                              # as hang would, without the call
        out = outs[0]
        if out.dtype.is_floating_point or out.dtype.is_complex and conjugating(node):
            out.node = node
            out.index = 0
    else:
        hang(node, outs)


def _edge(x):
    """Where the gradient of a tensor goes, None if nowhere, False if x is none."""
    if not isinstance(x, Tensor):
        return False
    return (x.node, x.index, x.shape, x.dtype) if x.requires_grad else None


def _edges(values):
    """Where the gradients of several tensors go, False if none of the values is one."""
    for v in values:
        if isinstance(v, Tensor):
            return [_edge(v) for v in values]
    return False


def written_edges(args, written):
    """The edges of a call that writes one of its arguments in place."""
    edges = []
    for a in args:
        if type(a) is tuple:
            several = [_edge(v) for v in a]
            edges.append(several if any(several) else False)
        else:
            edges.append((SELF, 0, a.shape, a.dtype) if a is written and a.base is not None and a.requires_grad else _edge(a))
    return edges


def make_node(plan, args, edges, written=None, depth=3):
    """A node with its edges and saved inputs. `written` is the tensor that the call writes in place."""
    node = OpNode()                                                      # as for tensors, quicker than object.__new__
    node.seq = next_seq()
    node.plan = plan
    node.outputs = 1
    node.hooks = node.streams = node.trace = node.shapes = None
    node.edges = edges if plan.covers else [e if k in plan.inputs else e and None for k, e in enumerate(edges)]
    saved, holds = [], bool(plan.saved_outputs)                          # whether a tensor is saved
    node.saved = saved
    plain = plan.saves and not state.saved_hooks
    for source, k in plan.saves:
        if source is OUTPUT:
            saved.append(None)
            continue
        value = args[k]
        if source is not ARG:
            value = FACTS[source](value) if isinstance(value, Tensor) else () if source == "shape" else None
        elif isinstance(value, Tensor):
            holds = True
            if plain and value is not written and not (modes.inferred and value._inference):       # as pack would, without the call
                storage = value.storage
                value = (storage, value.shape, value.strides, value.offset, value.dtype, value.node, value.index,
                         storage.version, value.form, value._tangents if modes.interpreted else None)
            else:
                value = pack(as_it_was(value) if value is written else value)
        elif type(value) is tuple:
            value = pack(value)
            holds = holds or type(value) is list
        saved.append(value)
    if holds:
        # who called the door, for the error about a saved tensor that was written since; as places.user_place, without its calls
        frame = sys._getframe(depth)
        code = frame.f_code
        while inside[code.co_filename] and frame.f_back is not None:
            frame = frame.f_back
            code = frame.f_code
        node.frame = code, frame.f_lasti
    if modes.hunted and state.anomaly is not None:
        node.trace = places.user_trace()
    return node


def hang(node, outs):
    """Finish a node with its outputs and make it their history."""
    plan = node.plan
    for k, which in plan.saved_outputs:
        node.saved[k] = pack(outs[which], True, which)
    if cuda_streams.used:
        note(node)
    if plan.first_alone:                                                 # one gradient: it always arrives
        out = outs[0]
        if plan.outputs[0] and (out.dtype.is_floating_point or out.dtype.is_complex and conjugating(node)):
            out.node = node
            out.index = 0
        return
    node.outputs, node.shapes = len(outs), [(o.shape, o.dtype, o.storage.device) for o in outs]
    for k, o in enumerate(outs):
        if plan.outputs[k] and (o.dtype.is_floating_point or o.dtype.is_complex and conjugating(node)):
            o.node, o.index = node, k


def get_gradient_edge(tensor):
    """The tensor's place in the graph: takes the tensor's part in `autograd.grad` and `backward` without keeping its memory."""
    check(tensor.requires_grad, "get_gradient_edge", "a tensor that requires grad", "one that does not")
    return GradientEdge(tensor.node, tensor.index)


class GradientEdge(NamedTuple):
    """A node and the index of one of its outputs."""

    node: Node
    output_nr: int
    ownership_token: object = None


def increment_version(tensors):
    """Count a write in place that autograd could not see; a later backward through an old saved value is then an error."""
    for t in (tensors,) if isinstance(tensors, Tensor) else tensors:
        t.storage.version += 1
        t.storage.writer = places.user_place()


def __getattr__(name):
    """What lies above this layer loads when it is first asked for."""
    if name == "allow_mutation_on_saved_tensors":
        return getattr(import_module("tritorch.autograd.mutation"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["GradientEdge", "Node", "disable_saved_tensors_hooks", "get_gradient_edge", "increment_version", "register_multi_grad_hook",
           "save_on_cpu",
           "saved_tensors_hooks"]
