"""Stores: small values by name, which all processes see. Every process asks; one answers, or a file does.

A store is a `Table`, whose commands take and give byte strings, somewhere: in this process (HashStore), as a log of commands in a file that
each process follows (FileStore, in `file_store`), in a server (TCPStore, in `tcp_store`).
"""
import datetime
import threading
import time

from tritorch.distributed.failures import DistStoreError, QueueEmptyError, seconds
from tritorch.errors import check, sentence

(SET, ADD, COMPARE_SET, DELETE, APPEND, PUSH, POP, READ, CHECK, COUNT, KEYS, LENGTH) = range(12)
WRITES = range(SET, READ)                                                # commands that change the table
YES, NO = b"1", b"0"


class Table:
    """Values and queues by key, and the commands on them: lists of byte strings in and out."""

    def __init__(self):
        self.values, self.queues = {}, {}
        self.commands = {SET: self._set, ADD: self._add, COMPARE_SET: self._compare_set, DELETE: self._delete, APPEND: self._append,
                         PUSH: self._push, POP: self._pop, READ: self._read, CHECK: self._check, COUNT: self._count, KEYS: self._keys,
                         LENGTH: self._length}

    def run(self, command, fields):
        """The answer to a command. ValueError, KeyError or IndexError where the fields do not suit it: nothing is changed then."""
        return self.commands[command](*fields)

    def has(self, keys):
        """Whether there is something under each of these keys."""
        return all(key in self.values or key in self.queues for key in keys)

    def _set(self, *pairs):
        check(len(pairs) % 2 == 0, "set", "as many values as keys", len(pairs), error=ValueError)
        self.values.update(zip(pairs[::2], pairs[1::2]))
        return []

    def _add(self, key, amount):
        self.values[key] = b"%d" % (int(self.values.get(key, b"0")) + int(amount))
        return [self.values[key]]

    def _compare_set(self, key, expected, desired):
        found = self.values.get(key)
        if found is None and expected:
            return [expected]
        if found is None or found == expected:
            self.values[key] = found = desired
        return [found]

    def _delete(self, key):
        return [NO if self.values.pop(key, None) is None else YES]

    def _append(self, key, value):
        self.values[key] = self.values.get(key, b"") + value
        return []

    def _push(self, key, value):
        self.queues.setdefault(key, []).append(value)
        return []

    def _pop(self, key):
        if key not in self.queues:
            return []
        first = self.queues[key].pop(0)
        if not self.queues[key]:
            del self.queues[key]
        return [first]

    def _read(self, *keys):
        return [self.values[key] for key in keys]

    def _check(self, *keys):
        return [YES if self.has(keys) else NO]

    def _count(self):
        return [b"%d" % len(self.values)]

    def _keys(self):
        return list(self.values)

    def _length(self, key):
        return [b"%d" % len(self.queues.get(key, ()))]


