"""Compiled functions: calls are told apart by what Python sees of them; each kind is warmed up, captured and replayed, or stays eager."""
from __future__ import annotations

import contextlib
import functools
import types
import warnings
import weakref

from tritorch.amp import clear_autocast_cache
from tritorch.autograd import observed, places
from tritorch.compiler import stance
from tritorch.compiler.capture import Capture, no_room, one_at_a_time
from tritorch.compiler.containers import Containers, flatten, is_input
from tritorch.compiler.differentiable import DifferentiableRecording
from tritorch.compiler.fusion import Fusion, matches
from tritorch.compiler.keys import Surroundings, host_draws
from tritorch.compiler.left import Before
from tritorch.compiler.reads import Reads
from tritorch.compiler.recording import Order, Recording, landing
from tritorch.compiler.report import reported
from tritorch.compiler.watch import Refused, Unsupported, Watch, counts, home
from tritorch.cuda import driver
from tritorch.cuda.device import current_device
from tritorch.cuda.graph import current_graph, graph_pool_handle
from tritorch.cuda.stream import OnlyStream, Stream, captures, current_handle
from tritorch.cuda.watching import watched
from tritorch.errors import OutOfMemoryError
from tritorch.profiler.recorder import record_function

WARM_UPS = 8                                                             # two equal calls in a row must be among so many
RESTARTS = 2                                                             # captures that met another world than their warm-up, for each kind
SET_UPS = 3                                                              # kinds whose first call could not be captured, and no other came
everyone = weakref.WeakSet()                                             # compiled functions, for reset()
ALIAS = "an argument in memory that the call reads or writes by another name too"


class Kind:
    """Calls of one key: their recordings, the last warm-up call in each situation, or why they stay eager. `objects` are those that the
    key knows by their ids, `idle` counts recordings in a row that no call could use."""

    def __init__(self, objects=(), given=(), why=None):
        self.objects, self.why, self.recordings, self.seen, self.restarts, self.idle = objects, why, [], {}, 0, 0
        self.writes = None                                               # whether an argument is written, once that is known
        self.fits = None                                                 # a quick way to tell calls of this kind: see Surroundings.fitting
        self.excused = False                                             # whether a first call did what no graph can hold
        self.arguments = [f"{x.dtype.name}{list(x.shape)}" for x in given]


