"""profile: when a profiler looks on, and what it does with what it found."""
import contextlib
import enum
import json
import os
import socket
import time
import warnings
from threading import get_ident

from tritorch.autograd.places import stacklevel
from tritorch.cuda import driver, measuring
from tritorch.cuda.watching import watched
from tritorch.errors import check
from tritorch.profiler.events import EventList
from tritorch.profiler.recorder import Recorder

active = None                                                            # the profile between start and stop


def _in_child():
    """In a forked process nobody will stop it."""
    global active
    if active is not None and active.recorder is not None:
        active.recorder.leave()
    active = measuring.meter = None                                      # not by end(): a thread that is gone may have its lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class ProfilerActivity(enum.Enum):
    """What a profiler looks at: the operators that the host calls, the work of CUDA devices."""

    CPU = 0
    CUDA = 2


class ProfilerAction(enum.Enum):
    """What a profiler does in a step. A warm-up costs it nothing here, so nothing is recorded then."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


_RECORDING = ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE


def supported_activities():
    """What can be looked at here.

    >>> from tritorch.profiler import ProfilerActivity, supported_activities
    >>> ProfilerActivity.CPU in supported_activities()
    True
    """
    return {ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if driver.available() else [])}


def schedule(*, wait, warmup, active, repeat=0, skip_first=0, skip_first_wait=0):
    """Which steps to record: after `skip_first` steps, cycles of `wait` steps of nothing, `warmup` steps, and `active` recorded ones of
    which the last ends with on_trace_ready; `repeat` cycles, or 0 for as many as there are. `skip_first_wait`: the first cycle does not
    wait.

    >>> from tritorch.profiler import schedule
    >>> [schedule(wait=1, warmup=1, active=2)(step).name for step in range(5)]
    ['NONE', 'WARMUP', 'RECORD', 'RECORD_AND_SAVE', 'NONE']
    """
    given = dict(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
    check(min(given.values()) >= 0 and active > 0, "schedule", "numbers of steps from 0, active from 1", given, error=AssertionError)
    cycle = wait + warmup + active

    def action(step):
        check(step >= 0, "schedule", "a step from 0", step, error=AssertionError)
        step += (wait if skip_first_wait else 0) - skip_first
        if step < (wait if skip_first_wait else 0) or repeat and step >= repeat * cycle or step % cycle < wait:
            return ProfilerAction.NONE
        place = step % cycle - wait - warmup
        return ProfilerAction.WARMUP if place < 0 else _RECORDING[place == active - 1]

    return action


def _default_schedule_fn(step):
    """What no schedule means: every step is recorded."""
    return ProfilerAction.RECORD


def tensorboard_trace_handler(dir_name, worker_name=None, use_gzip=False):
    """For `on_trace_ready`: writes a trace into a folder, under a name of its own that TensorBoard's profiler plugin finds."""
    def write(prof):
        os.makedirs(dir_name, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json"
        prof.export_chrome_trace(os.path.join(dir_name, name + ".gz" if use_gzip else name))

    return write


class profile:
    """Writes down which operators run inside its `with` block, or between start() and stop(), how long they take and what they queue.

    activities: ProfilerActivity.CPU, the operators, marked blocks (`record_function`) and nodes of backward passes of the thread that
        starts it, in which its backward passes run too; ProfilerActivity.CUDA, kernels, copies, fills and replays of CUDA graphs of
        all threads, by events around each of them, which are read at the end. By default all that there is. A compiled step is one event.
    schedule: step -> ProfilerAction, see `schedule`; steps are counted by `step()`. Without one everything is recorded.
    on_trace_ready: called with this object when recorded steps are complete.
    record_shapes: keep the shapes of arguments. with_stack: keep the user's calls that led to each event. with_flops: estimate the floating
        point operations of products, convolutions, attention, add and mul.
    profile_memory: count bytes. On a device, what the caching allocator gives out and gets back while an event is open, rounded as it
        does; on the CPU, what operators make for their results, and what of that dies while an event is open.
    acc_events: keep the events of earlier cycles.
    with_modules and the rest are PyTorch's and change nothing. Times are in µs. One profiler runs at a time. Long, because the
    signature is PyTorch's.

    >>> import tritorch as torch
    >>> from tritorch.profiler import profile
    >>> x = torch.ones(4, 4)
    >>> with profile(with_flops=True) as prof:
    ...     y = (x @ x).relu()
    >>> [(e.key, e.count, e.flops) for e in prof.key_averages()]
    [('aten::matmul', 1, 128), ('aten::relu', 1, 0)]
    >>> text = prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=10)
    """

    def __init__(self, *, activities=None, schedule=None, on_trace_ready=None, record_shapes=False, profile_memory=False, with_stack=False,
                 with_flops=False, with_modules=False, experimental_config=None, execution_trace_observer=None, acc_events=False,
                 use_cuda=None, custom_trace_id_callback=None, post_processing_timeout_s=None):
        chosen = supported_activities() if activities is None else {*activities}
        chosen |= {ProfilerActivity.CUDA} if use_cuda else set()
        check(chosen and chosen <= {*ProfilerActivity}, "profile", "activities among ProfilerActivity.CPU and CUDA",
              activities, error=AssertionError)
        self.activities, self.schedule, self.on_trace_ready, self.acc_events = chosen, schedule, on_trace_ready, acc_events
        self.options = dict(shapes=record_shapes, memory=profile_memory, stack=with_stack, flops=with_flops)
        self.recorder = self.found = self.step_event = self.current_action = None
        self.step_num, self.facts = 0, {}

    # -------------------------------------------------------------- when
    def start(self):
        """Begin, with step 0 of the schedule."""
        global active
        self._refuse_elsewhere("start")
        check(active is None, "profile", "no other profiler at work", "one that has not stopped", use="stop() of that one first")
        active = self
        try:
            self._move(self._planned())
        except BaseException:
            active = self.current_action = None
            raise

    def step(self):
        """The next step of the schedule begins."""
        check(active is self, "profile.step", "a profiler at work", "one that was not started, or has stopped")
        self._refuse_elsewhere("step")
        self.step_num += 1
        self._move(self._planned())

    def stop(self):
        """End, and be ready for questions."""
        global active
        if active is self:
            self._refuse_elsewhere("stop")
            try:
                self._move(None)
            finally:
                active = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, error, trace):
        with contextlib.nullcontext() if kind is None else contextlib.suppress(RuntimeError):       # the first error is the one to tell
            self.stop()

    def _refuse_elsewhere(self, what):
        name = "profile." + what
        check(watched.watcher is None, name, "a call outside of compiled functions", "one inside")
        check(self.recorder is None or self.recorder.thread == get_ident(), name, "the thread that started it", "another one")

    def _planned(self):
        return ProfilerAction.RECORD if self.schedule is None else self.schedule(self.step_num)

    def _move(self, action):
        """From the action so far to another one, None at the end."""
        before, self.current_action = self.current_action, action
        if self.step_event is not None:
            self.recorder.close(self.step_event)
            self.step_event = None
        complete = before is ProfilerAction.RECORD_AND_SAVE
        if self.recorder is not None and (complete or action not in _RECORDING):
            self._finish()
            if self.on_trace_ready is not None and (complete or action is None):
                self.on_trace_ready(self)
        if action in _RECORDING:
            if self.recorder is None:
                self._begin()
            if self.schedule is not None:
                self.step_event = self.recorder.open(f"ProfilerStep#{self.step_num}", "user_annotation")

    def _begin(self):
        cuda = ProfilerActivity.CUDA in self.activities
        if cuda and not driver.available():
            warnings.warn("profile: CUDA is not available, so only the CPU is looked at", stacklevel=stacklevel())
            cuda = False
        recorder = Recorder(ProfilerActivity.CPU in self.activities, cuda, **self.options)
        try:
            recorder.start()
        except BaseException:
            recorder.leave()
            measuring.end()
            raise
        self.recorder = recorder

    def _finish(self):
        recorder, self.recorder = self.recorder, None
        earlier = self.found if self.acc_events and self.found is not None else []
        self.found = EventList(earlier, self.options["memory"], self.facts)
        self.found += recorder.stop()

    # -------------------------------------------------------------- what was found
    def events(self):
        """What was recorded last, one by one."""
        check(self.found is not None, "profile", "a profiler that has recorded something and ended", "one that has not",
              use="events after the with block, or in on_trace_ready", error=AssertionError)
        return self.found

    def key_averages(self, group_by_input_shape=False, group_by_stack_n=0):
        """One entry for each name, see EventList.key_averages."""
        return self.events().key_averages(group_by_input_shape, group_by_stack_n)

    def export_chrome_trace(self, path):
        """Write a trace for chrome://tracing or ui.perfetto.dev; compressed where the name ends in .gz."""
        self.events().export_chrome_trace(path)

    def export_stacks(self, path, metric="self_cpu_time_total"):
        """Write stacks for a flame graph, see EventList.export_stacks."""
        self.events().export_stacks(path, metric)

    def add_metadata(self, key, value):
        """Have a text in the traces."""
        self.facts[key] = value

    def add_metadata_json(self, key, value):
        """Have what a JSON text says in the traces."""
        self.facts[key] = json.loads(value)
