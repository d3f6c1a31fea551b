"""Finding the places of a graph that do what a pattern does."""
from dataclasses import dataclass, field

from tritorch.errors import sentence
from tritorch.fx.graph_module import _get_attr
from tritorch.fx.node import Node
from tritorch.fx.operator_schemas import normalize_function
from tritorch.fx.passes.utils.fuser_utils import validate_partition
from tritorch.tensor import Tensor

__all__ = ["InternalMatch", "SubgraphMatcher"]


@dataclass
class InternalMatch:
    """A place that matches: the pattern's last nodes, the node (or number) for each of the pattern's, those for its inputs and results."""

    anchors: list[Node]
    nodes_map: dict[Node, Node] = field(default_factory=dict)
    placeholder_nodes: list[Node] = field(default_factory=list)
    returning_nodes: list[Node] = field(default_factory=list)
    name_node_map: dict[str, Node] = field(default_factory=dict)


class SubgraphMatcher:
    """Finds a pattern, a graph, in others.

    `match_output`: it has to end where they do; `match_placeholder`: its inputs have to be inputs; without `remove_overlapping_matches`
    places may share nodes; `ignore_literals`: numbers need not be the same.

    >>> import tritorch as torch
    >>> pattern = torch.fx.symbolic_trace(lambda a, b: torch.relu(a + b))
    >>> traced = torch.fx.symbolic_trace(lambda x: torch.relu(torch.relu(x + 1) + x))
    >>> [match.placeholder_nodes for match in SubgraphMatcher(pattern.graph).match(traced.graph)]
    [[x, 1], [relu, x]]
    """

    def __init__(self, pattern, match_output=False, match_placeholder=False, remove_overlapping_matches=True, ignore_literals=False):
        if not len(pattern.nodes):
            raise ValueError(sentence("SubgraphMatcher", "a pattern with nodes", "none"))
        for node in pattern.nodes:
            if node.op != "output" and not node.users and not node.is_impure():
                raise AssertionError(sentence("SubgraphMatcher", "a pattern without dead code", f"{node} without users"))
        self.pattern, self.match_output, self.match_placeholder = pattern, match_output, match_placeholder
        self.remove_overlapping_matches, self.ignore_literals = remove_overlapping_matches, ignore_literals
        output = pattern.output_node()
        self.pattern_placeholder_nodes = pattern.find_nodes(op="placeholder")
        self.pattern_returning_nodes = output.all_input_nodes
        self.pattern_anchors = [output] if match_output else [n for n in output.all_input_nodes if len(n.users) == 1]

    def match(self, graph, node_name_match=""):
        """The places of a graph, as `InternalMatch`; nodes whose name has `node_name_match` in it match whatever they call."""
        found = self._search(graph, 0, {}, node_name_match) if self.pattern_anchors else ()
        found = [nodes for nodes in found if self._is_contained(nodes) and validate_partition(_computed(nodes))]
        if self.remove_overlapping_matches:
            taken, all_found, found = set(), found, []
            for nodes in all_found:
                if taken.isdisjoint(_computed(nodes)):
                    taken.update(_computed(nodes))
                    found.append(nodes)
        return [InternalMatch(self.pattern_anchors, nodes, [nodes[p] for p in self.pattern_placeholder_nodes],
                              [nodes[p] for p in self.pattern_returning_nodes]) for nodes in found]

    def _search(self, graph, k, nodes, node_name_match):
        """All ways to match the anchors from the k-th on, where those before it are these nodes."""
        if k == len(self.pattern_anchors):
            yield nodes
            return
        for node in graph.nodes:
            trial = dict(nodes)
            if self._match_nodes(self.pattern_anchors[k], node, trial, node_name_match):
                yield from self._search(graph, k + 1, trial, node_name_match)

    def _nodes_are_equal(self, p, node, node_name_match=""):
        if not self.match_placeholder and p.op == "placeholder" or node_name_match and node_name_match in node.name:
            return True
        if p.op != node.op or p.op in ("placeholder", "output"):
            return p.op == node.op
        if p.op == "get_attr":
            values = [_get_attr(n.graph.owning_module, n.target) for n in (p, node)]
            return type(values[0]) is type(values[1]) and isinstance(values[0], Tensor)
        return p.target == node.target

    def _match_nodes(self, p, node, found, node_name_match=""):
        """Whether a node does what one of the pattern does, and those before it; `found` gets the nodes."""
        if p in found:
            return found[p] is node
        if any(other is node for other in found.values()) or not self._nodes_are_equal(p, node, node_name_match):
            return False
        found[p] = node
        return p.op == "placeholder" or self._match_arguments(*_arguments(p, node), found)

    def _match_arguments(self, theirs, ours, found):
        if theirs is None or len(theirs) != len(ours):
            return False
        for p, x in zip(theirs, ours):
            if isinstance(p, (list, tuple)) and isinstance(x, (list, tuple)):
                same = self._match_arguments(p, x, found)
            elif isinstance(p, Node) and isinstance(x, Node):
                same = self._match_nodes(p, x, found)
            elif isinstance(p, Node):
                same = p.op == "placeholder" and type(found.setdefault(p, x)) is type(x) and found[p] == x
            else:
                same = self.ignore_literals or type(p) is type(x) and p == x
            if not same:
                return False
        return True

    def _is_contained(self, nodes):
        """Whether nobody else uses what is inside."""
        inside = set(_computed(nodes))
        return all(user in inside for p, node in nodes.items() if p.op != "placeholder" and p not in self.pattern_returning_nodes
                   for user in node.users)


def _computed(nodes):
    return [node for p, node in nodes.items() if p.op not in ("placeholder", "output")]


def _arguments(p, node):
    """The arguments of two nodes in one order, with their defaults where one has more of them; None if they cannot be compared."""
    if len(p.args) == len(node.args) and p.kwargs.keys() == node.kwargs.keys():
        return [*p.args, *p.kwargs.values()], [*node.args, *[node.kwargs[key] for key in p.kwargs]]
    if p.op == node.op == "call_function":
        try:
            both = [normalize_function(n.target, n.args, n.kwargs, normalize_to_only_use_kwargs=True) for n in (p, node)]
        except TypeError:                                                # no arguments for that function
            both = [None, None]
        if None not in both:
            return [list(pair.kwargs.values()) for pair in both]
    return None, None
