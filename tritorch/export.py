"""Names of torch.export, which programs ask for or annotate with. There is no tracer here, and nothing can be exported.

>>> import tritorch as torch
>>> isinstance(torch.nn.Linear(2, 2), torch.export.ExportedProgram)
False
"""
__all__ = ["ExportedProgram", "export"]


class ExportedProgram:
    """What `export` would make. Nothing is one."""


def export(mod, args, kwargs=None, **options):
    """Raises NotImplementedError."""
    raise NotImplementedError(f"export: expected a program that runs here, got {type(mod).__name__} to be traced; use tritorch.compile")
