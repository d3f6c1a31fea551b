"""The styles of parallelize_module: layers cut by features or by sequence, and what is done to what goes in and out."""
from abc import ABC, abstractmethod

from tritorch import nn
from tritorch.distributed.tensor.distribute import distribute_tensor
from tritorch.distributed.tensor.dtensor import DTensor
from tritorch.distributed.tensor.modules import distribute_module
from tritorch.distributed.tensor.placement_types import Placement, Replicate, Shard
from tritorch.errors import check
from tritorch.tensor import Tensor


class ParallelStyle(ABC):
    """What parallelize_module does to a module: subclasses give `_apply(module, device_mesh)`, which returns it."""

    src_data_rank = 0

    @abstractmethod
    def _apply(self, module, device_mesh):
        """Make the module parallel, in place."""


def _cut(module, name, mesh, placement, source):
    """Make a parameter of a module a DTensor."""
    p = getattr(module, name, None)
    if p is not None:
        module.register_parameter(name, nn.Parameter(distribute_tensor(p, mesh, [placement], src_data_rank=source),
                                                     requires_grad=p.requires_grad))


def _placed(x, mesh, now, wanted):
    """A tensor as a DTensor placed as wanted; an ordinary one is placed as `now` says."""
    x = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [now])
    return x if wanted is None else x.redistribute(placements=[wanted])


class _Layer(ParallelStyle):
    """A layer of one tensor: how that comes in, what the layer needs, and how its result goes out."""

    def __init__(self, input_layouts, output_layouts, use_local_output):
        self.input_layouts, self.output_layouts, self.use_local_output = (input_layouts,), (output_layouts,), use_local_output

    def _distributed(self, module, mesh, partition, needs):
        (given,), (out,) = self.input_layouts, self.output_layouts

        def prepare(module, inputs, mesh):
            return _placed(inputs[0], mesh, given, needs), *inputs[1:]

        def finish(module, outputs, mesh):
            outputs = outputs.redistribute(placements=[out])
            return outputs.to_local() if self.use_local_output else outputs

        return distribute_module(module, mesh, partition, prepare, finish)

    def _refuse(self, module):
        check(False, type(self).__name__, "an nn.Linear or nn.Embedding", type(module).__name__, error=NotImplementedError)

    def __repr__(self):
        return (f"{type(self).__name__}(input_layouts={self.input_layouts}, output_layouts={self.output_layouts}, "
                f"use_local_output={self.use_local_output})")


class ColwiseParallel(_Layer):
    """An `nn.Linear` or `nn.Embedding` cut by the features of its result: each process computes some of them.

    The input is whole on each process, or as `input_layouts` says and then made so; the result is cut along its last dim unless
    `output_layouts` says otherwise, and an ordinary tensor of this process unless `use_local_output` is False.
    """

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=True):
        super().__init__(input_layouts or Replicate(), output_layouts or Shard(-1), use_local_output)

    def _apply(self, module, device_mesh):
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            self._refuse(module)
        place = Shard(0) if isinstance(module, nn.Linear) else Shard(1)

        def partition(name, module, mesh):
            for key in list(module._parameters):
                _cut(module, key, mesh, place, self.src_data_rank)

        return self._distributed(module, device_mesh, partition, Replicate())


class RowwiseParallel(_Layer):
    """An `nn.Linear` cut by the features of its input, or an `nn.Embedding` by its rows: each process computes a part of a sum.

    The input of a Linear is cut along its last dim, that of an Embedding whole on each process, or as `input_layouts` says and then made
    so; the sum is done to give each process the whole result, or what `output_layouts` says, as an ordinary tensor of this process unless
    `use_local_output` is False.
    """

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=True):
        super().__init__(input_layouts or Shard(-1), output_layouts or Replicate(), use_local_output)

    def _apply(self, module, device_mesh):
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            self._refuse(module)
        linear = isinstance(module, nn.Linear)

        def partition(name, module, mesh):
            _cut(module, "weight", mesh, Shard(1) if linear else Shard(0), self.src_data_rank)
            _cut(module, "bias", mesh, Replicate(), self.src_data_rank)

        return self._distributed(module, device_mesh, partition, Shard(-1) if linear else Replicate())


