"""What the hooks of `weight_norm` and `spectral_norm` share."""
from tritorch.nn.parameter import is_lazy


class ParameterHook:
    """A forward pre-hook that makes the tensor `name` of a module from parameters of other names. `kind` is what errors call it."""

    @classmethod
    def _key(cls, module, name):
        """The key of the hook that makes this tensor, None if there is none."""
        return next((key for key, hook in module._forward_pre_hooks.items() if isinstance(hook, cls) and hook.name == name), None)

    @classmethod
    def check_free(cls, module, name):
        """The parameter has a shape, and no hook of this kind."""
        if cls._key(module, name) is not None:
            raise RuntimeError(f"{cls.kind}: expected a parameter without it, got '{name}', which has it already")
        if is_lazy(module._parameters.get(name)):
            raise ValueError(f"{cls.kind}: expected parameters of known shape, got an uninitialized one; run the module once before")

    @classmethod
    def take_from(cls, module, name):
        """Make the tensor a parameter again, with the value that it has; the module."""
        key = cls._key(module, name)
        if key is None:
            raise ValueError(f"remove_{cls.kind}: expected a parameter of {type(module).__name__} that has it, got '{name}'")
        module._forward_pre_hooks.pop(key).remove(module)
        return module
