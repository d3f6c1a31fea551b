"""Memory that several processes map: a file without a name whose descriptor is passed on, or one with a name and a count of who has it."""
import contextlib
import ctypes
import functools
import glob
import hashlib
import mmap
import os
import secrets
import sys
import tempfile
from multiprocessing import parent_process, process, reduction, resource_tracker, util

from tritorch.errors import check, sentence

HEADER = 64                                                              # bytes before the memory of a file with a name: its count
FOLDER = "/dev/shm"


class Segment:
    """All of a file, mapped; its memory, from `start` on, begins at `address`. `np.asarray(segment)` shows it, and with the last array over
    it it is unmapped. (Python's own maps keep a descriptor open each.)"""

    def __init__(self, fd, start=0):
        self.size = os.fstat(fd).st_size
        self.mapped = _libc().mmap(None, self.size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if self.mapped in (None, ctypes.c_void_p(-1).value):
            self.mapped = None
            raise OSError(ctypes.get_errno(), f"mmap: {os.strerror(ctypes.get_errno())}")
        self.address = self.mapped + start
        self.__array_interface__ = {"data": (self.address, False), "shape": (self.size - start,), "typestr": "|u1", "version": 3}

    def __del__(self):
        if self.mapped:
            _libc().munmap(self.mapped, self.size)


@functools.cache
def _libc():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong
    libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
    return libc


class Unnamed(Segment):
    """A file without a name. Each process that maps it has one descriptor open; the memory goes with the last of them, come what may."""

    def __init__(self, fd):
        self.fd, found = fd, os.fstat(fd)
        self.identity = found.st_dev, found.st_ino
        super().__init__(fd)

    def __del__(self):
        super().__del__()
        os.close(self.fd)

    @classmethod
    def create(cls, nbytes):
        fd = os.memfd_create("tritorch") if hasattr(os, "memfd_create") else _temporary()
        return cls(_reserve(fd, nbytes))

    def sent(self):
        """What another process needs to map it, while this one lives."""
        return _of_descriptor, reduction.DupFd(self.fd)


class Named(Segment):
    """A file in /dev/shm, open nowhere. Its first bytes count the processes that map it and the messages that are on their way with it;
    who takes the last away removes the file. What killed processes leave is swept up at the end of the one that started them all."""

    def __init__(self, path):
        fd = os.open(path, os.O_RDWR)
        try:
            super().__init__(fd, HEADER)
        finally:
            os.close(fd)
        self.path = self.identity = path
        util.Finalize(self, count, (path, -1), exitpriority=0)

    @classmethod
    def create(cls, nbytes):
        path = f"{_family()}{secrets.token_hex(8)}"
        os.close(_reserve(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), HEADER + nbytes, path))
        resource_tracker.register("/" + os.path.basename(path), "shared_memory")         # should that one be killed, too
        count(path, 1)
        return cls(path)

    def alone(self):
        """Whether no other process has it, and no message."""
        return count(self.path, 0) <= 1

    def sent(self):
        """What another process needs to map it, once."""
        count(self.path, 1)                                              # becomes that of the receiver
        return Named, self.path


def _of_descriptor(sent):
    return Unnamed(sent.detach())


def count(path, change):
    """Change the count of a file, and return it; nobody else does meanwhile. The file goes when nothing is left of it."""
    import fcntl

    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:                                            # swept up after a process that was killed
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        left = int.from_bytes(os.pread(fd, 8, 0), "little") + change
        os.pwrite(fd, left.to_bytes(8, "little"), 0)
        if not left:
            _remove(path)
        return left
    finally:
        os.close(fd)


def _remove(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        resource_tracker.unregister("/" + os.path.basename(path), "shared_memory")


def _family():
    """How the files begin of all processes that come of one: they have its key."""
    return f"{FOLDER}/tritorch_{hashlib.sha256(process.current_process().authkey).hexdigest()[:16]}_"


def _sweep():
    for path in glob.glob(_family() + "*"):
        _remove(path)


def _reserve(fd, nbytes, path=None):
    """Have memory for all of a new file now: a page that is missing later would end the process with SIGBUS."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, max(nbytes, 1))                    # nothing cannot be mapped
        else:
            os.ftruncate(fd, max(nbytes, 1))
    except OSError as error:
        os.close(fd)
        if path:
            os.unlink(path)
        raise RuntimeError(sentence("share_memory_", f"room for {nbytes} bytes of shared memory", error)) from None
    return fd


def _temporary():
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


STRATEGIES = {"file_descriptor": Unnamed, **({"file_system": Named} if os.path.isdir(FOLDER) and sys.platform == "linux" else {})}
_strategy = "file_descriptor"


def get_all_sharing_strategies():
    """The names of the ways in which memory can be shared here.

    >>> import tritorch as torch
    >>> "file_descriptor" in torch.multiprocessing.get_all_sharing_strategies()
    True
    """
    return set(STRATEGIES)


def get_sharing_strategy():
    """The way in which memory is shared from now on.

    >>> import tritorch as torch
    >>> torch.multiprocessing.get_sharing_strategy()
    'file_descriptor'
    """
    return _strategy


def set_sharing_strategy(new_strategy):
    """Choose how memory is shared from now on, in this process and those that are forked from it.

    "file_descriptor": every piece of memory is one open descriptor in each process that has it (`ulimit -n` says how many there may be),
    and who sends it has to live until it has arrived. "file_system" (Linux): a file in /dev/shm, which has to be large enough. Raises
    ValueError for another name.
    """
    global _strategy
    check(new_strategy in STRATEGIES, "set_sharing_strategy", f"one of {sorted(STRATEGIES)}", repr(new_strategy), error=ValueError)
    if new_strategy == "file_system":
        resource_tracker.ensure_running()                                # one for all processes that come of this one
        if parent_process() is None:
            util.Finalize(None, _sweep, exitpriority=-100)               # when those that it started have ended
    _strategy = new_strategy


def create(nbytes):
    """New shared memory, by the strategy that is set. Raises RuntimeError where there is no room."""
    return STRATEGIES[_strategy].create(nbytes)
