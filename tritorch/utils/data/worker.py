"""Worker processes of DataLoader, and how batches come from them: through shared memory, without a copy on arrival.

A worker has one pipe to the parent: tasks go in, headers of results come out. What is in a result lies in a block of shared
memory that the parent unlinks as soon as it is mapped, so that it goes with the last tensor over it. Headers are short: neither
side ever waits to write. A worker leaves when its parent is gone.
"""
import dataclasses
import os
import pickle
import random
import signal
import traceback
import warnings
from multiprocessing import connection, parent_process, resource_tracker
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from tritorch.errors import check
from tritorch.random import manual_seed
from tritorch.tensor import Tensor

INLINE = 1 << 12                                                         # bytes of a result that go through the pipe
PATIENCE = 2.0                                                           # seconds between two looks at whether the parent lives


# ------------------------------------------------------------------ in a worker
@dataclasses.dataclass
class WorkerInfo:
    """Who this worker is: number `id` of `num_workers`, its random `seed`, its copy of the `dataset`."""

    id: int
    num_workers: int
    seed: int
    dataset: object


_info = None


def get_worker_info():
    """The WorkerInfo of this process, None in the main process.

    >>> import tritorch as torch; torch.utils.data.get_worker_info()
    """
    return _info


class Failure:
    """An exception of a worker on its way to the parent, with its traceback as text."""

    def __init__(self, error, where):
        self.kind, self.text = type(error), f"Caught {type(error).__name__} {where}.\nOriginal {traceback.format_exc()}"

    def __reduce__(self):
        try:
            pickle.loads(pickle.dumps(self.kind))
        except Exception:                                                # a class that the parent does not know
            self.kind = RuntimeError
        return _failure, (self.kind, self.text)

    def throw(self):
        """Raise the exception here."""
        if self.kind is KeyError:
            raise KeyError(_Text(self.text))
        try:
            error = self.kind(self.text)
        except Exception:                                                # a class that is not made from one string
            error = RuntimeError(self.text)
        raise error


class _Text(str):
    """KeyError shows the repr of its argument: here the lines as they are."""

    def __repr__(self):
        return str(self)


def _failure(kind, text):
    out = Failure.__new__(Failure)
    out.kind, out.text = kind, text
    return out


class Exhausted:
    """The result of a worker whose IterableDataset has come to its end."""


def work(pipe, make_fetch, dataset, init, number, count, seed):
    """The main function of a worker. Tasks are (name, indices), or ("epoch", seed) to start over, or None to end."""
    global _info
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)                         # Ctrl-C is the parent's: it ends the workers
    _hold_interrupts(False)
    try:
        trouble, fetch = None, None
        try:
            _info = WorkerInfo(number, count, seed, dataset)
            _seed(seed)
            if init is not None:
                init(number)
            fetch = make_fetch(dataset)
        except Exception as error:
            trouble = Failure(error, f"in DataLoader worker process {number}")
        while (task := _next_task(pipe, parent)) is not None:
            name, indices = task
            if name == "epoch":
                _info.seed = indices
                fetch = make_fetch(dataset)
                continue
            try:
                result = trouble or fetch(indices)
            except StopIteration:
                result = Exhausted()
            except Exception as error:
                result = Failure(error, f"in DataLoader worker process {number}")
            pipe.send_bytes(_packed(name, result, number))
            result = None
    except (EOFError, BrokenPipeError, ConnectionResetError):            # the parent is gone
        pass


