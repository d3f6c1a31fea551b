"""torch.export: a module as a graph of operators, with its parameters and buffers, to be looked at, changed, saved and run.

>>> import tritorch as torch
>>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
>>> print(program.graph)
graph():
    %input : [num_users=1] = placeholder[target=input]
    %relu : [num_users=1] = call_function[target=tritorch.ops.aten.relu.default](args = (%input,), kwargs = {})
    return (relu,)
>>> program.module()(torch.tensor([-1.0, 1.0]))
tensor([0., 1.])
"""
from tritorch.export.archive import load, save
from tritorch.export.exported_program import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from tritorch.export.exporter import AdditionalInputs, ShapesCollection, UserError, export
from tritorch.export.graph_signature import ExportGraphSignature
from tritorch.tracing.dims import Dim, dims
from tritorch.utils._pytree import register_dataclass

__all__ = ["AdditionalInputs", "Dim", "ExportGraphSignature", "ExportedProgram", "ModuleCallEntry", "ModuleCallSignature",
           "ShapesCollection", "UserError", "dims", "export", "load", "register_dataclass", "save"]
