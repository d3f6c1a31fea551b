"""Files of PyTorch's torch.save: read whole and exactly, without running what they name.

tests/files holds two that PyTorch 2.13 wrote of one object, an archive and the older stream of pickles; the hostile ones are made here.
"""
import collections
import fractions
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tritorch as T
from tritorch.pytorch_files import MAGIC
from tritorch.safetensors import FileFormatError
from tritorch.serialization import load, safe_globals

FILES = Path(__file__).parent / "files"
ARCHIVE, STREAM = FILES / "pytorch_archive.pt", FILES / "pytorch_stream.pt"
both_files = pytest.mark.parametrize("path", [ARCHIVE, STREAM], ids=["archive", "stream"])


# ------------------------------------------------------------------ what PyTorch wrote
@both_files
def test_a_checkpoint_is_what_it_was(path):
    found = load(path)
    assert found["epoch"] == 7 and found["best"] == np.float32(0.25) and type(found["best"]) is np.float32
    assert found["order"].tolist() == [[0, 3], [1, 4], [2, 5]] and found["order"].flags.f_contiguous
    assert type(found["model"]) is collections.OrderedDict and found["model"]._metadata["norm"] == {"version": 2}
    plain = {"set": {1}, "size": T.Size([2, 3]), "dtype": T.bfloat16, "device": T.device("cuda", 1), "bytes": b"\0\xff", "complex": 1j,
             "none": None, "text": "ü", "number": 1 << 70}
    assert found["plain"] == plain
    assert found["leaf"].requires_grad and found["leaf"].is_leaf and found["tensor"].note == "kept"
    assert type(found["parameter"]) is T.nn.Parameter and not found["parameter"].requires_grad
    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128"
    assert " ".join([x.dtype.name for x in found["kinds"]]) == names
    assert all(x.tolist() == ([False, True, True] if x.dtype is T.bool else [0, 1, 2]) for x in found["kinds"])


@both_files
def test_views_share_memory_and_keep_their_strides(path):
    base, turned, steps, one = load(path)["views"]
    assert (turned.stride(), turned.storage_offset(), steps.stride(), one.shape) == ((1, 3), 2, (5,), ())
    assert turned.tolist() == [[2, 5], [3, 6], [4, 7]] and steps.tolist() == [0, 5, 10]
    base.zero_()
    assert not turned.any() and not steps.any() and one == 0


@both_files
def test_a_model_and_its_optimizer_go_on(path):
    model = T.nn.Sequential(collections.OrderedDict(conv=T.nn.Conv2d(1, 2, 2), norm=T.nn.BatchNorm2d(2)))
    optimizer = T.optim.AdamW(model.parameters(), lr=0.5)
    found = load(path)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 0.01
    model(T.ones(2, 1, 3, 3)).sum().backward()
    optimizer.step()
    assert optimizer.state[model.conv.weight]["step"] == 2


def test_mmap_leaves_the_file_as_it_is(tmp_path):
    path = tmp_path / "copy.pt"
    path.write_bytes(ARCHIVE.read_bytes())
    found = load(path, mmap=True)
    assert found["views"][0].tolist() == list(range(12)) and found["model"]["norm.weight"].shape == (2,)
    found["views"][0].zero_()
    assert not found["views"][1].any() and path.read_bytes() == ARCHIVE.read_bytes()
    with pytest.raises(RuntimeError, match="expected an archive for mmap=True"):
        load(STREAM, mmap=True)
    with pytest.raises(ValueError, match="expected a path for mmap=True"):
        load(io.BytesIO(ARCHIVE.read_bytes()), mmap=True)


@both_files
def test_an_open_file_is_read_from_where_it_stands(path):
    file = io.BytesIO(path.read_bytes())
    assert load(file, weights_only=True, pickle_module=pickle, encoding="utf-8")["epoch"] == 7


@both_files
def test_map_location(path):
    homes = []

    def where(memory, home):
        homes.append(home)
        return memory

    assert load(path, map_location=where)["epoch"] == 7 and set(homes) == {"cpu"}
    moved = load(path, map_location=lambda memory, home: memory.clone())             # filled although it is other memory
    assert moved["views"][1].tolist() == [[2, 5], [3, 6], [4, 7]]


@both_files
def test_to_meta(path):
    found = load(path, map_location="meta")
    assert found["model"]["norm.weight"].is_meta and found["views"][1].stride() == (1, 3) and found["epoch"] == 7
    assert found["views"][0].untyped_storage().storage is found["views"][1].storage and found["order"].shape == (3, 2)


