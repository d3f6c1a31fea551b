"""The threads that share a grid. Each takes a few neighbouring programs at a time, in their order, until none are left.

They know nothing of Python: waking one by Python's means takes 20 µs, for one after the other. What they do is the text below, compiled
as kernels are. A launch offers tickets; a thread that gets one works, and sleeps (after it has looked for the next one for a while) where
there are none. When the launching thread finds no more programs, it takes back the tickets that nobody wanted and waits for the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import threading
from collections.abc import Callable
from typing import Any

PIECES = 4                          # of a grid for each thread: some take longer than others
_MOST = 256                         # threads
_NEXT, _JOB, _MINE, _SIZE = 128, 256, 312, 384       # bytes of the state: the next piece, the job, what the launching thread did
_TEXT = """
; The state: 0 a number that tells sleepers of news, 64 tickets, 128 the next piece, 192 how many have finished, 196 whether somebody sleeps
; until all have, 256 the job. System call 202 is futex: 128 sleeps while a word is what it was, 129 wakes.
declare void @llvm.x86.sse2.pause()
declare i64 @syscall(i64, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)

define internal i64 @work(ptr %state, i64 %place) {
  %job = getelementptr i8, ptr %state, i64 256
  %arguments_at = getelementptr i64, ptr %job, i64 1
  %scratch_at = getelementptr i64, ptr %job, i64 2
  %step_at = getelementptr i64, ptr %job, i64 3
  %first_at = getelementptr i64, ptr %job, i64 4
  %last_at = getelementptr i64, ptr %job, i64 5
  %piece_at = getelementptr i64, ptr %job, i64 6
  %entry = load ptr, ptr %job, align 8
  %arguments = load ptr, ptr %arguments_at, align 8
  %scratches = load ptr, ptr %scratch_at, align 8
  %step = load i64, ptr %step_at, align 8
  %first = load i64, ptr %first_at, align 8
  %last = load i64, ptr %last_at, align 8
  %piece = load i64, ptr %piece_at, align 8
  %distance = mul i64 %place, %step
  %scratch = getelementptr i8, ptr %scratches, i64 %distance
  %next_at = getelementptr i8, ptr %state, i64 128
  br label %turn
turn:
  %done = phi i64 [ 0, %0 ], [ %more, %take ]
  %number = atomicrmw add ptr %next_at, i64 1 acq_rel, align 8
  %before = mul i64 %number, %piece
  %begin = add i64 %first, %before
  %left = icmp slt i64 %begin, %last
  br i1 %left, label %take, label %end
take:
  %whole = add i64 %begin, %piece
  %short = icmp slt i64 %last, %whole
  %stop = select i1 %short, i64 %last, i64 %whole
  call void %entry(ptr %arguments, ptr %scratch, i64 %begin, i64 %stop)
  %count = sub i64 %stop, %begin
  %more = add i64 %done, %count
  br label %turn
end:
  ret i64 %done
}

define internal i64 @ticket(ptr %state) {
  %at = getelementptr i8, ptr %state, i64 64
  %first = load atomic i64, ptr %at acquire, align 8
  br label %turn
turn:
  %seen = phi i64 [ %first, %0 ], [ %now, %try ]
  %none = icmp eq i64 %seen, 0
  br i1 %none, label %end, label %try
try:
  %less = sub i64 %seen, 1
  %pair = cmpxchg ptr %at, i64 %seen, i64 %less acq_rel acquire, align 8
  %now = extractvalue { i64, i1 } %pair, 0
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %end, label %turn
end:
  %found = phi i64 [ 0, %turn ], [ %seen, %try ]
  ret i64 %found
}

define internal ptr @serve(ptr %state) {
  %finished_at = getelementptr i8, ptr %state, i64 192
  %sleeping_at = getelementptr i8, ptr %state, i64 196
  br label %begin
begin:
  br label %look
look:
  %looks = phi i64 [ 0, %begin ], [ %looks_more, %again ]
  %place = call i64 @ticket(ptr %state)
  %mine = icmp ne i64 %place, 0
  br i1 %mine, label %found, label %none
none:
  %tired = icmp sgt i64 %looks, 1000
  br i1 %tired, label %sleep, label %again
again:
  call void @llvm.x86.sse2.pause()
  %looks_more = add i64 %looks, 1
  br label %look
sleep:
  %generation = load atomic i32, ptr %state seq_cst, align 4
  %last_place = call i64 @ticket(ptr %state)
  %last_mine = icmp ne i64 %last_place, 0
  br i1 %last_mine, label %found, label %wait
wait:
  %waited = call i64 (i64, ...) @syscall(i64 202, ptr %state, i32 128, i32 %generation, ptr null)
  br label %begin
found:
  %my_place = phi i64 [ %place, %look ], [ %last_place, %sleep ]
  %count = call i64 @work(ptr %state, i64 %my_place)
  %finished = atomicrmw add ptr %finished_at, i32 1 seq_cst, align 4
  %sleeping = load atomic i32, ptr %sleeping_at seq_cst, align 4
  %asleep = icmp ne i32 %sleeping, 0
  br i1 %asleep, label %wake, label %begin
wake:
  %woken = call i64 (i64, ...) @syscall(i64 202, ptr %finished_at, i32 129, i32 1)
  br label %begin
}

