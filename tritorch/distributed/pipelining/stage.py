"""A stage of a pipeline: some layers of a model, and the microbatches that are on their way through them."""
import contextlib
import functools

from tritorch.autograd import backward
from tritorch.autograd.halves import inputs_first
from tritorch.device import as_device
from tritorch.distributed.fsdp import FSDPModule
from tritorch.distributed.world import _of
from tritorch.errors import check, sentence
from tritorch.nn.parallel import DistributedDataParallel
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_map


class PipelineStage:
    """Some consecutive layers of a model, that one rank of a pipeline runs.

    The module takes what the module of the stage before it returns, a tensor or several, as its positional arguments; that of the first
    stage takes the batch. What tensors look like is told from stage to stage in the first step, so that nothing has to be said of it.

    Args:
        submodule: the layers, on `device`; may be a DistributedDataParallel, or sharded by `fully_shard`: its gradients are reduced when
            those of all microbatches are there.
        stage_index, num_stages: its place in the pipeline.
        device: where it computes and receives.
        input_args, output_args, input_grads, output_grads, get_mesh: what the tensors look like; it is found out, and these are not needed.
        group: the ranks of the pipeline, all by default.
        dw_builder: where the layers keep their own account of gradients of weights: after each backward pass `dw_builder()` gives a
            function that computes them, which is called when a schedule has time for it.

    Errors: ValueError for a stage that is not one of `num_stages`, RuntimeError for fewer stages than ranks.
    """

    def __init__(self, submodule, stage_index, num_stages, device, input_args=None, output_args=None, output_grads=None, input_grads=None,
                 group=None, dw_builder=None, get_mesh=None):
        check(0 <= stage_index < num_stages, "PipelineStage", f"a stage_index from 0 to {num_stages - 1}", stage_index, error=ValueError)
        self.submod, self.stage_index, self.num_stages, self.device = submodule, stage_index, num_stages, as_device(device)
        self.group, self.dw_builder = _of(group, "PipelineStage"), dw_builder
        self.group_rank, self.group_size = self.group.rank(), self.group.size()
        check(self.group_size <= num_stages, "PipelineStage", f"at least as many stages as ranks, {self.group_size}", num_stages)
        self.is_first, self.is_last = stage_index == 0, stage_index == num_stages - 1
        self.has_backward = True
        self.clear_runtime_states()

    def __repr__(self):
        return f"PipelineStage({self.stage_index} of {self.num_stages}, {type(self.submod).__name__})"

    def clear_runtime_states(self):
        """Forget the microbatches of an earlier step."""
        self.taken, self.kept, self.arrived, self.weights, self.output_chunks = {}, {}, {}, {}, []

    def forward_one_chunk(self, fwd_chunk_id, args, kwargs=None, save_forward_output=True):
        """The output of one microbatch. `args` are those of the first stage; others go on from what they have `taken`."""
        inputs = args if self.is_first else self.taken.pop(fwd_chunk_id)
        try:
            with self._apart():
                output = self.submod(*inputs, **(kwargs or {}))
        except Exception as error:
            raise RuntimeError(f"pipelining: stage {self.stage_index} failed in the forward pass of microbatch {fwd_chunk_id}: "
                               f"{type(error).__name__}: {error}") from error
        outputs = (output,) if isinstance(output, Tensor) else tuple(output) if isinstance(output, (tuple, list)) else (output,)
        if not self.is_last and not all(isinstance(x, Tensor) for x in outputs):
            raise TypeError(sentence("pipelining", f"a tensor or several from stage {self.stage_index}",
                                     [type(x).__name__ for x in outputs]))
        if self.has_backward:
            self.kept[fwd_chunk_id] = outputs, [] if self.is_first else [x for x in inputs if x.requires_grad]
        if self.is_last and save_forward_output:
            self.output_chunks.append(tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, output))
        return output

    def backward_one_chunk(self, bwd_chunk_id, loss=None, full_backward=True, last_backward=False, grad_of_loss=None):
        """The gradients of what one microbatch has brought to this stage, [] in the first one: from the loss, or from those that have
        `arrived`. With `full_backward` those of the weights are added up, else `backward_weight_one_chunk` has to do it."""
        outputs, inputs = self.kept.pop(bwd_chunk_id)
        if self.is_last:
            roots, gradients = [loss], [grad_of_loss]
        else:
            roots, gradients = [x for x in outputs if x.requires_grad], self.arrived.pop(bwd_chunk_id)
        found, weights = [], nothing
        with self._apart():
            if full_backward or self.dw_builder is not None:
                if roots:
                    backward(roots, gradients)
                    found = [x.grad for x in inputs]
                weights = nothing if self.dw_builder is None else self.dw_builder()
            elif roots and inputs:
                found, weights = inputs_first(roots, inputs, gradients)
            elif roots:
                weights = functools.partial(backward, roots, gradients)
        if full_backward:
            weights()
        else:
            self.weights[bwd_chunk_id] = weights
        if last_backward and full_backward:
            self.reduce()
        return found

    def backward_weight_one_chunk(self, bwd_chunk_id, last_backward=False):
        """Add up the gradients of the weights that `backward_one_chunk` has left for later."""
        with self._apart():
            self.weights.pop(bwd_chunk_id)()
        if last_backward:
            self.reduce()

    @contextlib.contextmanager
    def _apart(self):
        """A context in which the gradients of replicas and shards add up in their ranks."""
        with self.submod.no_sync() if isinstance(self.submod, DistributedDataParallel) else contextlib.nullcontext():
            if isinstance(self.submod, FSDPModule):
                self._sharded(False)
            yield

    def _sharded(self, last):
        self.submod.set_is_last_backward(last)
        self.submod.set_reshard_after_backward(last)
        self.submod.set_requires_gradient_sync(last)

    def reduce(self):
        """The gradients of all microbatches are there: replicas and shards add them up."""
        if isinstance(self.submod, DistributedDataParallel):
            self.submod.reducer.reduce_now()
        elif isinstance(self.submod, FSDPModule):
            self._sharded(True)
            self.submod._get_fsdp_state().reduce_now()


def nothing():
    """Where no gradients of weights are left to compute."""