class Compiled:
    """What `tritorch.compile` makes of a function."""

    def __init__(self, function, fullgraph, options):
        functools.update_wrapper(self, function)
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.function, self.fullgraph, self.options, self.limit = function, fullgraph, options, options["cache_size_limit"]
        self.surroundings, self.warned, self.told = Surroundings(function), {}, set()
        self.forget()
        everyone.add(self)

    def __reduce__(self):
        return Compiled, (self.function, self.fullgraph, self.options)

    def forget(self):
        """Start anew: every call is a first one."""
        self.kinds, self.leaves, self.modules, self.rates, self.notes, self.order = {}, [], {}, {}, {}, Order()
        self.device = driver.current() if driver.available() else None
        self.pool, self.streams, self.latest, self.copies = None, {}, None, weakref.WeakValueDictionary()

    def __get__(self, owner, kind=None):
        return self if owner is None else types.MethodType(self, owner)

    def __call__(self, *args, **kwargs):
        if (watched.watcher is not None or not driver.available() or captures and current_graph() is not None
                or stance.chosen == "force_eager"):
            return self.function(*args, **kwargs)                        # part of another capture, or nothing to capture
        kind, key = self.latest, None
        given = kind.fits(args, kwargs) if kind is not None else None
        if given is None:
            given, key = self.surroundings.key(args, kwargs)
            kind = self.kinds.get(key)
            if key is None or kind is not None and kind.why is not None:
                return self.function(*args, **kwargs)
        one_at_a_time.acquire()                                         # `with` would take twice as long
        try:
            if self.device is not driver.current():                      # it took the place of the one that was recorded on
                self.forget()
                kind, (given, key) = None, self.surroundings.key(args, kwargs)
            for recording in kind.recordings if kind is not None else ():
                if recording.holds():
                    if key is not None and observed.around is None:
                        kind.fits, self.latest = kind.fits or self.surroundings.fitting(args, kwargs, self), kind
                    if recording.meets(given):
                        return self.function(*args, **kwargs)
                    if observed.around is None:
                        return recording(given)
                    with record_function(f"Torch-Compiled Region: {self.name}"):
                        return recording(given)
            if stance.chosen is not None:
                return stance.unrecorded(self, args, kwargs)
            if kind is None:
                kind = self.new_kind(key, given, args, kwargs)
            if kind.idle > self.limit:
                changes = [r.reads.changed([*r.reads.quick, *r.reads.slow]) for r in kind.recordings]
                self.object(kind, f"what changes from call to call: {next(filter(None, changes), 'parameters or an optimizer')}")
            if kind.why is None:
                return self.watched_call(kind, given, args, kwargs)
        except Refused as error:                                         # nothing of it has run, and nothing of it holds memory below
            self.object(kind, str(error))
        finally:
            one_at_a_time.release()
        return self.function(*args, **kwargs)

    def new_kind(self, key, given, args, kwargs):
        """The kind of a call that is the first of it."""
        if any(not x.is_cuda or x.device.index != current_device() for x in given):
            why = "arguments that are not on the current CUDA device"
            if any(x.is_cuda for x in given):
                self.tell(why)
            return Kind(why=why)
        if len(self.kinds) >= self.limit:
            why = f"more than {self.limit} kinds of arguments and surroundings; see the option cache_size_limit"
            self.tell(why)
            return Kind(why=why)
        objects = [x for x in self.surroundings.objects(args, kwargs) if x is not self]
        kind = self.kinds[key] = Kind(objects, given)
        return kind

    def report(self):
        """What became of the calls so far, as text: for each kind its recordings with the operators in them, or why it runs eagerly."""
        return reported(self)

    # -------------------------------------------------------------- calls that Python makes
    def watched_call(self, kind, given, args, kwargs):
        """A warm-up call, or one that is captured. Long, because each step needs what those before it found."""
        situation = self.situation([ref() is None or ref()._grad is None for ref in self.leaves])
        expected = kind.seen.get(situation)
        capture, plan, reads = (None, None, None) if expected is None or not expected.repeats else self.planned(kind, expected)
        shared = len({home(x) for x in given}) < len(given)
        twice = capture is not None and self.met_twice(kind, given, expected, reads)
        if twice or shared and kind.writes:                              # a copy of each would not show what is written to the others
            return self.function(*args, **kwargs)
        apart = capture is not None or shared and kind.writes is not None            # shared memory does not tell arguments apart
        try:
            inputs = [landing(x) for x in given] if apart else given
        except OutOfMemoryError as error:
            raise no_room(error) from error
        containers = Containers((args, kwargs), _with_tensors(inputs, (args, kwargs)) if apart else (args, kwargs))
        watch = Watch(self, inputs, expected, capture, plan, kind.restarts < RESTARTS)
        before, had, draws = {id(x): x._grad for x in watch.known.values()}, [_gradient(x) for x in given], host_draws()
        ours = {id(mine): x for mine, x in zip(inputs, given)}

        def finish(given):
            """Run what was captured, and bring what it wrote to copies to the arguments."""
            if capture is not None:
                self.order.follow(capture.index, current_handle(capture.index))
                capture.play()
            if apart:
                watch.copy_back(given)

        try:
            try:
                result = self.run(watch, containers.own)
            finally:
                changed = containers.changed()
                if changed:
                    containers.carry(ours)
            kind.writes = kind.writes or any(n.__class__ is tuple and n[0] == "input" for n in watch.written)
            watch.conclude(result, host_draws() != draws, [_gradient(x) for x in given] != had, changed)
            if capture is not None:
                del kind.seen[situation]
                recording = self.recorded(kind, watch, before, result, reads) if watch.why is None else None
                if recording is not None:
                    result = recording(given, finish)
                    kind.recordings.insert(0, recording)
                    del kind.recordings[self.limit:]                     # the oldest one goes when there are many
                    return result
            finish(given)
        except BaseException as error:
            if capture is None or capture.played:
                if apart:
                    watch.copy_back(given)
                raise
            for leaf in watch.known.values():                            # nothing has run
                leaf.grad = before.get(id(leaf))
            if isinstance(error, OutOfMemoryError):
                raise no_room(error) from error
            raise
        if watch.moved and watch.lenient:                                # a checkpoint was loaded in between, say: warm up anew
            kind.restarts += 1
        elif watch.why is not None:
            if expected is None and self.may_set_up(kind):
                kind.excused = True
            else:
                self.object(kind, watch.why)
        elif capture is None and not watch.passing:
            self.compare(kind, watch)
            watch.usual = Before(self.reads(kind, watch)).numbers() if watch.repeats else {}
        if not apart:
            return result
        leaves, form = flatten(result)
        return form.unflatten([ours.get(id(x), x) for x in leaves])

    def may_set_up(self, kind):
        """Whether a first call of a kind may do what no graph can hold, to set up what the others use: not where every call is of a kind of
        its own, such as with a list that grows."""
        waiting = [k for k in self.kinds.values() if k.excused and not k.seen and not k.recordings]
        return not kind.excused and not self.fullgraph and len(waiting) < SET_UPS

    def planned(self, kind, expected):
        """(capture, plan, what Python reads) for a call that should go as `expected` did. What can be fused is first tried in a warm-up
        call of its own, which has the kernels loaded."""
        first = expected.matches is None
        if first:
            expected.matches = matches(expected, self.options["inexact"]) if self.options["fuse"] else []
        plan = Fusion(expected.matches, expected) if expected.matches else None
        if first and plan is not None:
            return None, plan, None
        self.pool, index = self.pool or graph_pool_handle(), current_device()
        pool = graph_pool_handle() if expected.differentiable else self.pool             # its memory is in use between two replays
        form = Stream if current_handle(index) else OnlyStream           # what backward passes do differs, as it does in warm-up calls
        stream = self.streams.get(form) or self.streams.setdefault(form, form(index))
        reads = self.reads(kind, expected)
        reads.before = Before(reads)
        return Capture(index, stream, pool), plan, reads

    def reads(self, kind, watch):
        """What a call that was watched may have read."""
        return Reads(watch.codes, [self.function, *kind.objects, *[ref() for ref in watch.ran]])

    def met_twice(self, kind, given, expected, reads):
        """Whether arguments cannot be copied: a call like `expected` reaches the memory of one by another name, and writes there."""
        mine = {id(home(x)): ("input", k) for k, x in reversed([*enumerate(given)])}
        roots = [root for root in (*[ref() for ref in expected.ran], *reads.modules) if root is not None]
        named = [x for root in roots for m in root.modules() for x in (*m._parameters.values(), *m._buffers.values())]
        named += [ref() for ref in (*reads.tensors, *self.leaves)]
        named = [x for x in named if x is not None]
        named += [x._grad for x in named if x._grad is not None]
        if not expected.written.isdisjoint([mine.get(id(home(x))) for x in named]):
            self.object(kind, ALIAS)
        met = {number: id(ref()) for number, ref in enumerate(expected.met) if id(ref()) in mine}
        found = {*met, *[mine[place] for place in met.values()]}
        return kind.why is not None or not expected.written.isdisjoint(found)

    def recorded(self, kind, watch, before, result, reads):
        """A recording of the call for the next ones."""
        usual = watch.expected.usual
        places, lists, grows = reads.before.assigned(usual)
        why = reads.settle(usual=usual, lists=lists).why or grows or _assigned(reads, watch) or _undone(places, watch)
        del reads.before
        if why is not None:
            self.object(kind, why)
            return None
        for what in reads.counted:
            self.warn(f"{self.name} changes {what}, which calls that are replayed leave as it is")
        kind.idle = 0 if not kind.recordings or kind.recordings[0].used else kind.idle + 1
        try:
            return (DifferentiableRecording if watch.differentiable else Recording)(self, watch, before, result, reads, places)
        except Exception as error:                                       # of the backward pass, which will raise it when it runs
            self.object(kind, str(error))
            return None

    def run(self, watch, tree):
        """The function on the arguments in `tree`, watched, and captured if there is a capture."""
        args, kwargs = tree
        clear_autocast_cache()                                           # a cast from before would be missing in the graph
        try:
            with watch.capture or contextlib.nullcontext(), watch.watching():
                return self.function(*args, **kwargs)
        finally:
            watch.over()
            clear_autocast_cache()
            self.modules.update((id(m), weakref.ref(m)) for m in watch.modules.values())

    def situation(self, without_gradient):
        """What Python finds in parameters and modules: warm-up calls are compared with those in the same situation."""
        modules = [ref() for ref in self.modules.values()]
        return tuple(without_gradient), tuple([m is not None and m.training for m in modules])

    def compare(self, kind, watch):
        """After a warm-up call: did it what the one before did?"""
        situation = self.situation(watch.had_none)
        before = kind.seen.get(situation)
        if watch.plan is not None:
            watch.repeats, watch.matches = True, watch.plan.replaced(proven=True)
        elif before is not None:
            difference = watch.difference(before)
            watch.repeats, watch.tries = difference is None, before.tries + 1
            if difference is not None and watch.tries >= WARM_UPS:
                self.object(kind, difference)
        watch.rest()
        kind.seen[situation] = watch

    # -------------------------------------------------------------- calls that stay eager
    def object(self, kind, why):
        """From now on calls of this kind run eagerly."""
        kind.why, kind.seen, kind.recordings, self.latest = why, {}, [], None
        self.tell(why)

    def tell(self, why):
        if self.fullgraph:
            raise Unsupported(f"compile: expected a function that can be captured as a whole with fullgraph=True, got {why}")
        if why not in self.warned:
            self.warned[why] = None
            self.warn(f"{self.name} runs eagerly, because a CUDA graph cannot hold {why}")

    def warn(self, what):
        if what not in self.told:
            self.told.add(what)
            warnings.warn(f"compile: {what}", stacklevel=places.stacklevel())