def encoded(name, value):
    """The bytes of a key or value: a str or bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    check(isinstance(value, (bytes, bytearray, memoryview)), name, "str or bytes", type(value).__name__, error=TypeError)
    return bytes(value)


def missed(name, keys, patience):
    """The error of who has waited in vain."""
    names = ", ".join(key.decode("utf-8", "replace") for key in keys)
    return DistStoreError(sentence(name, f"the keys {names} within {patience:.3g} s", "a timeout"))


class Store:
    """What all stores can do. A store of one's own gives `_call(command, fields)` and `_wait(keys, seconds)`, or these methods."""

    _patience = 300.0

    # -------------------------------------------------------------- of one value
    def set(self, key, value):
        """Put a value (str or bytes) under a key."""
        self._call(SET, [self._key("set", key), encoded("set", value)])

    def get(self, key):
        """The bytes under a key; waits until there are some. Raises DistStoreError after `timeout`."""
        return self.multi_get([key])[0]

    def add(self, key, amount):
        """Add a whole number to the counter under a key, which begins at 0, and return it."""
        check(hasattr(type(amount), "__index__"), "add", "a whole number", type(amount).__name__, error=TypeError)
        return int(self._call(ADD, [self._key("add", key), b"%d" % amount])[0])

    def compare_set(self, key, expected_value, desired_value):
        """Put `desired_value` under a key if `expected_value` is there, or nothing is and "" was expected. Returns what is there
        afterwards, or `expected_value` if nothing is."""
        return self._call(COMPARE_SET, [self._key("compare_set", key), encoded("compare_set", expected_value),
                                        encoded("compare_set", desired_value)])[0]

    def append(self, key, value):
        """Add bytes to the end of what is under a key."""
        self._call(APPEND, [self._key("append", key), encoded("append", value)])

    def delete_key(self, key):
        """Remove a key. Whether it was there."""
        return self._call(DELETE, [self._key("delete_key", key)])[0] == YES

    # -------------------------------------------------------------- of several
    def check(self, keys):
        """Whether there is something under each key."""
        return self._call(CHECK, self._several("check", keys))[0] == YES

    def wait(self, keys, timeout=None):
        """Wait until there is something under each key. Raises DistStoreError after `timeout` (that of the store)."""
        self._wait(self._several("wait", keys), seconds("wait", timeout, self._patience))

    def multi_get(self, keys):
        """The values under some keys, waiting for them."""
        names = self._several("get", keys)
        self._wait(names, self._patience)
        return self._call(READ, names)

    def multi_set(self, keys, values):
        """Put values under as many keys, all at once."""
        check(len(keys) == len(values), "multi_set", "as many values as keys", f"{len(keys)} keys, {len(values)} values",
              error=DistStoreError)
        self._call(SET, [x for key, value in zip(keys, values) for x in (self._key("multi_set", key), encoded("multi_set", value))])

    def num_keys(self):
        """How many keys there are."""
        return int(self._call(COUNT, [])[0])

    def list_keys(self):
        """All keys."""
        return [key.decode("utf-8", "surrogateescape") for key in self._call(KEYS, [])]

    # -------------------------------------------------------------- queues
    def queue_push(self, key, value):
        """Put a value at the end of the queue of that name."""
        self._call(PUSH, [self._key("queue_push", key), encoded("queue_push", value)])

    def queue_pop(self, key, block=True):
        """Take the first value of a queue; wait for one, or raise QueueEmptyError with block=False."""
        name, until = self._key("queue_pop", key), time.monotonic() + self._patience
        while not (found := self._call(POP, [name])):
            if not block:
                raise QueueEmptyError(sentence("queue_pop", "a value in the queue", "none"))
            self._wait([name], max(until - time.monotonic(), 0))         # another one may be faster
        return found[0]

    def queue_len(self, key):
        """How many values are in a queue."""
        return int(self._call(LENGTH, [self._key("queue_len", key)])[0])

    # -------------------------------------------------------------- all together
    def barrier(self, key, world_size, timeout=None):
        """Wait until `world_size` processes have called this with the same key."""
        if self.add(f"{key}/come", 1) == world_size:
            self.set(f"{key}/all", "1")
        self.wait([f"{key}/all"], timeout)

    def set_timeout(self, timeout):
        """How long to wait for keys (a timedelta)."""
        self._patience = seconds("set_timeout", timeout, self._patience)

    @property
    def timeout(self):
        """How long one waits for keys, a timedelta."""
        return datetime.timedelta(seconds=self._patience)

    def has_extended_api(self):
        """Whether append, multi_get and multi_set are there: they are."""
        return True

    def clone(self):
        """The same store by another connection, where it has one."""
        return self

    def _key(self, name, key):
        check(isinstance(key, str), name, "a str as key", type(key).__name__, error=TypeError)
        return encoded(name, key)

    def _several(self, name, keys):
        return [self._key(name, key) for key in _listed(name, keys)]

    def _call(self, command, fields):
        raise NotImplementedError(sentence(type(self).__name__, "a store that answers", "Store itself", use="TCPStore or HashStore"))

    _wait = _call


