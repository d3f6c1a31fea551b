"""Operators on lists of tensors, in place: all parameters of a model in one call, on CUDA in one launch.

They return nothing and record no gradients, so they are not made by `op`, but they walk the same corridor: interpreter slot,
body (the checks), implementation by device, and the version of whatever was written moves on.
"""
import inspect
from functools import reduce
from math import prod
from operator import or_

import numpy as np

from tritorch.autograd.modes import state
from tritorch.autograd.places import user_place
from tritorch.cuda import driver, memory, tuner
from tritorch.cuda.launch import Prepared, tile
from tritorch.cuda.stream import OnlyStream, captures, current_handle, is_capturing
from tritorch.cuda.watching import watched
from tritorch.dispatch import _interpret
from tritorch.dtype import int64
from tritorch.errors import check
from tritorch.shape import is_dense, same_strides
from tritorch.tensor import empty, strided

BLOCKS = (2048, 8), (1024, 4), (2048, 4), (4096, 8), (4096, 16), (1024, 8)      # (elements, warps) of a program that reads and writes
TRIAL = 1 << 26                                                          # elements that are enough to time a kernel
CHUNK = 1 << 14                                                          # elements: six float32 arrays of it stay in a core's cache


class MultiTensor:
    """An operator whose parameters named in `columns` are lists: row k is their k-th tensors, all of one shape, dtype and device.

    Those in `writes` are written. Other list parameters go along with the rows. An implementation is called once for each dtype
    and device, with lists of tensors that lie contiguous in memory (copies, written back, where they do not). Complex tensors arrive as
    real ones with a last dim of size 2.
    """

    def __init__(self, body, columns, writes):
        self.names = tuple(inspect.signature(body).parameters)
        self.columns, self.writes = [self.names.index(c) for c in columns.split()], [self.names.index(w) for w in writes.split()]
        self._ready = {}                                                 # id of a first tensor -> layouts that need no preparation
        self.body, self.__name__, self.__doc__, self.__module__ = body, body.__name__, body.__doc__, body.__module__
        self.impls = {"meta": lambda *args: None}                        # where there is no memory there is nothing to write

    def impl(self, kind):
        """How it runs on devices of type `kind`: `fn(every parameter…)`. Giving an implementation again replaces it."""
        def verb(fn):
            self.impls[kind] = fn
            return fn

        return verb

    def __call__(self, *args):
        if state.interpreter is not None:
            return _interpret(self, args)
        self.body(*args)
        if args[self.columns[0]]:
            self.run(args)
            writer = user_place()
            for k in self.writes:
                for x in args[k] or ():
                    storage = x.storage
                    storage.version += 1
                    storage.writer = writer

    def run(self, args):
        """On parts of one dtype and device, contiguous; whether the arguments are one is remembered, since training asks at every step."""
        columns = [args[k] for k in self.columns if args[k] is not None]
        first = columns[0]
        facts = [[x.storage.device for x in first], [x.shape for x in first]]
        for column in columns:
            facts += [x.dtype for x in column], [x.strides for x in column]
        if self._ready.get(id(first[0])) == facts:
            return self.impls[facts[0][0].type](*args)
        if any(x.dtype.is_complex for x in first):                       # never remembered: real numbers do not pay for the question
            return self.run([a if a is None or k not in self.columns else [*map(_as_real, a)] for k, a in enumerate(args)])
        for x, *others in zip(*columns):                                 # on CUDA they would be read as what they are not
            for other in others:
                check(other.dtype == x.dtype and other.shape == x.shape, self.__name__, "all of a parameter with its dtype and shape",
                      x.dtype, x.shape, other.dtype, other.shape,
                      use="optimizer.load_state_dict(optimizer.state_dict()) after a model changes its dtype")
        parts = self._parts(args)
        if len(parts) == 1 and all(x.is_contiguous() for column in columns for x in column):
            if len(self._ready) >= KEPT:
                self._ready.clear()
            self._ready[id(first[0])] = facts
        for part in parts:
            settled = self._settled(part)
            self.impls[part[self.columns[0]][0].storage.device.type](*settled)
            for k in self.writes:
                for mine, theirs in zip(settled[k] or (), part[k] or ()):
                    if mine.storage is not theirs.storage:
                        theirs.detach().copy_(mine)

    def _parts(self, args):
        """The arguments, for each device and dtype that occurs."""
        rows = {}
        for k, x in enumerate(args[self.columns[0]]):
            rows.setdefault((x.storage.device, x.dtype), []).append(k)
        if len(rows) < 2:
            return [args]
        return [[[a[k] for k in some] if type(a) is list else a for a in args] for some in rows.values()]

    def _settled(self, args):
        """The arguments with flat stand-ins for rows that are not contiguous."""
        if all(x.is_contiguous() for k in self.columns for x in args[k] or ()):
            return args
        rows = zip(*[args[k] for k in self.columns if args[k] is not None])
        fresh = iter([list(column) for column in zip(*map(_settled_row, rows))])
        return [next(fresh) if k in self.columns and a is not None else a for k, a in enumerate(args)]


