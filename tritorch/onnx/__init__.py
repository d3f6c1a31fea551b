"""What packages ask of torch.onnx whether or not anyone exports. There is no exporter here: `export` says so.

>>> import tritorch as torch
>>> torch.onnx.is_in_onnx_export()
False
"""
import enum

from tritorch.errors import sentence
from tritorch.onnx import symbolic_helper, symbolic_opset11

__all__ = ["ONNXProgram", "TrainingMode", "export", "is_in_onnx_export", "register_custom_op_symbolic", "symbolic_helper",
           "symbolic_opset11", "unregister_custom_op_symbolic"]


class TrainingMode(enum.Enum):
    """The mode in which a module would be exported."""

    EVAL, PRESERVE, TRAINING = 0, 1, 2


class ONNXProgram:
    """What `export` returns in PyTorch. There are none: the name is for annotations."""


def is_in_onnx_export():
    """Always False."""
    return False


def export(model, *args, **kwargs):
    """NotImplementedError: there is no exporter."""
    raise NotImplementedError(sentence("onnx.export", "a program that stays in Python", "a call for its ONNX graph",
                                       use="PyTorch with the weights of tritorch.save(model.state_dict(), f)"))


def register_custom_op_symbolic(symbolic_name, symbolic_fn, opset_version):
    """Nothing: no exporter asks how operators are written in ONNX."""


def unregister_custom_op_symbolic(symbolic_name, opset_version):
    """Nothing."""
