"""Wrappers of modules whose activations are computed again in backward, or kept on the CPU: state dicts do not show them."""
import enum
import functools

from tritorch.autograd.graph import save_on_cpu
from tritorch.distributed.fsdp.state_types import CHECKPOINTED, rename
from tritorch.distributed.fsdp.wrap import _Policy, _recursive_wrap, _wrap_chosen, lambda_auto_wrap_policy
from tritorch.nn.module import Module
from tritorch.utils.checkpoint import checkpoint

_CHECKPOINT_WRAPPED_MODULE, _CHECKPOINT_PREFIX = CHECKPOINTED, CHECKPOINTED + "."


class CheckpointImpl(enum.Enum):
    """Which checkpoint: see `utils.checkpoint.checkpoint`."""

    REENTRANT, NO_REENTRANT = range(1, 3)


def _saved(module, state_dict, prefix, _):
    rename(state_dict, prefix + _CHECKPOINT_PREFIX, prefix)
    metadata = getattr(state_dict, "_metadata", {})
    metadata[prefix[:-1]] = metadata.pop(prefix + CHECKPOINTED, metadata.get(prefix[:-1]))
    rename(metadata, prefix + _CHECKPOINT_PREFIX, prefix)


def _loading(module, state_dict, prefix, *_):
    rename(state_dict, prefix, prefix + _CHECKPOINT_PREFIX)


class ActivationWrapper(Module):
    """A module in another, which says how it is called. Attributes, items and names of parameters are those of the module inside."""

    def __init__(self, mod):
        super().__init__()
        self._checkpoint_wrapped_module = mod
        self._register_state_dict_hook(_saved)
        self.register_load_state_dict_pre_hook(_loading)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if CHECKPOINTED not in vars(self).get("_modules", ()):
                raise
            return getattr(self._modules[CHECKPOINTED], name)

    def __getitem__(self, key):
        return self._modules[CHECKPOINTED][key]

    def named_parameters(self, *args, **kwargs):
        """All parameters with the names that they have without wrappers of this kind."""
        for name, p in super().named_parameters(*args, **kwargs):
            yield name.replace(_CHECKPOINT_PREFIX, ""), p


class OffloadWrapper(ActivationWrapper):
    """What the module saves for backward is on the CPU until then."""

    def forward(self, *args, **kwargs):
        with save_on_cpu(pin_memory=True):
            return self._checkpoint_wrapped_module(*args, **kwargs)


class CheckpointWrapper(ActivationWrapper):
    """The module is run in `utils.checkpoint.checkpoint`, or in a function of (module, inputs) with its meaning."""

    def __init__(self, mod, checkpoint_impl=CheckpointImpl.NO_REENTRANT, checkpoint_fn=None, **checkpoint_fn_kwargs):
        super().__init__(mod)
        self.checkpoint_impl = checkpoint_impl
        if checkpoint_fn is None:
            checkpoint_fn = functools.partial(checkpoint, use_reentrant=checkpoint_impl is CheckpointImpl.REENTRANT)
        self.checkpoint_fn = functools.partial(checkpoint_fn, **checkpoint_fn_kwargs)

    def forward(self, *args, **kwargs):
        inner = self._checkpoint_wrapped_module
        if self.checkpoint_impl is not CheckpointImpl.REENTRANT or not kwargs:
            return self.checkpoint_fn(inner, *args, **kwargs)
        run = lambda *given: inner(*given[:len(args)], **dict(zip(kwargs, given[len(args):])))
        return self.checkpoint_fn(run, *args, *kwargs.values())


def checkpoint_wrapper(module, checkpoint_impl=CheckpointImpl.NO_REENTRANT, checkpoint_fn=None, **checkpoint_fn_kwargs):
    """A module that keeps its inputs alone for backward, and computes the rest again.

    >>> import tritorch as torch
    >>> model = checkpoint_wrapper(torch.nn.Linear(2, 1))
    >>> model(torch.ones(3, 2)).sum().backward(); list(model.state_dict()), model.bias.grad
    (['weight', 'bias'], tensor([3.]))
    """
    return CheckpointWrapper(module, checkpoint_impl, checkpoint_fn, **checkpoint_fn_kwargs)


def offload_wrapper(module):
    """A module that keeps what backward needs on the CPU."""
    return OffloadWrapper(module)


def apply_activation_checkpointing(model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda _: True, auto_wrap_policy=None):
    """Wrap the modules below a model of which `check_fn` says so, or which a policy of `distributed.fsdp.wrap` chooses, in place.

    >>> import tritorch as torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, torch.nn.Linear))
    >>> [type(m).__name__ for m in model]
    ['CheckpointWrapper', 'ReLU']
    """
    if isinstance(auto_wrap_policy, _Policy):
        _wrap_chosen(model, auto_wrap_policy._run_policy(model, set(), {}), checkpoint_wrapper_fn)
        return
    policy = functools.partial(lambda_auto_wrap_policy, lambda_fn=check_fn) if auto_wrap_policy is None else auto_wrap_policy
    _recursive_wrap(model, policy, checkpoint_wrapper_fn, set(), set(), only_wrap_children=True)
