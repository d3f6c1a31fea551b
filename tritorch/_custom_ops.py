"""PyTorch's old home of operators of one's own, which packages import and leave alone: `tritorch.library` is the place."""
from tritorch.library import custom_op  # noqa: F401
