"""Which nodes a pass comes to."""
from operator import attrgetter

from tritorch.tensor import Leaf


def reachable(roots):
    """The nodes from the roots on, leaves too."""
    seen, stack = set(), list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [n for n, _ in node.next_functions if n is not None]
    return seen


def ways_to_hooks(roots):
    """(how many edges lead to each leaf with hooks, {node: those leaves that its own edges lead to}), from the roots on."""
    uses, at, seen, stack = {}, {}, set(roots), list(roots)
    while stack:
        node = stack.pop()
        edges = node.edges
        for edge in edges if list not in map(type, edges) else flat_edges(edges):
            if not edge:
                continue
            target = edge[0]
            if type(target) is not Leaf:
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
            elif target.hooks is not None:
                uses[target] = uses.get(target, 0) + 1
                at.setdefault(node, []).append(target)
    return uses, at


def flat_edges(edges):
    """All edges, those of several-tensor arguments included."""
    for edge in edges:
        if type(edge) is list:
            yield from edge
        else:
            yield edge


def leading_nodes(roots, targets):
    """(the targets and the nodes between the roots and them, those that have a way to a target through an input)."""
    below, stack = {}, list(roots)
    while stack:
        node = stack.pop()
        if node not in below and type(node) is not Leaf:
            found = below[node] = []
            for edge in node.edges:
                if type(edge) is list:
                    found += [e[0] for e in edge if e]
                elif edge:
                    found.append(edge[0])
            stack += found
    leads, runs = set(targets), set()
    for node in sorted(below, key=attrgetter("seq")):
        if not leads.isdisjoint(below[node]):
            leads.add(node)
            runs.add(node)
    return leads, runs
