"""Compiled modules."""
from tritorch.compiler.function import Compiled
from tritorch.nn.module import Module


class OptimizedModule(Module):
    """A module whose forward pass is compiled, and its backward pass with it. Its attributes are those of the module `_orig_mod`."""

    def __init__(self, module, *options):
        super().__init__()
        self._modules["_orig_mod"] = module
        vars(self)["compiled"] = Compiled(module, *options)

    def forward(self, *args, **kwargs):
        return self.compiled(*args, **kwargs)

    def report(self):
        """What became of the calls so far; see `tritorch.compile`."""
        return self.compiled.report()

    @property
    def training(self):
        return self._orig_mod.training

    @training.setter
    def training(self, mode):
        self._orig_mod.training = mode

    def __getattr__(self, name):
        return getattr(vars(self)["_orig_mod"], name)

    def __setattr__(self, name, value):
        if name in vars(self) or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name):
        delattr(self._orig_mod, name)

    def __getitem__(self, key):
        return self._orig_mod[key]

    def __len__(self):
        return len(self._orig_mod)
