"""PyTorch's place of what prints tensors, where programs find `printoptions` and its parts.

>>> import tritorch as torch
>>> with torch._tensor_str.printoptions(precision=2):
...     print(torch.tensor([1.12345]))
tensor([1.12])
"""
from tritorch.printing import contents as _tensor_str  # noqa: F401
from tritorch.printing import get_printoptions, printoptions, set_printoptions  # noqa: F401
from tritorch.printing import options as PRINT_OPTS  # noqa: F401
from tritorch.printing import suffixed as _add_suffixes  # noqa: F401
