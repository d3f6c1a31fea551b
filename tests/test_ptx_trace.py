"""What the tracer of the PTX machine sees of a launch, and what the timetable of a multiprocessor makes of it."""
import numpy as np
import pytest
import triton
import triton.language as tl
from ptx import device, trace

import tritorch as torch
from bench import predict, sm
from tritorch.cuda.launch import launch


@triton.jit
def strided_copy(y_ptr, x_ptr, STEP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + STEP * i))


@triton.jit
def many_roots(y_ptr, x_ptr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    for _ in tl.static_range(ROUNDS):
        x = tl.math.rsqrt(x)
    tl.store(y_ptr + i, x)


@triton.jit
def turned(y_ptr, x_ptr, BLOCK: tl.constexpr):
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    tl.store(y_ptr + row * BLOCK + column, tl.trans(tl.load(x_ptr + row * BLOCK + column)))


@pytest.fixture
def gpu():
    with device.simulate(90) as fake:
        yield fake


def traced(gpu, kernel, grid, *args, **constexprs):
    with trace.tracing(gpu) as found:
        launch(kernel, grid, *args, **constexprs)
    return found[0]


def sectors(launched, opcode):
    """Sectors of each access of a kind by the first warp."""
    code = launched.kernel.program.code
    return [len(touched) for place, touched in launched.warps[0] if code[place].opcode.startswith(opcode)]


@pytest.mark.parametrize("step, each", [(1, [16]), (2, [32] * 4), (8, [32] * 4)])
def test_sectors_of_a_load(gpu, step, each):
    """32 lanes that read 16 bytes each in a row need 16 sectors; lanes 32 bytes or more apart need one each for every number."""
    x, y = torch.zeros(step * 512, device="cuda"), torch.zeros(512, device="cuda")
    launched = traced(gpu, strided_copy, (1,), y, x, STEP=step, BLOCK=512, num_warps=4)
    assert sectors(launched, "ld.global") == each
    assert sectors(launched, "st.global") == [16]


def test_only_the_sample_runs(gpu):
    """Eight CTAs from all of the grid; the others leave memory as it was."""
    x, y = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    launched = traced(gpu, strided_copy, (8192,), y, x, STEP=1, BLOCK=128, num_warps=4)
    assert launched.blocks.tolist() == list(range(512, 8192, 1025)) and len(launched.warps) == 32
    written = np.flatnonzero(y.cpu().numpy().reshape(-1, 128).any(axis=1))
    assert written.tolist() == launched.blocks.tolist()


def test_what_is_skipped_does_not_run(gpu):
    x = torch.zeros(64, device="cuda")
    with trace.skipping(gpu):
        x += 1
    assert not x.cpu().numpy().any()


@pytest.mark.parametrize("addresses, nbytes, passes", [
    (4 * np.arange(32), 4, 1), (np.zeros(32), 4, 1), (8 * np.arange(32), 4, 2), (128 * np.arange(32), 4, 32),
    (16 * np.arange(32), 16, 4), (256 * np.arange(32), 16, 32), (2 * np.arange(32), 2, 1)])
def test_bank_conflicts(addresses, nbytes, passes):
    """32 banks of 4 bytes: one word of each in a pass, the same word for all who ask; wide accesses go in parts of 128 bytes."""
    assert trace._shared(np.asarray(addresses, np.uint64), nbytes) == passes


def test_shared_memory_is_seen(gpu):
    x = torch.zeros(64, 64, device="cuda")
    launched = traced(gpu, turned, (1,), torch.empty(64, 64, device="cuda"), x, BLOCK=64, num_warps=4)
    assert sectors(launched, "ld.global") and any(touched >= 1 for place, touched in launched.warps[0]
                                                  if launched.kernel.program.code[place].opcode.startswith("st.shared"))


def predicted(gpu, *args, **constexprs):
    found = predict.launches(gpu, lambda: launch(*args, **constexprs))
    assert len(found) == 1
    return found[0]


def test_a_copy_takes_as_long_as_its_bytes(gpu):
    n = 1 << 26
    with trace.skipping(gpu):
        x, y = torch.empty(n, device="cuda"), torch.empty(n, device="cuda")
    found = predicted(gpu, strided_copy, (n // 1024,), y, x, STEP=1, BLOCK=1024, num_warps=4)
    assert 0.95 < found.nbytes / (8 * n) < 1.05
    assert 0.97 < found.us / (8 * n / sm.COPY * 1e6) < 1.1 and found.memory > 0.95


def test_gaps_are_paid_for(gpu):
    """Every eighth float32 costs its whole sector: 32 bytes read for 4 written."""
    n = 1 << 23
    with trace.skipping(gpu):
        x, y = torch.empty(8 * n, device="cuda"), torch.empty(n, device="cuda")
    found = predicted(gpu, strided_copy, (n // 1024,), y, x, STEP=8, BLOCK=1024, num_warps=4)
    assert 0.9 < found.nbytes / (36 * n) < 1.1


def test_a_busy_pipe_decides(gpu):
    """64 reciprocal roots of each number: 16 lanes of them a cycle and multiprocessor."""
    n = 1 << 24
    with trace.skipping(gpu):
        x, y = torch.empty(n, device="cuda"), torch.empty(n, device="cuda")
    found = predicted(gpu, many_roots, (n // 512,), y, x, ROUNDS=64, BLOCK=512, num_warps=4)
    least = 64 * n / 16 / sm.MULTIPROCESSORS / sm.CLOCK * 1e6
    assert found.pipe[0] == "mufu" and found.memory < 0.5 and least <= found.us < 1.3 * least


def test_one_cta_waits_for_memory(gpu):
    """A single CTA cannot be faster than the way to memory and back."""
    x, y = torch.empty(1024, device="cuda"), torch.empty(1024, device="cuda")
    found = predicted(gpu, strided_copy, (1,), y, x, STEP=1, BLOCK=1024, num_warps=4)
    assert found.us * 1e-6 * sm.CLOCK > sm.LATENCY["dram"] and found.memory < 0.3 and max(found.waits, key=found.waits.get) == "load"


def test_what_is_read_and_written_moves_twice(gpu):
    n = 1 << 24
    with trace.skipping(gpu):
        x = torch.empty(n, device="cuda")
    found = predicted(gpu, strided_copy, (n // 1024,), x, x, STEP=1, BLOCK=1024, num_warps=4)
    assert 0.95 < found.nbytes / (8 * n) < 1.05
