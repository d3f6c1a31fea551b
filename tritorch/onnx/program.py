"""What `tritorch.onnx.export` returns: a model, to be saved, looked at and called."""
import os

import numpy as np

from tritorch.onnx.graph import code_of
from tritorch.onnx.package import evaluator, onnx_package
from tritorch.tensor import Tensor, from_array
from tritorch.tracing.axes import input_name, paths

LARGE = 2 << 30                                                          # bytes: more do not fit into one file of the format


class ONNXProgram:
    """An exported model. `model_proto` is the `onnx.ModelProto`.

    >>> import tritorch as torch
    >>> program = torch.onnx.export(torch.nn.ReLU().eval(), (torch.ones(2),))
    >>> program
    ONNXProgram(inputs=['input'], outputs=['output'], nodes=1, initializers=0, opset=20)
    >>> program(torch.tensor([-1.0, 2.0]))
    (tensor([0., 2.]),)
    >>> program.save("relu.onnx")
    """

    def __init__(self, model, exported_program=None):
        self.model_proto, self.exported_program, self._evaluator = model, exported_program, None

    def __repr__(self):
        graph = self.model_proto.graph
        return (f"ONNXProgram(inputs={[x.name for x in graph.input]}, outputs={[x.name for x in graph.output]}, nodes={len(graph.node)}, "
                f"initializers={len(graph.initializer)}, opset={self.model_proto.opset_import[0].version})")

    def __call__(self, *args, **kwargs):
        """The outputs, as a tuple, computed with numpy by `onnx.reference`: for a look, not for speed. Tensors among the arguments, also in
        containers, are the inputs in their order; keywords are those of their names."""
        if self._evaluator is None:
            self._evaluator = evaluator(self.model_proto)
        names = [x.name for x in self.model_proto.graph.input]
        given = {input_name(key, path): x for key, part in kwargs.items() for path, x in paths(part) if isinstance(x, Tensor)}
        tensors = [x for part in args for _, x in paths(part) if isinstance(x, Tensor)]
        if len(tensors) + len(given) != len(names) or not given.keys() <= set(names):
            raise TypeError(f"ONNXProgram: expected {len(names)} tensors, {', '.join(names)}, got {len(tensors)}"
                            + "".join([f" and {name}" for name in given]))
        given.update(zip([name for name in names if name not in given], tensors))
        made = self._evaluator.run(None, {name: x.detach().cpu().numpy() for name, x in given.items()})
        return tuple([from_array(np.array(x, order="C")) for x in made])

    call_reference = __call__

    def apply_weights(self, state_dict):
        """Have the tensors of a state dict in the place of the parameters and buffers of these names. KeyError for a name that is not
        there, ValueError for another shape or dtype."""
        known = {x.name: x for x in self.model_proto.graph.initializer}
        for name, x in state_dict.items():
            proto = known[name]
            if list(proto.dims) != list(x.shape) or proto.data_type != code_of(x.dtype):
                shape = tuple(proto.dims)
                raise ValueError(f"apply_weights: expected {name!r} of shape {shape} in its dtype, got {tuple(x.shape)}, {x.dtype}")
            proto.raw_data = np.ascontiguousarray(x.detach().cpu().array).tobytes()
        self._evaluator = None

    def save(self, destination, *, include_initializers=True, keep_initializers_as_inputs=False, external_data=None):
        """Write the model to a path. With `external_data`, or if it is larger than 2 GB, weights go to `destination`.data beside it;
        `include_initializers=False` leaves them out, `keep_initializers_as_inputs` lists them among the inputs, too."""
        onnx = onnx_package()
        model = onnx.ModelProto()
        model.CopyFrom(self.model_proto)
        graph = model.graph
        if keep_initializers_as_inputs:
            for x in graph.initializer:
                graph.input.append(onnx.helper.make_tensor_value_info(x.name, x.data_type, list(x.dims)))
        large = include_initializers and sum(len(x.raw_data) for x in graph.initializer) > LARGE
        if not include_initializers:
            del graph.initializer[:]
        if external_data or large:
            if not isinstance(destination, (str, os.PathLike)):
                raise TypeError(f"ONNXProgram.save: expected a path for a model with external data, got {type(destination).__name__}")
            beside = os.path.basename(os.fspath(destination)) + ".data"
            old = os.path.join(os.path.dirname(os.fspath(destination)), beside)
            if os.path.exists(old):
                os.remove(old)                                           # the package appends
            onnx.save_model(model, os.fspath(destination), save_as_external_data=True, all_tensors_to_one_file=True, location=beside,
                            size_threshold=1024)
        else:
            onnx.save_model(model, destination if hasattr(destination, "write") else os.fspath(destination))
