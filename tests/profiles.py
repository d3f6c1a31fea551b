"""What the tests of the profiler share."""
import pytest

from tritorch.autograd import observed
from tritorch.autograd.modes import State, state
from tritorch.cuda import allocator, driver, measuring
from tritorch.profiler import DeviceType, ProfilerActivity, recorder, session

CPU, CUDA = [ProfilerActivity.CPU], [ProfilerActivity.CUDA]


def names(events):
    return [e.name for e in events]


def kernels(prof):
    return [e for e in prof.events() if e.device_type is DeviceType.CUDA]


def host(prof):
    return [e for e in prof.events() if e.device_type is DeviceType.CPU]


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert recorder.running is session.active is observed.around is measuring.meter is allocator.listener is None
    assert state.interpreter is State.interpreter                        # which may be that of DTensors
    if driver.chosen():
        assert not any(type(start) is measuring.Measured for start in driver.functions.values())
