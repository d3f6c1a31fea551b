"""Hooks that say how gradients of units travel."""
from tritorch.distributed.algorithms._comm_hooks import default_hooks

LOW_PRECISION_HOOKS = [default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook]

__all__ = ["LOW_PRECISION_HOOKS", "default_hooks"]
