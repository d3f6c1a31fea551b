"""Exported programs as files: `torch.export.save` and `load`.

A .pt2 file is a zip archive: `models/model.json` has the graph, `data/weights/model.safetensors`, `data/constants/model.safetensors` and
`data/sample_inputs/model.safetensors` the tensors. All of it is data: a file names operators of `torch.ops` and a few functions of
arithmetic, containers that the reader has registered, and nothing else, so that loading one runs nobody's code.
"""
import io
import json
import math
import re
import zipfile

from tritorch.device import as_device
from tritorch.errors import sentence
from tritorch.export.encoding import Decoder, Encoder, is_name
from tritorch.export.exported_program import ExportedProgram, ModuleCallEntry, ModuleCallSignature, ValueRanges
from tritorch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from tritorch.fx.graph_module import GraphModule
from tritorch.nn.parameter import Parameter
from tritorch.safetensors import FileFormatError, Reader, need, parse, write, writing
from tritorch.tensor import Tensor
from tritorch.utils import _pytree

FORMAT, VERSION = "tritorch-pt2", 1
ARGUMENTS = {kind.__name__: kind for kind in (TensorArgument, SymIntArgument, ConstantArgument)}
FOLDERS = "weights", "constants", "sample_inputs"


def save(ep, f, *, extra_files=None, opset_version=None, pickle_protocol=2):
    """Write an ExportedProgram to a path or binary file, with `extra_files`, {name: text or bytes}. The other arguments do nothing.

    PyTorch cannot read the file, nor this PyTorch's: their graphs are of other operators. Raises TypeError for what is no ExportedProgram,
    NotImplementedError for a graph that calls what is no operator or has arguments that are no data.

    >>> import os, tempfile, tritorch as torch
    >>> path = os.path.join(tempfile.mkdtemp(), "relu.pt2")
    >>> torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), path)
    >>> torch.export.load(path).module()(torch.tensor([-1.0, 1.0]))
    tensor([0., 1.])
    """
    if not isinstance(ep, ExportedProgram):
        raise TypeError(sentence("export.save", "an ExportedProgram", type(ep).__name__))
    model, tensors = _model(ep)
    with writing(f) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/archive_format", FORMAT)
        archive.writestr("archive/archive_version", str(VERSION))
        archive.writestr("archive/models/model.json", json.dumps(model, indent=1))
        for folder in FOLDERS:
            data = io.BytesIO()
            write(data, tensors[folder], None)
            archive.writestr(f"archive/data/{folder}/model.safetensors", data.getbuffer())
        for name, content in (extra_files or {}).items():
            archive.writestr(f"archive/extra/{name}", content)


def _model(ep):
    """(the program as data, {folder: its tensors by name})."""
    code, nodes = Encoder(), []
    for node in ep.graph.nodes:
        nodes.append({"op": node.op, "name": node.name, "target": code.target(node), "args": code.value(node.args),
                      "kwargs": code.value(dict(node.kwargs)), "meta": code.meta(node)})
    state, homes = {}, {}
    for name, x in ep.state_dict.items():                                # tensors that are one are written once
        homes.setdefault(id(x), name)
        if homes[id(x)] == name:
            state[name] = x
    signed = ep.module_call_graph[0].signature
    leaves = None if ep.example_inputs is None else _pytree.tree_leaves(ep.example_inputs)
    samples = {str(k): x for k, x in enumerate(leaves or ()) if isinstance(x, Tensor)}
    signature, tensors = ep.graph_signature, {"weights": state, "constants": ep.constants, "sample_inputs": samples}
    return {
        "nodes": nodes,
        "inputs": [{"kind": spec.kind.name, "arg": _argument(spec.arg, code), "target": spec.target, "persistent": spec.persistent}
                   for spec in signature.input_specs],
        "outputs": [{"kind": spec.kind.name, "arg": _argument(spec.arg, code), "target": spec.target} for spec in signature.output_specs],
        "state": [{"name": name, "same_as": homes[id(x)], "parameter": isinstance(x, Parameter), "requires_grad": x.requires_grad}
                  for name, x in ep.state_dict.items()],
        "constants": list(ep.constants),
        "ranges": {name: [r.lower, None if r.upper == math.inf else r.upper] for name, r in ep.range_constraints.items()},
        "in_spec": code.spec(signed.in_spec), "out_spec": code.spec(signed.out_spec), "names": list(signed.forward_arg_names),
        "modules": [entry.fqn for entry in ep.module_call_graph[1:]], "dialect": ep.dialect,
        "samples": None if leaves is None else [None if isinstance(x, Tensor) else code.value(x) for x in leaves],
        "devices": {folder: {name: str(x.device) for name, x in found.items()} for folder, found in tensors.items()},
    }, tensors


