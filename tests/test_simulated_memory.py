"""The simulated device finds what a GPU hides: accesses out of bounds, after free, into another tensor, of memory never written."""
import numpy as np
import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from tritorch.cuda.driver import OutOfMemory  # noqa: E402
from tritorch.cuda.simulated import MemoryFault, SimulatedDriver  # noqa: E402


@triton.jit
def copy_kernel(o_ptr, x_ptr, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(o_ptr + i, x, mask=i < n)


@triton.jit
def through_a_table(o_ptr, table_ptr, n):
    for k in range(n):
        p = tl.load(table_ptr + k).to(tl.pointer_type(tl.float32))
        tl.store(o_ptr + k, tl.load(p))


@triton.jit
def blocks_through_a_table(o_ptr, table_ptr, SIZE: tl.constexpr):
    k = tl.arange(0, SIZE)
    tl.store(o_ptr + k, tl.load(tl.load(table_ptr + k).to(tl.pointer_type(tl.float32))))


@triton.jit
def element_before(o_ptr, x_ptr):
    tl.store(o_ptr, tl.load(x_ptr - 1))


class Bench:
    """A driver, a stream, and the shortest way to put arrays on it."""

    def __init__(self, **options):
        self.driver = SimulatedDriver(**options)
        self.stream = self.driver.stream_create(0)

    def put(self, array):
        ptr = self.driver.alloc(array.nbytes)
        self.driver.copy(ptr, array.ctypes.data, array.nbytes, "h2d", self.stream)
        self.sync()
        return ptr

    def get(self, ptr, n, dtype="f4"):
        out = np.empty(n, dtype)
        self.driver.copy(out.ctypes.data, ptr, out.nbytes, "d2h", self.stream)
        self.sync()
        return out

    def copy(self, o, x, n, size=64, programs=None):
        signature = {"o_ptr": "*fp32", "x_ptr": "*fp32", "n": "i32", "SIZE": "constexpr"}
        function = self.driver.load(copy_kernel, signature, {(3,): size}, {}, {})
        function.launch(programs or -(-n // size), 1, 1, self.stream, (o, x, n))

    def backwards(self, o, x):
        function = self.driver.load(element_before, {"o_ptr": "*fp32", "x_ptr": "*fp32"}, {}, {}, {})
        function.launch(1, 1, 1, self.stream, (o, x))

    def sync(self):
        self.driver.stream_synchronize(self.stream)

    def fault(self):
        with pytest.raises(MemoryFault) as error:
            self.sync()
        return str(error.value)


@pytest.fixture
def bench():
    return Bench()


X = np.arange(100, dtype="f4")


def line(offset):
    return f"test_simulated_memory.py:{copy_kernel.fn.__code__.co_firstlineno + offset}, program"


def test_round_trip(bench):
    o, x = bench.driver.alloc(400), bench.put(X)
    bench.copy(o, x, 100)
    np.testing.assert_array_equal(bench.get(o, 100), X)


def test_fresh_memory_is_poison(bench):
    assert np.isnan(bench.get(bench.driver.alloc(400), 100)).all()


def test_load_past_the_end(bench):
    o, x = bench.driver.alloc(800), bench.put(X)
    bench.copy(o, x, 108)
    message = bench.fault()
    assert message.startswith("copy_kernel (") and line(3) in message
    assert message.endswith("load through x_ptr is out of bounds: 28 bytes past the end of the 400-byte block")


def test_store_past_the_end_names_the_label(bench):
    o, x = bench.driver.alloc(2048), bench.put(np.zeros(200, "f4"))
    bench.driver.annotate(o, 512, bench.stream, True, "conv.weight")
    bench.copy(o, x, 130)
    message = bench.fault()
    assert line(4) in message
    assert message.endswith("store through o_ptr is out of bounds: 4 bytes past the end of the 512-byte block 'conv.weight'")


def test_before_the_start_and_inside_another_tensor(bench):
    pool, o = bench.driver.alloc(4096), bench.driver.alloc(400)
    for start, label in ((0, "a"), (512, "b")):
        bench.driver.annotate(pool + start, 512, bench.stream, True, label)
    bench.copy(o, pool + 200, 100)                     # begins inside a, runs over into b
    assert bench.fault().endswith("84 bytes past the end of the 512-byte block 'a', inside the 512-byte block 'b'")
    bench.backwards(o, pool + 512)                     # the argument is b, the last element before it is a's
    assert bench.fault().endswith("load through x_ptr is out of bounds: 4 bytes before the start of the 512-byte block 'b', inside the"
                                  " 512-byte block 'a'")


def test_use_after_free(bench):
    o, x = bench.driver.alloc(400), bench.driver.alloc(4096)
    bench.driver.annotate(x, 400, bench.stream, True, "activation")
    bench.driver.annotate(x, 400, bench.stream, False, "activation")
    bench.copy(o, x, 100)
    assert bench.fault().endswith("load through x_ptr reaches memory after it was freed: byte 0 of the 400-byte block 'activation'")


def test_use_of_freed_allocation(bench):
    o, x = bench.driver.alloc(400), bench.put(X)
    bench.driver.free(x)
    bench.copy(o, x, 100)
    assert "reaches memory after it was freed: byte 0 of the 400-byte block" in bench.fault()


def test_host_pointer(bench):
    o = bench.driver.alloc(400)
    bench.copy(o, X.ctypes.data, 100)
    assert "which is not device memory" in bench.fault()


def test_misaligned_pointer(bench):
    o, x = bench.driver.alloc(400), bench.put(X)
    bench.copy(o, x + 2, 50)
    assert "load through x_ptr is misaligned: expected a multiple of 4" in bench.fault()


def test_masked_lanes_may_point_anywhere(bench):
    o, x = bench.driver.alloc(400), bench.put(X)
    bench.copy(o, x, 100, size=4096)
    np.testing.assert_array_equal(bench.get(o, 100), X)


def test_the_device_is_usable_after_a_fault(bench):
    o, x = bench.driver.alloc(400), bench.put(X)
    bench.copy(o, x, 101)
    bench.copy(o, x, 100)
    bench.fault()
    np.testing.assert_array_equal(bench.get(o, 100), X)


def test_new_and_freed_ranges_are_poisoned_in_stream_order(bench):
    o, x = bench.driver.alloc(400), bench.put(X)
    pool = bench.driver.alloc(4096)
    bench.driver.annotate(pool, 400, bench.stream, True, "first")
    bench.copy(pool, x, 100)
    bench.copy(o, pool, 100)                           # still the first tensor: queued before its end
    bench.driver.annotate(pool, 400, bench.stream, False, "first")
    bench.driver.annotate(pool, 400, bench.stream, True, "second")
    np.testing.assert_array_equal(bench.get(o, 100), X)
    assert np.isnan(bench.get(pool, 100)).all()


@pytest.mark.parametrize("size", [64, 4096])
def test_large_and_small_blocks_agree_on_the_fault(bench, size):
    o, x = bench.driver.alloc(4 * 8192), bench.driver.alloc(4 * 8000)
    bench.copy(o, x, 8192, size)
    assert f"{'load'} through x_ptr is out of bounds" in bench.fault()


def test_pointers_from_memory(bench):
    a, b, o = bench.put(X), bench.put(X + 100), bench.driver.alloc(64)
    table = bench.put(np.array([a + 4, b + 8], "i8"))
    function = bench.driver.load(through_a_table, {"o_ptr": "*fp32", "table_ptr": "*i64", "n": "i32"}, {}, {}, {})
    function.launch(1, 1, 1, bench.stream, (o, table, 2))
    np.testing.assert_array_equal(bench.get(o, 2), [1, 102])
    bad = bench.put(np.array([a + 400], "i8"))
    function.launch(1, 1, 1, bench.stream, (o, bad, 1))
    assert "load reaches" in bench.fault()


def test_a_block_of_pointers_from_memory(bench):
    a, b, o = bench.put(X), bench.put(X + 100), bench.driver.alloc(64)
    table = bench.put(np.array([a + 4, b + 8, a, b], "i8"))
    function = bench.driver.load(blocks_through_a_table, {"o_ptr": "*fp32", "table_ptr": "*i64", "SIZE": "constexpr"}, {(2,): 4}, {}, {})
    function.launch(1, 1, 1, bench.stream, (o, table))
    np.testing.assert_array_equal(bench.get(o, 4), [1, 102, 0, 100])


@pytest.mark.parametrize("kind", ["h2d", "d2h", "d2d"])
def test_copies_are_checked(bench, kind):
    x, y = bench.put(X), bench.put(X)
    host = np.empty(200, "f4").ctypes.data
    dst, src = {"h2d": (x, host), "d2h": (host, x), "d2d": (x, y)}[kind]
    with pytest.raises(MemoryFault, match=f"copy {kind}: expected a range inside one block, got 404 bytes"):
        bench.driver.copy(dst, src, 404, kind, bench.stream)
        bench.sync()


@pytest.mark.parametrize("width, value", [(1, 7), (2, 0x3C00), (4, 0x3F800000)])
def test_fill(bench, width, value):
    x = bench.put(X)
    bench.driver.fill(x + 8, value, width, 5, bench.stream)
    raw = bench.get(x, 400, "u1")
    np.testing.assert_array_equal(raw[8:8 + 5 * width].view(f"u{width}"), np.full(5, value))
    np.testing.assert_array_equal(raw[:8], X.view("u1")[:8])
    bench.driver.fill(x, value, 4, 101, bench.stream)
    assert bench.fault().startswith("fill: expected a range inside one block")


def test_out_of_memory():
    bench = Bench(total_memory=1000)
    ptr = bench.driver.alloc(600)
    with pytest.raises(OutOfMemory, match="400 free bytes of 1000"):
        bench.driver.alloc(600)
    assert bench.driver.memory_info(0) == (400, 1000)
    bench.driver.free(ptr)
    assert bench.driver.memory_info(0) == (1000, 1000)


def test_memory_of_the_host_is_read_when_the_copy_runs(bench):
    """Pageable memory too: a device that reaches it by itself (HMM) reads it late."""
    x, pinned, pageable = bench.driver.alloc(400), bench.driver.host_alloc(400), X.copy()
    from tritorch.cuda.simulated.memory import host_bytes

    for view in (host_bytes(pinned, 400).view("f4"), pageable):
        view[:] = X
        bench.driver.copy(x, view.ctypes.data, 400, "h2d", bench.stream)
        view[:] = -1                                   # too early: the copy has not run
        np.testing.assert_array_equal(bench.get(x, 100), np.full(100, -1, "f4"))


def test_devices():
    driver = SimulatedDriver(devices=2)
    assert driver.device_count() == 2 and driver.device_properties(1).name == "Simulated H200"
    driver.set_device(1)
    driver.alloc(1000)
    assert driver.memory_info(0)[0] == driver.memory_info(0)[1] and driver.memory_info(1)[0] == driver.memory_info(1)[1] - 1000


def test_programs_run_in_an_order_drawn_by_the_seed():
    orders = set()
    for seed in range(3):
        bench = Bench(seed=seed)
        o, count = bench.driver.alloc(32), bench.put(np.zeros(1, "i4"))
        function = bench.driver.load(ticket, {"o_ptr": "*i32", "count_ptr": "*i32"}, {}, {}, {})
        function.launch(8, 1, 1, bench.stream, (o, count))
        order = bench.get(o, 8, "i4")
        assert sorted(order) == list(range(8))
        orders.add(tuple(order))
    assert len(orders) > 1


@triton.jit
def ticket(o_ptr, count_ptr):
    tl.store(o_ptr + tl.atomic_add(count_ptr, 1), tl.program_id(0))
