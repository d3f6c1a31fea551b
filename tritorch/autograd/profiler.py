"""tritorch.profiler under the names of PyTorch's older interface."""
from tritorch.errors import sentence
from tritorch.profiler import ProfilerActivity, record_function, session
from tritorch.profiler.events import EventList

__all__ = ["EventList", "emit_nvtx", "profile", "record_function"]


class emit_nvtx:
    """NotImplementedError: operators put no marks into Nsight's timelines."""

    def __init__(self, enabled=True, record_shapes=False):
        raise NotImplementedError(sentence("emit_nvtx", "ranges of the program's own", "a call for those of all operators",
                                           use="tritorch.cuda.nvtx.range"))


class profile(session.profile):
    """As tritorch.profiler.profile, but of the CPU alone unless `use_cuda`; nothing is recorded where `enabled` is False.

    >>> import tritorch as torch
    >>> with torch.autograd.profiler.profile() as prof:
    ...     y = torch.ones(3) + 1
    >>> [e.name for e in prof.function_events]
    ['aten::fill_', 'aten::add']
    """

    def __init__(self, enabled=True, *, use_cuda=False, use_device=None, use_cpu=True, use_kineto=True, **options):
        activities = [ProfilerActivity.CPU] if use_cpu else []
        activities += [ProfilerActivity.CUDA] if use_cuda or use_device == "cuda" else []
        super().__init__(activities=activities, **options)
        self.enabled = enabled

    def __enter__(self):
        return super().__enter__() if self.enabled else self

    @property
    def function_events(self):
        """The events."""
        return self.events()

    @property
    def self_cpu_time_total(self):
        """Time of the host in all events, in µs."""
        return self.events().self_cpu_time_total

    def table(self, *args, **options):
        """A table of the events, see EventList.table."""
        return self.events().table(*args, **options)

    def total_average(self):
        """The sum of all events."""
        return self.events().total_average()


def _profiler_enabled():
    """Whether a profiler is at work."""
    return session.active is not None


def _disable_profiler():
    """Have the profiler that is at work stop."""
    if session.active is not None:
        session.active.stop()
