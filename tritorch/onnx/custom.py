"""Rules of the caller's own, for operators that ONNX does not have, or that are to be written otherwise."""
registered = {}


def translations(table, opset):
    return {}