def _hold_interrupts(held):
    """Let Ctrl-C wait, in this thread and in the processes that it starts."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK if held else signal.SIG_UNBLOCK, [signal.SIGINT])


def _seed(seed):
    random.seed(seed)
    manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def _next_task(pipe, parent):
    while not connection.wait([pipe, parent_process().sentinel], PATIENCE):
        if os.getppid() != parent:
            return None
    return pipe.recv() if pipe.poll() else None                          # nothing to read: it was the parent's end that woke us


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj):
        """A tensor takes along its own elements, not all that share its memory."""
        if isinstance(obj, Tensor) and obj.storage.nbytes > obj.nbytes:
            return obj.detach().clone().requires_grad_(obj.requires_grad).__reduce_ex__(5)
        return NotImplemented


class _Sink:
    """Collects what a pickler writes."""

    def __init__(self):
        self.parts = []

    def write(self, data):
        self.parts.append(bytes(data))


def _packed(name, result, number):
    """The header of a result, whose memory is shared with the parent if it is large."""
    try:
        sink, buffers = _Sink(), []
        _Pickler(sink, 5, buffer_callback=buffers.append).dump((name, result))
        pieces = [b"".join(sink.parts), *[b.raw() for b in buffers]]
    except Exception as error:
        pieces = [pickle.dumps((name, Failure(error, f"when DataLoader worker process {number} sent a batch")))]
    sizes = [len(p) for p in pieces]
    if sum(sizes) <= INLINE:
        return pickle.dumps((None, sizes, b"".join(pieces)))
    block = SharedMemory(create=True, size=int(_places(sizes)[-1]))
    for piece, start in zip(pieces, _places(sizes)):
        block.buf[start:start + len(piece)] = piece
    block.close()
    return pickle.dumps((block.name, sizes, None))


def _places(sizes):
    """Where in a block the pieces begin, on cache lines, and where it ends."""
    return np.cumsum([0, *[-(-n // 64) * 64 for n in sizes]]).tolist()


# ------------------------------------------------------------------ in the parent
class _Mapping:
    """Shared memory that arrays look at. When the last of them dies it is unmapped; its name is gone from the start."""

    def __init__(self, name):
        self.block = SharedMemory(name=name)
        self.block.unlink()
        array = np.frombuffer(self.block.buf, np.uint8)
        self.__array_interface__ = {**array.__array_interface__, "version": 3}

    def __del__(self):
        self.block.close()


def _unpacked(header):
    """(name, result) of a header."""
    shared, sizes, inline = pickle.loads(header)
    if shared is None:
        whole, places = np.frombuffer(bytearray(inline), np.uint8), np.cumsum([0, *sizes]).tolist()
    else:
        whole, places = np.asarray(_Mapping(shared)), _places(sizes)
    pieces = [whole[start:start + n] for start, n in zip(places, sizes)]
    return pickle.loads(memoryview(pieces[0]), buffers=pieces[1:])


def _start(process, context):
    try:
        process.start()
    except (TypeError, AttributeError, pickle.PicklingError):
        warnings.warn(f"DataLoader: expected a dataset, collate_fn and worker_init_fn that can be pickled, as the start method "
                      f"{context.get_start_method()!r} asks for (Python's default: on Linux 'forkserver' since 3.14, and 'fork' before); "
                      f"define them at the top of a module, or use multiprocessing_context='fork'", stacklevel=5)
        raise


class Workers:
    """The processes of one DataLoader: `submit` a task to one of them, `receive` the next result of any."""

    def __init__(self, context, count, make_fetch, dataset, init, seed):
        resource_tracker.ensure_running()                                # before they start: parent and workers keep one account
        if context.get_start_method() == "forkserver":
            from multiprocessing import forkserver
            forkserver.ensure_running()                                  # it forks for others too, whom Ctrl-C shall reach
        self.pipes, self.processes = [], []
        _hold_interrupts(True)                                           # until the workers ignore them
        try:
            for k in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=work, args=(theirs, make_fetch, dataset, init, k, count, seed + k), daemon=True)
                _start(process, context)
                theirs.close()
                self.pipes.append(ours)
                self.processes.append(process)
        except BaseException:
            self.close()
            raise
        finally:
            _hold_interrupts(False)

    def submit(self, k, task):
        """Give worker k (name, indices) to fetch."""
        try:
            self.pipes[k].send(task)
        except (BrokenPipeError, ConnectionResetError):
            self._died(k)

    def receive(self, timeout=None):
        """[(worker, name, result)] of what has come, at least one; [] after `timeout` seconds without."""
        sentinels = [p.sentinel for p in self.processes]
        ready = connection.wait([*self.pipes, *sentinels], timeout)
        out = []
        for k, pipe in enumerate(self.pipes):
            if pipe in ready:
                try:
                    out.append((k, *_unpacked(pipe.recv_bytes())))
                except (EOFError, ConnectionResetError):
                    self._died(k)
        if ready and not out:
            self._died(next(k for k, s in enumerate(sentinels) if s in ready))
        return out

    def _died(self, k):
        process = self.processes[k]
        process.join(1)
        code = process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        check(False, "DataLoader", f"worker {k} to live", f"its end (pid {process.pid}, {how})",
              use="more shared memory (docker: --shm-size) or fewer workers" if how == "signal SIGBUS" else None)

    def close(self):
        """End the processes and let go of what they have sent."""
        for pipe in self.pipes:
            try:
                pipe.send(None)
            except OSError:
                pass
        for pipe, process in zip(self.pipes, self.processes):
            process.join(0.5)
            if process.is_alive():
                process.terminate()
                process.join()
            try:
                while pipe.poll():
                    _unpacked(pipe.recv_bytes())
            except (EOFError, OSError):
                pass
            pipe.close()
        self.pipes, self.processes = [], []
