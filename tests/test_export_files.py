"""Programs in files: what comes out is what went in, and nothing of a file is run."""
import io
import json
import zipfile

import pytest
from export_cases import Of, again, alike, called, drawn, tensors

import tritorch as torch
from tritorch import nn
from tritorch.export import Dim
from tritorch.safetensors import FileFormatError

X = drawn(3, 4)


def program_of():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 3))
    model[3].weight.requires_grad_(False)
    return torch.export.export(model, (X,), dynamic_shapes=({0: Dim("rows", min=2, max=50)},))


def written(program, **options):
    file = io.BytesIO()
    torch.export.save(program, file, **options)
    file.seek(0)
    return file


def test_all_of_it_comes_back(tmp_path):
    program = program_of()
    path = tmp_path / "model.pt2"
    torch.export.save(program, path, extra_files={"notes.txt": "by hand", "raw": b"\x01"})
    extra = {"notes.txt": ""}
    back = torch.export.load(path, extra_files=extra)
    assert extra == {"notes.txt": "by hand"} and str(back) == str(program) and str(back.graph) == str(program.graph)
    assert back.range_constraints == program.range_constraints and back.dialect == program.dialect
    assert [str(s) for s in back.graph_signature.input_specs] == [str(s) for s in program.graph_signature.input_specs]
    for name, x in program.state_dict.items():
        alike(back.state_dict[name], x, name, 0)
        assert back.state_dict[name].requires_grad == x.requires_grad and type(back.state_dict[name]) is type(x)
    alike(back.example_inputs[0][0], X, "example", 0)
    changed = [made.run_decompositions().graph_signature.buffers_to_mutate for made in (back, program)]
    assert changed[0] == changed[1] and len(changed[0]) == 3
    with zipfile.ZipFile(path) as archive:
        assert "archive/data/weights/model.safetensors" in archive.namelist() and not any("pkl" in n for n in archive.namelist())


def test_kinds_of_arguments():
    def run(self, x, flag, none):
        y = x.to(torch.float64).clamp(min=-float("inf"), max=1.5) * (1 + 2j)
        return {"y": torch.view_as_real(y.contiguous()), "z": (x.t().contiguous(), x.max(1)), "w": (float("inf"), None, "text")}

    program = torch.export.export(Of(run), (X, True, None))
    back = again(program)
    assert back.graph_signature.user_inputs == ("args_0", True, None)
    for x, y in zip(tensors(back.module()(X, True, None)), tensors(program.module()(X, True, None))):
        alike(x, y, "result", 0)


def test_what_is_no_data_is_not_saved():
    program = torch.export.export(nn.ReLU(), (X,))
    next(node for node in program.graph.nodes if node.op == "call_function").target = print
    with pytest.raises(NotImplementedError, match="an operator as target"):
        torch.export.save(program, io.BytesIO())
    with pytest.raises(TypeError, match="an ExportedProgram"):
        torch.export.save(nn.ReLU(), io.BytesIO())


# ------------------------------------------------------------------ files made to do harm
def changed(change, name="archive/models/model.json"):
    """A file whose model `change` has changed."""
    source, target = written(program_of()), io.BytesIO()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.namelist():
            data = old.read(entry)
            if entry == name:
                model = json.loads(data)
                change(model)
                data = json.dumps(model)
            new.writestr(entry, data)
    target.seek(0)
    return target


def call_of(model):
    return next(node for node in model["nodes"] if node["op"] == "call_function")


EVIL = '"), open("harm", "w"), ("'
HARM = {
    "builtins": lambda m: call_of(m).update(target="builtins.exec"),
    "functions": lambda m: call_of(m).update(target="ops.os.system.default"),
    "other functions of ours": lambda m: call_of(m).update(target="ops.aten.from_file.default"),
    "private names": lambda m: call_of(m).update(target="ops.tritorch.__class__.default"),
    "modules": lambda m: call_of(m).update(op="call_module"), "attributes": lambda m: call_of(m).update(op="get_attr"),
    "names of nodes": lambda m: call_of(m).update(name='x=open("harm", "w")'), "keywords": lambda m: call_of(m).update(name="def"),
    "names of arguments": lambda m: call_of(m).update(kwargs={"dict": [["x=1), open('harm', 'w'), dict(y", 1]]}),
    "names of inputs": lambda m: m["nodes"][0].update(target='x=open("harm", "w")'), "no such node": lambda m: call_of(m).update(
        args={"tuple": [{"node": "nobody"}]}),
    "names of parameters": lambda m: (m["inputs"][0].update(target=EVIL), m["state"][0].update(name=EVIL, same_as="0.bias")),
    "names of arguments of forward": lambda m: m.update(names=["x=open('harm', 'w')"]),
    "classes": lambda m: m["in_spec"].__setitem__(0, "subprocess.Popen"), "kinds of data": lambda m: call_of(m).update(
        args={"tuple": [{"__class__": "x"}]}),
    "types of results": lambda m: m["in_spec"].__setitem__(0, "return_types.sys"), "no nodes": lambda m: m.pop("nodes"),
    "dtypes": lambda m: m["nodes"][0]["meta"].update(val={"tensor": [[1], [1], "promote"]}),
    "no such tensor": lambda m: m["state"][0].update(name="gone", same_as="gone"), "nodes that are none": lambda m: m.update(nodes=[5]),
}


@pytest.mark.parametrize("name", HARM)
def test_nothing_of_a_file_is_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileFormatError):
        torch.export.load(changed(HARM[name])).module()
    assert list(tmp_path.iterdir()) == []


def test_other_files():
    with pytest.raises(FileFormatError, match="zip archive"):
        torch.export.load(io.BytesIO(b"no archive"))
    foreign = io.BytesIO()
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("archive/archive_format", "pt2")
        archive.writestr("archive/byteorder", "little")
    with pytest.raises(FileFormatError, match="PyTorch's"):
        torch.export.load(foreign)
    whole = written(program_of()).getvalue()
    for end in (len(whole) // 3, len(whole) - 30):
        with pytest.raises(FileFormatError):
            torch.export.load(io.BytesIO(whole[:end]))


def test_operators_of_others_have_to_be_there():
    @torch.library.custom_op("exporting::gone", mutates_args=())
    def gone(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    gone.register_fake(torch.empty_like)
    file = written(torch.export.export(Of(lambda self, x: torch.ops.exporting.gone(x)), (X,)))
    assert called(torch.export.load(file)) == ["exporting.gone.default"]
    with pytest.raises(FileFormatError, match="import of who registers it"):
        torch.export.load(changed(lambda m: call_of(m).update(target="ops.exporting.never.default")))
