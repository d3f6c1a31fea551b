"""PyTorch's module of the profiler, for those who import from there."""
from tritorch.profiler.session import (  # noqa: F401
    ProfilerAction,
    ProfilerActivity,
    _default_schedule_fn,
    profile,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)
