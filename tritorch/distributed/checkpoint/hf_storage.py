"""Checkpoints in the folders of safetensors files that Hugging Face's libraries read and write.

Either whole tensors, written by one process, with an index of which file has which; or the pieces of each rank in files of its own, which
say where in the whole they begin and which `consolidate_safetensors_files` joins. PyTorch's have the same form.
"""
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tritorch.device import cpu
from tritorch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from tritorch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
from tritorch.errors import check
from tritorch.safetensors import Reader, need, parse, save_file
from tritorch.shape import Size
from tritorch.tensor import empty

INDEX, PLACES, OFFSETS = "model.safetensors.index.json", "DCP_SHARDING_INFO", "saved_offsets"
__all__ = ["HuggingFaceStorageReader", "HuggingFaceStorageWriter"]


def _file(k, files, rank=None):
    return f"{'' if rank is None else f'shard-{rank + 1:05}-'}model-{k:05}-of-{files:05}.safetensors"


class HuggingFaceStorageWriter(FileSystemWriter):
    """Writes tensors alone. `fqn_to_index_mapping`: the number, from 1, of the file for each name; without it there is one file.
    `save_distributed`: every rank writes its pieces into files of its own; then, with `enable_consolidation`, these are in the folder
    "sharded", and the first rank joins them in the one above.

    >>> import os, tempfile, tritorch as torch
    >>> import tritorch.distributed.checkpoint as dcp
    >>> from tritorch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
    >>> folder, state = tempfile.mkdtemp(), {"x": torch.zeros(2)}
    >>> _ = dcp.save({"x": torch.ones(2)}, storage_writer=HuggingFaceStorageWriter(folder), no_dist=True)
    >>> dcp.load(state, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
    >>> sorted(os.listdir(folder)), state
    (['model-00001-of-00001.safetensors', 'model.safetensors.index.json'], {'x': tensor([1., 1.])})
    """

    def __init__(self, path, fqn_to_index_mapping=None, thread_count=1, save_distributed=False, enable_consolidation=False,
                 thread_count_consolidation=1):
        super().__init__(Path(path) / "sharded" if enable_consolidation else path, thread_count=thread_count)
        self.fqn_to_index_mapping, self.save_distributed = fqn_to_index_mapping, save_distributed
        self.joined = Path(path) if enable_consolidation else None
        self.thread_count_consolidation, self.offsets = thread_count_consolidation, {}

    def prepare(self):
        self.path.mkdir(parents=True, exist_ok=True)

    def value(self, name, value):
        raise TypeError(f"save: expected a tensor under {name!r}, the only thing these files hold, got {type(value).__name__}")

    def places(self, rank, names, checkpoint):
        numbers = self.fqn_to_index_mapping or {name: 1 for name, _ in names}
        most = max(numbers.values(), default=1)
        check(all(name in numbers for name, _ in names), "save", "a file for each name in fqn_to_index_mapping",
              [name for name, _ in names if name not in numbers])
        self.offsets |= dict(names)
        return [(_file(numbers[name], most, rank if self.save_distributed else None), name) for name, _ in names]

    def _write_file(self, file, parts):
        places = json.dumps({name: {OFFSETS: list(self.offsets[name])} for name in parts})
        save_file(parts, self.path / file, {PLACES: places, "DCP_VERSION": "1.0", "format": "pt"})

    def finish(self, metadata):
        numbers = self.fqn_to_index_mapping or dict.fromkeys(metadata.state_dict_metadata, 1)
        if not self.save_distributed:
            _write_index(self.path, {name: file for file, name in metadata.storage_data.values()}, metadata)
        elif self.joined is not None:
            consolidate_safetensors_files(self.path, self.joined, numbers, self.thread_count_consolidation)


def _write_index(folder, files, metadata):
    size = sum(found.size.numel() * found.properties.dtype.itemsize for found in metadata.state_dict_metadata.values())
    (Path(folder) / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": files}, indent=2))


def consolidate_safetensors_files(input_dir, output_dir, fqn_to_index_mapping, num_threads=1):
    """Join the pieces in one folder to whole tensors in another, in the files that the mapping numbers, and write their index."""
    reader, names, most = HuggingFaceStorageReader(input_dir), {}, max(fqn_to_index_mapping.values())
    metadata = reader.read_metadata()
    for name, k in fqn_to_index_mapping.items():
        need(name in metadata.state_dict_metadata, f"{name!r} in {input_dir}", "none of that name")
        names.setdefault(k, []).append(name)

    def write(k):
        found = {name: metadata.state_dict_metadata[name] for name in names[k]}
        whole = {name: empty(what.size, what.properties.dtype, cpu) for name, what in found.items()}
        reader.read([(name, (0,) * x.ndim, x) for name, x in whole.items()], metadata)
        save_file(whole, Path(output_dir) / _file(k, most), {"format": "pt"})

    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(write, names))
    _write_index(output_dir, {name: _file(k, most) for name, k in fqn_to_index_mapping.items()}, metadata)


class HuggingFaceStorageReader(FileSystemReader):
    """Reads all safetensors files of a folder, with whole tensors or with pieces. See HuggingFaceStorageWriter for an example."""

    def __init__(self, path, thread_count=1):
        super().__init__(path)
        self.thread_count = thread_count

    def read_metadata(self):
        out = Metadata({}, {}, {}, version="1")
        for path in sorted(self.path.glob("*.safetensors")):
            reader = Reader(path)
            reader.close()
            places = parse(reader.metadata.get(PLACES, "null"))
            for name, (kind, shape, *_) in reader.entries.items():
                offsets = Size((0,) * len(shape) if places is None else places[name][OFFSETS])
                made = out.state_dict_metadata.setdefault(name, TensorStorageMetadata(TensorProperties(kind), Size(shape)))
                made.size = Size(map(max, made.size, map(int.__add__, offsets, shape)))
                made.chunks.append(ChunkStorageMetadata(offsets, Size(shape)))
                out.storage_data[name, offsets] = path.name, name
        return out
