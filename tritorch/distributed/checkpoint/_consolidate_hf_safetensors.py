"""Where PyTorch keeps the function that joins pieces in safetensors files, from which programs import it.

>>> from tritorch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files  # noqa: F401
"""
from tritorch.distributed.checkpoint.hf_storage import consolidate_safetensors_files  # noqa: F401
