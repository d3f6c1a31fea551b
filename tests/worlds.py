"""Worlds of several processes for tests: a function that runs in each of them, and what it returns. Nothing waits longer than a minute."""
import contextlib
import gc
import multiprocessing
import os
import threading
import time
import traceback
from datetime import timedelta

import pytest

from tritorch import distributed as dist
from tritorch.cuda import driver
from tritorch.distributed.gloo import group as _  # noqa: F401 once, before the forks

PATIENCE = timedelta(seconds=20)


@pytest.fixture
def no_gpu():
    """Whatever an earlier test has chosen: these worlds are on the CPU, unless they say otherwise."""
    with driver.using(None):
        yield


def free_port():
    """A port that was free a moment ago."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    return store.port


def _one(fn, rank, size, path, args, timeout, pipe):
    try:
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size, timeout=PATIENCE)
        dist.group.WORLD.set_timeout(timeout)
        result = fn(rank, size, *args)
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()
        left = [t.name for t in threading.enumerate() if t.name.startswith("tritorch")]
        assert not left, left
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    pipe.poll(PATIENCE.total_seconds())                                  # tensors come by the memory of a process that lives
    os._exit(0)                                                          # not what pytest would do at the end of its process


def world(fn, size, tmp_path, *args, timeout=PATIENCE):
    """[fn(rank, size, *args) of each rank], in a gloo world of forked processes, with a store in a file. Fails with the first traceback."""
    context, ranks = multiprocessing.get_context("fork"), []
    path = tmp_path / f"store_{time.monotonic_ns()}"
    for rank in range(size):
        here, there = context.Pipe()
        process = context.Process(target=_one, args=(fn, rank, size, path, args, timeout, there))
        process.start()
        there.close()
        ranks.append((process, here))
    until, results = time.monotonic() + 60, []
    try:
        for _, here in ranks:
            if not here.poll(max(until - time.monotonic(), 0)):
                results.append((False, "no result within a minute"))
                continue
            try:
                results.append(here.recv())
            except EOFError:
                results.append((None, "it has ended"))
                continue
            with contextlib.suppress(OSError):
                here.send(None)
    finally:
        for process, here in ranks:
            here.close()
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
    failed = "\n".join(f"rank {r}: {text}" for r, (good, text) in enumerate(results) if good is False)
    assert not failed, failed
    return [result for _, result in results]


def error_of(call, kind=Exception):
    """(name of the type, text, seconds) of what a call raises."""
    began = time.monotonic()
    try:
        call()
    except kind as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "nothing", "", time.monotonic() - began
