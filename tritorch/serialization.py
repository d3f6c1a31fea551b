"""save and load: state dicts and other nests of plain Python values and tensors, in a file that holds no code unless objects need it.

The file is a safetensors file, of which any reader gets the tensors; `load` reads any such file as a flat dictionary. Tensors are entries
named after their path in the object; the object itself is JSON in the metadata under "tritorch", where [..] is a list, {"tensor": i} the
i-th tensor, and {"dict": [[key, value], ..]}, {"tuple": [..]} and so on the other types; a numpy array is the tensor of its memory with its
own dtype and shape. Tensors that share memory share an entry and come back as views of it; one on meta has no entry.
"""
from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

import numpy as np

from tritorch import pytorch_files, saved_objects
from tritorch.device import as_device, cpu, device, meta
from tritorch.dtype import ALL, dtype, uint8
from tritorch.errors import check
from tritorch.interop import from_numpy
from tritorch.layout import strided as strided_layout
from tritorch.nn.parameter import Parameter
from tritorch.pytorch_pickles import add_safe_globals, clear_safe_globals, get_safe_globals, safe_globals  # noqa: F401
from tritorch.safetensors import DTYPES, NAMES, FileFormatError, Reader, is_count, need, parse, write
from tritorch.shape import Size, extent
from tritorch.storage import Spread
from tritorch.tensor import Tensor, empty, strided

