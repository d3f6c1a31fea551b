"""Checkpoints in folders: safetensors files of the ranks, and `metadata.json`, which says what is in them.

Files of a checkpoint have names that no other has, and the metadata is replaced at once when all are written: a folder holds the whole
new checkpoint, or what it held before.
"""
import contextlib
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tritorch.autograd.modes import no_grad
from tritorch.distributed.checkpoint import metadata as format
from tritorch.distributed.checkpoint.pieces import common, cut
from tritorch.errors import check
from tritorch.safetensors import Reader, need, save_file

METADATA = "metadata.json"


class FileSystemWriter:
    """Writes checkpoints into a folder, which is made if there is none.

    `single_file_per_rank`: or one file for each tensor; these are written by `thread_count` threads. `sync_files`: files are on the disk
    when the checkpoint is said to be complete. `overwrite`: whether there may be a checkpoint already, which is replaced then. Tensors on
    GPUs pass through host memory one at a time, whatever `per_thread_copy_ahead` says.
    """

    def __init__(self, path, single_file_per_rank=True, sync_files=True, thread_count=1, per_thread_copy_ahead=10_000_000,
                 cache_staged_state_dict=False, overwrite=True):
        self.path, self.single_file_per_rank, self.sync_files = Path(path), single_file_per_rank, sync_files
        self.thread_count, self.overwrite = thread_count, overwrite
        self.per_thread_copy_ahead, self.cache_staged_state_dict = per_thread_copy_ahead, cache_staged_state_dict
        self.old = set()

    def reset(self, checkpoint_id=None):
        """Another checkpoint is written, to another folder if one is given."""
        if checkpoint_id is not None:
            self.path = Path(checkpoint_id)

    @property
    def checkpoint_id(self):
        """The folder."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """Whether it can be a folder: a path, or a str that is no URL."""
        return isinstance(checkpoint_id, os.PathLike) or isinstance(checkpoint_id, str) and "://" not in checkpoint_id

    def prepare(self):
        """Make the folder, and find out what is in it: by the first rank, before the others write. Returns a name of the checkpoint."""
        self.path.mkdir(parents=True, exist_ok=True)
        there = (self.path / METADATA).exists()
        check(self.overwrite or not there, "save", "a folder without a checkpoint", self.path, use="overwrite=True")
        self.old = set()
        if there:
            with contextlib.suppress(OSError, format.FileFormatError):
                self.old = {file for file, _ in _places(format.read((self.path / METADATA).read_bytes()))}
        return uuid.uuid4().hex[:8]

    def value(self, name, value):
        """How the metadata keeps a value that is no tensor."""
        return format.encoded(value)

    def places(self, rank, names, checkpoint):
        """Where `write` puts the pieces [(name, offsets)] of a rank: [(file, name in it)]."""
        file = lambda k: f"__{rank}_{k}.{checkpoint}.safetensors"
        return [(file(0 if self.single_file_per_rank else k), f"{name}@{','.join(map(str, offsets))}")
                for k, (name, offsets) in enumerate(names)]

    def write(self, places, tensors):
        """Write pieces to their places."""
        files = {}
        for (file, key), x in zip(places, tensors):
            files.setdefault(file, {})[key] = x
        if self.thread_count > 1 and len(files) > 1:
            with ThreadPoolExecutor(self.thread_count) as pool:
                list(pool.map(self._write_file, files, files.values()))
        else:
            for file, parts in files.items():
                self._write_file(file, parts)

    def _write_file(self, file, parts):
        if self.sync_files:
            save_file(parts, self.path / file)
            return
        with open(self.path / file, "wb") as stream:
            save_file(parts, stream)

    def finish(self, metadata):
        """All pieces are written: this is the checkpoint in the folder now."""
        temporary = self.path / f"{METADATA}.tmp"
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(format.written(metadata))
            if self.sync_files:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, self.path / METADATA)
        for file in self.old - {file for file, _ in _places(metadata)}:
            with contextlib.suppress(OSError):
                (self.path / file).unlink()


def _places(metadata):
    return [place for (_, offsets), place in metadata.storage_data.items() if offsets is not None]


class FileSystemReader:
    """Reads the checkpoint in a folder."""

    def __init__(self, path):
        self.path = Path(path)

    def reset(self, checkpoint_id=None):
        """Another checkpoint is read, from another folder if one is given."""
        if checkpoint_id is not None:
            self.path = Path(checkpoint_id)

    checkpoint_id = FileSystemWriter.checkpoint_id
    validate_checkpoint_id = classmethod(FileSystemWriter.validate_checkpoint_id.__func__)

    def read_metadata(self):
        """The Metadata of the checkpoint. FileNotFoundError where there is none, FileFormatError where it is broken."""
        return format.read((self.path / METADATA).read_bytes())

    def read(self, wanted, metadata):
        """Fill pieces, [(name, offsets, tensor)], from the files; of each no more is read than they have in common."""
        files = {}
        for name, offsets, x in wanted:
            left = x.numel()
            for chunk in metadata.state_dict_metadata[name].chunks:
                found = common(offsets, x.shape, chunk.offsets, chunk.sizes)
                if found is not None:
                    file, key = metadata.storage_data[name, chunk.offsets]
                    files.setdefault(file, []).append((key, chunk.sizes, x, found))
                    left -= _count(found[2])
            need(left == 0, f"all of {name!r} in the checkpoint", f"{left} elements less")
        for file, parts in files.items():
            self._read_file(file, parts)

    def _read_file(self, file, parts):
        reader = Reader(self.path / file, mmap=True)
        try:
            with no_grad():
                for key, sizes, x, (mine, theirs, shape) in parts:
                    there = reader.entries.get(key, (None, None))[1]
                    need(there == tuple(sizes), f"{key!r} of shape {tuple(sizes)} in {file}", there)
                    cut(x, mine, shape).copy_(cut(reader.read(key), theirs, shape))
        finally:
            reader.close()


def _count(shape):
    out = 1
    for n in shape:
        out *= n
    return out