class SequenceParallel(ParallelStyle):
    """A layer whose parameters are on each process, and whose input is cut along `sequence_dim`: norms, dropout, embeddings of positions.

    Parameters are taken to be the same on all processes, as they are after a seed that is the same. A tensor that is no DTensor is taken
    to be this process's part of the sequence.
    """

    def __init__(self, *, sequence_dim=1, use_local_output=False):
        self.sequence_sharding, self.use_local_output = (Shard(sequence_dim),), use_local_output

    def _apply(self, module, device_mesh):
        (place,) = self.sequence_sharding

        def partition(name, module, mesh):
            for key, p in list(module._parameters.items()):
                if p is not None:
                    module.register_parameter(key, nn.Parameter(DTensor.from_local(p.detach(), mesh, [Replicate()]),
                                                                requires_grad=p.requires_grad))

        def prepare(module, inputs, mesh):
            check(isinstance(inputs[0], Tensor), "SequenceParallel", "a tensor as input", type(inputs[0]).__name__, error=ValueError)
            return _placed(inputs[0], mesh, place, place), *inputs[1:]

        def finish(module, outputs, mesh):
            return outputs.to_local() if self.use_local_output else outputs

        return distribute_module(module, device_mesh, partition, prepare, finish)

    def __repr__(self):
        return f"SequenceParallel(sequence_dim={self.sequence_sharding[0].dim}, use_local_output={self.use_local_output})"


def _several(layouts):
    return (layouts,) if isinstance(layouts, Placement) else layouts


def _pair(what, now, wanted):
    """Two layouts for each of several tensors."""
    fits = now is None or wanted is not None and len(now) == len(wanted)
    check(fits, what, "as many desired layouts as layouts", None if fits else (now, wanted), error=AssertionError)


class PrepareModuleInput(ParallelStyle):
    """Makes the inputs of a module DTensors placed as `input_layouts` says, and places them as `desired_input_layouts` does: one placement,
    or one for each input, None for those that are left as they are; those given by name likewise. With `use_local_output` the module gets
    its ordinary tensor of each.
    """

    def __init__(self, *, input_layouts=None, desired_input_layouts=None, input_kwarg_layouts=None, desired_input_kwarg_layouts=None,
                 use_local_output=False):
        self.input_layouts, self.desired_input_layouts = _several(input_layouts), _several(desired_input_layouts)
        self.use_local_output, self.with_kwargs = use_local_output, input_kwarg_layouts is not None
        self.input_kwarg_layouts, self.desired_input_kwarg_layouts = input_kwarg_layouts or {}, desired_input_kwarg_layouts or {}
        _pair("PrepareModuleInput", self.input_layouts, self.desired_input_layouts)
        _pair("PrepareModuleInput", self.input_kwarg_layouts, self.desired_input_kwarg_layouts if self.with_kwargs else {})

    def _prepare(self, x, mesh, now, wanted):
        if now is None:
            return x
        check(isinstance(x, Tensor), "PrepareModuleInput", "a tensor", type(x).__name__, error=AssertionError)
        x = _placed(x, mesh, now, wanted)
        return x.to_local() if self.use_local_output else x

    def _prepare_input_fn(self, inputs, device_mesh):
        if self.input_layouts is None:
            return inputs
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        check(len(inputs) == len(self.input_layouts), "PrepareModuleInput", f"{len(self.input_layouts)} inputs, one for each layout",
              len(inputs), error=ValueError)
        return tuple([self._prepare(x, device_mesh, now, wanted)
                      for x, now, wanted in zip(inputs, self.input_layouts, self.desired_input_layouts)])

    def _prepare_input_kwarg_fn(self, inputs, kwarg_inputs, device_mesh):
        return self._prepare_input_fn(inputs, device_mesh), {
            key: self._prepare(x, device_mesh, self.input_kwarg_layouts.get(key), self.desired_input_kwarg_layouts.get(key))
            for key, x in kwarg_inputs.items()}

    def _apply(self, module, device_mesh):
        if self.with_kwargs:
            module.register_forward_pre_hook(lambda _, inputs, kwargs: self._prepare_input_kwarg_fn(inputs, kwargs, device_mesh),
                                             with_kwargs=True)
        else:
            module.register_forward_pre_hook(lambda _, inputs: self._prepare_input_fn(inputs, device_mesh))
        return module

    def __repr__(self):
        return (f"PrepareModuleInput(input_layouts={self.input_layouts}, desired_input_layouts={self.desired_input_layouts}, "
                f"input_kwarg_layouts={self.input_kwarg_layouts}, desired_input_kwarg_layouts={self.desired_input_kwarg_layouts}, "
                f"use_local_output={self.use_local_output})")


