"""The caching allocator: reuse, cutting and joining, streams, running out of memory, statistics and reports, private pools."""

import gc
import random
import threading

import pytest
from recording_driver import installed

import tritorch.cuda as cuda
from tritorch.cuda import allocator, driver, memory, spans
from tritorch.cuda.allocator import allocate, record_stream
from tritorch.cuda.memory_report import memory_lines
from tritorch.errors import OutOfMemoryError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.fixture
def device():
    with installed() as driver:
        yield driver


def stream(handle):
    return cuda.ExternalStream(handle, 0)


# ------------------------------------------------------------------ reuse
def test_sizes_are_rounded_and_a_freed_block_comes_back(device):
    block = allocate(1000, 0, 0)
    assert block.size == 1024
    ptr = block.ptr
    del block
    assert allocate(513, 0, 0).ptr == ptr
    assert device.named("alloc") == [("alloc", 2 * MIB)]


def test_only_so_many_sizes_are_looked_up_at_once(device, monkeypatch):
    monkeypatch.setattr(allocator, "REQUESTS", 4)
    ptr = allocate(1000, 0, 0).ptr
    for nbytes in range(513, 1024):
        assert allocate(nbytes, 0, 0).ptr == ptr and len(allocator.fronts[0]) <= 4
    assert allocate(512, 0, 0).ptr != ptr


@pytest.mark.parametrize("nbytes, segment", [
    (1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB), (10 * MIB + 1, 12 * MIB),
    (100 * MIB - 5, 100 * MIB)])
def test_segments_have_pytorchs_sizes(device, nbytes, segment):
    block = allocate(nbytes, 0, 0)
    assert device.named("alloc") == [("alloc", segment)]
    assert block.size == (nbytes + 511) // 512 * 512


def test_the_best_fit_is_cut(device):
    blocks = [allocate(n * MIB, 0, 0) for n in (4, 2, 3, 2, 5, 2)]
    wanted = blocks[2].ptr
    blocks[0] = blocks[2] = blocks[4] = None
    found = allocate(3 * MIB - 512 * KIB, 0, 0)
    assert found.ptr == wanted
    assert len(device.segments) == 1


def test_neighbours_join_again(device):
    blocks = [allocate(5 * MIB, 0, 0) for _ in range(4)]
    blocks.clear()
    assert allocate(9 * MIB, 0, 0).size == 9 * MIB
    assert len(device.segments) == 1


def test_small_shelves_keep_what_they_have_until_a_pool_has_some_segments(device):
    del [[allocate(512 * KIB, 0, 0) for _ in range(4)]][0]
    other = allocate(MIB, 0, 0)                            # joining would do, but then the next half MiB finds its shelf empty
    assert len(device.segments) == 2
    blocks = [allocate(512 * KIB, 0, 0) for _ in range(4)]
    assert len(device.segments) == 2
    kept = [allocate(MIB, 0, 0) for _ in range(2 * spans.ROOMY - 3)]
    assert len(device.segments) == spans.ROOMY
    blocks.clear()
    kept.append(allocate(768 * KIB, 0, 0))
    assert len(device.segments) == spans.ROOMY and other.size == MIB


def test_small_requests_leave_large_segments_alone(device):
    del [allocate(2 * MIB, 0, 0)][0]
    allocate(512, 0, 0)
    assert [call[1] for call in device.named("alloc")] == [20 * MIB, 2 * MIB]


def test_every_stream_and_device_has_its_own_pool(device):
    first = allocate(512, 0, 0).ptr
    assert allocate(512, 0, 7).ptr != first
    assert allocate(512, 1, 0).ptr != first
    assert ("set_device", 1) in device.calls
    assert allocate(512, 0, 0).ptr == first


def test_zero_bytes_cost_nothing(device):
    block = allocate(0, 0, 0)
    assert (block.ptr, block.size) == (0, 0)
    del block
    allocate(0, 0, 0)
    assert cuda.memory_stats()["allocation.all.allocated"] == 0
    assert not device.segments


