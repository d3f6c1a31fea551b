"""Models as ONNX graphs, under the names of torch.onnx.

>>> import tritorch as torch
>>> torch.onnx.is_in_onnx_export()
False
"""
from tritorch.onnx import errors, ops, symbolic_helper, symbolic_opset11
from tritorch.onnx.custom import register_custom_op_symbolic, unregister_custom_op_symbolic
from tritorch.onnx.errors import OnnxExporterError
from tritorch.onnx.exporter import export
from tritorch.onnx.modes import OperatorExportTypes, TrainingMode, is_in_onnx_export
from tritorch.onnx.program import ONNXProgram

__all__ = ["ONNXProgram", "OnnxExporterError", "OperatorExportTypes", "TrainingMode", "errors", "export", "is_in_onnx_export",
           "ops", "register_custom_op_symbolic", "symbolic_helper", "symbolic_opset11", "unregister_custom_op_symbolic"]
