"""Schedules of pipelines: who computes what when, and a step of training by them."""
import csv
import functools

from tritorch.autograd import is_grad_enabled, no_grad
from tritorch.distributed.pipelining import orders
from tritorch.distributed.pipelining.mail import Form, Mail
from tritorch.distributed.pipelining.microbatch import TensorChunkSpec, cut, merge_chunks, split_args_kwargs_into_chunks
from tritorch.distributed.pipelining.orders import Kind
from tritorch.errors import check, sentence
from tritorch.ops.create import full_like
from tritorch.profiler import record_function


class _PipelineSchedule:
    """A step of training or evaluation through all stages, microbatch by microbatch; every rank of the pipeline makes one.

    Args:
        stage or stages: those of this rank.
        n_microbatches: in how many parts a batch is cut.
        loss_fn: `loss_fn(output, target)`, called in the rank of the last stage; without one nothing goes back.
        args_chunk_spec, kwargs_chunk_spec: how arguments are cut, of their form; along dim 0 unless said.
        output_merge_spec: how outputs are put together, likewise.
        scale_grads: gradients are those of the mean over the microbatches (for a loss that is a mean), not of their sum. PyTorch divides
            what is in `.grad` after the step, also what was there before; here a step adds to it what it should.
    """

    order, home, per_rank = staticmethod(orders.gpipe), staticmethod(orders.in_a_loop), None

    def __init__(self, stages, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads):
        first, name = stages[0], type(self).__name__
        self._stages, self._n_microbatches, self._loss_fn, self.scale_grads = list(stages), n_microbatches, loss_fn, scale_grads
        self._args_chunk_spec, self._kwargs_chunk_spec, self._output_merge_spec = args_chunk_spec, kwargs_chunk_spec, output_merge_spec
        self._num_stages, self.pp_group_size, self.rank, self._has_backward = first.num_stages, first.group_size, first.group_rank, True
        check(self.per_rank in (None, len(stages)), name, f"{self.per_rank} stages a rank", len(stages), error=ValueError)
        mine = [k for k in range(self._num_stages) if self.home(k, self.pp_group_size) == self.rank]
        check(sorted(stage.stage_index for stage in stages) == mine, name, f"the stages of rank {self.rank}, {mine}",
              [stage.stage_index for stage in stages], error=ValueError)
        self._by_index = {stage.stage_index: stage for stage in stages}
        self._mail, ranks = Mail(first.group, first.device), range(self.pp_group_size)
        self.pipeline_order = {rank: self.order(rank, self.pp_group_size, len(stages), n_microbatches) for rank in ranks}

    @functools.cached_property
    def _training(self):
        return self._with_messages(orders.joined)

    @functools.cached_property
    def _evaluation(self):
        return self._with_messages(orders.forward_only)

    def _with_messages(self, change):
        home = functools.partial(self.home, ranks=self.pp_group_size)
        return orders.with_messages({rank: change(order) for rank, order in self.pipeline_order.items()}, home, self._num_stages)[self.rank]

    # -------------------------------------------------------------- what users call
    def step(self, *args, target=None, losses=None, return_outputs=True, loss_kwargs=None, **kwargs):
        """One step: forward passes of all microbatches, and, with a loss, their backward passes.

        The rank of the first stage gives the batch, that of the last one the `target`; keyword arguments go to the stages of the rank that
        gives them. Returns the outputs of the batch in the rank of the last stage (None elsewhere, or without `return_outputs`); the list
        `losses` is filled there with the loss of each microbatch.

        Errors: RuntimeError under `no_grad` if something would go back (use `eval`), ValueError for a batch of fewer rows than microbatches
        and for a target that is missing; what a stage raises, with its name.
        """
        training = self._has_backward and self._loss_fn is not None
        check(not training or is_grad_enabled(), "step", "a program that records gradients", "one under no_grad", use="eval()")
        if args or kwargs:
            args, kwargs = split_args_kwargs_into_chunks(args, kwargs, self._n_microbatches, self._args_chunk_spec, self._kwargs_chunk_spec)
        else:
            args, kwargs = [()] * self._n_microbatches, [{}] * self._n_microbatches
        targets = None if target is None else cut(target, TensorChunkSpec(0), self._n_microbatches)
        check(losses is None or isinstance(losses, list), "step", "a list for losses", type(losses).__name__, error=TypeError)
        last = next((stage for stage in self._stages if stage.is_last), None)
        if training and last is not None and targets is None:
            raise ValueError(sentence("step", "a target in the rank of the last stage, for the loss", "none"))
        for stage in self._stages:
            stage.clear_runtime_states()
            stage.has_backward = training
        try:
            found = _Step(self, args, kwargs, targets, return_outputs, loss_kwargs or {}, training).run()
            if last is None:
                return None
            if losses is not None:
                losses[:] = found
            return merge_chunks(last.output_chunks, self._output_merge_spec) if return_outputs else None
        finally:
            for stage in self._stages:
                stage.clear_runtime_states()

    def eval(self, *args, target=None, losses=None, **kwargs):
        """The same with forward passes alone."""
        before, self._has_backward = self._has_backward, False
        try:
            with no_grad():
                return self.step(*args, target=target, losses=losses, **kwargs)
        finally:
            self._has_backward = before

    def __repr__(self):
        """The order of all ranks, one a line."""
        return "\n".join(f"rank {rank}: {' '.join(map(str, order))}" for rank, order in self.pipeline_order.items())