def test_blocks_die_by_reference_count_and_leave_no_cycles(device):
    gc.collect()
    gc.disable()
    try:
        rng = random.Random(0)
        for _ in range(5):
            blocks = [allocate(rng.randrange(1, 4 * MIB), 0, 0) for _ in range(50)]
            rng.shuffle(blocks)
            blocks.clear()
        cuda.empty_cache()
        assert not device.segments
        allocator.forget()
        assert not [found for found in gc.get_objects() if isinstance(found, allocator.Span) and found.pool.memory.driver is device]
    finally:
        gc.enable()


# ------------------------------------------------------------------ streams
def test_a_recorded_block_waits_for_the_other_stream(device):
    block = allocate(512, 0, 0)
    record_stream(block, stream(7))
    ptr = block.ptr
    del block
    assert [call[2] for call in device.named("event_record")] == [7]
    assert allocate(512, 0, 0).ptr != ptr
    stats = cuda.memory_stats()
    assert stats["active_bytes.all.current"] == 512 and stats["allocated_bytes.all.current"] == 0
    assert stats["active_bytes.all.peak"] == 1024 and stats["allocated_bytes.all.peak"] == 512
    device.pending.clear()
    fresh = [allocate(512, 0, 0) for _ in range(3)]
    assert ptr in {block.ptr for block in fresh}
    assert cuda.memory_stats()["active.all.current"] == 3
    assert len(device.named("event_destroy")) == 1


def test_its_own_stream_needs_no_recording(device):
    block = allocate(512, 0, 7)
    record_stream(block, stream(7))
    record_stream(allocate(0, 0, 0), stream(7))
    del block
    assert not device.named("event_record")


def test_out_of_memory_waits_for_held_blocks(device):
    device.total = 30 * MIB
    block = allocate(20 * MIB, 0, 0)
    record_stream(block, stream(7))
    del block
    assert allocate(20 * MIB, 0, 0).size == 20 * MIB
    stats = cuda.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_sync_all_streams"], stats["num_ooms"]) == (1, 1, 0)


def test_a_huge_span_is_not_cut_for_little_while_there_is_other_memory(device):
    device.total = 2560 * MIB
    logits = allocate(2048 * MIB, 0, 0)
    ptr = logits.ptr
    del logits
    moment = allocate(100 * MIB, 0, 0)
    assert moment.ptr != ptr and (logits := allocate(2048 * MIB, 0, 0)).ptr == ptr
    del logits
    half = allocate(300 * MIB, 0, 0)                                     # more than an eighth
    assert half.ptr == ptr
    del half
    more = [allocate(100 * MIB, 0, 0) for _ in range(6)]                 # 412 MiB are left on the device
    assert device.segments.keys() == {ptr, moment.ptr, *[m.ptr for m in more[:4]]} and more[4].ptr == ptr
    assert cuda.memory_stats()["num_alloc_retries"] == 0


# ------------------------------------------------------------------ running out
def test_cached_memory_is_given_back_before_giving_up(device):
    device.total = 64 * MIB
    del [allocate(40 * MIB, 0, 0)][0]
    block = allocate(50 * MIB, 0, 0)
    assert list(device.segments.values()) == [50 * MIB]
    stats = cuda.memory_stats()
    assert (stats["num_device_free"], stats["num_sync_all_streams"]) == (1, 0)
    del block


def test_cached_memory_of_other_streams_is_given_back_too(device):
    device.total = 64 * MIB
    allocate(40 * MIB, 0, 7)
    assert allocate(50 * MIB, 0, 0).size == 50 * MIB


