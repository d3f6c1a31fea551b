"""Checkpoints of programs of several processes: each writes and reads what it has, and the next run may have more or fewer of them.

`save` and `load` work on state dicts, `state_dict` makes those of models and optimizers whose names do not depend on how they are
sharded. The files are safetensors and JSON. See tutorials/train_fsdp.py.
"""
from tritorch.distributed.checkpoint import state_dict, stateful
from tritorch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from tritorch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from tritorch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from tritorch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)
from tritorch.distributed.checkpoint.ranks import CheckpointException
from tritorch.distributed.checkpoint.state_dict_loader import load
from tritorch.distributed.checkpoint.state_dict_saver import async_save, save

__all__ = [
    "BytesStorageMetadata", "CheckpointException", "ChunkStorageMetadata", "DefaultLoadPlanner", "DefaultSavePlanner", "FileSystemReader",
    "FileSystemWriter", "HuggingFaceStorageReader", "HuggingFaceStorageWriter", "Metadata", "TensorStorageMetadata", "async_save", "load",
    "save",
]