MAP_LOCATION: TypeAlias = Callable[[Tensor, str], Tensor | None] | device | str | dict[str, str] | None
VERSION, DEFAULT_PROTOCOL = 1, 2                                           # of files; the pickle protocol that PyTorch names
MAX_DEPTH = 200
MADE_OF = {"spread": "tritorch.distributed.tensor.saved", "sparse": "tritorch.sparse.saving"}      # tensors that are made of others
MAPPINGS = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter"}
SEQUENCES = {tuple: "tuple", set: "set", frozenset: "frozenset", Size: "Size"}
NUMPY = {kind.numpy for kind in ALL if kind.numpy.kind in "biuf"}           # the types that numpy itself and tensors both have
BUILDERS = {"tuple": tuple, "set": set, "frozenset": frozenset, "Size": Size, "dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}


def save(obj, f, pickle_module=None, pickle_protocol=2, _use_new_zipfile_serialization=True):
    """Write an object to a path or a binary file.

    `obj`: tensors, None, bools, numbers, strings, bytes, dtypes, devices, Sizes, numpy's arrays and numbers, in dicts, OrderedDicts,
    Counters, lists, tuples and sets, to any depth up to 200; cycles raise ValueError. Objects of other classes are pickled within the file,
    for `load` with `weights_only=False` alone; TypeError for what pickle refuses. A path is replaced at once when all is written. Of a
    DTensor each process writes its part, to a file of its own. PyTorch's further arguments mean nothing here.

    >>> import os, tempfile, tritorch as torch
    >>> path = os.path.join(tempfile.mkdtemp(), "checkpoint")
    >>> torch.save({"epoch": 3, "model": {"weight": torch.ones(2)}}, path)
    >>> torch.load(path)
    {'epoch': 3, 'model': {'weight': tensor([1., 1.])}}
    """
    encoder = Encoder(code=True)
    structure = encoder.encode(obj, "", 0)
    entries, places = encoder.entries()
    devices = {name: str(x.device) for name, x in entries.items() if x.device is not cpu}
    text = {"version": VERSION, "object": structure, "tensors": places, "devices": devices}
    write(f, entries, {"tritorch": json.dumps(text, separators=(",", ":"))})


class Encoder:
    """Turns an object into JSON and collects its tensors; with `code`, what only code restores is pickled."""

    def __init__(self, code=False):
        self.tensors, self.names, self.index, self.open, self.code = [], [], {}, set(), code

    def encode(self, obj, path, depth):
        kind = type(obj)
        if obj is None or kind in (bool, int, str):
            return obj
        if kind is float:
            return obj if math.isfinite(obj) else {"float": repr(obj)}
        if isinstance(obj, Tensor):
            form = "sparse" if obj.layout is not strided_layout else "spread" if type(obj.storage) is Spread else None
            if form is None:
                return self.encode_tensor(obj, path)
            part = lambda x, name=None: self.encode_tensor(x, joined(path, name) if name else path)
            return {form: import_module(MADE_OF[form]).encode(obj, part)}
        if kind in MAPPINGS or kind in SEQUENCES or kind is list:
            check(id(obj) not in self.open, "save", "an object without cycles", f"one at {path or 'the top'}", error=ValueError)
            check(depth < MAX_DEPTH, "save", f"a nest of at most {MAX_DEPTH} levels", f"more at {path[:80]}", error=ValueError)
            self.open.add(id(obj))
            out = self.encode_container(obj, kind, path, depth + 1)
            self.open.remove(id(obj))
            return out
        if kind is dtype:
            return {"dtype": obj.name}
        if kind is device:
            return {"device": str(obj)}
        if kind in (bytes, bytearray):
            return {kind.__name__: base64.b64encode(obj).decode()}
        if kind is complex:
            return {"complex": [self.encode(obj.real, path, depth), self.encode(obj.imag, path, depth)]}
        if isinstance(obj, (np.ndarray, np.generic)) and plain(obj.dtype):
            return self.encode_array(obj, path)
        if self.code:
            return {"pickle": saved_objects.encode(obj, path, lambda x: self.encode_tensor(x, path))}
        raise saved_objects.refusal("values that a file without code can hold", obj, path)

    def encode_container(self, obj, kind, path, depth):
        if kind in MAPPINGS:
            return {MAPPINGS[kind]: [[self.encode(k, path, depth), self.encode(v, joined(path, k), depth)] for k, v in obj.items()]}
        items = [self.encode(v, joined(path, i), depth) for i, v in enumerate(obj)]
        return items if kind is list else {SEQUENCES[kind]: items}

    def encode_array(self, x, path):
        array = np.ascontiguousarray(x)
        if array.dtype not in NUMPY:
            array = array.reshape(-1).view(np.uint8)                   # a type that no tensor has: its bytes
        array = array if array.flags.writeable else array.copy()
        kind = "ndarray" if isinstance(x, np.ndarray) else "number"
        return {kind: [x.dtype.str, list(x.shape), self.encode_tensor(from_numpy(array), path)]}

    def encode_tensor(self, x, path):
        found = self.index.get(id(x))
        if found is None:
            found = self.index[id(x)] = len(self.tensors)
            self.tensors.append(x)
            self.names.append(path.encode("utf-8", "replace").decode() or "tensor")
        out = {"tensor": found}
        if isinstance(x, Parameter):
            out["parameter"] = x.requires_grad
        elif x.requires_grad:
            out["requires_grad"] = True
        return out

    def entries(self):
        """({entry: Tensor to write}, [[entry, None or [dtype, shape, strides, offset]] for each tensor])."""
        groups, out, places = {}, {}, [None] * len(self.tensors)
        for i, x in enumerate(self.tensors):
            if x.is_meta:
                places[i] = [None, [NAMES[x.dtype], list(x.shape), list(x.strides), x.offset]]
                continue
            groups.setdefault(id(x.storage.owner) if x.numel() else (i,), []).append(i)
        for members in groups.values():
            name, x = self.names[members[0]], self.tensors[members[0]]
            while name in out or name == "__metadata__":
                name += "#"
            layouts = {(t.dtype, t.shape, t.strides, t.offset) for t in (self.tensors[i] for i in members)}
            if len(layouts) == 1:
                out[name] = x
                for i in members:
                    places[i] = [name, None]
                continue
            out[name], first = covering([self.tensors[i] for i in members])
            for i in members:
                t = self.tensors[i]
                places[i] = [name, [NAMES[t.dtype], list(t.shape), list(t.strides), t.offset - first // t.itemsize]]
        return out, places


def plain(kind):
    """Whether a numpy dtype is a number that means the same on every machine."""
    return kind.kind in "biu" or kind.kind == "f" and kind.itemsize <= 8 or kind.kind == "c" and kind.itemsize <= 16


def joined(path, key):
    return f"{path}.{key}" if path else str(key)


def last(x):
    """Bytes from the start of the storage to the end of the last element."""
    return (x.offset + sum((n - 1) * s for n, s in zip(x.shape, x.strides)) + 1) * x.itemsize


def covering(tensors):
    """(a 1-d tensor over the memory that these tensors use, its first byte in their storage)."""
    first, end = min(x.offset * x.itemsize for x in tensors), max(map(last, tensors))
    kinds = {x.dtype for x in tensors}
    kind = kinds.pop() if len(kinds) == 1 else uint8
    first -= first % 16                                            # all dtypes stay aligned
    return strided(tensors[0].storage, ((end - first) // kind.itemsize,), (1,), first // kind.itemsize, kind), first


# ------------------------------------------------------------------ loading
def load(f, map_location=None, pickle_module=None, *, weights_only=True, mmap=None, **pickle_load_args):
    """Read what `save` wrote, any safetensors file (its flat dictionary) or what PyTorch's `torch.save` wrote; a path or a binary file.

    `map_location`: a device, a {from: to} dictionary of device names, or a function (CPU tensor, device name) → tensor or None; by
    default tensors go back to the devices they came from. Of what goes to meta no values are read. `mmap=True` (paths only) leaves CPU
    tensors in the file until they are used; writes to them do not change it. Nothing in a file can run code: PyTorch's may name tensors,
    plain values and what `serialization.add_safe_globals` allows. With `weights_only=False` they may name anything, as there, and what
    `save` has pickled comes back: for files that you trust alone. Raises FileFormatError if the file is broken or of another format.
    `pickle_module` and its arguments mean nothing here. See `save` for an example.
    """
    if pytorch_files.is_pytorch(f):
        check(not mmap or not hasattr(f, "read"), "load", "a path for mmap=True", type(f).__name__, error=ValueError)
        return pytorch_files.read(f, lambda x, home: placed(x, home, map_location), lambda home: is_unread(home, map_location), bool(mmap),
                                  weights_only is False)
    reader = Reader(f, bool(mmap))
    try:
        text = reader.metadata.get("tritorch")
        plan = Decoder(parse(text), reader, weights_only is False) if text is not None else None
        devices = plan.devices if plan else {}
        memory = {}
        for name in reader:
            home = devices.get(name, "cpu")
            if is_unread(home, map_location):
                kept = plan and name in plan.arrays                      # else nothing is read of what will not be there
                memory[name] = reader.read(name) if kept else reader.blank(name)
                continue
            x = reader.read(name)
            if plan:
                plan.check_bools(name, x)
            memory[name] = placed(x, home, map_location)
    finally:
        reader.close()
    return plan.build(memory) if plan else memory


def going_to(home, map_location):
    """The device that a map_location other than a function names for what was saved on `home`."""
    if isinstance(map_location, dict):
        return map_location.get(home, home)
    return home if map_location is None or callable(map_location) else map_location


def is_unread(home, map_location):
    """Whether what was saved on `home` goes to meta, so that its values are not read."""
    return not callable(map_location) and as_device(going_to(home, map_location)) is meta


def placed(x, home, map_location):
    """A CPU tensor taken to where it belongs."""
    if callable(map_location):
        moved = map_location(x, home)
        if moved is not None:
            check(isinstance(moved, Tensor), "load", "a Tensor or None from map_location", type(moved).__name__, error=TypeError)
            return moved
    target = as_device(going_to(home, map_location))
    if target.type != "cuda":
        return x.to(target)
    from tritorch.cuda import driver

    check(driver.available() and (target.index or 0) < driver.count(), "load", f"a device {target} for a tensor saved on {home}", "none",
          use="map_location='cpu'")
    return x.to(target)


class Decoder:
    """Checks the structure of a file before its data is read, and builds the object after."""

    def __init__(self, plan, reader, trusted=False):
        need(type(plan) is dict and plan.keys() >= {"version", "object", "tensors", "devices"}, "a structure", type(plan).__name__)
        known = type(plan["version"]) is int and plan["version"] <= VERSION
        need(known, f"a file of version {VERSION}", plan["version"], use="a newer tritorch")
        self.object, self.places, self.devices = plan["object"], plan["tensors"], plan["devices"]
        self.kinds = {name: entry[0] for name, entry in reader.entries.items()}
        need(type(self.devices) is dict, "devices", self.devices)
        for name in self.devices.values():
            device_of(name)
        need(type(self.places) is list, "a list of tensors", self.places)
        for place in self.places:
            check_place(place, reader.entries)
        self.tensors, self.memory, self.arrays, self.trusted = [None] * len(self.places), None, set(), trusted
        self.decode(self.object, 0)                                # a trial run: nothing is read for an object that cannot be built

    def check_bools(self, name, x):
        """Views may read bytes of another type as bools: only 0 and 1 will do."""
        for entry, view in self.places:
            if entry == name and view and view[0] == "BOOL":
                need(not (laid_out(x, view).array.view(np.uint8) > 1).any(), f"bools in {name!r}", "bytes other than 0 and 1")

    def build(self, memory):
        self.memory, self.tensors = memory, [None] * len(self.places)
        return self.decode(self.object, 0)

    def decode(self, node, depth):
        need(depth <= MAX_DEPTH, f"a nest of at most {MAX_DEPTH} levels", "more")
        if node is None or type(node) in (bool, int, float, str):
            return node
        if type(node) is list:
            return [self.decode(v, depth + 1) for v in node]
        kind = next(iter(node), "nothing")
        if kind == "tensor":
            return self.decode_tensor(node)
        need(len(node) == 1, "one type for a value", list(node))
        value = node[kind]
        if kind in MADE_OF:
            return import_module(MADE_OF[kind]).decode(value, self.decode_tensor, self.memory is None)
        if kind == "pickle":
            return saved_objects.decode(value, self.decode_tensor, self.trusted, self.memory is None)
        if kind in ("ndarray", "number"):
            return self.decode_array(kind, value)
        if kind in BUILDERS:
            need(type(value) is list, f"a list in {kind}", value)
            items = [self.decode(v, depth + 1) for v in value]
            if kind in MAPPINGS.values():
                need(all(type(v) is list and len(v) == 2 for v in items), f"pairs in {kind}", value)
            try:
                if kind != "Size":
                    return BUILDERS[kind](dict(items) if kind == "Counter" else items)
            except TypeError as error:
                raise FileFormatError(f"load: expected a {kind}, got {error}") from None
            need(all(map(is_count, items)), "a Size", value)
            return Size(items)
        return decode_scalar(kind, value)

    def decode_tensor(self, node):
        i = node["tensor"]
        flags = node.keys() - {"tensor"}
        need(is_count(i) and i < len(self.places), f"a tensor under {len(self.places)}", i)
        need(flags <= {"parameter", "requires_grad"} and all(type(node[f]) is bool for f in flags), "flags of a tensor", node)
        if self.tensors[i] is None:
            name, view = self.places[i]
            kind = DTYPES[view[0]] if view else self.kinds[name]
            need(kind.has_gradients or not any(node[f] for f in flags), "a gradient of a floating tensor", name)
            self.tensors[i] = i if self.memory is None else self.tensor(i, node)
        return self.tensors[i]

    def decode_array(self, kind, value):
        good = type(value) is list and len(value) == 3 and type(value[0]) is str and type(value[2]) is dict
        need(good, f"dtype, shape and memory in {kind}", value)
        name, shape, node = value
        try:
            own = np.dtype(name)
        except TypeError:
            own = None
        need(own is not None and plain(own), f"the name of a number's dtype in {kind}", name)
        need(type(shape) is list and all(map(is_count, shape)) and len(shape) <= 64, f"a shape in {kind}", shape)
        need(node.keys() == {"tensor"}, f"a tensor in {kind}", node)
        i = self.decode_tensor(node)
        entry, view = self.places[node["tensor"]]
        need(entry is not None, f"memory in {kind}", "a tensor on meta")
        memory = DTYPES[view[0]] if view else self.kinds[entry]
        need(memory.numpy == own or memory is uint8 and own.kind != "b", f"memory of dtype {name} in {kind}", memory)
        if self.memory is None:
            self.arrays.add(entry)
            return None
        array = np.ascontiguousarray(i.cpu().array).reshape(-1)
        need(array.nbytes == math.prod(shape) * own.itemsize, f"{math.prod(shape)} elements in {kind}", f"{array.nbytes} bytes")
        array = array.view(own).reshape(shape).copy()
        return array if kind == "ndarray" else array[()]

    def tensor(self, i, node):
        name, view = self.places[i]
        x = self.memory[name] if name is not None else empty((view[3] + extent(*view[1:3]),), DTYPES[view[0]], meta)
        x = laid_out(x, view) if view else x.detach()
        if "parameter" in node:
            return Parameter(x, node["parameter"])
        return x.requires_grad_(node.get("requires_grad", False))


def laid_out(x, view):
    kind, shape, strides, offset = view
    first = x.offset * x.itemsize // DTYPES[kind].itemsize
    return strided(x.storage, tuple(shape), tuple(strides), first + offset, DTYPES[kind])


def decode_scalar(kind, value):
    try:
        if kind == "float":
            need(value in ("nan", "inf", "-inf"), "nan, inf or -inf", value)
            return float(value)
        if kind == "dtype":
            found = next((t for t in ALL if t.name == value), None)
            need(found is not None, "the name of a dtype", value)
            return found
        if kind == "device":
            return device_of(value)
        if kind in ("bytes", "bytearray"):
            data = base64.b64decode(value, validate=True)
            return data if kind == "bytes" else bytearray(data)
        if kind == "complex":
            real, imag = [v if type(v) in (int, float) else float(v["float"]) for v in value]
            return complex(real, imag)
    except (ValueError, TypeError, KeyError) as error:
        raise FileFormatError(f"load: expected a {kind}, got {error}") from None
    raise FileFormatError(f"load: expected a known type, got {kind[:80]!r}")


def device_of(name):
    try:
        return device(name) if type(name) is str else need(False, "the name of a device", name)
    except (RuntimeError, TypeError):
        raise FileFormatError(f"load: expected the name of a device, got {name!r:.80}") from None


def check_place(place, entries):
    """A tensor is an entry, or a view that stays inside of one."""
    need(type(place) is list and len(place) == 2 and (
        type(place[0]) is str and place[0] in entries or place[0] is None and place[1] is not None), "the entry of a tensor", place)
    name, view = place
    if view is None:
        return
    need(type(view) is list and len(view) == 4 and type(view[0]) is str and view[0] in DTYPES, "dtype, shape, strides and offset", view)
    kind, shape, strides, offset = view
    lists = type(shape) is list and type(strides) is list and len(shape) == len(strides) <= 64
    need(lists and all(map(is_count, shape)) and all(map(is_count, strides)) and is_count(offset), "shape, strides and offset", view)
    size = DTYPES[kind].itemsize
    end = offset + sum((n - 1) * s for n, s in zip(shape, strides)) + 1 if all(shape) else offset
    if name is None:
        need(max(end, math.prod(shape)) * size < 1 << 63, "a tensor on meta that fits an address space", view)
        return
    _, _, start, stop = entries[name]
    need(end * size <= stop - start and math.prod(shape) * size < 1 << 63, f"a view within {name!r}", view)
