"""Profiling: what runs, how long it takes, what it queues on devices and how much memory it takes."""
from tritorch.profiler.events import DeviceType
from tritorch.profiler.recorder import record_function
from tritorch.profiler.session import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)

__all__ = ["DeviceType", "ProfilerAction", "ProfilerActivity", "profile", "record_function", "schedule", "supported_activities",
           "tensorboard_trace_handler"]
