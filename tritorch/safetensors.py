"""The safetensors file format: named tensors behind a JSON header, nothing that runs.

Eight bytes of header length (little-endian), a JSON object {name: {dtype, shape, data_offsets}}, then the data without gaps.
It is written and read here rather than by the `safetensors` package because its numpy side lacks bfloat16 and float8, and so that
tensors go to and from files one at a time, straight into their memory. https://github.com/huggingface/safetensors
"""
from __future__ import annotations

import contextlib
import json
import os
import secrets
from math import prod

import numpy as np

from tritorch.device import as_device, cpu
from tritorch.dtype import (
    bfloat16,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from tritorch.dtype import bool as bool_
from tritorch.errors import check, sentence
from tritorch.tensor import Tensor, empty, from_array

NAMES = {float64: "F64", float32: "F32", float16: "F16", bfloat16: "BF16", int64: "I64", int32: "I32",
         int16: "I16", int8: "I8", uint8: "U8", bool_: "BOOL", float8_e4m3fn: "F8_E4M3",
         float8_e5m2: "F8_E5M2", complex64: "C64", complex128: "C128"}
"""complex128 has no name in the format: other readers refuse a file with one. It is two F64 each, `view_as_real`."""
DTYPES = {name: kind for kind, name in NAMES.items()}
MAX_HEADER = 100_000_000                       # the format's own limit


class FileFormatError(RuntimeError):
    """A file is not what it should be: truncated, overlapping, of another format, or made to do harm."""


def need(ok, rule, *got, use=None):
    if not ok:
        raise FileFormatError(sentence("load", rule, *[f"{value!s:.120}" for value in got], use=use))


def is_count(value):
    return type(value) is int and 0 <= value < 1 << 63


# ------------------------------------------------------------------ writing
@contextlib.contextmanager
def writing(target):
    """A binary file to write `target` with. A path holds the whole new file or what it held before, never a part."""
    if hasattr(target, "write"):
        yield target
        return
    path = os.path.realpath(os.fspath(target))
    if os.path.exists(path) and not os.path.isfile(path):          # a pipe or a device cannot be replaced
        with open(path, "wb") as file:
            yield file
        return
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write(target, tensors, metadata):
    """Write tensors under their names, wide dtypes first so that all of them lie aligned; one at a time passes through host memory."""
    order = sorted(tensors, key=lambda name: -tensors[name].itemsize)
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name in order:
        x = tensors[name]
        start, end = end, end + x.nbytes
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"save: expected names of valid Unicode, got {error.object!r}") from None
    text += b" " * (-len(text) % 8)
    check(len(text) <= MAX_HEADER, "save", f"names and structure of at most {MAX_HEADER} bytes", len(text))
    with writing(target) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(memoryview(tensors[name].detach().cpu().contiguous().array.reshape(-1).view(np.uint8)))


# ------------------------------------------------------------------ reading
def distinct(pairs):
    out = dict(pairs)
    need(len(out) == len(pairs), "names that differ", "a name twice")
    return out


