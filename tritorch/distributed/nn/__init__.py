"""Collectives that gradients flow through."""
from tritorch.distributed.nn import functional
from tritorch.distributed.nn.functional import *  # noqa: F403

__all__ = ["functional", *functional.__all__]