def _as_real(x):
    """A complex tensor as twice as many real numbers in its memory, which is how PyTorch's optimizers see it."""
    if not x.dtype.is_complex:
        return x
    return strided(x.storage, (*x.shape, 2), (*[2 * s for s in x.strides], 1), 2 * x.offset, x.dtype.parts)


def _settled_row(row):
    """Tensors of one shape as contiguous ones whose elements correspond: views where all lie gapless in the same order, else copies."""
    if all(x.is_contiguous() for x in row):
        return row
    if all(same_strides(x.shape, x.strides, row[0].strides) for x in row) and is_dense(row[0].shape, row[0].strides):
        return [strided(x.storage, (x.numel(),), (1,), x.offset, x.dtype) for x in row]
    return [x.detach().contiguous() for x in row]


def multi_tensor(columns, writes):
    """Decorator: the body becomes a MultiTensor operator."""
    return lambda body: MultiTensor(body, columns, writes)


# ------------------------------------------------------------------ for implementations on the CPU
def chunks(*columns, written):
    """The rows of the columns, piece by piece, as flat numpy arrays in the type they compute in; the first `written` are rounded back."""
    kind = columns[0][0].dtype
    for row in zip(*columns):
        flat = [x.array.reshape(-1) for x in row]
        for start in range(0, flat[0].size, CHUNK):
            pieces = [f[start:start + CHUNK] for f in flat]
            if kind.compute is kind:
                yield pieces
            else:
                wide = [piece.astype(kind.compute.numpy) for piece in pieces]
                yield wide
                for piece, result in zip(pieces, wide[:written]):
                    np.copyto(piece, result, casting="unsafe")


def scratch(count, like):
    """`count` arrays of a chunk for the computation on tensors such as `like`."""
    return [np.empty(CHUNK, like.dtype.compute.numpy) for _ in range(count)]


# ------------------------------------------------------------------ for implementations on CUDA
def launch_rows(kernel, columns, *args, blocks=BLOCKS, before=lambda count: (), turns=False, timed=None, **constexprs):
    """Start a kernel of triton_kernels/optimize.py on every block of every row, in one of the `blocks` (elements, warps).

    `before(how many blocks)` gives its arguments in front of the table, `args` are those after it, `timed()` those that the tuner takes
    instead. Each block has a program, or, with `turns`, those that run at once take them in turns. Returns the arguments in front.
    """
    first = columns[0]
    device = first[0].storage.device
    rows = [x.storage.ptr + x.offset * x.dtype.itemsize for column in columns for x in column]
    shapes, aligned = tuple([x.shape for x in first]), not reduce(or_, rows) & 15
    stream = current_handle(device.index)
    known = (id(kernel), aligned, shapes, first[0].dtype, device, stream,
             *[v if v.__class__ in _PLAIN else id(v) for v in constexprs.values()])
    captured = captures and is_capturing(device.index, stream)           # a graph has tables of its own
    ready = None if captured else _prepared.get(known)                   # gradients lie elsewhere at every step, where addresses go round
    if ready is None:
        chosen = _tuned(kernel, columns, shapes, timed or (lambda: args), blocks, before, turns, constexprs)
        ready = _ready(kernel, aligned, shapes, device, chosen, turns, constexprs)
        if not captured:
            if len(_prepared) >= KEPT:
                _prepared.clear()
            _prepared[known] = ready
    start, plan, count, programs, (known, table) = ready
    if known != rows:
        table = _table(rows, device)
        ready[4] = rows, table
    ahead = before(count)
    start(programs, [*ahead, table, plan, first[0], len(first), *args])
    return ahead


