"""Values that come later: `Future`, and waiting for several.

>>> import tritorch as torch
>>> total = torch.futures.Future()
>>> doubled = total.then(lambda f: 2 * f.value())
>>> total.set_result(21)
>>> doubled.wait()
42
"""
import threading
import types

from tritorch.errors import check

__all__ = ["Future", "collect_all", "wait_all"]


class Future:
    """A value that some other thread sets, once. Functions that wait for it run in that thread, or at once when it is there."""

    __class_getitem__ = classmethod(types.GenericAlias)                  # Future[Tensor], for those who write types

    def __init__(self, *, devices=None):
        self._set, self._value, self._error, self._callbacks, self._lock = False, None, None, [], threading.Lock()
        self._event = None

    def done(self):
        """Whether there is a value, or an error."""
        return self._set

    def wait(self):
        """The value, waiting for it. Raises the error that was set in its place."""
        self._settled(None)
        return self.value()

    def _settled(self, timeout):
        """Wait so many seconds (None: for ever) and say whether it is done."""
        if not self._set:
            with self._lock:
                if self._event is None:
                    self._event = threading.Event()
            if not self._set:                                            # who sets looks at the event after that
                self._event.wait(timeout)
        return self._set

    def value(self):
        """The value, which has to be there."""
        check(self._set, "value", "a future that is done", "one that is not", use="wait()")
        if self._error is not None:
            raise self._error
        return self._value

    def then(self, callback):
        """A future of what `callback(self)` returns, or of the error that it raises, once this one is done."""
        out = Future()

        def settle(_):
            try:
                result = callback(self)
            except Exception as error:
                out.set_exception(error)
            else:
                out.set_result(result)

        self._when_done(settle)
        return out

    def add_done_callback(self, callback):
        """Call `callback(self)` once this one is done; what it returns or raises is dropped."""
        self.then(callback)

    def set_result(self, result):
        """Give the value. RuntimeError where there is one."""
        self._settle(result, None)

    def set_exception(self, result):
        """Give an error, which `wait` and `value` raise."""
        check(isinstance(result, Exception), "set_exception", "an Exception", type(result).__name__, error=AssertionError)
        self._settle(None, result)

    def _settle(self, value, error):
        with self._lock:
            check(not self._set, "set_result", "a future without a value", "one that is done")
            self._value, self._error, self._set = value, error, True
            callbacks, self._callbacks, event = self._callbacks, [], self._event
        if event is not None:
            event.set()
        for callback in callbacks:
            callback(self)

    def _when_done(self, callback):
        with self._lock:
            if not self._set:
                self._callbacks.append(callback)
                return
        callback(self)


def collect_all(futures):
    """A future of the list of these futures, done when the last of them is, or failed with the first that has failed.

    >>> import tritorch as torch
    >>> a, b = torch.futures.Future(), torch.futures.Future()
    >>> both = torch.futures.collect_all([a, b])
    >>> a.set_result(1); b.set_result(2)
    >>> [f.value() for f in both.wait()]
    [1, 2]
    """
    futures, lock, out = list(futures), threading.Lock(), Future()
    left = [len(futures)]

    def one(future):
        with lock:
            left[0] -= 1
            failed = future._error is not None and left[0] >= 0
            last = not left[0]
            if failed:
                left[0] = -1                                             # it is told once
        if failed:
            out.set_exception(future._error)
        elif last:
            out.set_result(futures)

    if not futures:
        out.set_result(futures)
    for future in futures:
        future._when_done(one)
    return out


def wait_all(futures):
    """The values of these futures, waiting for all; the first error is raised."""
    return [future.wait() for future in collect_all(futures).wait()]