# ------------------------------------------------------------------ files of our own making
class Name:
    """Pickled as a GLOBAL of any module."""

    def __init__(self, name):
        self.name = name

    def __call__(self):
        """For the pickler, which asks for something that can be called."""


class Call:
    """Pickled as a call of a name, with state if any."""

    def __init__(self, name, *args, state=None):
        self.reduced = (Name(name), args) if state is None else (Name(name), args, state)

    def __reduce__(self):
        return self.reduced


class Stored(tuple):
    """Pickled as the key of a storage."""


class Pickler(pickle._Pickler):
    def save(self, obj, *args, **kw):
        if isinstance(obj, Name):
            module, _, name = obj.name.rpartition(".")
            self.write(b"c" + module.encode() + b"\n" + name.encode() + b"\n")
        else:
            super().save(obj, *args, **kw)

    def persistent_id(self, obj):
        return tuple(obj) if isinstance(obj, Stored) else None


def pickled(obj):
    out = io.BytesIO()
    Pickler(out, 2).dump(obj)
    return out.getvalue()


def archive(obj, compression=zipfile.ZIP_STORED, **records):
    """The bytes of an archive; `obj` may be a pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as made:
        made.writestr("a/data.pkl", obj if type(obj) is bytes else pickled(obj))
        for name, value in records.items():
            made.writestr("a/data/" + name[1:] if name.startswith("_") else "a/" + name, value)
    return out.getvalue()


def stream(obj, keys=(), data=b"", version=1001, machine=None):
    return b"".join(map(pickled, (MAGIC, version, machine or {"little_endian": True}, obj, list(keys)))) + data


def storage(kind="torch.FloatStorage", key="0", count=2, home="cpu"):
    return Stored(("storage", Name(kind), key, home, count))


def tensor(memory, offset=0, size=(2,), stride=(1,), *rest):
    return Call("torch._utils._rebuild_tensor_v2", memory, offset, size, stride, False, collections.OrderedDict(), *rest)


def typed(kind, name="torch.storage.UntypedStorage", count=8):
    return Call("torch._utils._rebuild_tensor_v3", storage(name, count=count), 0, (2,), (1,), False, None, Name(kind))


def numpy_array(shape, kind, data):
    return Call("numpy._core.multiarray._reconstruct", Name("numpy.ndarray"), (0,), "b",
                state=(1, shape, Call("numpy.dtype", kind, False, True), False, data))


def on_meta(kind="torch.float32", size=(2, 3), stride=(1, 2), requires_grad=False):
    return Call("torch._utils._rebuild_meta_tensor_no_storage", Name(kind), size, stride, requires_grad)


EIGHT = struct.pack("<2f", 1.0, 2.0)
DEEP = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
HOSTILE = {
    "a function of the system": archive(Call("os.system", "exit 1")),
    "in the older stream": stream(Call("os.system", "exit 1")),
    "in the facts of the machine": stream(1, machine=Call("os.system", "exit 1")),
    "a builtin": archive(Call("builtins.eval", "1 + 1")),
    "getattr": archive(Call("__builtin__.getattr", "a", "b")),
    "a function of ours": archive(Call("tritorch.save", 1, "path")),
    "state of a tensor": archive(Call("torch._utils._rebuild_tensor_v2", storage(), 0, (2,), (1,), False, None, state={"offset": 1 << 40}),
                                 _0=EIGHT),
    "state of a name": archive(pickled(Name("torch.Size"))[:-1] + pickled((None, {"call": 1}))[2:-1] + b"b."),
    "a name that is no constructor": archive(Call("builtins.list", 1)),
    "a call of a number": archive(b"\x80\x02K\x01)R."),
    "memory out of thin air": archive(Call("builtins.bytearray", 1 << 40)),
    "a set of a huge range": archive(Call("builtins.set", Call("builtins.range", 1 << 40))),
    "an extension": archive(b"\x80\x02\x82\x01."),
    "beyond its storage": archive(tensor(storage(), 1), _0=EIGHT),
    "a stride beyond it": archive(tensor(storage(), 0, (2,), (2,)), _0=EIGHT),
    "a negative stride": archive(tensor(storage(), 1, (2,), (-1,)), _0=EIGHT),
    "sizes of another rank": archive(tensor(storage(), 0, (2,), ()), _0=EIGHT),
    "a size that is a float": archive(tensor(storage(), 0, (2.0,), (1,)), _0=EIGHT),
    "a tensor of no storage": archive(tensor((1, 2))),
    "more than the file": archive(tensor(storage(count=3)), _0=EIGHT),
    "no such storage": archive(tensor(storage(key="7")), _0=EIGHT),
    "a storage elsewhere": archive(tensor(storage(key="../data.pkl"))),
    "a storage of an unknown kind": archive(tensor(storage("torch.QUInt8Storage")), _0=EIGHT),
    "a storage of a list": archive(tensor(storage("builtins.list")), _0=EIGHT),
    "bools of 2": archive(tensor(storage("torch.BoolStorage")), _0=b"\1\2"),
    "bools by another name": archive(typed("torch.bool", count=2), _0=b"\1\2"),
    "bools in a stream": stream(tensor(storage("torch.BoolStorage")), ["0"], struct.pack("<q", 2) + b"\1\2"),
    "a dtype without tensors": archive(typed("torch.uint32"), _0=EIGHT),
    "an integer that wants a gradient": archive(Call("torch._utils._rebuild_tensor_v2", storage("torch.IntStorage"), 0, (2,), (1,), True),
                                                _0=EIGHT),
    "compressed storages": archive(tensor(storage()), zipfile.ZIP_DEFLATED, _0=EIGHT),
    "big-endian": archive(tensor(storage()), _0=EIGHT, byteorder=b"big"),
    "a stream of another machine": stream(1, machine={"little_endian": False}),
    "a stream of another version": stream(1, version=1002),
    "a program": archive({}, **{"constants.pkl": b""}),
    "no pickle": archive(b""),
    "cut off": archive(pickled([1, 2, 3])[:-1]),
    "not UTF-8": archive(b"\x80\x02X\x01\x00\x00\x00\xff."),
    "an object array": archive(numpy_array((1,), "O8", [1])),
    "an array of other bytes": archive(numpy_array((3,), "f4", Call("_codecs.encode", "ab", "latin1"))),
    "bytes by another codec": archive(Call("_codecs.encode", "ab", "rot13")),
    "more storages than the list": stream(tensor(storage()), [], EIGHT),
    "fewer than the list": stream(1, ["0"], struct.pack("<q", 2) + EIGHT),
    "another count": stream(tensor(storage()), ["0"], struct.pack("<q", 3) + EIGHT),
    "a stream cut off": stream(tensor(storage()), ["0"], struct.pack("<q", 2) + EIGHT[:5]),
    "a storage of the whole machine": stream(tensor(storage(count=1 << 40), 0, (1,)), ["0"]),
    "a part beyond its storage": stream(tensor(Stored(("storage", Name("torch.FloatStorage"), "0", "cpu", 2, ("v", 1, 2)))), ["0"],
                                        struct.pack("<q", 2) + EIGHT),
    "a negative size on meta": archive(on_meta(size=(2, -3))),
    "strides of another rank on meta": archive(on_meta(stride=(1,))),
    "an integer on meta that wants a gradient": archive(on_meta("torch.int64", requires_grad=True)),
    "meta without a dtype": archive(on_meta("builtins.list")),
    "deep": archive(DEEP),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_get_a_sentence(name, monkeypatch):
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("it ran"))
    if name == "deep":                                                   # lists in lists need no stack to read
        assert type(load(io.BytesIO(HOSTILE[name]))) is list
        return
    with pytest.raises(FileFormatError, match="^load: expected "):
        load(io.BytesIO(HOSTILE[name]))


def test_the_files_made_here_are_good_ones():
    assert load(io.BytesIO(archive(tensor(storage()), _0=EIGHT))).tolist() == [1, 2]
    assert load(io.BytesIO(stream(tensor(storage()), ["0"], struct.pack("<q", 2) + EIGHT))).tolist() == [1, 2]
    part = Stored(("storage", Name("torch.FloatStorage"), "0", "cpu", 2, ("v", 1, 1)))
    assert load(io.BytesIO(stream(tensor(part, 0, (1,)), ["0"], struct.pack("<q", 2) + EIGHT))).tolist() == [2]
    assert load(io.BytesIO(archive(Call("collections.defaultdict", Name("__builtin__.list")))))["a"] == []
    assert load(io.BytesIO(archive(Call("collections.deque", [1, 2], 5)))) == collections.deque([1, 2], 5)
    found = load(io.BytesIO(archive(Call("collections.OrderedDict", state={"items": 1, "_metadata": 2}))))
    assert found._metadata == 2 and list(found.items()) == []            # methods stay what they are
    wide = typed("torch.float8_e5m2", count=2)
    assert load(io.BytesIO(archive(wide, _0=b"\x3c\x40"))).tolist() == [1, 2]
    nowhere = load(io.BytesIO(archive(on_meta(requires_grad=True))))
    assert nowhere.is_meta and nowhere.stride() == (1, 2) and nowhere.requires_grad and load(io.BytesIO(stream(on_meta()))).is_meta
    assert load(io.BytesIO(archive(numpy_array((1,), "u2", Call("_codecs.encode", "ab", "latin1"))))).tolist() == [0x6261]


@both_files
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_change_of_a_file_does_worse_than_a_sentence(path, data):
    if path is ARCHIVE:                                                  # the pickle alone: sums guard the rest
        with zipfile.ZipFile(ARCHIVE) as made:
            records = {name.partition("/")[2]: made.read(name) for name in made.namelist()}
        text = bytearray(records.pop("data.pkl"))
    else:
        text = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    out = io.BytesIO(text)
    if path is ARCHIVE:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as made:
            for name, value in {"data.pkl": bytes(text), **records}.items():
                made.writestr("a/" + name, value)
        out.seek(0)
    try:
        load(out)
    except FileFormatError as error:
        assert str(error).startswith("load: ")


# ------------------------------------------------------------------ what may be named
def test_classes_are_refused_until_they_are_allowed():
    half = archive({"x": Call("fractions.Fraction", "1/2")})
    with pytest.raises(pickle.UnpicklingError, match=r"got fractions.Fraction; use serialization.add_safe_globals"):
        load(io.BytesIO(half))
    with safe_globals([fractions.Fraction]):
        assert load(io.BytesIO(half)) == {"x": fractions.Fraction(1, 2)}
    with safe_globals([(fractions.Fraction, "old.place.Fraction")]):
        assert load(io.BytesIO(archive(Call("old.place.Fraction", "1/2")))) == fractions.Fraction(1, 2)
    with pytest.raises(FileFormatError, match="got fractions.Fraction"):
        load(io.BytesIO(half))
    assert load(io.BytesIO(half), weights_only=False) == {"x": fractions.Fraction(1, 2)}


class Options:
    """With state, as argparse's Namespace has it."""