def parse(text):
    """JSON without doubles among its names; every failure is a FileFormatError."""
    try:
        return json.loads(text, object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:                 # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise FileFormatError(f"load: expected a JSON header, got {error}") from None


def read_header(file, size, exact):
    """(metadata, {name: (dtype, shape, start, end)}, position of the data), all of it checked.

    size: bytes left in the file, None if it cannot tell; exact: whether nothing may follow the data.
    """
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    fits = length <= MAX_HEADER and (size is None or length + 8 <= size)
    refuse_pytorch(prefix, fits)
    need(len(prefix) == 8, "a safetensors file", f"{len(prefix)} bytes")
    need(fits, f"a safetensors header within the file and {MAX_HEADER} bytes", f"a length of {length}")
    text = file.read(length)
    need(len(text) == length and text[:1] == b"{", "a safetensors header", text[:8])
    header = parse(text)
    metadata = header.pop("__metadata__", None) or {}
    need(type(metadata) is dict and all(type(v) is str for v in metadata.values()), "metadata of strings", type(metadata).__name__)
    entries = {name: read_entry(name, entry) for name, entry in header.items()}
    position = 0
    for name, (_, _, start, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        need(start == position, f"data of {name!r} at byte {position}", start)
        position = end
    total = 8 + length + position
    need(size is None or size == total or size > total and not exact, f"{total} bytes", size)
    return metadata, entries, 8 + length


def read_entry(name, entry):
    need(type(entry) is dict and entry.keys() == {"dtype", "shape", "data_offsets"}, f"dtype, shape and data_offsets of {name!r}", entry)
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    need(type(kind) is str and kind in DTYPES, f"a dtype of {name!r} among {', '.join(DTYPES)}", kind)
    need(type(shape) is list and len(shape) <= 64 and all(map(is_count, shape)), f"a shape of {name!r}", shape)
    need(type(offsets) is list and len(offsets) == 2 and all(map(is_count, offsets)), f"two data_offsets of {name!r}", offsets)
    start, end = offsets
    need(end - start == prod(shape) * DTYPES[kind].itemsize, f"{prod(shape) * DTYPES[kind].itemsize} bytes of {name!r}", end - start)
    return DTYPES[kind], tuple(shape), start, end


def refuse_pytorch(prefix, fits):
    need(not prefix.startswith(b"PK\x03\x04"), "a safetensors file", "a zip archive, as torch.save writes it",
         use="tritorch.load with a file that can seek")
    pickled = len(prefix) > 1 and prefix[0] == 0x80 and 2 <= prefix[1] <= 5
    need(fits or not pickled, "a safetensors file", "a pickle, which may run any code", use="torch.save where it was made")


class Reader:
    """The tensors of an open file; `source` is a path or a binary file that stands at the start."""

    def __init__(self, source, mmap=False):
        self.owned = not hasattr(source, "read")
        self.file = open(source, "rb") if self.owned else source
        self.map = None
        try:
            check(not mmap or self.owned, "load", "a path for mmap=True", type(source).__name__, error=ValueError)
            self.size = bytes_left(self.file)
            self.metadata, self.entries, self.start = read_header(self.file, self.size, self.owned)
            if mmap:
                self.map = np.memmap(self.file, np.uint8, "c")    # writes go to memory of this process, not to the file
        except BaseException:
            self.close()
            raise

    def __iter__(self):
        """Names in the order of their data, so that a stream is read front to back."""
        return iter(sorted(self.entries, key=lambda name: self.entries[name][2:]))

    def read(self, name):
        """One tensor, on the CPU. Without mmap the file must stand at its data (`seek`, or in the order of iteration)."""
        kind, shape, start, end = self.entries[name]
        if self.map is not None:
            array = self.map[self.start + start:self.start + end].view(np.ndarray)
            aligned = not array.ctypes.data % kind.itemsize
            x = from_array((array if aligned else array.copy()).view(kind.numpy).reshape(shape))
        elif self.size is None:                                    # memory follows what comes, not what the header claims
            x = from_array(np.frombuffer(read_slowly(self.file, end - start, name), kind.numpy).reshape(shape))
        else:
            x = empty(shape, kind, cpu)
            read_into(self.file, memoryview(x.array.reshape(-1).view(np.uint8)), name)
        if kind is bool_:
            need(not (x.array.view(np.uint8) > 1).any(), f"bools of {name!r}", "bytes other than 0 and 1")
        return x

    def seek(self, name):
        self.file.seek(self.start + self.entries[name][2])

    def close(self):
        if self.owned:
            self.file.close()


def bytes_left(file):
    """Bytes from here to the end of a file; None if it cannot seek."""
    if not getattr(file, "seekable", bool)():
        return None
    here = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(here)
    return end - here


def read_into(file, view, name):
    position = 0
    while position < len(view):
        if hasattr(file, "readinto"):
            count = file.readinto(view[position:])
        else:
            part = file.read(len(view) - position)
            view[position:position + len(part)], count = part, len(part)
        need(count, f"{len(view)} bytes of {name!r}", position)
        position += count


def read_slowly(file, count, name):
    out = bytearray()
    while len(out) < count:
        part = file.read(min(count - len(out), 1 << 24))
        need(part, f"{count} bytes of {name!r}", len(out))
        out += part
    return out


# ------------------------------------------------------------------ flat state dicts
def save_file(tensors, filename, metadata=None):
    """Write {name: Tensor} as a safetensors file that any other library reads. Tensors become contiguous; shared memory is written twice.

    >>> import os, tempfile, tritorch as torch
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> torch.safetensors.save_file({"weight": torch.ones(2)}, path)
    >>> torch.safetensors.load_file(path)
    {'weight': tensor([1., 1.])}
    """
    for name, x in tensors.items():
        check(isinstance(name, str) and name != "__metadata__", "save_file", "names that are strings", repr(name), error=TypeError)
        check(isinstance(x, Tensor), "save_file", f"a Tensor under {name!r}", type(x).__name__, error=TypeError)
    for key, value in (metadata or {}).items():
        check(isinstance(key, str) and isinstance(value, str), "save_file", "metadata of strings", repr((key, value)), error=TypeError)
    write(filename, tensors, metadata)


def load_file(filename, device="cpu", mmap=False):
    """The {name: Tensor} of a safetensors file. Raises FileFormatError if it is broken. See `save_file`."""
    with safe_open(filename, device=device, mmap=mmap) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


class safe_open:
    """A safetensors file whose tensors are read one by one: `keys()`, `get_tensor(name)`, `metadata()`.

    >>> import os, tempfile, tritorch as torch
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> torch.safetensors.save_file({"a": torch.ones(2), "b": torch.zeros(3)}, path, {"author": "me"})
    >>> with torch.safetensors.safe_open(path) as file:
    ...     print(file.keys(), file.get_tensor("b"), file.metadata())
    ['a', 'b'] tensor([0., 0., 0.]) {'author': 'me'}
    """

    def __init__(self, filename, framework=None, device="cpu", mmap=True):
        self._device, self._reader = as_device(device), Reader(filename, mmap)

    def keys(self):
        return sorted(self._reader.entries)

    def metadata(self):
        return dict(self._reader.metadata)

    def get_tensor(self, name):
        check(name in self._reader.entries, "get_tensor", "a name in the file", repr(name), error=KeyError)
        if self._reader.map is None:
            self._reader.seek(name)
        return self._reader.read(name).to(self._device)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._reader.close()
