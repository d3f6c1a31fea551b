"""What a collective with `async_op=True` returns: `Work`."""
import threading

from tritorch.distributed.failures import DistBackendError, seconds
from tritorch.errors import check, sentence
from tritorch.futures import Future


class Work:
    """A collective that may still be under way. Its tensors must not be used before `wait()` has returned.

    Backends of one's own may make subclasses, which give `wait` and `get_future`.
    """

    def __init__(self, name="Work", result=None):
        self._name, self._tensors, self._future, self._source = name, result, Future(), None
        self._worker = None                                              # the thread that does it

    def wait(self, timeout=None):
        """Wait until it is done, and return True; after `timeout` (a timedelta; none or 0: that of the group) raise DistBackendError.

        Raises what the collective failed with.
        """
        patience = seconds(self._name, timeout) or None
        check(self._future.done() or threading.current_thread() is not self._worker, self._name, "a wait in a thread of the program",
              "one in a callback, where collectives cannot go on", use="async_op=True and then()")
        if not self._future._settled(patience):
            raise DistBackendError(sentence(self._name, f"an end within {patience:.3g} s", "a timeout"))
        self._future.value()
        return True

    synchronize = wait

    def is_completed(self):
        """Whether it is over, well or not."""
        return self._future.done()

    def is_success(self):
        """Whether it has gone well."""
        return self._future.done() and self._future._error is None

    def exception(self):
        """What it failed with, or None."""
        return self._future._error

    def result(self):
        """The tensors that were received."""
        return self._tensors or []

    def source_rank(self):
        """The rank in the group that a message came from. RuntimeError where it is no message that was received."""
        check(self._source is not None, "source_rank", "the Work of a recv", self._name)
        return self._source

    _source_rank = source_rank

    def get_future(self):
        """A Future of the tensors that are received."""
        return self._future

    def finish(self, error=None):
        """For backends: it is done, or failed."""
        if error is None:
            self._future.set_result(self._tensors)
        else:
            self._future.set_exception(error)


def finished(result=None):
    """A Work that is done."""
    work = Work(result=result)
    work.finish()
    return work
