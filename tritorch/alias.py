"""tritorch under the name of torch, for packages that import torch."""
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys

from tritorch.shape import Size
from tritorch.torch_version import __version__


class _Distribution(importlib.metadata.Distribution):
    """What importlib.metadata tells of the package torch: its version, as `torch.__version__` is."""

    def read_text(self, filename):
        return {"METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {__version__}\n", "top_level.txt": "torch\n"}.get(filename)

    def locate_file(self, path):
        raise FileNotFoundError(f"locate_file: expected a file of torch, got {path!r}, of a package that tritorch stands for")


class _Finder(importlib.metadata.DistributionFinder, importlib.abc.Loader):
    """Finds `torch.name` where `tritorch.name` is: the module itself, not a second copy of it."""

    def find_spec(self, fullname, path, target=None):
        head, _, rest = fullname.partition(".")
        if head != "torch" or importlib.util.find_spec(f"tritorch.{rest}") is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):  # noqa: B008 as the class above it has it
        return [_Distribution()] if context.name in (None, "torch") else []

    def create_module(self, spec):
        module = importlib.import_module("tritorch" + spec.name.removeprefix("torch"))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = module.__spec__.loader_state                   # the import system has put its own for "torch.name" there
        _share()

    def get_code(self, fullname):
        """Of a module that is run as a program, as `torch.distributed.run` is."""
        spec = importlib.util.find_spec("tritorch" + fullname.removeprefix("torch"))
        return spec.loader.get_code(spec.name)

    def remove(self):
        """Have the name mean nothing again, for imports that are still to come."""
        sys.meta_path.remove(self)
        ours = [name for name in sys.modules if name.partition(".")[0] == "torch"]
        for name in ours:
            del sys.modules[name]
        root = sys.modules["tritorch"]
        root.__name__ = "tritorch"
        vars(root).pop("torch", None)
        if "__getitem__" in vars(Size):
            del Size.__getitem__


def _share():
    """What is loaded is found under both names. Left to the import system it would be set on its package as well, over the function of
    the same name that may stand there: torch.autograd.gradcheck."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tritorch."):
            sys.modules.setdefault(name.removeprefix("tri"), module)


def as_torch():
    """From now on `import torch` and `import torch.nn` are tritorch, in packages written for PyTorch, too. Call it before they are
    imported, and `importlib.metadata.version("torch")` is `tritorch.__version__`. Names that are not here are ModuleNotFoundErrors, as
    of any package. Parts of sizes are sizes, as there, which makes `shape[0]` slower. Dtypes print as `torch.float32`, which packages
    compare. The handle it returns has `remove()`.

    Raises ImportError where PyTorch itself has been imported.

    >>> import tritorch
    >>> handle = tritorch.as_torch()
    >>> import torch, torch.nn.functional as F
    >>> F is tritorch.nn.functional, str(torch.float32)
    (True, 'torch.float32')
    >>> handle.remove()
    """
    found = sys.modules.get("torch")
    if found is not None and found is not sys.modules["tritorch"]:
        raise ImportError("as_torch: expected a call before anything imports torch, got PyTorch imported already")
    root = sys.modules["torch"] = sys.modules["tritorch"]
    root.torch, root.__name__ = root, "torch"                            # packages write torch.torch.Tensor, and ask the name
    Size.__getitem__ = Size._part
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    importlib.import_module("tritorch.nn")                               # which is there after PyTorch's import
    _share()
    return finder