define void @kernel(ptr %state, ptr %ignored, i64 %helpers, i64 %threads) {
  %tickets_at = getelementptr i8, ptr %state, i64 64
  %finished_at = getelementptr i8, ptr %state, i64 192
  %sleeping_at = getelementptr i8, ptr %state, i64 196
  %mine_at = getelementptr i8, ptr %state, i64 312
  %name = alloca i64, align 8
  %starts = icmp sgt i64 %threads, 0
  br i1 %starts, label %start, label %run
start:
  %started = phi i64 [ 0, %0 ], [ %started_more, %start ]
  %failed = call i32 @pthread_create(ptr %name, ptr null, ptr @serve, ptr %state)
  %started_more = add i64 %started, 1
  %missing = icmp slt i64 %started_more, %threads
  br i1 %missing, label %start, label %end
run:
  store atomic i32 0, ptr %finished_at seq_cst, align 4
  store atomic i64 %helpers, ptr %tickets_at seq_cst, align 8
  %generation = atomicrmw add ptr %state, i32 1 seq_cst, align 4
  %wanted = trunc i64 %helpers to i32
  %woken = call i64 (i64, ...) @syscall(i64 202, ptr %state, i32 129, i32 %wanted)
  %mine = call i64 @work(ptr %state, i64 0)
  store i64 %mine, ptr %mine_at, align 8
  %unwanted = atomicrmw xchg ptr %tickets_at, i64 0 seq_cst, align 8
  %taken = sub i64 %helpers, %unwanted
  %expected = trunc i64 %taken to i32
  br label %look
look:
  %looks = phi i64 [ 0, %run ], [ %looks_more, %again ]
  %finished = load atomic i32, ptr %finished_at seq_cst, align 4
  %all = icmp eq i32 %finished, %expected
  br i1 %all, label %end, label %none
none:
  %tired = icmp sgt i64 %looks, 1000
  br i1 %tired, label %sleep, label %again
again:
  call void @llvm.x86.sse2.pause()
  %looks_more = add i64 %looks, 1
  br label %look
sleep:
  store atomic i32 1, ptr %sleeping_at seq_cst, align 4
  br label %check
check:
  %now = load atomic i32, ptr %finished_at seq_cst, align 4
  %done = icmp eq i32 %now, %expected
  br i1 %done, label %awake, label %wait
wait:
  %waited = call i64 (i64, ...) @syscall(i64 202, ptr %finished_at, i32 128, i32 %now, ptr null)
  br label %check
awake:
  store atomic i32 0, ptr %sleeping_at seq_cst, align 4
  br label %end
end:
  ret void
}
"""


def processors() -> int:
    """TRITORCH_NATIVE_THREADS, else the processors that this process may use."""
    return min(max(int(os.environ.get("TRITORCH_NATIVE_THREADS") or len(os.sched_getaffinity(0))), 1), _MOST)


class Pool:
    """Threads that wait for work, besides the one that brings it. After a fork there are none."""

    def __init__(self):
        self.lock, self.size, self.process = threading.Lock(), 0, 0
        self.state: Any = None
        self.call: Any = None

    def run(self, entry: int, arguments: int, scratch: int, step: int, first: int, last: int, threads: int) -> int | None:
        """Run programs first..last-1 by so many threads, of which each has `step` bytes of scratch memory; how many this one has run. None,
        and nothing is done, while another thread has the pool."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            if self.size < threads - 1 or self.process != os.getpid():
                self.grow(threads - 1)
            piece = max((last - first) // (PIECES * threads), 1)
            struct.pack_into("<q", self.state, _NEXT, 0)
            struct.pack_into("<7q", self.state, _JOB, entry, arguments, scratch, step, first, last, piece)
            self.call(ctypes.addressof(self.state), None, threads - 1, 0)
            return struct.unpack_from("<q", self.state, _MINE)[0]
        finally:
            self.lock.release()

    def grow(self, size: int) -> None:
        """Have so many threads. They take no signals."""
        if self.call is None:
            self.call = _compiled()
        if self.process != os.getpid():
            self.state, self.size, self.process = _state(), 0, os.getpid()
        with _without_signals():
            self.call(ctypes.addressof(self.state), None, 0, size - self.size)
        self.size = size


def _state():
    """What the threads look at, in whole cache lines. It stays as long as they do."""
    memory = (ctypes.c_char * (_SIZE + 64))()
    state = (ctypes.c_char * _SIZE).from_buffer(memory, -ctypes.addressof(memory) % 64)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(state))
    return state


def _compiled() -> Callable:
    """The text as a function. It stays as long as the threads do."""
    from . import elf, llvm

    loaded = elf.load(llvm.assemble(_TEXT))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(loaded.address("entry"))


@contextlib.contextmanager
def _without_signals():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


pool = Pool()
