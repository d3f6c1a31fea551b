"""What the source files of kernels say, kept on disk, so that nobody takes them apart again while they stay as they are.

Triton cuts every kernel out of its file by Python's tokenizer, 1 ms a kernel, 574 of them up to a step of GPT-2; and to know whether a
kernel has changed it parses it and all that it calls. What comes out depends on nothing but the text and on who reads it: a note on a
file is kept under a hash over its text and Python's version, so that an edit, however small, has a name of its own and no note is ever
out of date. A note that is damaged is none. Importing this file does not import triton.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import json
import linecache
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tritorch.cuda.cache import cache_folder, write_atomically
from tritorch.cuda.own_kernels import PRIVATE, PUBLIC

_FORMAT = 1                         # of the notes; raise it when Note changes
_PACKAGES = ("triton", PUBLIC, PRIVATE)
_lock = threading.RLock()
_notes: dict[str, Note] = {}        # by the names of source files
_cutting = 0                        # imports under way
_cut_by_python = inspect.getsourcelines


class Note:
    """On one text: `places`, {first line of a function's code: (first line of its source, number of lines)}, and `names`, what functions
    take from outside by a hash over their source (`compiler_keys`)."""

    def __init__(self, text: list[str]):
        self.text, self.changed = text, False
        whole = f"{_FORMAT} {sys.version} {''.join(text)}"
        self.name = f"{hashlib.sha256(whole.encode()).hexdigest()}.json"
        self.places, self.names = self.read()

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return cache_folder() / "sources" / self.name

    def read(self) -> tuple[dict[str, list[int]], dict[str, list]]:
        """`places` and `names` as they are on disk."""
        try:
            head, _, rest = self.path.read_bytes().partition(b"\n")
            if head.decode() == hashlib.sha256(rest).hexdigest():
                return tuple(json.loads(rest))
        except (OSError, ValueError):
            pass
        return {}, {}

    def names_of(self, place: str) -> list | None:
        """What is noted of a function's names, by another process meanwhile too."""
        if place not in self.names:
            self.names = {**self.read()[1], **self.names}
        return self.names.get(place)

    def write(self) -> None:
        """Keep it, with what other processes have found meanwhile; of two that write at once one finds its part anew next time."""
        self.changed = False
        places, names = self.read()
        rest = json.dumps([{**places, **self.places}, {**names, **self.names}]).encode()
        with contextlib.suppress(OSError):                       # a read-only home costs time, never a result
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)


def note_on(file: str) -> Note | None:
    """The note on a source file as it was when its functions were made, None where there is no such file."""
    text = linecache.getlines(file)
    if not text:
        return None
    with _lock:
        note = _notes.get(file)
        if note is None or note.text is not text:
            note = _notes[file] = Note(text)
        return note


def keep_changes() -> None:
    """Write the notes that say more than before."""
    with _lock:
        for note in list(_notes.values()):
            if note.changed:
                note.write()


def load(module: str) -> ModuleType:
    """Import a module of kernels: they are cut out of their files where the last import of this text found them."""
    if module in sys.modules:
        return importlib.import_module(module)
    with _cut_by_notes():
        return importlib.import_module(module)


@contextlib.contextmanager
def _cut_by_notes() -> Iterator[None]:
    """Inside, Triton asks us; others who call inspect.getsourcelines meanwhile get Python's answer."""
    global _cutting
    with _lock:
        if not _cutting:
            linecache.checkcache()
            inspect.getsourcelines = _cut
        _cutting += 1
    try:
        yield
    finally:
        with _lock:
            _cutting -= 1
            if not _cutting:
                inspect.getsourcelines = _cut_by_python
                keep_changes()


def _cut(value: Any) -> tuple[list[str], int]:
    ours = type(value) is FunctionType and (value.__module__ or "").partition(".")[0] in _PACKAGES and not hasattr(value, "__wrapped__")
    note = note_on(value.__code__.co_filename) if ours else None
    if note is None:
        return _cut_by_python(value)
    place = note.places.get(str(value.__code__.co_firstlineno))
    if place is None:
        lines, first = _cut_by_python(value)
        if note.text[first - 1:first - 1 + len(lines)] == lines:         # it has read the same text
            note.places[str(value.__code__.co_firstlineno)], note.changed = [first, len(lines)], True
        return lines, first
    first, count = place
    return note.text[first - 1:first - 1 + count], first
