"""What nodes that are made of other nodes keep of them."""
import contextlib
import copy
import threading

__all__ = ["annotate", "get_current_meta", "has_preserved_node_meta", "preserve_node_meta", "set_current_meta"]
KEPT = ("nn_module_stack", "stack_trace", "source_fn_stack", "from_node", "quantization_tag", "custom", "partitioner_tag", "torch_fn")


class _State(threading.local):
    """What is current in this thread, and whether new nodes get it."""

    meta, preserves = {}, False


_state = _State()


@contextlib.contextmanager
def _within(**values):
    was = {name: getattr(_state, name) for name in values}
    vars(_state).update(values)
    try:
        yield
    finally:
        vars(_state).update(was)


def preserve_node_meta(enable=True):
    """A context in which nodes that tracers make get the stack trace, modules and annotations that are current.

    >>> with preserve_node_meta():
    ...     has_preserved_node_meta()
    True
    """
    return _within(preserves=enable)


def has_preserved_node_meta():
    """Whether nodes get what is current."""
    return _state.preserves


def set_current_meta(node, pass_name=""):
    """A context in which a node's `meta` is current; `pass_name` says for whom."""
    return _within(meta=node.meta if _state.preserves and node.meta else _state.meta)


def get_current_meta():
    """What is current."""
    return _state.meta


def kept_meta():
    """What of it a new node gets."""
    return {key: copy.copy(_state.meta[key]) for key in KEPT if key in _state.meta}


def annotate(annotation_dict):
    """A context in which nodes get more entries of `meta["custom"]`, where nodes get what is current.

    >>> import tritorch as torch
    >>> with preserve_node_meta(), annotate({"stage": 1}):
    ...     graph = torch.fx.Tracer().trace(lambda x: x.relu())
    >>> list(graph.nodes)[1].meta
    {'custom': {'stage': 1}}
    """
    return _within(meta={**_state.meta, "custom": {**_state.meta.get("custom", {}), **annotation_dict}})
