"""Functions of functions, in the files where PyTorch has them."""
from tritorch._higher_order_ops.associative_scan import associative_scan  # noqa: F401
from tritorch.control import cond  # noqa: F401
