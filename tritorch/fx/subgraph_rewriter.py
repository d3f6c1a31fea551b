"""Finding a pattern in a graph and putting another in its place."""
import copy
from dataclasses import dataclass
from typing import NamedTuple

from tritorch.errors import sentence
from tritorch.fx._symbolic_trace import symbolic_trace
from tritorch.fx.graph import Graph
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.node import Node
from tritorch.fx.passes.utils.matcher_utils import SubgraphMatcher
from tritorch.nn.module import Module

__all__ = ["Match", "ReplacedPatterns", "replace_pattern", "replace_pattern_with_filters"]


class Match(NamedTuple):
    """A place where a pattern was: the node that ends it, and the node of the graph for each of the pattern."""

    anchor: Node
    nodes_map: dict[Node, Node]


@dataclass
class ReplacedPatterns:
    """A place where a pattern was, with the nodes that are there now."""

    anchor: Node
    nodes_map: dict[Node, Node]
    replacements: list[Node]


def replace_pattern(gm, pattern, replacement):
    """Replace what a function computes, wherever a GraphModule does it, by what another computes; a list of `Match`.

    Nodes match that call the same with the same numbers; parameters of the pattern match anything. Both functions (or GraphModules) have
    the same parameters, and what is inside of the pattern may be used nowhere else. Of places that overlap the first is replaced.

    >>> import tritorch as torch
    >>> traced = torch.fx.symbolic_trace(lambda x, y: torch.cat([x, y]).sum() + torch.cat([y, x]).sum())
    >>> found = torch.fx.replace_pattern(traced, lambda a, b: torch.cat([a, b]).sum(), lambda a, b: a.sum() + b.sum())
    >>> len(found), torch.cat in {node.target for node in traced.graph.nodes}
    (2, False)
    >>> traced(torch.ones(2), torch.ones(3))
    tensor(10.)
    """
    return [Match(found.anchor, found.nodes_map) for found in replace_pattern_with_filters(gm, pattern, replacement)]


def replace_pattern_with_filters(gm, pattern, replacement=None, match_filters=None, ignore_literals=False, replacement_callback=None,
                                 node_name_match=""):
    """`replace_pattern` where every filter(match, graph, graph of the pattern) holds; a list of `ReplacedPatterns`.

    `ignore_literals`: numbers need not be the same; `replacement_callback(match, graph, graph of the pattern)` gives the graph to put in
    the place instead of `replacement`; `node_name_match`: nodes whose name has this in it match, whatever they call.
    """
    wanted = _graph_of(pattern)
    if replacement is None and replacement_callback is None:
        raise AssertionError(sentence("replace_pattern", "a replacement or a replacement_callback", "neither"))
    common = None if replacement_callback else _graph_of(replacement)
    matches = SubgraphMatcher(wanted, ignore_literals=ignore_literals).match(gm.graph, node_name_match=node_name_match)
    matches = [m for m in matches if all(holds(m, gm.graph, wanted) for holds in match_filters or ())]
    replaced, found = {}, []
    for match in matches:
        match.placeholder_nodes = [replaced.get(node, node) for node in match.placeholder_nodes]
        match.nodes_map = {p: replaced.get(node, node) if p.op == "placeholder" else node for p, node in match.nodes_map.items()}
        made = _replace(gm.graph, wanted, common or replacement_callback(match, gm.graph, wanted), match, replaced)
        found.append(ReplacedPatterns(match.anchors[0], match.nodes_map, made))
    gm.recompile()
    if isinstance(replacement, Module):
        _bring_members(gm, replacement)
    return found


def _graph_of(program):
    if isinstance(program, Graph):
        return program
    return (program if isinstance(program, GraphModule) else symbolic_trace(program)).graph


def _replace(graph, pattern, replacement, match, replaced):
    """Put a copy of a graph in the place of a match; the new nodes."""
    inputs = replacement.find_nodes(op="placeholder")
    if len(inputs) != len(match.placeholder_nodes):
        raise AssertionError(sentence("replace_pattern", f"a replacement of {len(match.placeholder_nodes)} inputs", len(inputs)))
    values = dict(zip(inputs, match.placeholder_nodes))
    users = {user for node in match.returning_nodes for user in node.users}
    place = min(users) if users else max(match.returning_nodes).next
    with graph.inserting_before(place):
        results = graph.graph_copy(replacement, values)
    results = (results,) if isinstance(results, Node) else results
    if len(results) != len(match.returning_nodes):
        raise AssertionError(sentence("replace_pattern", f"a replacement of {len(match.returning_nodes)} results", len(results)))
    for node, result in zip(match.returning_nodes, results):
        node.replace_all_uses_with(result)
        replaced[node] = result
    for node in reversed(pattern.nodes):
        if node.op not in ("placeholder", "output"):
            graph.erase_node(match.nodes_map[node])
    return [made for node, made in values.items() if node not in inputs]


def _bring_members(gm, replacement):
    """Give a module what the nodes of a replacement name and it has not, and take from it what no node names any more."""
    gm.delete_all_unused_submodules()
    for node in gm.graph.nodes:
        if node.op in ("call_module", "get_attr") and _member(gm, node.target) is None:
            member = _member(replacement, node.target)
            if member is None:
                raise RuntimeError(sentence("replace_pattern", f"a replacement that has {node.target}", "none"))
            member = copy.deepcopy(member)
            if isinstance(member, Module):
                gm.add_submodule(node.target, member)
            else:
                setattr(gm, node.target, member)
    gm.graph.lint()


def _member(module, target):
    path, _, name = target.rpartition(".")
    try:
        return getattr(module.get_submodule(path), name, None)
    except AttributeError:
        return None
