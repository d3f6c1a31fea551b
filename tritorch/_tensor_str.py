"""The functions that print tensors, under the names by which packages find them in PyTorch: see `tritorch.set_printoptions`."""
from tritorch.printing import contents as _tensor_str  # noqa: F401
from tritorch.printing import options as PRINT_OPTS  # noqa: F401
from tritorch.printing import suffixed as _add_suffixes  # noqa: F401