def _ready(kernel, aligned, shapes, device, chosen, turns, constexprs):
    """[the prepared kernel, the blocks in device memory, how many, how many programs, (addresses, their table) of the last call]."""
    plan = _plan(shapes, chosen["BLOCK"], device)
    count, programs = plan.shape[0] // 3, plan.shape[0] // 3
    if turns:                                                            # 32 warps of a multiprocessor have 64 registers each
        programs = min(count, driver.current().device_properties(device.index).multi_processor_count * 32 // chosen["num_warps"])
    return [Prepared(kernel, ALIGNED=aligned, **chosen, **constexprs), plan, count, programs, (None, None)]


def _table(addresses, device):
    """Addresses in device memory."""
    return _resident(tuple(addresses), device, lambda: addresses)


def _tuned(kernel, columns, shapes, timed, blocks, before, turns, constexprs):
    """The best of the blocks."""
    trial, args, loops = [], [], {}                                      # written in place of the columns; what no clock shall see

    def run(candidate):
        trial[:] = trial or _stand_ins(columns)
        args[:] = args or timed()
        first, way = trial[0], tuple(candidate.values())
        if way not in loops:
            found, device = [x.data_ptr() for column in trial for x in column], first[0].storage.device
            ready = _ready(kernel, True, tuple([x.shape for x in first]), device, candidate, turns, constexprs)
            loops[way] = *ready[:4], _table(found, device)
        start, plan, count, programs, table = loops[way]
        start(programs, [*before(count), table, plan, first[0], len(first), *args])

    kind = getattr(constexprs.get("RULE"), "__name__", constexprs.get("KIND", ""))
    key = kernel.__name__, kind, columns[0][0].dtype.itemsize, len(columns), sum(map(prod, shapes))
    return tuner.choose("multi_tensor", key, [{"BLOCK": tile(block, 4096), "num_warps": warps} for block, warps in blocks], kernel, run)


def _stand_ins(columns):
    """Copies of the first rows, into which a kernel may write as often as it is tried. Zeros, which it would leave as they are, would take
    less power than what is trained."""
    count, total = 0, 0
    while count < len(columns[0]) and (not count or total < TRIAL):
        total += columns[0][count].numel()
        count += 1
    made = [[empty(x.shape, x.dtype, x.storage.device) for x in column[:count]] for column in columns]
    for x, y in ((x, y) for column, copies in zip(columns, made) for x, y in zip(column, copies)):
        memory.copy(y.data_ptr(), x.data_ptr(), x.numel() * x.dtype.itemsize, "d2d", x.storage.device.index)
    return made


def addresses(tensors):
    """The addresses of tensors, as an int64 tensor on their device."""
    return _table([x.data_ptr() for x in tensors], tensors[0].storage.device)


def _plan(shapes, block, device):
    """(tensor, block, size) of every program, in device memory."""
    def build():
        sizes = np.array([prod(shape) for shape in shapes], np.int64)
        counts = -(-sizes // block)
        tensor = np.repeat(np.arange(len(sizes)), counts)
        starts = np.arange(len(tensor)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.stack([tensor, starts, sizes[tensor]], 1).reshape(-1)

    return _resident((block, shapes), device, build)


_tables: dict = {}                                                       # (key, device, stream) -> int64 tensor, the least used first
_aside: dict = {}                                                        # device index -> the stream that uploads while another is captured
_prepared: dict = {}                                                     # what launch_rows found out for rows that it has met
_PLAIN = {bool, int, float, str, type(None)}
KEPT = 64
driver.watchers += _tables.clear, _aside.clear
driver.call_tables.append(_prepared)


def _resident(key, device, build):
    """Integers in device memory, uploaded when they are asked for the first time.

    The key determines them, so what is found is right, however tensors have moved.
    """
    stream = current_handle(device.index)
    if is_capturing(device.index, stream):
        return _uploaded_aside(build(), device)
    where = key, device, stream
    found = _tables.pop(where, None)
    if found is None:
        found = _uploaded(build(), device, pinned=watched.watcher is not None)
    while len(_tables) >= KEPT:
        _tables.pop(next(iter(_tables)), None)
    _tables[where] = found
    return found


def _uploaded(values, device, pinned):
    values = np.asarray(values, np.int64)
    if pinned:
        values, source = memory.pinned_empty(values.nbytes).view(np.int64), values
        values[:] = source
    found = empty((len(values),), int64, device)
    memory.upload(values, found.data_ptr(), device.index, memory.pinned_owner(values))
    return found


def _uploaded_aside(values, device):
    """Integers that a CUDA graph reads: uploaded now, on a stream that is not captured, so that no replay does it again."""
    aside = _aside.get(device.index) or _aside.setdefault(device.index, OnlyStream(device.index, priority=-1))
    with aside:
        found = _uploaded(values, device, pinned=True)
        driver.current().stream_synchronize(aside.handle)
    captures[device.index].keep(found.storage.owner)
    return found