def _argument(arg, code):
    found = {"type": type(arg).__name__, "name": arg.name}
    return {**found, "value": code.value(arg.value)} if isinstance(arg, ConstantArgument) else found


# ------------------------------------------------------------------ reading
def load(f, *, extra_files=None, expected_opset_version=None):
    """The ExportedProgram of a file that `save` wrote. `extra_files`: a dict whose keys are the names of those to read, into its values,
    as text. Tensors go to the devices where they were. Nothing of the file is run.

    Raises FileFormatError for a file that is not whole, names other functions than operators, or is PyTorch's own.
    """
    try:
        with zipfile.ZipFile(f) as archive:
            for name in extra_files or ():
                extra_files[name] = _read(archive, f"extra/{name}").decode()
            need(_read(archive, "archive_format").decode("utf-8", "replace") == FORMAT, "a file that tritorch's export.save wrote",
                 "PyTorch's" if "archive/byteorder" in archive.namelist() else "another", use="export of the module here")
            model = parse(_read(archive, "models/model.json"))
            tensors = {folder: Reader(io.BytesIO(_read(archive, f"data/{folder}/model.safetensors"))) for folder in FOLDERS}
            tensors = {folder: {name: _at(reader, name) for name in reader} for folder, reader in tensors.items()}
    except zipfile.BadZipFile as error:
        raise FileFormatError(f"load: expected a zip archive, got another file: {error}") from None
    try:
        return _program(model, tensors)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, AssertionError, SyntaxError, RecursionError) as error:
        raise FileFormatError(f"load: expected a program as export.save writes it, got one with {type(error).__name__}: {error}") from error


def _read(archive, name):
    path = next((found for found in archive.namelist() if found.partition("/")[2] == name), None)
    need(path is not None, f"{name} in the archive", "none")
    return archive.read(path)


def _at(reader, name):
    reader.seek(name)
    return reader.read(name)


def _program(model, tensors):
    code = Decoder()
    for folder, devices in model["devices"].items():
        for name, place in devices.items():
            tensors[folder][name] = tensors[folder][name].to(as_device(place))
    for entry in model["nodes"]:
        code.node(entry)
    state = {}
    for entry in model["state"]:
        name, home = entry["name"], entry["same_as"]
        if home == name:
            x = tensors["weights"][name]
            state[name] = Parameter(x, entry["requires_grad"]) if entry["parameter"] else x.requires_grad_(entry["requires_grad"])
        else:
            state[name] = state[home]
    inputs = [InputSpec(InputKind[s["kind"]], _argument_of(s["arg"], code), s["target"], s["persistent"]) for s in model["inputs"]]
    outputs = [OutputSpec(OutputKind[s["kind"]], _argument_of(s["arg"], code), s["target"]) for s in model["outputs"]]
    for spec in inputs:
        known = spec.kind is InputKind.USER_INPUT or spec.target in state or spec.target in model["constants"]
        plain = spec.target is None or re.fullmatch(r"[\w-]+(\.[\w-]+)*", spec.target)       # generated code has it
        need(known and plain, "inputs that are in the file", spec.target)
    in_spec, out_spec, names = code.spec(model["in_spec"]), code.spec(model["out_spec"]), model["names"]
    need(type(names) is list and all(map(is_name, names)), "names of parameters", names)
    ranges = {name: ValueRanges(int(low), math.inf if high is None else int(high)) for name, (low, high) in model["ranges"].items()}
    samples = None
    if model["samples"] is not None:
        known = tensors["sample_inputs"]
        samples = in_spec.unflatten([known[str(k)] if str(k) in known else code.value(x) for k, x in enumerate(model["samples"])])
    signed = ModuleCallSignature([], [], in_spec, out_spec, names)
    entries = [ModuleCallEntry("", signed), *[ModuleCallEntry(str(n)) for n in model["modules"]]]
    code.graph.lint()
    graph_module, signature = GraphModule({}, code.graph, "GraphModule"), ExportGraphSignature(inputs, outputs)
    return ExportedProgram(graph_module, signature, state, ranges, entries, samples,
                           {name: tensors["constants"][name] for name in model["constants"]}, str(model["dialect"]))


def _argument_of(entry, code):
    kind = ARGUMENTS[entry["type"]]
    return kind(entry["name"], code.value(entry["value"])) if kind is ConstantArgument else kind(entry["name"])