class _Step:
    """One step of a schedule in this rank."""

    def __init__(self, schedule, args, kwargs, targets, return_outputs, loss_kwargs, training):
        self.schedule, self.args, self.kwargs, self.targets, self.loss_kwargs = schedule, args, kwargs, targets, loss_kwargs
        self.return_outputs, self.training, self.mail, self.stages = return_outputs, training, schedule._mail, schedule._by_index
        self.losses, self.results, self.gradients, self.coming = {}, {}, {}, {}
        self.order = schedule._training if training else schedule._evaluation
        self.last = {a.stage_index: a for a in self.order if a.computation_type in (Kind.FULL_BACKWARD, Kind.BACKWARD_WEIGHT)}
        self.does = {Kind.FORWARD: self.forward, Kind.FULL_BACKWARD: self.backward, Kind.BACKWARD_INPUT: self.backward,
                     Kind.BACKWARD_WEIGHT: self.weights, Kind.SEND_F: self.send, Kind.RECV_F: self.receive, Kind.SEND_B: self.send_back,
                     Kind.RECV_B: self.receive_back}

    def run(self):
        """The losses of the microbatches, [] where there are none."""
        for action in self.order:
            with record_function(f"PP:{action}"):
                self.does[action.computation_type](self.stages[action.stage_index], action.microbatch_index, action)
        self.mail.over()
        return [self.losses[k] for k in sorted(self.losses)]

    def rank_of(self, stage):
        return self.schedule.home(stage, self.schedule.pp_group_size)

    def place(self, stage, batch):
        return stage, batch, self.training

    # -------------------------------------------------------------- computing
    def forward(self, stage, batch, action):
        schedule, after = self.schedule, self.stages.get(stage.stage_index + 1)
        if not stage.is_first and batch not in stage.taken:
            stage.taken[batch] = self.coming.pop(self.place(stage.stage_index, batch))()
        output = stage.forward_one_chunk(batch, self.args[batch], self.kwargs[batch], self.return_outputs)
        outputs = list(output) if isinstance(output, (tuple, list)) else [output]
        if stage.is_last and schedule._loss_fn is not None and self.targets is not None:
            self.losses[batch] = schedule._loss_fn(output, self.targets[batch], **self.loss_kwargs)
        elif after is not None:
            forms = [Form.of(x, self.training) for x in outputs]
            self.mail.know(self.place(after.stage_index, batch), forms)
            after.taken[batch] = [x.detach().requires_grad_(form.requires_grad) for x, form in zip(outputs, forms)]
        elif not stage.is_last:
            self.results[stage.stage_index, batch] = outputs

    def backward(self, stage, batch, action):
        loss, seed = self.losses.get(batch) if stage.is_last else None, None
        if loss is not None:
            seed = full_like(loss, 1 / self.schedule._n_microbatches) if self.schedule.scale_grads else None
            self.losses[batch] = loss.detach()
        elif batch not in stage.arrived:
            stage.arrived[batch] = self.coming.pop((stage.stage_index, batch))()
        full = action.computation_type is Kind.FULL_BACKWARD
        found = stage.backward_one_chunk(batch, loss, full, self.last[stage.stage_index] == action, seed)
        before = self.stages.get(stage.stage_index - 1)
        if before is not None:
            before.arrived[batch] = self.mail.whole(self.place(stage.stage_index, batch), found)
        elif not stage.is_first:
            self.gradients[stage.stage_index, batch] = found

    def weights(self, stage, batch, action):
        stage.backward_weight_one_chunk(batch, self.last[stage.stage_index] == action)

    # -------------------------------------------------------------- messages
    def send(self, stage, batch, action):
        to = stage.stage_index + 1
        self.mail.send(self.place(to, batch), self.results.pop((stage.stage_index, batch)), self.rank_of(to))

    def receive(self, stage, batch, action):
        place = self.place(stage.stage_index, batch)
        self.coming[place] = self.mail.receive(place, self.rank_of(stage.stage_index - 1))

    def send_back(self, stage, batch, action):
        found = self.gradients.pop((stage.stage_index, batch))
        self.mail.send_back(self.place(stage.stage_index, batch), found, self.rank_of(stage.stage_index - 1))

    def receive_back(self, stage, batch, action):
        after = stage.stage_index + 1
        self.coming[stage.stage_index, batch] = self.mail.receive_back(self.place(after, batch), self.rank_of(after))


