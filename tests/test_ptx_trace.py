"""What the tracer of the PTX machine sees of a launch, and what the timetable of a multiprocessor makes of it."""
import numpy as np
import pytest
import triton
import triton.language as tl

import tritorch as torch
from bench import cost, launches, predict, predict_step, sass, sm
from tritorch.cuda import driver, tuner
from tritorch.cuda.launch import launch
from tritorch.testing.ptx import device, parse, trace
from tritorch.testing.ptx.snippet import DECLARED, HEAD


@triton.jit
def strided_copy(y_ptr, x_ptr, STEP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + STEP * i))


@triton.jit
def rows_ahead(y_ptr, x_ptr, M, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    for i in tl.range(0, M, num_stages=3):
        tl.store(y_ptr + i * N + n, tl.load(x_ptr + i * N + n, mask=n < N, other=0), mask=n < N)


@triton.jit
def many_roots(y_ptr, x_ptr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    for _ in tl.static_range(ROUNDS):
        x = tl.math.rsqrt(x)
    tl.store(y_ptr + i, x)


@triton.jit
def counted(y_ptr, x_ptr, count_ptr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + tl.program_id(0) * BLOCK + i, i)
    if tl.atomic_add(count_ptr, 1, sem="acq_rel") >= PARTS - 1:
        tl.store(y_ptr + i, tl.load(x_ptr + i) + tl.load(x_ptr + BLOCK + i))


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


def test_what_a_masked_copy_leaves_out(gpu):
    """cp.async fills shared memory with zeros where it is told to read nothing: no sector is touched there."""
    x, y = torch.zeros(8 * 96, device="cuda"), torch.zeros(8 * 96, device="cuda")
    launched = traced(gpu, rows_ahead, (1,), y, x, 8, 96, BLOCK=256, num_warps=1)
    code = launched.kernel.program.code
    copies = [touched for place, touched in launched.warps[0] if code[place].opcode.startswith(("cp.async.ca", "cp.async.cg"))]
    assert sum(map(len, copies)) == 8 * 96 * 4 // 32


def test_only_the_sample_runs(gpu):
    """Eight CTAs from all of the grid; the others leave memory as it was."""
    x, y = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    launched = traced(gpu, strided_copy, (8192,), y, x, STEP=1, BLOCK=128, num_warps=4)
    assert (launched.blocks // 1024).tolist() == list(range(8)) and len(launched.warps) == 32
    for period in (2, 7, 25, 32):                                # as many tiles of an image, say
        assert len(set(launched.blocks % period)) >= min(period, 6)
    written = np.flatnonzero(y.cpu().numpy().reshape(-1, 128).any(axis=1))
    assert written.tolist() == launched.blocks.tolist()


@triton.jit
def overlapping_sums(y_ptr, x_ptr, HALO: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i) + tl.load(x_ptr + HALO * BLOCK + i))


@pytest.mark.parametrize("halo", [0, 1, trace.NEAR, trace.NEAR + 1])
def test_what_ctas_near_each_other_read_comes_from_memory_once(gpu, halo):
    """Of numbers that the CTA before has read nothing is left to move; CTAs far apart would not find them."""
    n = 1 << 24
    with trace.skipping(gpu):
        x, y = torch.empty(n + halo * 1024, device="cuda"), torch.empty(n, device="cuda")
    found = predicted(gpu, overlapping_sums, (n // 1024,), y, x, HALO=halo, BLOCK=1024, num_warps=4)
    assert found.nbytes / (4 * n) == pytest.approx(2 if halo <= trace.NEAR else 3, rel=0.02)


@triton.jit
def with_table(y_ptr, x_ptr, table_ptr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    there = tl.program_id(0) * BLOCK + i
    tl.store(y_ptr + there, tl.load(x_ptr + there) + tl.load(table_ptr + tl.program_id(0) % PARTS * BLOCK + i))


@pytest.mark.parametrize("parts, times", [(64, 2), (1 << 13, 3)])
def test_a_small_table_comes_from_the_second_cache(gpu, parts, times):
    """Programs far apart read the same of a table: a small one stays there, a large one does not, though each part of it is read twice."""
    n = 1 << 24
    with trace.skipping(gpu):
        x, y, table = (torch.empty(size, device="cuda") for size in (n, n, parts * 1024))
    launched = traced(gpu, with_table, (n // 1024,), y, x, table, PARTS=parts, BLOCK=1024, num_warps=4)
    found = predict.predict(launched, predict.resident(gpu, launched), memory=gpu.memory)
    assert found.nbytes / (4 * n) == pytest.approx(times, rel=0.02)


@pytest.mark.parametrize("step, cycles", [(1, 1), (4, 4)])
def test_the_first_cache_serves_a_line_in_a_cycle(step, cycles):
    """However few sectors of it are wanted."""
    assert sm.Multiprocessor(1, 0).load([step * k for k in range(4)], 0.0)[1] == cycles


def test_copies_of_16_bytes_to_shared_memory_go_past_the_first_cache():
    one = sm.Multiprocessor(1, 0)
    one.load([7], 0.0, past=True)
    assert one.load([7], 1000.0)[0] > 1000 + sm.LATENCY["second"]
    assert one.load([7], 2000.0)[0] == 2000 + sm.LATENCY["first"]
    assert one.load([7], 3000.0, past=True)[0] > 3000 + sm.LATENCY["second"]
    ops = instructions(*[f"cp.async.{way}.shared.global [%r1], [%rd1], 16" for way in ("ca", "cg")])
    assert [op.number for op in ops[:2]] == [0, 1]


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
    assert 0.97 < found.us / (8 * n / sm.COPY * 1e6) < 1.1 and found.uses["memory"] > 0.95


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
    assert max(found.uses, key=found.uses.get) == "mufu" and found.uses["memory"] < 0.5 and least <= found.us < 1.3 * least


def test_one_cta_waits_for_memory(gpu):
    """A single CTA cannot be faster than the way to memory and back."""
    x, y = torch.empty(1024, device="cuda"), torch.empty(1024, device="cuda")
    found = predicted(gpu, strided_copy, (1,), y, x, STEP=1, BLOCK=1024, num_warps=4)
    assert found.us * 1e-6 * sm.CLOCK > sm.LATENCY["dram"] and found.uses["memory"] < 0.3
    assert max(found.waits, key=found.waits.get) == "load"


def test_what_is_read_and_written_moves_twice(gpu):
    n = 1 << 24
    with trace.skipping(gpu):
        x = torch.empty(n, device="cuda")
    found = predicted(gpu, strided_copy, (n // 1024,), x, x, STEP=1, BLOCK=1024, num_warps=4)
    assert 0.95 < found.nbytes / (8 * n) < 1.05


# ------------------------------------------------------------------ products
def instructions(*lines):
    """What these lines of PTX cost."""
    text = HEAD.format(threads=128, maxnreg=128) + DECLARED + "".join(f"{line};\n" for line in (*lines, "ret")) + "}\n"
    program = parse.parse(text)
    return [cost._op(ins) for ins in program.code]


def product(columns, left="%rd0"):
    numbers = ",".join(f"%r{i + 8}" for i in range(columns // 2))
    flags = "1,1,0,0" if left == "%rd0" else "1,1,0"
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{numbers}}}, {left}, %rd1, %p0, {flags}"


COMMIT, WAIT = "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned {}"
REGISTERS = "{%r0,%r1,%r2,%r3}"


def cycles(loop, rounds, groups=1):
    """(of a round, the multiprocessor) where groups of four warps execute these lines many times."""
    *body, end = instructions(*loop)
    one = sm.Multiprocessor(1, 0)
    last = one.run(lambda i: [[(op, None) for op in body * rounds + [end]] for _ in range(4 * groups)], 1)[-1]
    return last / rounds, one


@pytest.mark.parametrize("columns, left, each", [
    (256, "%rd0", 128), (128, "%rd0", 64), (64, "%rd0", 32), (32, "%rd0", 24), (32, REGISTERS, 16)])
def test_products_alone_run_at_the_rate_of_the_units(columns, left, each):
    """64 · columns · 16 products at 2048 a cycle; of few columns the rows from shared memory take longer."""
    found, one = cycles([product(columns, left)] * 4 + [COMMIT, WAIT.format(1)], 400)
    assert 0.98 < found / (4 * each) < 1.03
    assert one.operations == 1600 * 2 * 64 * columns * 16


def test_groups_share_the_units():
    assert 0.99 < cycles([product(256)] * 4 + [COMMIT, WAIT.format(1)], 50, groups=2)[0] / 1024 < 1.03


def test_who_waits_for_each_product_pays_for_both():
    """A product and exponentials, one after the other: unless the product may go on meanwhile."""
    work, next_to = ["ex2.approx.f32 %r150, %r150"] * 8, [product(128), COMMIT]
    alone = cycles(work, 100)[0]
    waiting, _ = cycles([*next_to, WAIT.format(0), *work], 100)
    ahead, _ = cycles([*next_to, WAIT.format(1), *work], 100)
    assert waiting > 0.9 * (64 + alone) > 1.15 * ahead and ahead > 0.98 * max(64, alone)


def test_what_lists_say_is_what_is_done(gpu):
    """Of a causal mask with its lists a launch's operations are known from these, and those of its busiest program, here the first: as
    many as its trace has to its end, though of the kernel that made the lists one program was traced."""
    with driver.using(driver.current()):
        account = launches.Beside(driver.current())
        mask = torch.from_numpy(np.tri(384, dtype=bool)[None, None] & (np.arange(384) < np.array([[384], [200]]))[:, None, None]).cuda()
        q, k = [torch.zeros(2, heads, 384, 64, dtype=torch.bfloat16, device="cuda").requires_grad_() for heads in (24, 12)]
        with trace.tracing(gpu, whole=predict._LISTS) as found, launches.watching(account):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, k, mask, enable_gqa=True)
            torch.autograd.grad(out, (q, k), out.detach())
        driver.current().load = account.real
    listed = [(traced, known) for traced, known in zip(found, account.launches, strict=True) if known.listed]
    assert [known.kernel.partition(".")[2] for _, known in listed] == [
        f"attention_{name}gluon_kernel" for name in ("", "backward_q_", "backward_kv_")]
    for traced, known in listed:
        ops = cost.operations(traced.kernel.program, traced.kernel.cubin)
        done = sum(ops[place].operations for warp in traced.warps for place, _ in warp)
        assert traced.whole and done == pytest.approx(known.flops / traced.launch.grid[0] / known.busy)
        assert known.flops % (2 * 128 * 64 * 64) == 0 and known.busy < 1


def with_tiles(gpu, shape, **tiles):
    """The launch of a product of such bfloat16 matrices by the kernel in Gluon."""
    m, n, k = shape
    way = dict(kernel="gluon", BLOCK_K=64, num_warps=4, PIECES=1, CONSUMERS=1, PARTS=1, STREAM=False, **tiles)
    with trace.skipping(gpu):
        a, b = torch.empty(m, k, dtype=torch.bfloat16, device="cuda"), torch.empty(k, n, dtype=torch.bfloat16, device="cuda")
    with trace.tracing(gpu) as found, tuner.measuring(lambda *problem: way):
        a @ b
    return found[0]


def test_copies_and_products_are_seen(gpu):
    """One tile of 128 by 64 over 512: all bytes of both operands come, the barriers expect them, and every product is there."""
    launched = with_tiles(gpu, (128, 64, 512), BLOCK_M=128, BLOCK_N=64, STAGES=4)
    code, seen = launched.kernel.program.code, [entry for warp in launched.warps for entry in warp]
    copies = [touched for _, touched in seen if touched.__class__ is trace.Copy]
    loads = [copy for copy in copies if copy.barrier]
    expected = [touched for place, touched in seen if "expect_tx" in code[place].opcode]
    assert sum(copy.nbytes for copy in loads) == sum(nbytes for _, nbytes, _ in expected) == 2 * 512 * (128 + 64)
    assert {copy.barrier for copy in loads} == {address for address, _, _ in expected} and len({copy.barrier for copy in loads}) == 4
    assert sum(copy.nbytes for copy in copies if copy.barrier is None) == 2 * 128 * 64
    assert predict.predict(launched, 1).operations == 2 * 128 * 64 * 512
    assert not sass.waits(launched.kernel.program, launched.kernel.cubin)


@pytest.mark.parametrize("way", [dict(kernel="parts", num_stages=3), dict(kernel="groups", STAGES=4, GROUPS=1)], ids=["parts", "groups"])
def test_what_is_not_computed_is_zero(way, gpu):
    """Registers or tiles that hold anything would send float32 of parts back to start again on other units."""
    way = dict(BLOCK_M=64, BLOCK_N=32, BLOCK_K=32, num_warps=4, splits=1, **way)
    with trace.skipping(gpu):
        a, b = torch.zeros(64, 256, device="cuda"), torch.zeros(256, 32, device="cuda")
    with trace.tracing(gpu) as found, tuner.measuring(lambda *problem: way):
        a @ b
    (launched,) = found
    opcodes = [launched.kernel.program.code[place].opcode for place, _ in launched.warps[0]]
    assert sum(opcode.startswith("wgmma.mma") for opcode in opcodes) == 256 // 16 * 6
    assert sum(opcode.startswith("fma") for opcode in opcodes) == (64 + 32) * 256 // 128       # one for each number that is cut


def test_a_trace_may_end_early(gpu):
    """What is known of a part of the steps tells the time of all."""
    shape, tiles = (128, 64, 8192), dict(BLOCK_M=128, BLOCK_N=64, STAGES=4)
    whole = predict.predict(with_tiles(gpu, shape, **tiles), 1)
    launched = with_tiles(gpu, shape, **tiles)
    launched.whole, launched.warps = False, [warp[:len(warp) // 2] if len(warp) > 500 else warp for warp in launched.warps]
    assert 0.95 < predict.predict(launched, 1, whole.operations).us / whole.us < 1.05


def test_small_tiles_are_bound_by_shared_memory(gpu):
    """A step of a tile of 128 by 64 takes 256 cycles of the units; 24 KiB come to shared memory, and 32 are read from it."""
    found = predict.predict(with_tiles(gpu, (1024, 1024, 2048), BLOCK_M=128, BLOCK_N=64, STAGES=8), 1)
    assert found.binds.startswith("shared") and found.uses["tensor"] < 0.6
    assert found.us * 1e-6 * sm.CLOCK > 32 * ((128 + 64) * 64 * 2 + 4 * 2 * (64 + 64) * 16 * 2) / 128


def test_every_launch_of_a_program_is_predicted(gpu):
    """By its own name, equal ones alike; and the device is as before."""
    run, shown = gpu._run, []
    with driver.using(driver.current()):
        account = launches.Beside(driver.current())
        x, w = torch.zeros(256, 512, device="cuda", dtype=torch.bfloat16), torch.zeros(512, 128, device="cuda", dtype=torch.bfloat16)
        pairs = predict_step.predicted(gpu, account, lambda: [shown.append((x @ w).relu()) for _ in range(2)])
        driver.current().load = account.real
    assert gpu._run == run and account.then is None
    assert [launch.operator for launch, _ in pairs] == ["matmul", "relu"] * 2
    assert [launch.kernel.partition(".")[2] for launch, _ in pairs] == [found.name for _, found in pairs]
    assert pairs[0][0].flops == 2 * 256 * 512 * 128 and pairs[:2] == pairs[2:]
    assert all(predict_step.taken(*pair) > 0 for pair in pairs)
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_free_memory_is_cleared(gpu):
    kept, freed = [gpu.memory.alloc(1 << 16) for _ in range(2)]
    for address in (kept, freed):
        gpu.memory.host(address, 1 << 16)[:] = 7
    gpu.memory.free(freed)
    gpu.memory.clear_free()
    place = freed - gpu.memory.base
    pages = gpu.memory.bytes[place + 4096:place + 12288]                  # at its ends pages are shared with others
    assert (gpu.memory.host(kept, 1 << 16) == 7).all() and not pages.any()
    gpu.memory.free(kept)


@pytest.mark.parametrize("resident", [1, 3, 4])
def test_ctas_that_end_together_are_counted_by_rounds(resident):
    ends = [1000 + 700 * (i // resident) + i % resident for i in range(24)]
    assert predict.pace(ends, resident) == 700 / resident
    assert predict.pace([10.0, 20.0, 30.0], 8) == 10 and predict.pace([10.0], 2) == 10


def test_one_late_cta_does_not_set_the_pace():
    """In the middle of rounds of four one ends half a round late, which is where a single stretch would have begun."""
    ends = [1000 + 700 * (i // 4) for i in range(24)]
    ends[6] += 350
    assert predict.pace(ends, 4) == pytest.approx(175, rel=0.1)


def test_who_counts_is_the_last(gpu):
    """Whose way is the longest; what others have left comes from the second cache."""
    x, y, count = torch.zeros(512, device="cuda"), torch.zeros(256, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    for _ in range(2):
        with trace.tracing(gpu) as found:
            launch(counted, (2,), y, x, count, PARTS=2, BLOCK=256)
        touched = [seen for warp in found[0].warps for _, seen in warp if isinstance(seen, np.ndarray) and seen.size]
        late = {sector - trace.CACHED for seen in touched for sector in seen.tolist() if sector >= trace.CACHED}
        assert late == {x.data_ptr() // 32 + i for i in range(64)}
        assert any(y.data_ptr() // 32 in seen for seen in touched)
