"""What is in a checkpoint: the shapes of tensors, where their pieces are, and values. As JSON it is a file that people can read."""
import base64
import io
import json
import os
from dataclasses import dataclass, field
from types import SimpleNamespace

from tritorch.dtype import dtype
from tritorch.safetensors import DTYPES, NAMES, FileFormatError, is_count, need, parse
from tritorch.serialization import VERSION, Decoder, Encoder, load, save
from tritorch.shape import Size

FORMAT = "tritorch.distributed.checkpoint"


@dataclass
class TensorProperties:
    """What pieces of a tensor have in common."""

    dtype: dtype


@dataclass
class ChunkStorageMetadata:
    """A piece of a tensor: where it begins in the whole, and its sizes."""

    offsets: Size
    sizes: Size


@dataclass
class TensorStorageMetadata:
    """A tensor: its properties, its shape as a whole, and its pieces."""

    properties: TensorProperties
    size: Size
    chunks: list = field(default_factory=list)


@dataclass
class BytesStorageMetadata:
    """A value that is no tensor."""


@dataclass
class StorageMeta:
    """Where a checkpoint is."""

    checkpoint_id: str | os.PathLike | None = None
    save_id: str | None = None
    load_id: str | None = None
    modules: list = field(default_factory=list)


@dataclass
class Metadata:
    """A checkpoint: `state_dict_metadata` says what there is under each name; `planner_data` the way to it through the containers of the
    state dict; `storage_data` has (file, name in it) of each (name, offsets) and the encoded values."""

    state_dict_metadata: dict
    planner_data: dict | None = None
    storage_data: dict | None = None
    storage_meta: StorageMeta | None = None
    version: str | None = None


def encoded(value):
    """A value as JSON; with arrays in it, as the bytes of a file. TypeError for one that only code could restore."""
    encoder = Encoder()
    made = encoder.encode(value, "", 0)
    if not encoder.tensors:
        return made
    file = io.BytesIO()
    save(value, file)
    return {"file": base64.b64encode(file.getvalue()).decode()}


def decoded(made):
    """What was encoded."""
    if type(made) is dict and made.keys() == {"file"}:
        need(type(made["file"]) is str, "the bytes of a file", made["file"])
        return load(io.BytesIO(base64.b64decode(made["file"])))
    return Decoder({"version": VERSION, "object": made, "tensors": [], "devices": {}}, SimpleNamespace(entries={})).build({})


def written(metadata):
    """Metadata as JSON."""
    entries = {}
    for name, what in metadata.state_dict_metadata.items():
        entry = entries[name] = {"path": metadata.planner_data[name]}
        if isinstance(what, BytesStorageMetadata):
            entry["value"] = metadata.storage_data[name, None]
            continue
        entry |= {"dtype": NAMES[what.properties.dtype], "shape": list(what.size), "chunks": []}
        for chunk in what.chunks:
            file, key = metadata.storage_data[name, chunk.offsets]
            entry["chunks"].append({"offset": list(chunk.offsets), "shape": list(chunk.sizes), "file": file, "name": key})
    return json.dumps({"format": FORMAT, "version": 1, "entries": entries}, indent=1)


def read(text):
    """Metadata from JSON, all of it checked. FileFormatError for what is something else."""
    found = parse(text)
    need(type(found) is dict and found.get("format") == FORMAT and type(found.get("entries")) is dict, f"a file of {FORMAT}", "another")
    need(found.get("version") == 1, "version 1", found.get("version"), use="a newer tritorch")
    out = Metadata({}, {}, {}, version="1")
    for name, entry in found["entries"].items():
        need(type(entry) is dict and type(entry.get("path")) is list, f"an entry with a path under {name!r}", entry)
        out.planner_data[name] = entry["path"]
        if "value" in entry:
            out.state_dict_metadata[name], out.storage_data[name, None] = BytesStorageMetadata(), entry["value"]
        else:
            out.state_dict_metadata[name] = _tensor(out, name, entry)
    return out


def _tensor(out, name, entry):
    shape, kind = entry.get("shape"), entry.get("dtype")
    need(_sizes(shape) and kind in DTYPES and type(entry.get("chunks")) is list, f"dtype, shape and chunks of {name!r}", entry)
    made = TensorStorageMetadata(TensorProperties(DTYPES[kind]), Size(shape))
    for chunk in entry["chunks"]:
        need(type(chunk) is dict and _sizes(chunk.get("offset")) and _sizes(chunk.get("shape")), f"chunks of {name!r}", chunk)
        offsets, sizes, file = chunk["offset"], chunk["shape"], chunk.get("file")
        inside = len(offsets) == len(sizes) == len(shape) and all(a + n <= m for a, n, m in zip(offsets, sizes, shape))
        need(inside and type(chunk.get("name")) is str, f"a chunk within {name!r}", chunk)
        need(type(file) is str and os.path.basename(file) == file, "a file beside the metadata", file)
        made.chunks.append(ChunkStorageMetadata(Size(offsets), Size(sizes)))
        out.storage_data[name, Size(offsets)] = file, chunk["name"]
    return made


def _sizes(x):
    return type(x) is list and all(map(is_count, x))


__all__ = ["BytesStorageMetadata", "ChunkStorageMetadata", "FileFormatError", "Metadata", "StorageMeta", "TensorProperties",
           "TensorStorageMetadata"]
