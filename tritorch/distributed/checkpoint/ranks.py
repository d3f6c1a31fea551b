"""The processes that save or load together, and what becomes of the errors of one of them."""
import contextlib
import pickle
import time
import traceback
import warnings

from tritorch import distributed as dist
from tritorch.autograd.places import stacklevel
from tritorch.errors import check


class CheckpointException(BaseException):
    """Some ranks could not save or load: `failures` has (error, where it was raised) by rank. All ranks raise it."""

    def __init__(self, msg, failures):
        super().__init__(msg, failures)
        self._failures = failures

    @property
    def failures(self):
        """{rank: (error, stack)}."""
        return self._failures

    def __str__(self):
        lines = [f"{self.args[0]}: CheckpointException ranks:{list(self._failures)}"]
        for rank, (error, stack) in self._failures.items():
            lines.append(f"(rank {rank}) " + "".join(traceback.format_list(stack)[-1:] + traceback.format_exception_only(error)).strip())
        return "\n".join(lines)


class Ranks:
    """The processes of a group, or this one alone."""

    def __init__(self, name, process_group=None, no_dist=False):
        self.name, self.group = name, None
        if no_dist or not dist.is_initialized():
            if not no_dist:
                warnings.warn(f"{name}: there is no process group, so this process does it alone", stacklevel=stacklevel())
            self.rank, self.size = 0, 1
            return
        self.group = dist.group.WORLD if process_group is None else process_group
        self.rank, self.size = self.group.rank(), self.group.size()

    def gathered(self, call):
        """[call() of each rank]. CheckpointException on all ranks if one of them fails."""
        mine = _result(call)
        found = [mine]
        if self.size > 1:
            found = [None] * self.size
            dist.all_gather_object(found, mine, group=self.group)
        return self._checked(found)

    def _checked(self, found):
        failures = {r: value for r, (good, value) in enumerate(found) if not good}
        if failures:
            raise CheckpointException(self.name, failures)
        return [value for _, value in found]

    def agreed(self, call, key):
        """As `gathered`, through the group's store instead of collectives: in a thread beside the program, whose collectives go on."""
        mine = _result(call)
        if self.size == 1:
            return self._checked([mine])
        store, keys = self.group.get_group_store(), [f"{key}/{r}" for r in range(self.size)]
        store.set(keys[self.rank], pickle.dumps(mine))
        until = time.monotonic() + self.group._timeout.total_seconds()
        while not store.check(keys):
            check(time.monotonic() < until, self.name, "all ranks to write their files in time", "a timeout")
            time.sleep(0.01)
        found = [pickle.loads(store.get(k)) for k in keys]
        if store.add(f"{key}/read", 1) == self.size:
            for k in (*keys, f"{key}/read"):
                with contextlib.suppress(Exception):                     # some stores keep all that they got
                    store.delete_key(k)
        return self._checked(found)


def _result(call):
    try:
        return True, call()
    except Exception as error:
        stack = traceback.extract_tb(error.__traceback__)
        with contextlib.suppress(Exception):
            pickle.dumps(error)
            return False, (error, stack)
        return False, (RuntimeError(f"{type(error).__name__}: {error}"), stack)