def test_the_error_says_what_is_held_and_nothing_is_lost(device):
    device.total = 64 * MIB
    held = [allocate(12 * MIB, 0, 0) for _ in range(4)]
    small = allocate(100, 0, 0)
    before = cuda.memory_stats()
    with pytest.raises(OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 32.00 MiB on cuda:0: 14.00 MiB of 64.00 MiB are "
                       r"free, 48.00 MiB allocated, 50.00 MiB reserved; the most is held by 48.00 MiB by 4 × blocks of 12.00 MiB"):
        allocate(32 * MIB, 0, 0)
    assert issubclass(cuda.OutOfMemoryError, RuntimeError)
    after = cuda.memory_stats()
    assert after["num_ooms"] == 1
    assert all(after[key] == before[key] for key in before if not key.startswith("num_"))
    held.clear()
    assert allocate(32 * MIB, 0, 0).size == 32 * MIB
    del small


def test_the_error_names_the_largest_holders_first_or_nobody(device):
    device.total = 64 * MIB
    with pytest.raises(OutOfMemoryError, match="the most is held by nothing"):
        allocate(80 * MIB, 0, 0)
    held = [allocate(size * MIB, 0, 0) for size in (2, 3, 4, 20, 2, 3)]
    with pytest.raises(OutOfMemoryError, match=r"by 20.00 MiB by 1 × [^,]*, 6.00 MiB by 2 × [^,]*, 4.00 MiB by [^,]*;"):
        allocate(40 * MIB, 0, 0)
    del held


def test_the_error_names_lines_when_they_are_recorded(device):
    device.total = 64 * MIB
    memory._record_memory_history()
    try:
        held = [allocate(12 * MIB, 0, 0) for _ in range(4)]
        with pytest.raises(OutOfMemoryError, match=r"by 4 × .*test_allocator.py:\d+$"):
            allocate(32 * MIB, 0, 0)
        assert [(line.rpartition("/")[2].partition(":")[0], nbytes, count) for line, nbytes, count in memory_lines()] \
            == [("test_allocator.py", 48 * MIB, 4)]
        del held
        assert memory_lines() == []
    finally:
        memory._record_memory_history(None)
    assert allocator.observe is None


def test_a_fraction_limits_what_is_reserved(device):
    device.total = 100 * MIB
    cuda.set_per_process_memory_fraction(0.5)
    assert cuda.get_per_process_memory_fraction() == 0.5
    block = allocate(40 * MIB, 0, 0)
    with pytest.raises(OutOfMemoryError, match="limited to 50%"):
        allocate(20 * MIB, 0, 0)
    with pytest.raises(ValueError, match="a fraction from 0 to 1"):
        cuda.set_per_process_memory_fraction(2)
    del block


# ------------------------------------------------------------------ statistics
def test_statistics_have_pytorchs_keys(device):
    block = allocate(1000, 0, 0)
    stats = cuda.memory_stats()
    fields, kinds = ("current", "peak", "allocated", "freed"), ("all", "small_pool", "large_pool")
    wanted = [f"{name}.{kind}.{field}" for field in fields for kind in kinds for name in (
        "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
        "requested_bytes")]
    wanted += ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size",
               "oversize_allocations.current", "oversize_segments.freed"]
    assert sorted(stats) == sorted({*wanted, *(key for key in stats if key.startswith("oversize"))})
    assert cuda.memory_stats_as_nested_dict()["allocated_bytes"]["small_pool"]["current"] == 1024
    assert stats["requested_bytes.all.current"] == 1000
    assert stats["inactive_split_bytes.all.current"] == 2 * MIB - 1024
    del block


def test_peaks_and_totals_start_anew(device):
    block = allocate(4 * MIB, 0, 0)
    allocate(8 * MIB, 0, 0)
    assert (cuda.memory_allocated(), cuda.max_memory_allocated()) == (4 * MIB, 12 * MIB)
    assert (cuda.memory_reserved(), cuda.max_memory_reserved()) == (20 * MIB, 20 * MIB)
    cuda.reset_peak_memory_stats()
    assert cuda.max_memory_allocated() == 4 * MIB
    cuda.reset_accumulated_memory_stats()
    assert cuda.memory_stats()["allocated_bytes.all.allocated"] == cuda.memory_stats()["num_device_alloc"] == 0
    del block
    assert cuda.memory_stats()["allocated_bytes.all.freed"] == 4 * MIB


