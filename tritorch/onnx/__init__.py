"""Models as ONNX graphs, under the names of torch.onnx.

>>> import tritorch as torch
>>> torch.onnx.is_in_onnx_export()
False
"""
from tritorch.onnx import errors, symbolic_helper, symbolic_opset11
from tritorch.onnx.errors import OnnxExporterError
from tritorch.onnx.exporter import export
from tritorch.onnx.modes import OperatorExportTypes, TrainingMode, is_in_onnx_export
from tritorch.onnx.program import ONNXProgram

__all__ = ["ONNXProgram", "OnnxExporterError", "OperatorExportTypes", "TrainingMode", "errors", "export", "is_in_onnx_export",
           "symbolic_helper", "symbolic_opset11"]
