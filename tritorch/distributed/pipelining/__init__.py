"""Pipeline parallelism: consecutive parts of a model in different processes, through which the microbatches of a batch go one by one.

Every process has one part or several, each in a `PipelineStage`, and a schedule, whose `step` takes the place of forward and backward.
Which schedule leaves how much time unused depends on the numbers of processes, stages and microbatches: `print(schedule)` shows who does
what in which order. See tutorials/train_pipeline.py. Models are cut by hand, as `model.layers[:4]`, or by `pipeline`.

>>> import tritorch as torch
>>> from tritorch import distributed as dist
>>> from tritorch.distributed.pipelining import PipelineStage, ScheduleGPipe
>>> dist.init_process_group("gloo", rank=0, world_size=1)
>>> model = torch.nn.Linear(3, 1)
>>> stage = PipelineStage(model, stage_index=0, num_stages=1, device="cpu")
>>> schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=torch.nn.functional.mse_loss)
>>> schedule
rank 0: 0F0 0F1 0B0 0B1
>>> losses = []
>>> schedule.step(torch.zeros(4, 3), target=torch.zeros(4, 1), losses=losses).shape, len(losses)
(tritorch.Size([4, 1]), 2)
>>> torch.allclose(model.bias.grad, 2 * model.bias)
True
>>> dist.destroy_process_group()
"""
from tritorch.distributed.pipelining.pipe import Pipe, SplitPoint, build_stage, pipe_split, pipeline
from tritorch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from tritorch.distributed.pipelining.stage import PipelineStage

__all__ = [
    "Pipe", "PipelineStage", "Schedule1F1B", "ScheduleDualPipeV", "ScheduleGPipe", "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble", "ScheduleLoopedBFS", "ScheduleZBVZeroBubble", "SplitPoint", "build_stage", "pipe_split", "pipeline",
]
