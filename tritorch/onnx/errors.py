"""The exporter's exceptions, under PyTorch's names.

>>> import tritorch as torch
>>> issubclass(torch.onnx.errors.UnsupportedOperatorError, torch.onnx.OnnxExporterError)
True
"""
__all__ = ["OnnxExporterError", "OnnxExporterWarning", "SymbolicValueError", "UnsupportedOperatorError"]


class OnnxExporterWarning(UserWarning):
    """Of the exporter."""


class OnnxExporterError(RuntimeError):
    """The program cannot be written as an ONNX graph; the sentence says why."""


class UnsupportedOperatorError(OnnxExporterError):
    """An operator has no rule: `UnsupportedOperatorError(name, opset, first opset that has it or None, where it is called)`."""

    def __init__(self, name, version, supported_version=None, where=None):
        place = f" at {where}" if where else ""
        way = (f"use opset_version={supported_version}" if supported_version is not None else
               "use custom_translation_table or register_custom_op_symbolic")
        super().__init__(f"onnx.export: expected operators that ONNX opset {version} has, got {name}{place}; {way}")


class SymbolicValueError(OnnxExporterError):
    """A rule was given a value that it cannot take."""
