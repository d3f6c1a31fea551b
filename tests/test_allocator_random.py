"""The caching allocator against a naive model, from several threads, inside finalizers and at the end of the process."""

import gc
import random
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_driver import RecordingDriver, installed

import tritorch.cuda as cuda
from tritorch.cuda import driver, memory, spans
from tritorch.cuda.allocator import allocate, record_stream

MIB = 1 << 20


@pytest.fixture
def device():
    with installed() as driver:
        yield driver


def stream(handle):
    return cuda.ExternalStream(handle, 0)


# ------------------------------------------------------------------ against a naive model
def check_segments(device):
    """Spans tile their segments, no two live blocks overlap, and free neighbours were joined."""
    for segment in cuda.memory_snapshot():
        blocks, address = segment["blocks"], segment["address"]
        assert sum(block["size"] for block in blocks) == segment["total_size"] == device.segments[address]
        for block in blocks:
            assert block["address"] == address
            address += block["size"]
        assert not any(a["state"] == b["state"] == "inactive" for a, b in zip(blocks, blocks[1:], strict=False))


class Model:
    """What the statistics must be, counted one call at a time."""

    def __init__(self):
        self.live, self.numbers = {}, {}

    def count(self, name, nbytes, delta):
        for pool in ("all", "small_pool" if nbytes <= MIB else "large_pool"):
            entry = self.numbers.setdefault((name, pool), [0, 0, 0, 0])
            entry[0] += delta
            entry[1] = max(entry[1], entry[0])
            entry[2 if delta > 0 else 3] += abs(delta)

    def move(self, nbytes, sign, names):
        if nbytes:
            deltas = {"allocation": 1, "active": 1, "requested_bytes": nbytes}
            for name in names:
                self.count(name, nbytes, sign * deltas.get(name, -(-nbytes // 512) * 512))


ALLOCATED, ACTIVE = ("allocation", "allocated_bytes", "requested_bytes"), ("active", "active_bytes")
SIZES = st.one_of(st.integers(0, 3000), st.sampled_from([512, 1024, MIB, MIB + 1, 10 * MIB]), st.integers(1, 30 * MIB))
STEPS = st.lists(st.one_of(
    st.tuples(st.just("alloc"), SIZES, st.sampled_from([0, 7])), st.tuples(st.just("free"), st.integers(0, 99)),
    st.tuples(st.just("free"), st.integers(0, 99)), st.tuples(st.just("record"), st.integers(0, 99)), st.tuples(st.just("pass")),
    st.tuples(st.just("empty")), st.tuples(st.just("stats"))), max_size=60)


def play(device, steps):
    model, blocks, held = Model(), [], []

    def finish(done):
        for nbytes, handles in [entry for entry in held if done or not entry[1]]:
            model.move(nbytes, -1, ACTIVE)
            held.remove((nbytes, handles))

    for step, *values in steps:
        if step == "alloc":
            nbytes, handle = values
            blocks.append([allocate(nbytes, 0, handle), nbytes, set(), handle])
            model.move(nbytes, 1, ALLOCATED + ACTIVE)
        elif step == "free" and blocks:
            block, nbytes, handles, _ = blocks.pop(values[0] % len(blocks))
            del block
            model.move(nbytes, -1, ALLOCATED)
            if handles and nbytes:
                held.append((nbytes, handles))
            else:
                model.move(nbytes, -1, ACTIVE)
        elif step == "record" and blocks:
            place = values[0] % len(blocks)
            record_stream(blocks[place][0], stream(9))
            blocks[place][2].add(9)
        elif step in ("pass", "empty"):
            device.pending.clear()
            cuda.empty_cache() if step == "empty" else cuda.memory_stats()
            finish(True)
        elif step == "stats":
            cuda.memory_stats()
            check_segments(device)
        used = sorted((block.ptr, block.ptr + block.size) for block, nbytes, _, _ in blocks if nbytes)
        assert all(a[1] <= b[0] for a, b in zip(used, used[1:], strict=False))
    return model, blocks


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_random_sequences_agree_with_a_naive_model(steps):
    with installed() as device:
        model, blocks = play(device, steps)
        stats = cuda.memory_stats()
        for (name, pool), numbers in model.numbers.items():
            if name in ALLOCATED:
                assert [stats[f"{name}.{pool}.{field}"] for field in ("current", "peak", "allocated", "freed")] == numbers, (name, pool)
            else:
                assert stats[f"{name}.{pool}.peak"] >= stats[f"{name}.{pool}.current"]
        assert stats["reserved_bytes.all.current"] == sum(device.segments.values())
        check_segments(device)
        device.pending.clear()
        stats = cuda.memory_stats()
        for name, pool in model.numbers:
            if name in ACTIVE:                                           # equal once nothing is held
                assert stats[f"{name}.{pool}.current"] == model.numbers[ALLOCATED[name == "active_bytes"], pool][0]
        blocks.clear()
        device.pending.clear()
        cuda.empty_cache()
        assert not device.segments


# ------------------------------------------------------------------ Ctrl-C
def interrupted_after(count):
    """A trace function that raises KeyboardInterrupt at the count-th line of the methods of Pool that runs."""
    methods = {f.__code__ for f in vars(spans.Pool).values() if hasattr(f, "__code__")}

    def trace(frame, event, arg):
        nonlocal count
        if frame.f_code in methods and event == "line":
            count -= 1
            if not count:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    return trace


def test_ctrl_c_anywhere_loses_memory_at_worst():
    """A person who interrupts a cell of a notebook goes on with the next."""
    place, stopped = 0, True
    while stopped:
        place += 1
        with installed():
            blocks = []
            sys.settrace(interrupted_after(place))
            try:
                blocks += [allocate(k * 3 * MIB, 0, 0) for k in range(1, 7)]
                del blocks[1], blocks[2], blocks[0]
                blocks += [allocate(size * MIB, 0, 0) for size in (4, 17)]
                del blocks[0]
                blocks += [allocate(size * MIB, 0, 0) for size in (11, 2)]
                stopped = False
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            rng = random.Random(place)
            for _ in range(30):
                if blocks and rng.random() < 0.5:
                    del blocks[rng.randrange(len(blocks))]
                else:
                    blocks.append(allocate(rng.randint(1, 20) * MIB, 0, 0))
                order = sorted(blocks, key=lambda block: block.ptr)
                assert all(a.ptr + a.size <= b.ptr for a, b in zip(order, order[1:], strict=False)), place
            del blocks, order
    assert place > 100


def test_ctrl_c_leaves_neither_the_lock_taken_nor_the_collector_off():
    """It is noticed where a function of Python begins and where one of C has returned, which a profiler is told."""
    frames = {spans.Still.__enter__.__code__, spans.Still.__exit__.__code__}
    place, stopped = 0, True
    while stopped:
        place, seen = place + 1, 0

        def profile(frame, event, arg):
            nonlocal seen
            if frame.f_code in frames and event in ("call", "c_return"):
                seen += 1
                if seen == place:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        with installed():
            sys.setprofile(profile)
            try:
                cuda.memory_stats(0)
                stopped = False
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            thread = threading.Thread(target=lambda: cuda.memory_stats(0), daemon=True)
            thread.start()
            thread.join(20)
            assert not thread.is_alive() and gc.isenabled(), place
    assert place > 5


# ------------------------------------------------------------------ threads and the end
def test_threads_share_a_pool(device):
    errors, owners, count = [], {}, 3000

    def work(seed):
        rng, mine = random.Random(seed), []
        try:
            for _ in range(count):
                if mine and rng.random() < 0.5:
                    block = mine.pop(rng.randrange(len(mine)))
                    assert owners.pop(block.ptr) == seed
                else:
                    block = allocate(rng.choice([512, 1024, 4096, rng.randrange(1, 2 * MIB)]), 0, 0)
                    assert owners.setdefault(block.ptr, seed) == seed
                    mine.append(block)
                del block
            for block in mine:
                owners.pop(block.ptr)
        except BaseException as error:
            errors.append(error)
            raise

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    stats = cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == 0 and stats["allocation.all.allocated"] == stats["allocation.all.freed"]
    check_segments(device)
    cuda.empty_cache()
    assert not device.segments


def test_a_finalizer_may_allocate_and_free(device):
    rng = random.Random(0)

    class Cycle:
        def __init__(self):
            self.me, self.blocks = self, [allocate(rng.randrange(1, 64 << 10), 0, 0) for _ in range(6)]

        def __del__(self):
            del self.blocks[::2]
            self.blocks.append(allocate(rng.randrange(1, 64 << 10), 0, 0))

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(400):
            Cycle()
            allocate(rng.randrange(1, 64 << 10), 0, 0)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert gc.isenabled()
    assert cuda.memory_allocated() == 0
    check_segments(device)


def test_blocks_alive_at_the_end_of_the_process_are_quiet(device):
    program = ("import sys; sys.path[:0] = sys.argv[1:]\n"
               "from recording_driver import RecordingDriver\n"
               "from tritorch.cuda import driver, Stream, Event, memory\n"
               "from tritorch.cuda.allocator import allocate, record_stream\n"
               "driver.use(RecordingDriver(wants_annotations=True))\n"
               "s = Stream(); kept = allocate(100, 0, 0); record_stream(kept, s); kept.__class__.kept = kept\n"
               "e = s.record_event(); p = memory.pinned_empty(10)\n"
               "cycle = [allocate(5, 0, 0)]; cycle.append(cycle)\n")
    done = subprocess.run([sys.executable, "-c", program, *sys.path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_of_a_device_that_failed_dies_quietly(device, capfd):
    """Or of the parent of a forked process, such as a worker of a DataLoader."""
    block, pinned, other = allocate(100, 0, 0), memory.pinned_empty(10), cuda.Stream()
    record_stream(block, other)
    memory.pinned_owner(pinned).streams.add((0, other.cuda_stream))

    def fails(timing):
        raise driver.DriverError("cuEventCreate: CUDA_ERROR_NOT_INITIALIZED")

    device.event_create = fails
    where, host = block.ptr, pinned.ctypes.data
    del block, pinned
    assert capfd.readouterr().err == "" and allocate(100, 0, 0).ptr != where and memory.pinned_empty(10).ctypes.data != host


def test_blocks_outlive_their_driver_in_peace(device):
    block = allocate(100, 0, 0)
    other = RecordingDriver()
    driver.use(other)
    fresh = allocate(100, 0, 0)
    del block
    assert allocate(100, 0, 0).ptr in other.segments or fresh.ptr in other.segments
    assert cuda.memory_allocated() == 512
    driver.use(device)
