"""What runs: the names of the operators that a block of code calls."""
from tritorch.dispatch import Interpreter


class Calls(Interpreter):
    """The names of the operators that run while it is entered."""

    def __init__(self):
        self.names = []

    def __call__(self, op, args, out):
        self.names.append(op.__name__)
        return self.proceed(op, args, out)
