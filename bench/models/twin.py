"""A program written for tritorch runs on PyTorch when its imports change. Changing them here gives the opponent, line for line the same."""
import re
import types
from pathlib import Path


def load(path, library="tritorch"):
    """The module in a file, its `import tritorch as torch` and `from tritorch…` made to mean `library`."""
    source = Path(path).read_text(encoding="utf-8")
    if library != "tritorch":
        source = re.sub(r"^(\s*)(import|from) tritorch\b", rf"\1\2 {library}", source, flags=re.M)
    module = types.ModuleType(f"{Path(path).stem}_on_{library}")
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module
