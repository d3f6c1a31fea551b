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

__all__ = ["DeviceType", "ProfilerAction", "ProfilerActivity", "kineto_available", "profile", "record_function", "schedule",
           "supported_activities", "tensorboard_trace_handler"]


def kineto_available():
    """Always True: `profile` needs nothing that might be missing."""
    return True
