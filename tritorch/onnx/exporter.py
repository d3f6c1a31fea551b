"""`export`: calls of a model, watched, as an ONNX model."""
import os
import warnings

from tritorch.autograd import places
from tritorch.autograd.modes import no_grad
from tritorch.compiler.containers import flatten
from tritorch.errors import sentence
from tritorch.export.exported_program import ExportedProgram
from tritorch.nn.module import Module
from tritorch.onnx.composed import instead
from tritorch.onnx.custom import translations
from tritorch.onnx.errors import OnnxExporterError, OnnxExporterWarning, UnsupportedOperatorError
from tritorch.onnx.modes import OperatorExportTypes, TrainingMode, exporting
from tritorch.onnx.package import onnx_package
from tritorch.onnx.program import ONNXProgram
from tritorch.onnx.writer import written
from tritorch.tensor import Tensor
from tritorch.tracing.axes import Axes, input_names, named_leaves
from tritorch.tracing.calls import together
from tritorch.tracing.tracer import NoRule, Tracer, Untraceable

DEFAULT_OPSET, FIRST_OPSET, LAST_OPSET = 20, 18, 26


def export(model, args=(), f=None, *, kwargs=None, verbose=None, input_names=None, output_names=None, opset_version=None, dynamo=True,
           external_data=True, dynamic_shapes=None, custom_translation_table=None, report=False, optimize=True, verify=False, profile=False,
           dump_exported_program=False, artifacts_dir=".", export_params=True, keep_initializers_as_inputs=False, dynamic_axes=None,
           training=TrainingMode.EVAL, operator_export_type=OperatorExportTypes.ONNX, do_constant_folding=True, custom_opsets=None,
           export_modules_as_functions=False, autograd_inlining=True):
    """A module, or an ExportedProgram, as an ONNX model: the operators that a call with these arguments runs.

    The module really runs, on `args` and `kwargs`, so whatever Python does on the way is followed; tensors among the arguments, also in
    lists, tuples and dicts, are the model's inputs, everything else is as it is in this call. Parameters and buffers keep their names,
    what depends on neither is folded. With `f` the model is saved there, weights beside it in `f`.data unless external_data=False.

    Dynamic axes are those of `dynamic_shapes`, by parameter or in their order: {dim: Dim, name or Dim.AUTO}; or of `dynamic_axes`, by the
    names of inputs and outputs: {dim: name} or [dim]. Axes of one name have one size. The module then runs with other sizes, too, and what
    depends on them is computed in the graph; where that cannot be, or other operators run, the sentence of the error names the line. The
    graph is that of sizes from 2 on: what a program does for 0 and 1 alone is not in it, nor what it does at sizes beyond those that were
    run: some near the sample's, the smallest, and 64 more where the inputs stay small.
    `opset_version` is from 18 to 26, 20 if none is given. `custom_translation_table` is {operator: rule}: see `onnx/custom.py`.
    `verify` compares the results with the module's. dynamo=False returns nothing, needs `f`, and exports in the mode that `training` says.

    Returns an ONNXProgram. Raises ImportError without the package onnx; UnsupportedOperatorError for an operator without a rule;
    OnnxExporterError for what a graph cannot hold: a look at elements, chance, writes to buffers (use model.eval()). The signature is
    PyTorch's. Long, as it is.

    >>> import tritorch as torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).eval()
    >>> program = torch.onnx.export(model, (torch.ones(2, 4),), dynamic_shapes=({0: "batch"},))
    >>> program(torch.ones(5, 4))[0].shape
    tritorch.Size([5, 8])
    """
    onnx = onnx_package()
    last = min(LAST_OPSET, onnx.defs.onnx_opset_version())
    opset = _checked(last, opset_version, report, profile, dump_exported_program, operator_export_type, export_modules_as_functions)
    exported = model if isinstance(model, ExportedProgram) else None
    if exported is not None:
        model, args, kwargs, dynamic_shapes = _opened(exported, args, kwargs, dynamic_shapes)
    if not isinstance(model, Module):
        raise TypeError(sentence("onnx.export", "a Module", type(model).__name__))
    args, kwargs = ((args,) if isinstance(args, Tensor) else tuple(args)), dict(kwargs or {})
    if not dynamo and f is None:
        raise ValueError(sentence("onnx.export", "a path f with dynamo=False", "none"))
    if dynamo and model.training and exported is None:
        warnings.warn("onnx.export: the model is in training mode, in which it may do other things; use model.eval()", stacklevel=2)
    with _mode(model, None if dynamo else training):
        proto = _export(onnx, model, args, kwargs, (input_names, output_names), (dynamic_shapes, dynamic_axes), opset,
                        translations(custom_translation_table, opset), custom_opsets or {})
        program = ONNXProgram(proto, exported)
        if verify:
            _verify(program, model, args, kwargs)
    if f is not None:
        external = external_data and dynamo and isinstance(f, (str, os.PathLike))
        program.save(f, include_initializers=export_params, keep_initializers_as_inputs=keep_initializers_as_inputs, external_data=external)
    return program if dynamo else None


