"""What PyTorch's compiler and its exporter raise, for programs that name it. `torch.export.export` raises UserError.

>>> import tritorch as torch
>>> class Branch(torch.nn.Module):
...     def forward(self, x):
...         return x if x.sum() > 0 else -x
>>> try:
...     torch.export.export(Branch(), (torch.ones(2),))
... except torch._dynamo.exc.UserError as error:
...     print("look at elements" in str(error))
True
"""
__all__ = ["TorchDynamoException", "Unsupported", "UserError"]


class TorchDynamoException(RuntimeError):
    """Of the compiler or the exporter."""


class UserError(TorchDynamoException):
    """The program cannot be written as a graph; the sentence says why."""


class Unsupported(TorchDynamoException):
    """What PyTorch's compiler cannot do. Nothing here raises it."""