def test_state_of_allowed_classes():
    made = archive(Call(f"{Options.__module__}.Options", state={"lr": 0.1}))
    with safe_globals([Options]):
        assert load(io.BytesIO(made)).lr == 0.1
    assert load(io.BytesIO(made), weights_only=False).lr == 0.1


def test_a_whole_model_is_refused_with_the_way_out():
    with pytest.raises(FileFormatError, match=r"got torch.nn.modules.linear.Linear; use the state_dict\(\) of a model"):
        load(io.BytesIO(archive(Call("torch.nn.modules.linear.Linear", 1, 1))), weights_only=False)


def sparse(kind, *parts):
    return Call("torch._utils._rebuild_sparse_tensor", Call("torch.serialization._get_layout", kind), parts)


def places(key, *size):
    return tensor(storage("torch.LongStorage", key, count=4), 0, size, (2, 1)[-len(size):])


TWO_PLACES = struct.pack("<4q", 0, 1, 2, 0)


def test_sparse_tensors():
    values, entries = tensor(storage()), dict(_0=EIGHT, _1=TWO_PLACES)
    made = load(io.BytesIO(archive([sparse("torch.sparse_coo", places("1", 2, 2), values, (2, 3), True),
                                    sparse("torch.sparse_coo", places("1", 2, 2), values, (2, 3)),
                                    sparse("torch.sparse_csr", places("1", 3), places("1", 2), values, (2, 3))], **entries)))
    assert [x.layout for x in made] == [T.sparse_coo, T.sparse_coo, T.sparse_csr]
    assert made[0].is_coalesced() and not made[1].is_coalesced()
    assert made[0].to_dense().tolist() == made[1].to_dense().tolist() == [[0, 0, 1], [2, 0, 0]]
    assert made[2].to_dense().tolist() == [[1, 0, 0], [0, 2, 0]]
    for wrong in (sparse("torch.sparse_coo", places("1", 2, 2), values, (2, 2), True),
                  sparse("torch.sparse_csr", values, values, values, (2, 3)),
                  sparse("torch.sparse_coo", 1, 2, 3, 4), sparse("torch.strided", places("1", 2), places("1", 2), values, (2, 3)),
                  sparse("torch.sparse_coo", places("1", 2, 2), values, (2, -3), True)):
        with pytest.raises(FileFormatError, match="^load: expected "):
            load(io.BytesIO(archive(wrong, **entries)))