def _assigned(reads, watch):
    """The option of an optimizer that the call itself may set, as a reason against a recording."""
    found = reads.assigned.intersection(*[[name for o in watch.optimizers.values() for group in o.param_groups for name in group]])
    if found:
        return f"{min(found)!r} of an optimizer, which the host sets"
    before = [(o, watch.counts[key]) for key, o in watch.optimizers.items()]
    changed = [key for o, known in before for (p, key), x in counts(o).items() if known.get((p, key)) not in (x, None)]
    return f"{changed[0]!r} in the state of an optimizer, which the host counts" if changed else None


def _undone(places, watch):
    """A tensor that a later backward pass may start from, and that is not among the results, as a reason against a recording."""
    if watch.differentiable or watch.backward:
        return None
    found = [place.called() for place in places if place.has_history()]
    return f"a tensor that requires grad, left in {found[0]}; return it too, or leave its detach()" if found else None


def _gradient(x):
    """What changes when x gets a gradient."""
    return id(x._grad), x._grad is not None and x._grad.storage.version


def _with_tensors(inputs, tree):
    """The tree with `inputs` in the places of the tensors that are inputs."""
    inputs, (leaves, form) = iter(inputs), flatten(tree)
    return form.unflatten([next(inputs) if is_input(x) else x for x in leaves])
