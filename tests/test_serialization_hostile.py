"""Files that are not ours, broken or made to do harm: each gets one sentence, none does more."""
import io
import json
import math
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tritorch as T
from tritorch.safetensors import FileFormatError
from tritorch.serialization import load, save


def stored(obj):
    stream = io.BytesIO()
    save(obj, stream)
    return stream.getvalue()


def rebuilt(head, body=b""):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def plan(obj, tensors=(), version=1, devices=None):
    return {"tritorch": json.dumps({"version": version, "object": obj, "tensors": tensors, "devices": devices or {}})}


def nested(levels):
    node = 1
    for _ in range(levels):
        node = [node]
    return node


EIGHT = b"\0" * 8
HOSTILE = {
    "empty": b"",
    "short": b"\1\2",
    "huge header": (1 << 62).to_bytes(8, "little") + b"{}",
    "header beyond the file": (1000).to_bytes(8, "little") + b"{}",
    "not json": rebuilt(b"{nope}"),
    "not an object": rebuilt(b"[]"),
    "not utf-8": rebuilt(b'{"\xff": 1}'),
    "deep json": rebuilt(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a name twice": rebuilt(b'{"a":' + json.dumps(entry()).encode() + b',"a":' + json.dumps(entry()).encode() + b"}", EIGHT),
    "entry is a number": rebuilt({"a": 1}),
    "missing field": rebuilt({"a": {"dtype": "F32", "shape": [2]}}, EIGHT),
    "unknown dtype": rebuilt({"a": entry("F33")}, EIGHT),
    "dtype is a list": rebuilt({"a": entry([])}, EIGHT),
    "negative size": rebuilt({"a": entry(shape=(-2,))}, EIGHT),
    "size is a float": rebuilt({"a": entry(shape=(2.0,))}, EIGHT),
    "size is a bool": rebuilt({"a": entry(shape=(True, 2))}, EIGHT),
    "huge size": rebuilt({"a": entry(shape=(1 << 62, 1 << 62))}, EIGHT),
    "too many dims": rebuilt({"a": entry(shape=(1,) * 65 + (2,))}, EIGHT),
    "wrong bytes": rebuilt({"a": entry(shape=(3,))}, EIGHT),
    "end before start": rebuilt({"a": entry(offsets=(8, 0))}, EIGHT),
    "overlap": rebuilt({"a": entry(), "b": entry(offsets=(4, 12))}, EIGHT + EIGHT),
    "hole": rebuilt({"a": entry(), "b": entry(offsets=(12, 20))}, EIGHT * 3),
    "trailing bytes": rebuilt({"a": entry()}, EIGHT + b"x"),
    "missing bytes": rebuilt({"a": entry()}, b"1234"),
    "bad bool": rebuilt({"a": entry("BOOL", (1,), (0, 1))}, b"\7"),
    "metadata of numbers": rebuilt({"__metadata__": {"a": 1}}),
    "metadata is a list": rebuilt({"__metadata__": [1]}),
    "plan is not json": rebuilt({"__metadata__": {"tritorch": "{"}}),
    "plan is a list": rebuilt({"__metadata__": {"tritorch": "[]"}}),
    "plan of too little": rebuilt({"__metadata__": {"tritorch": '{"version": 1, "object": 1, "tensors": []}'}}),
    "version is text": rebuilt({"__metadata__": plan(1, version="1")}),
    "homes are a list": rebuilt({"__metadata__": plan(1, devices=["cpu"])}),
    "tensors are a number": rebuilt({"__metadata__": plan(1, 5)}),
    "plan from the future": rebuilt({"__metadata__": plan(1, version=2)}),
    "unknown type": rebuilt({"__metadata__": plan({"os.system": ["ls"]})}),
    "empty type": rebuilt({"__metadata__": plan({})}),
    "two types": rebuilt({"__metadata__": plan({"tuple": [], "set": []})}),
    "unhashable key": rebuilt({"__metadata__": plan({"dict": [[[], 1]]})}),
    "no pairs": rebuilt({"__metadata__": plan({"dict": [1, 2]})}),
    "half a pair": rebuilt({"__metadata__": plan({"dict": [[1]]})}),
    "tuple of a number": rebuilt({"__metadata__": plan({"tuple": 3})}),
    "unhashable member": rebuilt({"__metadata__": plan({"set": [[1]]})}),
    "negative Size": rebuilt({"__metadata__": plan({"Size": [-1]})}),
    "bad float": rebuilt({"__metadata__": plan({"float": "1e5"})}),
    "bad bytes": rebuilt({"__metadata__": plan({"bytes": "$"})}),
    "bad dtype": rebuilt({"__metadata__": plan({"dtype": "float99"})}),
    "bad device": rebuilt({"__metadata__": plan({"device": "tpu"})}),
    "bad complex": rebuilt({"__metadata__": plan({"complex": [1]})}),
    "bad home": rebuilt({"__metadata__": plan(1, devices={"a": "tpu:0"})}),
    "too deep": rebuilt({"__metadata__": plan(nested(250))}),
    "no such tensor": rebuilt({"__metadata__": plan({"tensor": 0})}),
    "tensor -1": rebuilt({"__metadata__": plan({"tensor": -1}, [["a", None]]), "a": entry()}, EIGHT),
    "no such entry": rebuilt({"__metadata__": plan({"tensor": 0}, [["b", None]]), "a": entry()}, EIGHT),
    "entry and more": rebuilt({"__metadata__": plan({"tensor": 0}, [["a", None, None]]), "a": entry()}, EIGHT),
    "view is text": rebuilt({"__metadata__": plan({"tensor": 0}, [["a", "F32"]]), "a": entry()}, EIGHT),
    "stride is a number": rebuilt({"__metadata__": plan({"tensor": 0}, [["a", ["F32", [2], 1, 0]]]), "a": entry()}, EIGHT),
    "view beyond": rebuilt({"__metadata__": plan({"tensor": 0}, [["a", ["F32", [3], [1], 0]]]), "a": entry()}, EIGHT),
    "view by offset": rebuilt({"__metadata__": plan({"tensor": 0}, [["a", ["F32", [1], [1], 2]]]), "a": entry()}, EIGHT),
    "view of empty beyond": rebuilt({"__metadata__": plan({"tensor": 0}, [["a", ["F32", [0], [1], 5]]]), "a": entry()}, EIGHT),
    "view backwards": rebuilt({"__metadata__": plan({"tensor": 0}, [["a", ["F32", [2], [-1], 1]]]), "a": entry()}, EIGHT),
    "view of huge shape": rebuilt({"__metadata__": plan({"tensor": 0}, [["a", ["F32", [1 << 40] * 3, [0] * 3, 0]]]), "a": entry()}, EIGHT),
    "view of bools": rebuilt({"__metadata__": plan({"tensor": 0}, [["a", ["BOOL", [1], [1], 0]]]), "a": entry()}, b"\7" * 8),
    "integer that wants a gradient": rebuilt({"__metadata__": plan({"tensor": 0, "requires_grad": True}, [["a", None]]),
                                              "a": entry("I64", (1,))}, EIGHT),
    "array of a number": rebuilt({"__metadata__": plan({"ndarray": 1})}),
    "array of objects": rebuilt({"__metadata__": plan({"ndarray": ["|O", [1], {"tensor": 0}]}, [["a", None]]), "a": entry()}, EIGHT),
    "array without memory": rebuilt({"__metadata__": plan({"ndarray": ["<f4", [2], 0]}, [["a", None]]), "a": entry()}, EIGHT),
    "array of objects in bytes": rebuilt({"__metadata__": plan({"ndarray": ["|O", [1], {"tensor": 0}]}, [["a", None]]),
                                          "a": entry("U8", (8,))}, EIGHT),
    "array of bools in bytes": rebuilt({"__metadata__": plan({"ndarray": ["|b1", [8], {"tensor": 0}]}, [["a", None]]),
                                        "a": entry("U8", (8,))}, b"\7" * 8),
    "array of negative size": rebuilt({"__metadata__": plan({"ndarray": ["<f4", [-1, -2], {"tensor": 0}]}, [["a", None]]), "a": entry()},
                                      EIGHT),
    "array of another type": rebuilt({"__metadata__": plan({"ndarray": ["<i4", [2], {"tensor": 0}]}, [["a", None]]), "a": entry()}, EIGHT),
    "array of another size": rebuilt({"__metadata__": plan({"ndarray": ["<f4", [3], {"tensor": 0}]}, [["a", None]]), "a": entry()}, EIGHT),
    "array of odd bytes": rebuilt({"__metadata__": plan({"ndarray": ["<u4", [1], {"tensor": 0}]}, [["a", None]]),
                                   "a": entry("U8", (5,), (0, 5))}, b"12345"),
    "array that is a parameter": rebuilt({"__metadata__": plan({"ndarray": ["<f4", [2], {"tensor": 0, "parameter": True}]}, [["a", None]]),
                                          "a": entry()}, EIGHT),
    "flag is a number": rebuilt({"__metadata__": plan({"tensor": 0, "requires_grad": 1}, [["a", None]]), "a": entry()}, EIGHT),
    "unknown flag": rebuilt({"__metadata__": plan({"tensor": 0, "hook": True}, [["a", None]]), "a": entry()}, EIGHT),
}


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_get_one_sentence(name, mmap, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(FileFormatError, match="^load: expected") as error:
        load(path, mmap=mmap)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


def test_pickles_and_archives_that_cannot_be_read_name_the_way_out(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(FileFormatError, match=r"a pickle, which may run any code; use torch.save where it was made"):
        load(path)
    with pytest.raises(FileFormatError, match=r"a zip archive, as torch.save writes it; use tritorch.load with a file that can seek"):
        load(SimpleNamespace(read=io.BytesIO(b"PK\3\4" + bytes(100)).read))


@pytest.mark.parametrize("seekable", [True, False])
def test_a_stream_that_claims_more_than_it_has_costs_no_memory(seekable):
    data = rebuilt({"a": entry("U8", (1 << 50,), (0, 1 << 50))}, EIGHT)
    stream = io.BytesIO(data) if seekable else SimpleNamespace(read=io.BytesIO(data).read)
    with pytest.raises(FileFormatError, match="^load: expected"):
        load(stream)


SAMPLE = stored({"a": T.arange(6).reshape(2, 3), "n": [1, 2.5, {"k": (None, True)}], "b": T.tensor([True, False]), "v": T.ones(4)[1:],
                 "s": {"x"}, "z": b"ab", "nan": math.nan})


@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, len(SAMPLE)))
@settings(deadline=None, max_examples=600)
def test_flipped_bytes_never_do_worse_than_the_documented_error(tmp_path_factory, flips, length):
    data = bytearray(SAMPLE)
    for place, byte in flips:
        data[place] ^= byte
    if length % 5 == 0:
        data = data[:length]
    path = tmp_path_factory.getbasetemp() / "flipped"
    path.write_bytes(data)
    for source, kw in ((path, {}), (path, {"mmap": True}), (io.BytesIO(bytes(data)), {})):
        try:
            load(source, map_location="cpu", **kw)
        except FileFormatError:
            pass


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=200)
def test_random_bytes(data):
    for text in (data, rebuilt(data), rebuilt(b"{" + data + b"}")):
        try:
            load(io.BytesIO(text))
        except FileFormatError:
            pass
