"""What nodes that are made of other nodes keep of them."""
import contextlib
import copy

__all__ = ["annotate", "get_current_meta", "has_preserved_node_meta", "preserve_node_meta", "set_current_meta"]
KEPT = ("nn_module_stack", "stack_trace", "source_fn_stack", "from_node", "quantization_tag", "custom", "partitioner_tag", "torch_fn")
_current, _preserves = {}, False


@contextlib.contextmanager
def preserve_node_meta(enable=True):
    """A context in which nodes that tracers make get the stack trace, modules and annotations that are current.

    >>> has_preserved_node_meta()
    False
    """
    global _preserves, _current
    was = _preserves, _current
    _preserves, _current = enable, copy.copy(_current)
    try:
        yield
    finally:
        _preserves, _current = was


def has_preserved_node_meta():
    """Whether nodes get what is current."""
    return _preserves


@contextlib.contextmanager
def set_current_meta(node, pass_name=""):
    """A context in which a node's `meta` is current; `pass_name` says for whom."""
    global _current
    was = _current
    if _preserves and node.meta:
        _current = copy.copy(node.meta)
    try:
        yield
    finally:
        _current = was


def get_current_meta():
    """What is current."""
    return _current


def kept_meta():
    """What of it a new node gets."""
    return {key: copy.copy(_current[key]) for key in KEPT if key in _current}


@contextlib.contextmanager
def annotate(annotation_dict):
    """A context in which nodes get more entries of `meta["custom"]`, where nodes get what is current."""
    was = _current.get("custom")
    _current["custom"] = {**(was or {}), **annotation_dict}
    try:
        yield
    finally:
        if was is None:
            _current.pop("custom", None)
        else:
            _current["custom"] = was