class PrepareModuleOutput(ParallelStyle):
    """Makes the results of a module DTensors placed as `output_layouts` says, and places them as `desired_output_layouts` does; None leaves
    one as it is. With `use_local_output` this process's ordinary tensor of each goes out."""

    def __init__(self, *, output_layouts, desired_output_layouts, use_local_output=True):
        self.output_layouts, self.desired_output_layouts = _several(output_layouts), _several(desired_output_layouts)
        self.use_local_output = use_local_output
        _pair("PrepareModuleOutput", self.output_layouts, self.desired_output_layouts)

    def _prepare_out_fn(self, outputs, device_mesh):
        outputs, made = outputs if isinstance(outputs, tuple) else (outputs,), []
        check(len(outputs) == len(self.output_layouts), "PrepareModuleOutput", f"{len(self.output_layouts)} outputs, one for each layout",
              len(outputs), error=ValueError)
        for x, now, wanted in zip(outputs, self.output_layouts, self.desired_output_layouts):
            if now is not None:
                x = _placed(x, device_mesh, now, wanted)
                x = x.to_local() if self.use_local_output else x
            made.append(x)
        return made[0] if len(made) == 1 else tuple(made)

    def _apply(self, module, device_mesh):
        module.register_forward_hook(lambda _, inputs, outputs: self._prepare_out_fn(outputs, device_mesh))
        return module

    def __repr__(self):
        return (f"PrepareModuleOutput(output_layouts={self.output_layouts}, desired_output_layouts={self.desired_output_layouts}, "
                f"use_local_output={self.use_local_output})")


class PrepareModuleInputOutput(ParallelStyle):
    """PrepareModuleInput, whose `use_local_output` is `use_local_input` here, and PrepareModuleOutput in one."""

    def __init__(self, *, input_layouts=None, desired_input_layouts=None, input_kwarg_layouts=None, desired_input_kwarg_layouts=None,
                 use_local_input=False, output_layouts, desired_output_layouts, use_local_output=True):
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts, desired_input_layouts=desired_input_layouts, input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts, use_local_output=use_local_input)
        self.prepare_module_output = PrepareModuleOutput(output_layouts=output_layouts, desired_output_layouts=desired_output_layouts,
                                                         use_local_output=use_local_output)

    def _apply(self, module, device_mesh):
        self.prepare_module_input._apply(module, device_mesh)
        return self.prepare_module_output._apply(module, device_mesh)

    def __repr__(self):
        ins, outs = self.prepare_module_input, self.prepare_module_output
        return (f"PrepareModuleInputOutput(input_layouts={ins.input_layouts}, desired_input_layouts={ins.desired_input_layouts}, "
                f"input_kwarg_layouts={ins.input_kwarg_layouts}, desired_input_kwarg_layouts={ins.desired_input_kwarg_layouts}, "
                f"use_local_input={ins.use_local_output}, output_layouts={outs.output_layouts}, "
                f"desired_output_layouts={outs.desired_output_layouts}, use_local_output={outs.use_local_output})")
