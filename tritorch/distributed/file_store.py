"""FileStore: a table as the log of commands in a file, which each process follows."""
import os
import threading
import time

from tritorch.distributed.failures import DistStoreError
from tritorch.distributed.stores import CHECK, WRITES, YES, Store, Table, answered, missed
from tritorch.distributed.wire import Messages, packed
from tritorch.errors import sentence

NAP = 0.01                                                               # seconds between two looks at the file


class FileStore(Store):
    """A store in a file that all processes can write (a local one, or a network's with locks): the log of what was done to it.

    It goes when `world_size` processes have let go of it (-1: never).
    """

    def __init__(self, file_name, world_size=-1):
        self.path, self._size, self._table, self._log, self._read = os.fspath(file_name), world_size, Table(), Messages(), 0
        self._alone, self._fd, self._process = threading.Lock(), None, os.getpid()
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise DistStoreError(sentence("FileStore", f"a file at {self.path}", error)) from None

    def _call(self, command, fields):
        import fcntl

        with self._alone:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                self._follow()
                answer = answered(self._table, command, fields)
                if command in WRITES:
                    entry = packed(command, fields)
                    self._read += len(entry)
                    while entry:
                        entry = entry[os.write(self._fd, entry):]
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        return answer

    def _follow(self):
        while piece := os.pread(self._fd, 1 << 20, self._read):
            self._read += len(piece)
            self._log.bytes += piece
        while (entry := self._log.next()) is not None:
            answered(self._table, *entry)

    def _wait(self, keys, patience):
        until = time.monotonic() + patience
        while self._call(CHECK, keys)[0] != YES:
            if time.monotonic() >= until:
                raise missed("FileStore", keys, patience)
            time.sleep(NAP)

    def num_keys(self):
        """How many keys there are."""
        return len(self.list_keys())

    def _close(self, linger=0.0):
        if self._fd is not None:
            mine = self._process == os.getpid()                          # and not that of a process that was forked from this one
            if mine and self.add("\0gone", 1) == self._size and os.path.exists(self.path):
                os.unlink(self.path)
            os.close(self._fd)
            self._fd = None

    def list_keys(self):
        """All keys."""
        return [key for key in super().list_keys() if key[:1] != "\0"]

    def __del__(self):
        try:
            self._close()
        except Exception:                                                # the folder may be gone, or Python about to be
            pass