def _checked(last, opset, report, profile, dump, kind, functions):
    """The opset; an error for what is not done."""
    for name, asked in (("report", report), ("profile", profile), ("dump_exported_program", dump),
                        ("export_modules_as_functions", functions), ("operator_export_type", kind is not OperatorExportTypes.ONNX)):
        if asked:
            raise NotImplementedError(sentence("onnx.export", f"{name} as it is by default", "another"))
    opset = DEFAULT_OPSET if opset is None else int(opset)
    if not FIRST_OPSET <= opset <= last:
        raise ValueError(sentence("onnx.export", f"an opset_version from {FIRST_OPSET} to {last}", opset))
    return opset


def _opened(program, args, kwargs, shapes):
    """The module of an ExportedProgram, the arguments and the dynamic axes that it has where none are given."""
    if not args and not kwargs:
        args, kwargs = program.example_inputs
    return program.module(), args, kwargs, shapes or (program.dynamic_shapes() if program.range_constraints else None)


class _mode:
    """The mode of all modules below one, as TrainingMode says, and afterwards as before."""

    def __init__(self, model, training):
        self.model, self.training = model, training

    def __enter__(self):
        self.before = [(m, m.training) for m in self.model.modules()]
        if self.training in (TrainingMode.EVAL, TrainingMode.TRAINING):
            self.model.train(self.training is TrainingMode.TRAINING)

    def __exit__(self, *exception):
        for module, mode in self.before:
            module.training = mode


def _export(onnx, model, args, kwargs, names, shapes, opset, custom, domains):
    leaves = named_leaves(model, args, kwargs)
    axes = Axes(leaves, input_names(leaves, names[0]), "onnx.export")
    if shapes[0] is not None:
        axes.of_shapes(shapes[0])
    elif shapes[1] is not None:
        axes.of_axes(shapes[1], names[1])
    for more in (False, True):
        traces, trace = _merged(model, args, kwargs, axes, custom, opset, more)
        outputs, labels = _outputs(traces[0], names[1])
        try:
            proto, guessed = written(onnx, trace, outputs, (axes.names, labels), axes, opset, custom, domains, more)
        except Untraceable as error:                                     # of a result
            raise OnnxExporterError(sentence("onnx.export", "results that ONNX can have", error)) from error
        if not guessed:
            break
    for k in traces[0][3]:
        why = sentence("onnx.export", "inputs that the call leaves alone", f"writes to {axes.names[k]!r}, which a graph does not pass on",
                       use="return it")
        warnings.warn(OnnxExporterWarning(why), stacklevel=3)
    return proto


def _merged(model, args, kwargs, axes, custom, opset, more):
    """(the traces of some calls, or of more, all of them as one)."""
    def warn(why, axis):
        warnings.warn(OnnxExporterWarning(why), stacklevel=places.stacklevel())

    try:
        return together(axes, lambda inputs: _trace(model, args, kwargs, inputs, custom), warn, more)
    except NoRule as error:
        raise UnsupportedOperatorError(error.args[0], opset, None, error.args[1]) from error
    except Untraceable as error:
        raise OnnxExporterError(str(error).replace("export:", "onnx.export:", 1)) from error


def _trace(model, args, kwargs, inputs, custom):
    """One call."""
    leaves, form = flatten((args, kwargs))
    rest = iter(inputs)
    args, kwargs = form.unflatten([next(rest) if isinstance(x, Tensor) else x for x in leaves])
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    tracer = Tracer(named, inputs, instead=lambda op: None if op.__name__ in custom else instead(op), wholes=custom)
    with no_grad(), exporting(), tracer.tracing():
        result = model(*args, **kwargs)
    changed = [k for k, value in enumerate(tracer.inputs) if tracer.home(inputs[k]).written]
    leaves = flatten(result)[0]
    odd = [type(x).__name__ for x in leaves if not isinstance(x, Tensor) and x is not None and not isinstance(x, (int, float, bool, str))]
    if odd:
        raise Untraceable(sentence("export", "a result of tensors, numbers, and lists, tuples and dicts of them", odd[0],
                                   use="use_cache=False if it is a cache"))
    return tracer, [tracer.value(x) for x in leaves if isinstance(x, Tensor)], result, changed


def _outputs(traced, names):
    """(values, their names)."""
    _, values, result, *_ = traced
    if not values:
        raise OnnxExporterError(sentence("onnx.export", "a result with tensors", type(result).__name__))
    names = list(names or ())
    if len(names) > len(values):
        raise ValueError(sentence("onnx.export", f"at most {len(values)} output_names", names))
    keys = [key for key, x in result.items() if isinstance(x, Tensor)] if isinstance(result, dict) else []
    usual = keys if len(keys) == len(values) else ["output"] if len(values) == 1 else [f"output_{k}" for k in range(len(values))]
    return values, names + usual[len(names):]


def _verify(program, model, args, kwargs):
    """The evaluator of the package against the module."""
    with no_grad():
        wanted = [x for x in flatten(model(*args, **kwargs))[0] if isinstance(x, Tensor)]
    for k, (x, y) in enumerate(zip(wanted, program(*args, **kwargs))):
        x, y = x.cpu().double(), y.double()
        apart = (x - y).abs().max().item() if x.numel() else 0.0
        if x.shape != y.shape or not apart <= 1e-3 * (1 + x.abs().max().item() if x.numel() else 1):
            raise OnnxExporterError(sentence("onnx.export", f"the module's result {k}", f"one of shape {y.shape} that is {apart:.3g} away"))
