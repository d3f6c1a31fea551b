"""The table of rules: how each operator is written in ONNX. Families of them are in `rules_*.py`."""
RULES, SINCE = {}, {}
STANDARD = "", "ai.onnx", "onnx"                                            # names of the domain of ONNX's own operators


def rule(*names, since=None):
    """The decorated function writes these operators; `since`: the first opset that can."""
    def enter(write):
        RULES.update(dict.fromkeys(names, write))
        SINCE.update(dict.fromkeys(names, since or 18))
        return write

    return enter


def same(kind, *names, since=None):
    """Operators of which ONNX has the same under its name: inputs in the dtype of the result, or that one of ONNX wants."""
    rule(*names, since=since)(lambda g, *inputs: g.op(kind, *[g.like(x) for x in inputs]))
