"""The package `onnx`, which is loaded when somebody exports: an extra of the installation."""


def onnx_package():
    """`onnx` with the parts of it that are used here. ImportError without it."""
    try:
        import onnx
        import onnx.checker
        import onnx.helper
    except ImportError as error:
        raise ImportError("onnx.export: expected the package onnx, got none; use pip install 'tritorch[onnx]'") from error
    return onnx


def evaluator(model):
    """numpy's evaluator of a model, which the package has."""
    onnx_package()
    try:
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        raise ImportError("onnx.export: expected onnx.reference, got none; use pip install 'tritorch[onnx]'") from error
    return ReferenceEvaluator(model)
