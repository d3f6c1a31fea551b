"""The class of compiled modules, under the name by which programs ask whether a module is one.

>>> import tritorch as torch
>>> isinstance(torch.compile(torch.nn.Linear(2, 2)), torch._dynamo.eval_frame.OptimizedModule)
True
"""
from tritorch.compiler.module import OptimizedModule  # noqa: F401
