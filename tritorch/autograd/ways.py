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