def test_a_full_journal_is_settled(device):
    for _ in range(50_000):
        allocate(512, 0, 0)
    assert len(allocator.memories[0].ledger.journal) < 10_000
    assert cuda.memory_stats()["allocation.all.allocated"] == 50_000


def test_nothing_is_known_before_the_first_block(device):
    assert (cuda.memory_allocated(), cuda.max_memory_reserved()) == (0, 0)
    before = driver.use(None)
    assert cuda.memory_stats() == {}
    driver.use(before)


def test_the_table_can_be_read(device):
    block = allocate(3 * MIB, 0, 0)
    table = cuda.memory_summary()
    assert "| Allocated memory      |   3.00 MiB |   3.00 MiB |   3.00 MiB |    0 bytes |" in table
    assert len({len(line) for line in table.splitlines()}) == 1
    assert "small pool" not in cuda.memory_summary(abbreviated=True)
    del block


def test_snapshots_have_pytorchs_form(device, tmp_path):
    memory._record_memory_history(max_entries=3)
    try:
        kept, gone = allocate(1000, 0, 0), allocate(2000, 0, 0)
        record_stream(gone, stream(7))
        del gone
        segment, = cuda.memory_snapshot()
        assert (segment["total_size"], segment["allocated_size"], segment["active_size"], segment["requested_size"]) \
            == (2 * MIB, 1024, 3072, 1000)
        assert [block["state"] for block in segment["blocks"]] == ["active_allocated", "active_pending_free", "inactive"]
        assert segment["blocks"][0]["frames"][0]["filename"] == __file__
        assert [event["action"] for event in memory._snapshot()["device_traces"][0]] == ["alloc", "alloc", "free_completed"]
        memory._dump_snapshot(tmp_path / "snapshot.pickle")
        del kept
    finally:
        memory._record_memory_history(None)


def test_a_driver_that_asks_is_told_what_is_live():
    with installed(wants_annotations=True) as device:
        block = allocate(1000, 0, 0)
        ptr = block.ptr
        (_, *born), = device.named("annotate")
        assert born[:4] == [ptr, 1000, 0, True] and "test_allocator.py:" in born[4]
        record_stream(block, stream(7))
        del block
        assert len(device.named("annotate")) == 1                        # the other stream may still use it
        device.pending.clear()
        assert cuda.memory_stats()["active.all.current"] == 0
        assert device.named("annotate")[-1][1:5] == (ptr, 1000, 0, False)


# ------------------------------------------------------------------ pools by hand
def test_a_pool_keeps_its_memory_while_it_lives(device):
    ordinary = allocate(512, 0, 0).ptr
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        block = allocate(512, 0, 0)
        mine = block.ptr
        assert mine != ordinary
        del block
        assert allocate(512, 0, 0).ptr == mine
        others = []
        thread = threading.Thread(target=lambda: others.append(allocate(512, 0, 0).ptr))
        thread.start()
        thread.join()
        assert others == [ordinary]
        with pytest.raises(RuntimeError, match="no other pool in use"), cuda.use_mem_pool(pool):
            pass
    assert allocate(512, 0, 0).ptr == ordinary
    cuda.empty_cache()
    assert [segment["address"] for segment in pool.snapshot()] == [mine]
    assert len(device.segments) == 1
    del pool
    cuda.empty_cache()
    assert not device.segments


def test_raw_memory(device):
    ptr = cuda.caching_allocator_alloc(1000)
    assert cuda.memory_allocated() == 1024
    cuda.caching_allocator_delete(ptr)
    assert cuda.memory_allocated() == 0
    with pytest.raises(RuntimeError, match="an address from caching_allocator_alloc"):
        cuda.caching_allocator_delete(ptr)
