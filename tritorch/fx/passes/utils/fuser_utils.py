"""Nodes that are to become one."""


def validate_partition(partition):
    """Whether nodes can become one: no path leads from one of them out and back to another.

    >>> import tritorch as torch
    >>> nodes = list(torch.fx.symbolic_trace(lambda x: (x + 1).exp() + x).graph.nodes)
    >>> validate_partition(nodes[1:3]), validate_partition([nodes[1], nodes[3]])
    (True, False)
    """
    inside = set(partition)
    after = [user for node in partition for user in node.users if user not in inside]
    seen = set(after)
    while after:
        for user in after.pop().users:
            if user in inside:
                return False
            if user not in seen:
                seen.add(user)
                after.append(user)
    return True