# ------------------------------------------------------------------ the schedules
class PipelineScheduleSingle(_PipelineSchedule):
    __doc__ = _PipelineSchedule.__doc__
    per_rank = 1

    def __init__(self, stage, n_microbatches, loss_fn=None, args_chunk_spec=None, kwargs_chunk_spec=None, output_merge_spec=None,
                 scale_grads=True):
        super().__init__([stage], n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads)
        self._stage = stage


class PipelineScheduleMulti(_PipelineSchedule):
    __doc__ = _PipelineSchedule.__doc__

    def __init__(self, stages, n_microbatches, loss_fn=None, args_chunk_spec=None, kwargs_chunk_spec=None, output_merge_spec=None,
                 scale_grads=True):
        super().__init__(stages, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads)

    def _dump_csv(self, filename):
        """Write the order, a line of actions for each rank."""
        with open(filename, "w", newline="") as file:
            csv.writer(file).writerows(self.pipeline_order.values())

    def _load_csv(self, filename):
        """Take the order from such a file, which may be made by hand or by a program."""
        with open(filename, newline="") as file:
            rows = [[orders.Action.from_str(text) for text in row if text.strip()] for row in csv.reader(file)]
        check(len(rows) == self.pp_group_size, "_load_csv", f"a line for each of {self.pp_group_size} ranks", len(rows))
        self.pipeline_order = dict(enumerate(rows))
        for name in ("_training", "_evaluation"):
            self.__dict__.pop(name, None)


class ScheduleGPipe(PipelineScheduleSingle):
    __doc__ = f"{orders.gpipe.__doc__}\n\n{_PipelineSchedule.__doc__}"


class Schedule1F1B(PipelineScheduleSingle):
    __doc__ = f"{orders.one_forward_one_backward.__doc__}\n\n{_PipelineSchedule.__doc__}"
    order = staticmethod(orders.one_forward_one_backward)

    def __init__(self, stage, n_microbatches, *args, **kwargs):
        check(n_microbatches >= stage.num_stages, "Schedule1F1B", f"at least as many microbatches as stages, {stage.num_stages}",
              n_microbatches, error=ValueError)
        super().__init__(stage, n_microbatches, *args, **kwargs)


class ScheduleLoopedBFS(PipelineScheduleMulti):
    __doc__ = f"{orders.breadth_first.__doc__}\n\n{_PipelineSchedule.__doc__}"
    order = staticmethod(orders.breadth_first)


class ScheduleInterleaved1F1B(PipelineScheduleMulti):
    __doc__ = f"{orders.interleaved.__doc__}\n\n{_PipelineSchedule.__doc__}"
    order = staticmethod(orders.interleaved)


class ScheduleInterleavedZeroBubble(PipelineScheduleMulti):
    __doc__ = f"{orders.interleaved_zero_bubble.__doc__}\n\n{_PipelineSchedule.__doc__}"
    order = staticmethod(orders.interleaved_zero_bubble)


class ScheduleZBVZeroBubble(PipelineScheduleMulti):
    __doc__ = f"{orders.zero_bubble_v.__doc__}\n\n{_PipelineSchedule.__doc__}"
    order, home, per_rank = staticmethod(orders.zero_bubble_v), staticmethod(orders.in_a_v), 2


class ScheduleDualPipeV(PipelineScheduleMulti):
    __doc__ = f"{orders.dual_pipe_v.__doc__}\n\n{_PipelineSchedule.__doc__}"
    order, home, per_rank = staticmethod(orders.dual_pipe_v), staticmethod(orders.in_a_v), 2


NAMES = {"1F1B": Schedule1F1B, "Interleaved1F1B": ScheduleInterleaved1F1B, "GPipe": ScheduleGPipe, "LoopedBFS": ScheduleLoopedBFS,
         "InterleavedZeroBubble": ScheduleInterleavedZeroBubble, "PipelineScheduleSingle": PipelineScheduleSingle,
         "PipelineScheduleMulti": PipelineScheduleMulti, "ZBVZeroBubble": ScheduleZBVZeroBubble, "DualPipeV": ScheduleDualPipeV}


def get_schedule_class(schedule_name):
    """The class of a schedule, by its name in any case.

    >>> from tritorch.distributed.pipelining.schedules import get_schedule_class
    >>> get_schedule_class("1f1b").__name__
    'Schedule1F1B'
    """
    found = {name.lower(): kind for name, kind in NAMES.items()}.get(schedule_name.lower())
    check(found is not None, "get_schedule_class", f"one of {', '.join(NAMES)}", repr(schedule_name), error=ValueError)
    return found
