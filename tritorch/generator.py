"""Generators: the seed and the offset that random operators take their numbers from.

A generator holds no numbers, only the place where the next operator starts: see `tritorch.philox` for what is computed from it.
"""
from __future__ import annotations

import operator
import secrets
import threading

import numpy as np

from tritorch.cuda.graph import current_graph
from tritorch.cuda.memory import upload
from tritorch.cuda.stream import captures, default_stream, stream
from tritorch.cuda.watching import host_work, watched
from tritorch.device import as_device, device
from tritorch.dtype import int64, uint8
from tritorch.errors import check
from tritorch.tensor import Tensor, empty, from_array

DEFAULT_SEED = 67280421310721                  # the seed of a fresh Generator, as in PyTorch


class _Drawing(threading.local):
    """What this thread draws: numbers for so many `samples` at once, 0 where it may draw none, which differ from sample to sample in these
    `levels`, calls of vmap."""

    samples, levels = 1, ()


drawing = _Drawing()


class Offset(int):
    """An offset from which on there are numbers for all samples of these `levels`, calls of vmap."""

    levels = ()

    def outside(self, level):
        """The same for tensors that have the samples of this level in them."""
        return offset_for(int(self), [one for one in self.levels if one is not level])


def offset_for(number, levels):
    """An offset with these levels."""
    if not levels:
        return number
    out = Offset(number)
    out.levels = tuple(levels)
    return out


class Generator:
    """A stream of random numbers: `Generator(device='cpu')`, passed to random functions as `generator=`.

    The same seed gives the same numbers on every device.

    >>> import tritorch as torch
    >>> g = torch.Generator().manual_seed(3)
    >>> a = torch.rand(4, generator=g); g.manual_seed(3).initial_seed()
    3
    >>> bool((torch.rand(4, generator=g) == a).all())
    True
    """

    def __init__(self, device="cpu"):
        self.device, self._lock = as_device(device), threading.Lock()
        check(self.device.type != "meta", "Generator", "a device on which numbers are drawn", device)
        self._seed, self._offset = DEFAULT_SEED, 0

    def manual_seed(self, seed):
        """Start over from a seed in [-2⁶³, 2⁶⁴)."""
        seed = operator.index(seed)
        check(-1 << 63 <= seed < 1 << 64, "manual_seed", "a seed of 64 bits", seed)
        return self._go(seed & 0xFFFFFFFFFFFFFFFF, 0)

    def seed(self):
        """Start over from a seed drawn by the operating system, and return it."""
        return self.manual_seed(secrets.randbits(64) >> 11).initial_seed()

    def initial_seed(self):
        """The seed that the stream started from."""
        return self._seed

    def get_state(self):
        """The seed and the offset as 16 bytes (a uint8 tensor on the CPU)."""
        with self._lock:
            return from_array(np.array([self._seed, self.get_offset()], np.uint64).view(np.uint8))

    def set_state(self, new_state):
        """Go to a place that `get_state` returned."""
        check(isinstance(new_state, Tensor), "set_state", "a tensor", type(new_state).__name__, error=TypeError)
        got, rule = (new_state.device.type, new_state.dtype, new_state.shape), "16 uint8 elements on the CPU, as get_state returns them"
        check(got[:2] == ("cpu", uint8), "set_state", rule, got, error=TypeError)
        check(got[2] == (16,), "set_state", rule, got)
        seed, offset = np.ascontiguousarray(new_state.array).view(np.uint64)
        return self._go(int(seed), int(offset))

    graphsafe_get_state, graphsafe_set_state = get_state, set_state

    def get_offset(self):
        """Counters used since the seed."""
        here = self._recording()
        return self._offset if here is None else self._offset + here.used

    def set_offset(self, offset):
        """Go to a counter."""
        self._go(self._seed, operator.index(offset))

    def clone_state(self):
        """A second generator at the same place."""
        return Generator(self.device).set_state(self.get_state())

    def __reduce__(self):
        return _restore, (self.device, self._seed, self._offset)

    def __repr__(self):
        return f"Generator(device={str(self.device)!r}, seed={self._seed}, offset={self._offset})"

    def take(self, counters):
        """(seed, offset, base): the place of the next `counters` Philox counters, which nobody else will get.

        The seed is the signed form of its 64 bits. While a CUDA graph is captured, `base` is a device tensor of (seed, offset)
        that every replay moves on; the seed returned is then 0 and the offset counts from there.
        """
        if drawing.samples != 1:
            check(drawing.samples, "vmap", "no random operator where randomness is 'error'", "one", use="randomness='same' or 'different'")
            seed, offset, base = self._taken(counters * drawing.samples)
            return seed, offset_for(offset, drawing.levels), base
        return self._taken(counters)

    def _taken(self, counters):
        here = self._recording()
        if here is not None:
            return here.take(counters)
        seed, offset = self.advance(counters)
        return seed - (seed >> 63 << 64), offset, None

    def _recording(self):
        """What stands for the generator while its work is recorded into a CUDA graph or will be, else None."""
        if self.device.type != "cuda":
            return None
        graph = current_graph() if captures else None
        if graph is None and watched.watcher is not None:
            graph = watched.watcher.as_graph()
        return None if graph is None else recording(self, graph)

    def _go(self, seed, offset):
        """Go to a place. A replay starts anywhere: what is recorded can go to places that lie behind its start, as checkpoints do."""
        here = self._recording()
        if here is not None and (seed != self._seed or offset < self._offset):
            host_work("a new place of a generator")
            here = self._recording()
        if here is not None and seed == self._seed and offset >= self._offset:
            here.used = offset - self._offset
        else:
            with self._lock:
                self._seed, self._offset = seed, offset
        return self

    def advance(self, counters):
        """Move on and return (seed, offset) as they were."""
        with self._lock:
            offset, self._offset = self._offset, self._offset + counters
            return self._seed, offset


class Recording:
    """The counters that a captured graph uses. As a hook of the graph it gives every replay new ones."""

    def __init__(self, generator, graph):
        self.generator, self.used = generator, 0
        with stream(default_stream(generator.device.index) if captures else None):       # not recorded: replays find what is written before
            self.base = empty((2,), int64, generator.device)
        graph.keep(self.base.storage.owner)

    def take(self, counters):
        offset, self.used = self.used, self.used + counters
        return 0, offset, self.base

    def __call__(self):
        """Before a replay: bring the place to the device and move on."""
        self.place(*self.generator.advance(self.used))

    def place(self, seed, offset):
        upload(np.array([seed, offset], np.uint64), self.base.data_ptr(), self.base.device.index)


def recording(generator, graph):
    """The Recording of a generator in a graph, made at its first use there."""
    for hook in graph.hooks:
        if type(hook) is Recording and hook.generator is generator:
            return hook
    hook = Recording(generator, graph)
    graph.before_replay(hook)
    return hook


def _restore(place, seed, offset):
    out = Generator(place)
    out._seed, out._offset = seed, offset
    return out


_defaults = {}
_first = {"seed": None}


def default_generator(place=None) -> Generator:
    """The generator of a device that functions use when none is given. It starts from a seed that differs in each process."""
    place = as_device(place)
    found = _defaults.get(place)
    if found is None:
        seed = secrets.randbits(53) if _first["seed"] is None else _first["seed"]
        found = _defaults.setdefault(place, _restore(place, seed, 0))
    return found


def seed_all(seed):
    """Seed the default generators of all devices, those not used yet included."""
    cpu = default_generator(device("cpu")).manual_seed(seed)
    _first["seed"] = cpu.initial_seed()
    for generator in list(_defaults.values()):
        generator.manual_seed(seed)
    return cpu
