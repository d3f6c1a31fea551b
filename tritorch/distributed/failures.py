"""What goes wrong between processes, and how long one waits for another."""
import datetime

from tritorch.errors import check

default_pg_timeout = datetime.timedelta(minutes=30)


class DistError(RuntimeError):
    """Something between processes failed."""


class DistBackendError(DistError):
    """A collective failed: a rank is gone, late, or called something else."""


class DistStoreError(DistError):
    """A store failed: mostly, a key did not come in time."""


class DistNetworkError(DistError):
    """No connection to a store, or a lost one."""


class QueueEmptyError(DistStoreError):
    """There is nothing in the queue."""


for _error in (DistError, DistBackendError, DistStoreError, DistNetworkError, QueueEmptyError):
    _error.__module__ = "tritorch.distributed"                           # where users find them


def seconds(name, timeout, default=None):
    """The seconds of a timeout: a timedelta, or a number of seconds; None is the `default`."""
    if timeout is None:
        return default
    if isinstance(timeout, datetime.timedelta):
        return timeout.total_seconds()
    check(isinstance(timeout, (int, float)), name, "a datetime.timedelta as timeout", repr(timeout), error=TypeError)
    return float(timeout)


class WrongTensors(RuntimeError, ValueError):
    """Tensors, sizes or ranks that a collective cannot use. PyTorch raises RuntimeError from gloo and ValueError from nccl."""