def answered(table, command, fields):
    """The answer of a table; DistStoreError for what it cannot do."""
    try:
        return table.run(command, fields)
    except (ValueError, KeyError, TypeError) as error:
        raise DistStoreError(sentence("Store", "a command that suits what is there", repr(error))) from None


class HashStore(Store):
    """A store for the threads of this process.

    >>> from tritorch import distributed as dist
    >>> store = dist.HashStore()
    >>> store.set("step", "7")
    >>> store.get("step"), store.add("step", 1), store.num_keys()
    (b'7', 8, 1)
    """

    def __init__(self):
        self._table, self._changed = Table(), threading.Condition()

    def _call(self, command, fields):
        with self._changed:
            answer = answered(self._table, command, fields)
            self._changed.notify_all()
        return answer

    def _wait(self, keys, patience):
        with self._changed:
            if not self._changed.wait_for(lambda: self._table.has(keys), patience):
                raise missed("HashStore", keys, patience)


class PrefixStore(Store):
    """A part of another store, whose keys begin with `prefix`."""

    def __init__(self, prefix, store):
        check(isinstance(prefix, str), "PrefixStore", "a str as prefix", type(prefix).__name__, error=TypeError)
        check(isinstance(store, Store), "PrefixStore", "a Store", type(store).__name__, error=TypeError)
        self.prefix, self.underlying_store = prefix, store

    def _named(self, key):
        return f"{self.prefix}/{key}" if isinstance(key, str) else key   # what is no str is refused there

    def set(self, key, value):
        return self.underlying_store.set(self._named(key), value)

    def get(self, key):
        return self.underlying_store.get(self._named(key))

    def add(self, key, amount):
        return self.underlying_store.add(self._named(key), amount)

    def compare_set(self, key, expected_value, desired_value):
        return self.underlying_store.compare_set(self._named(key), expected_value, desired_value)

    def append(self, key, value):
        return self.underlying_store.append(self._named(key), value)

    def delete_key(self, key):
        return self.underlying_store.delete_key(self._named(key))

    def check(self, keys):
        return self.underlying_store.check([self._named(key) for key in _listed("check", keys)])

    def wait(self, keys, timeout=None):
        names = [self._named(key) for key in _listed("wait", keys)]
        return self.underlying_store.wait(names) if timeout is None else self.underlying_store.wait(names, timeout)

    def multi_get(self, keys):
        return self.underlying_store.multi_get([self._named(key) for key in _listed("multi_get", keys)])

    def multi_set(self, keys, values):
        return self.underlying_store.multi_set([self._named(key) for key in _listed("multi_set", keys)], values)

    def queue_push(self, key, value):
        return self.underlying_store.queue_push(self._named(key), value)

    def queue_pop(self, key, block=True):
        return self.underlying_store.queue_pop(self._named(key), block)

    def queue_len(self, key):
        return self.underlying_store.queue_len(self._named(key))

    def num_keys(self):
        """How many keys there are, in all of the other store."""
        return self.underlying_store.num_keys()

    def list_keys(self):
        """All keys of the other store."""
        return self.underlying_store.list_keys()

    def set_timeout(self, timeout):
        return self.underlying_store.set_timeout(timeout)

    @property
    def timeout(self):
        """How long the other store waits for keys, a timedelta."""
        return self.underlying_store.timeout

    @property
    def _underlying_non_prefix_store(self):
        inner = self.underlying_store
        return inner._underlying_non_prefix_store if isinstance(inner, PrefixStore) else inner

    def clone(self):
        """The same part by another connection, where the store has one."""
        return PrefixStore(self.prefix, self.underlying_store.clone())


def _listed(name, keys):
    check(not isinstance(keys, str), name, "a list of keys", "a str", error=TypeError)
    return keys
