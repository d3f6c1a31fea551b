"""Functions as modules, so that what they return can be watched and quantized as the results of layers are."""
from tritorch.nn import functional as F
from tritorch.nn.linear import Identity
from tritorch.nn.module import Module
from tritorch.ops import matmul as products
from tritorch.ops.shaping import cat

__all__ = ["FloatFunctional"]


class FloatFunctional(Module):
    """Additions, products and concatenations; what they return goes through `activation_post_process`, at first an Identity.

    >>> import tritorch as torch
    >>> torch.ao.nn.quantized.FloatFunctional().add_relu(torch.tensor([1.0, -2.0]), torch.tensor([1.0, 1.0]))
    tensor([2., 0.])
    """

    def __init__(self):
        super().__init__()
        self.activation_post_process = Identity()

    def forward(self, x):
        raise RuntimeError("FloatFunctional: expected a call of add, mul, cat or another of its methods, got one of forward")

    def add(self, x, y):
        """x + y."""
        return self.activation_post_process(x + y)

    def add_scalar(self, x, y):
        """x + a number."""
        return x + y                                                     # has the range of x, moved

    def mul(self, x, y):
        """x · y."""
        return self.activation_post_process(x * y)

    def mul_scalar(self, x, y):
        """x · a number."""
        return x * y

    def cat(self, x, dim=0):
        """`tritorch.cat`."""
        return self.activation_post_process(cat(x, dim))

    def add_relu(self, x, y):
        """relu(x + y)."""
        return self.activation_post_process(F.relu(x + y))

    def matmul(self, x, y):
        """`tritorch.matmul`."""
        return self.activation_post_process(products.matmul(x, y))
