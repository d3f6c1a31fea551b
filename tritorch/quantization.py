"""The older place of `ao.quantization`."""
from tritorch.ao.quantization import *  # noqa: F403
