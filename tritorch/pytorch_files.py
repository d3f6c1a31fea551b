"""Reading what PyTorch's `torch.save` writes: zip archives (since 1.6) and the stream of pickles before them. Nothing in them is run.

An archive holds data.pkl, the object, and data/0, data/1, …, the bytes of its storages, uncompressed. A stream holds a magic number, a
version, facts about the machine, the object and a list of the storages as pickles, and then each storage behind its number of elements.
"""
import os
import pickletools
import struct
import zipfile

import numpy as np

from tritorch.device import cpu
from tritorch.dtype import bool as bool_
from tritorch.dtype import uint8
from tritorch.errors import check
from tritorch.pytorch_pickles import Memory, Unpickler
from tritorch.safetensors import FileFormatError, bytes_left, need, read_into
from tritorch.tensor import empty, from_array

MAGIC, STREAM_VERSION = 0x1950A86A20F9469CFC6C, 1001
ZIP, PICKLE = b"PK\x03\x04", b"\x80"


def is_pytorch(source):
    """Whether a path or an open file that can seek is one of PyTorch's; it stands where it stood."""
    if not hasattr(source, "read"):
        if not os.path.isfile(source):
            return False
        with open(source, "rb") as file:
            return is_pytorch(file)
    if bytes_left(source) is None:
        return False
    here = source.tell()
    prefix = source.read(32)
    source.seek(here)
    return prefix.startswith(ZIP) or prefix.startswith(PICKLE) and MAGIC.to_bytes(10, "little") in prefix


def read(source, place, mmap, trusted):
    """The object in a path or an open file. `place(bytes on the CPU, name of a device)` takes a storage where it belongs."""
    if not hasattr(source, "read"):
        with open(source, "rb") as file:
            return read(file, place, mmap, trusted)
    here = source.tell()
    archive = source.read(4) == ZIP
    source.seek(here)
    check(archive or not mmap, "load", "an archive for mmap=True, which PyTorch writes since 1.6", "a stream of pickles")
    try:
        return read_archive(source, place, mmap, trusted) if archive else read_stream(source, place, trusted)
    except (FileFormatError, ImportError):
        raise
    except Exception as error:                                           # a broken pickle ends in any of a dozen
        got = f"one whose reading ends in {type(error).__name__}: {error}"
        raise FileFormatError(f"load: expected a file of torch.save, got {got}") from error


def read_archive(file, place, mmap, trusted):
    with zipfile.ZipFile(file) as archive:
        pickles = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl" and name.count("/") <= 1]
        need(len(pickles) == 1, "one data.pkl in the archive", f"{len(pickles)}")
        top = pickles[0].removesuffix("data.pkl")
        need(f"{top}constants.pkl" not in archive.namelist(), "a checkpoint", "a TorchScript archive, which is a program",
             use="torch.save(model.state_dict(), path) where PyTorch is")
        if f"{top}byteorder" in archive.namelist():
            order = archive.read(f"{top}byteorder")
            need(order == b"little", "numbers in little-endian order", order)
        map_of_file, found = np.memmap(file, np.uint8, "c") if mmap else None, {}

        def memory(kind, key, location, count, view):
            """Each storage is read when it is first named, once."""
            if key not in found:
                info = archive.getinfo(f"{top}data/{key}")
                size = kind.itemsize * count if kind else count
                plain = info.compress_type == zipfile.ZIP_STORED and info.file_size == size
                need(plain, f"{size} bytes of storage {key!r}", info.file_size)
                x = from_array(mapped(file, map_of_file, info)) if mmap and size else stored(archive, info, size)
                found[key] = x, place(x, location).storage
            check_bools(kind, found[key][0], key)
            return Memory(found[key][1], kind)

        return Unpickler(archive.read(pickles[0]), memory, trusted).load()


def stored(archive, info, size):
    """The bytes of an entry, in memory of their own; zipfile checks their sum."""
    need(size <= info.compress_size, f"{size} bytes in the archive", info.compress_size)
    x = empty((size,), uint8, cpu)
    with archive.open(info) as entry:
        read_into(entry, memoryview(x.array), info.filename)
        entry.read(1)                                                    # the end, where the sum is compared
    return x


def mapped(file, whole, info):
    """The bytes of an entry where they lie in the file, aligned as PyTorch writes them."""
    file.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    start = info.header_offset + 30 + name + extra
    need(start + info.file_size <= whole.size, f"{info.file_size} bytes of {info.filename!r}", whole.size - start)
    array = whole[start:start + info.file_size].view(np.ndarray)
    return array if array.ctypes.data % 16 == 0 else array.copy()


def next_pickle(file):
    """The text of the pickle that begins here; the file then stands behind it. It is read over, not run."""
    start = file.tell()
    for _ in pickletools.genops(file):
        pass
    end = file.tell()
    file.seek(start)
    return file.read(end - start)


def nothing(*key):
    raise FileFormatError(f"load: expected a pickle without storages, got {key[1]!r:.120}")


def read_stream(file, place, trusted):
    magic, version, machine = (Unpickler(next_pickle(file), nothing, False).load() for _ in range(3))
    need(magic == MAGIC and version == STREAM_VERSION, f"a stream of version {STREAM_VERSION}", f"{magic}, {version}")
    need(type(machine) is dict and machine.get("little_endian", True), "numbers in little-endian order", machine)
    text, keys = next_pickle(file), Unpickler(next_pickle(file), nothing, False).load()
    need(type(keys) is list and all(type(key) is str for key in keys), "a list of storages", type(keys).__name__)
    found, left = {}, bytes_left(file)

    def memory(kind, key, location, count, view):
        """Storages come after the object: it is built over memory that is filled afterwards."""
        need(kind is not None and key in keys, "a storage of the list", key)
        if key not in found:
            size = kind.itemsize * count
            need(size <= left, f"{size} bytes of storage {key!r}", left)
            x = empty((size,), uint8, cpu)
            found[key] = kind, count, x, place(x, location)
        need(found[key][:2] == (kind, count), f"one kind of storage {key!r}", kind, count)
        return Memory(found[key][3].storage, kind, view[1] * kind.itemsize if view else 0)

    out = Unpickler(text, memory, trusted).load()
    need(set(keys) == set(found), f"{len(found)} storages in the list", len(keys))
    for key in keys:
        kind, count, x, target = found[key]
        need(int.from_bytes(file.read(8), "little") == count, f"{count} elements in storage {key!r}", "another number")
        read_into(file, memoryview(x.array), key)
        check_bools(kind, x, key)
        if target is not x:
            target.copy_(x)
    return out


def check_bools(kind, x, key):
    need(kind is not bool_ or not (x.array > 1).any(), f"bools in storage {key!r}", "bytes other than 0 and 1")
