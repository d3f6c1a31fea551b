"""Matrix instructions of the machine in ptx/ and the copies that feed them, each against its definition in the PTX ISA."""
import functools

import numpy as np
import pytest

from tritorch.testing.ptx.machine import Fault
from tritorch.testing.ptx.matrices import decode, product, units_of
from tritorch.testing.ptx.memory import Memory
from tritorch.testing.ptx.parse import SHARED_BASE
from tritorch.testing.ptx.snippet import LANE, Run, laid_out


@pytest.fixture(scope="module")
def memory():
    return Memory(1 << 24)


def bits_of(kind, numbers):
    """Whole numbers from -8 to 8 in the bits of a type."""
    if kind in ("e4m3", "e5m2"):
        return np.array([np.flatnonzero(decode(kind, np.arange(128, dtype=np.uint8)) == abs(n))[0] | (128 if n < 0 else 0)
                         for n in numbers.reshape(-1)], np.uint8).reshape(numbers.shape)
    if kind == "bf16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    dtype = {"f16": np.float16, "tf32": np.float32, "f64": np.float64, "s8": np.int8, "u8": np.uint8, "s32": np.int32}[kind]
    return numbers.astype(dtype).view(f"u{np.dtype(dtype).itemsize}")


# ------------------------------------------------------------------ mma.sync, as its tables have it: element i of a lane -> (row, column)
def a_16bit(i, g, t):
    return g + (0 if i < 2 or 4 <= i < 6 else 8), 2 * t + (i & 1) + (8 if i >= 4 else 0)


def a_8bit(i, g, t):
    return g + (0 if i < 4 or 8 <= i < 12 else 8), 4 * t + (i & 3) + (16 if i >= 8 else 0)


def a_tf32(i, g, t):
    return g + (0 if i in (0, 2) else 8), t + (0 if i < 2 else 4)


FORMS = {   # opcode, depth, element of A, how many a lane has, element of B, how many, rows
    "bf16": ("m16n8k16.row.col.f32.bf16.bf16.f32", 16, a_16bit, 8, lambda i, g, t: (2 * t + (i & 1) + (8 if i >= 2 else 0), g), 4, 16),
    "f16": ("m16n8k16.row.col.f16.f16.f16.f16", 16, a_16bit, 8, lambda i, g, t: (2 * t + (i & 1) + (8 if i >= 2 else 0), g), 4, 16),
    "s8": ("m16n8k32.row.col.s32.s8.s8.s32", 32, a_8bit, 16, lambda i, g, t: (4 * t + (i & 3) + (16 if i >= 4 else 0), g), 8, 16),
    "u8": ("m16n8k32.row.col.s32.u8.u8.s32", 32, a_8bit, 16, lambda i, g, t: (4 * t + (i & 3) + (16 if i >= 4 else 0), g), 8, 16),
    "e4m3": ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 32, a_8bit, 16, lambda i, g, t: (4 * t + (i & 3) + (16 if i >= 4 else 0), g), 8, 16),
    "e5m2": ("m16n8k32.row.col.f32.e5m2.e5m2.f32", 32, a_8bit, 16, lambda i, g, t: (4 * t + (i & 3) + (16 if i >= 4 else 0), g), 8, 16),
    "tf32": ("m16n8k8.row.col.f32.tf32.tf32.f32", 8, a_tf32, 4, lambda i, g, t: (t + 4 * i, g), 2, 16),
    "f64": ("m8n8k4.row.col.f64.f64.f64.f64", 4, lambda i, g, t: (g, t), 1, lambda i, g, t: (t, g), 1, 8),
    "f64 k16": ("m16n8k16.row.col.f64.f64.f64.f64", 16, lambda i, g, t: (g + 8 * (i % 2), t + i // 2 * 4), 8,
                lambda i, g, t: (t + 4 * i, g), 4, 16),
}


def packed(kind, matrix, place, count):
    """The registers of a fragment, (registers, 32)."""
    bits = bits_of(kind, matrix)
    elements = np.array([[bits[place(i, lane // 4, lane % 4)] for i in range(count)] for lane in LANE])
    return elements.view("u8" if kind == "f64" else "u4").T


@pytest.mark.parametrize("form", FORMS)
def test_mma(form):
    opcode, k, place_a, count_a, place_b, count_b, rows = FORMS[form]
    rng = np.random.default_rng(1)
    kind, low = form.partition(" ")[0], 0 if form == "u8" else -8
    a, b, c = rng.integers(low, 9, (rows, k)), rng.integers(low, 9, (k, 8)), rng.integers(-8, 9, (rows, 8))
    to = opcode.split(".")[3]
    result = {"f32": "tf32", "s32": "s32"}.get(to, to)          # whole numbers have the same bits in float32 and in TF32

    def place_d(i, g, t):
        return g + (8 if i >= 2 else 0), 2 * t + (i & 1)

    fragments = [packed(kind, a, place_a, count_a), packed(kind, b, place_b, count_b), packed(result, c, place_d, rows // 4)]
    letter, names, registers, vectors = "rd" if kind == "f64" else "r", iter(range(40)), {}, []
    for fragment in fragments:
        mine = [f"{letter}{next(names)}" for _ in fragment]
        registers |= dict(zip(mine, fragment))
        vectors.append("{" + ", ".join(f"%{name}" for name in mine) + "}")
    run = Run(f"mma.sync.aligned.{opcode} {vectors[2]}, {vectors[0]}, {vectors[1]}, {vectors[2]};", **registers)
    found = np.array([run[name.strip("% ")] for name in vectors[2][1:-1].split(", ")])
    np.testing.assert_array_equal(found, packed(result, a @ b + c, place_d, rows // 4))


def test_tf32_is_cut_not_rounded():
    one = np.float32(1 + 2 ** -11).view("u4")                   # nearest is 1 + 2^-10
    ones = np.full(32, np.float32(1).view("u4"))
    run = Run("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r0,%r1,%r2,%r3}, {%r4,%r5,%r6,%r7}, {%r8,%r9}, {%r0,%r1,%r2,%r3};",
              r0=0, r1=0, r2=0, r3=0, r4=one, r5=one, r6=one, r7=one, r8=ones, r9=ones)
    assert (run["r0"].view("f4") == 8).all()


def added(kind, to, arch, warp_group, depth, start, *products):
    """start + Σ x · y by matrix units."""
    a, b = (np.pad(np.float32(x), (0, depth - len(x))) for x in zip(*products))
    start = np.array(start, {"f16": np.float16, "f32": np.float32}[to]).reshape(1, 1, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        return product(kind, to, a[None, None], b[None, :, None], start, units_of(kind, arch, warp_group)).item()


def test_sums_of_float8_keep_13_bits():
    """Of wgmma, below the largest addend and below the sum itself."""
    add, step = functools.partial(added, "e4m3", "f32", 90, True, 32), 2.0 ** -13
    assert add(0, (1, 1), (2 ** -6, 2 ** -7)) == 1 + step and add(0, (1, 1), (2 ** -6, 2 ** -8), (2 ** -6, 2 ** -8)) == 1
    assert add(-1 - step * 1.5, (0, 0)) == -1 - step and add(step / 2, (1, 1)) == 1
    assert add(1 + step, (1, 1)) == 2 and add(1 + 2 * step, (1, 1)) == 2 + 2 * step
    assert add(0, (-0.0, 1), (0, 3)) == 0 and add(1, (np.inf, 2), (1, 1)) == np.inf and np.isnan(add(1, (np.inf, 0)))


@pytest.mark.parametrize("arch, kind, depth, at_once, bits", [
    (80, "bf16", 16, 8, 24), (80, "f16", 16, 8, 24), (80, "tf32", 8, 4, 24), (90, "bf16", 16, 16, 25), (90, "tf32", 8, 8, 25)])
def test_sums_are_cut_off(arch, kind, depth, at_once, bits):
    """One bit (sm_80) or two (sm_90) below float32's last are seen in an addend, none is rounded up, of a sum or of an addend."""
    add, small, one = functools.partial(added, kind, "f32", arch, False, depth), 2.0 ** -(bits // 2), 2.0 ** (bits // 2 - bits)
    ulp, extra = 2.0 ** -23, 2 ** (bits - 23)
    assert add(1 - ulp, (1, 0)) == 1 - ulp and add(-1, (-ulp, 1 - 2 ** -8)) == -1             # cut, where nearest is the next number
    assert add(1, *[(small, one)] * extra) == 1 + ulp and add(1, *[(small, one)] * (extra - 1)) == 1
    assert add(1, *[(small, one / 2)] * at_once) == 1                                         # each by itself is not seen
    assert add(0, *[(small, one / 2)] * at_once, *[(0, 0)] * (depth - at_once)) == at_once * 2.0 ** -bits / 2
    last = 2.0 ** -bits                                         # 1.5 · 1.5 counts as one of exponent 0, as a start 2.25 is of exponent 1
    assert add(0, (1.5, 1.5), (-1.5, 1.5), (small, one)) == last and add(-2.25, (1.5, 1.5), (small, one)) == 0
    if at_once < depth:
        assert add(0, (1, 1), *[(0, 0)] * (at_once - 1), (small, one), (small, one)) == 1 + ulp          # two sums, one after the other
    assert add(2.0 ** 127, (2.0 ** 64, 2.0 ** 63)) == np.inf and add(2.0 ** 127, (2.0 ** 64, -2.0 ** 64)) == -2.0 ** 127
    assert add(2.0 ** -149, (2.0 ** -75, -2.0 ** -75)) == 0 and np.isnan(add(np.inf, (np.inf, -1)))


def test_sums_in_float16_are_rounded():
    add, ulp = functools.partial(added, "f16", "f16", 90, True, 16), 2.0 ** -10
    assert add(1, (ulp, 0.5)) == 1 and add(1 + ulp, (ulp, 0.5)) == 1 + 2 * ulp and add(1, (ulp, 0.5), (2 ** -12, 2 ** -12)) == 1 + ulp


# ------------------------------------------------------------------ ldmatrix and stmatrix
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix(trans):
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    word = ".trans" if trans else ""
    run = Run(f"ldmatrix.sync.aligned.m8n8.x4{word}.shared.b16 {{%r0, %r1, %r2, %r3}}, [%r4+256];", content=np.concatenate(
        [np.zeros(256, np.uint8), matrices.view(np.uint8).reshape(-1)]), r4=SHARED_BASE + 16 * LANE)
    for i, matrix in enumerate(matrices.swapaxes(1, 2) if trans else matrices):
        expected = [(int(matrix[lane // 4, 2 * (lane % 4)]), int(matrix[lane // 4, 2 * (lane % 4) + 1])) for lane in LANE]
        assert [(v & 0xFFFF, v >> 16) for v in run[f"r{i}"].tolist()] == expected


@pytest.mark.parametrize("count, word", [(1, ""), (2, ".trans"), (4, "")])
def test_stmatrix_is_the_way_back(count, word):
    names = ", ".join(f"%r{i}" for i in range(count))
    content = np.random.default_rng(0).integers(0, 256, 128 * count).astype(np.uint8)
    run = Run(f"ldmatrix.sync.aligned.m8n8.x{count}{word}.shared.b16 {{{names}}}, [%r8];\n"
              f"stmatrix.sync.aligned.m8n8.x{count}{word}.shared.b16 [%r8+1024], {{{names}}};", content=content, r8=SHARED_BASE + 16 * LANE)
    assert (run.shared[1024:1024 + 128 * count] == content).all()


def test_rows_of_ldmatrix_are_aligned():
    with pytest.raises(Fault, match="misaligned"):
        Run("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r1];", r1=SHARED_BASE + 8 * LANE)


# ------------------------------------------------------------------ cp.async
COPY = "cp.async.cg.shared.global [%r1], [%rd1], 0x10, %r2;\ncp.async.commit_group;\n"


def source(memory):
    data = np.arange(512, dtype=np.uint8) % 255
    address = memory.alloc(512)
    memory.host(address, 512)[:] = data
    return address + 16 * LANE, data


def test_cp_async_arrives_at_the_wait_and_fills_with_zeros(memory):
    address, data = source(memory)
    run = Run(COPY + "ld.shared.b32 %r4, [%r1];\ncp.async.wait_group 0;\nld.shared.b32 %r5, [%r1];", memory=memory, rd1=address,
              r1=SHARED_BASE + 16 * LANE, r2=np.where(LANE < 16, 16, 0))
    assert (run["r4"] == 0xFFFFFFFF).all()                     # poison: not there yet
    assert (run["r5"] == np.where(LANE < 16, data.view("u4")[::4], 0)).all()


@pytest.mark.parametrize("operands, read", [("16, %rd2", 16), ("16, %r2, %rd2", 8)])
def test_a_policy_of_the_cache_is_no_number_of_bytes(memory, operands, read):
    address, data = source(memory)
    run = Run(f"cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd1], {operands};\ncp.async.commit_group;\ncp.async.wait_group 0;\n"
              "ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r1];", memory=memory, rd1=address, r1=SHARED_BASE + 16 * LANE, r2=8, rd2=1 << 61)
    found = np.stack([run[f"r{i}"] for i in range(4, 8)], axis=1)
    assert (found == np.where(np.arange(4) < read // 4, data.view("u4").reshape(-1, 4), 0)).all()


def test_wait_group_counts_groups_of_a_thread(memory):
    address, data = source(memory)
    second = COPY.replace("[%r1]", "[%r1+512]")
    run = Run(COPY + second + "cp.async.wait_group 1;\nld.shared.b32 %r4, [%r1];\nld.shared.b32 %r5, [%r1+512];\ncp.async.wait_group 0;",
              memory=memory, rd1=address, r1=SHARED_BASE + 16 * LANE, r2=16)
    assert (run["r4"] == data.view("u4")[::4]).all() and (run["r5"] == 0xFFFFFFFF).all()


def test_cp_async_outside_of_memory(memory):
    address, _ = source(memory)
    with pytest.raises(Fault, match="live memory"):
        Run(COPY, memory=memory, rd1=address + 512, r1=SHARED_BASE + 16 * LANE, r2=16)


# ------------------------------------------------------------------ wgmma
def descriptor(start, leading, stride, span):
    code = {16: 0, 128: 1, 64: 2, 32: 3}[span]
    return (SHARED_BASE + start) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | code << 62


def described(matrix, span, turned, start):
    """Bytes and descriptor of (extent, 16) numbers; turned: the extent is contiguous."""
    stored = bits_of("bf16", matrix.T if turned else matrix)
    block = len(stored) * span                                  # from one block of `span` bytes to the next
    if turned and span == 16:
        leading, stride = 8 * span, block                       # along K, along M or N
    elif turned:
        leading, stride = block, 8 * span
    else:
        leading, stride = block if span == 16 else 16, 8 * span
    return laid_out(stored, span), descriptor(start, leading, stride, span)


FENCED = "wgmma.fence.sync.aligned;\n"
PRODUCT = "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16"
WAITED = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"


def accumulators(count=16, first=0):
    return "{" + ",".join(f"%r{first + i}" for i in range(count)) + "}"


def sums(run, count=16):
    """(64, 2 count): element i of thread 32w + 4g + t is in row 16w + g (+ 8 for every second pair), column 8 (i // 4) + 2t + i mod 2."""
    out = np.zeros((64, 2 * count), np.float32)
    for thread in range(128):
        w, g, t = thread // 32, thread % 32 // 4, thread % 4
        for i in range(count):
            out[16 * w + g + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * t + i % 2] = run[f"r{i}"].view("f4")[thread]
    return out


def operands():
    rng = np.random.default_rng(5)
    return rng.integers(-8, 9, (64, 16)), rng.integers(-8, 9, (16, 32))


@pytest.mark.parametrize("span", [128, 64, 32, 16])
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_wgmma_from_shared_memory(span, turned):
    a, b = operands()
    wide_a = np.concatenate([np.zeros((64, 16), int), a, np.zeros((64, 32), int)], axis=1) if span == 128 and not turned[0] else a
    wide_b = np.pad(b.T, ((0, 0), (0, max(0, span // 2 - 16)))) if not turned[1] else np.pad(b, ((0, 0), (0, max(0, span // 2 - 32)))).T
    wide_a = np.pad(wide_a, ((0, 0), (0, max(0, span // 2 - wide_a.shape[1])))) if not turned[0] else wide_a
    bytes_a, desc_a = described(wide_a, span, turned[0], 0)
    bytes_b, desc_b = described(wide_b, span, turned[1], 16384)
    desc_a += 2 if wide_a.shape[1] == 64 and span == 128 and not turned[0] else 0            # 32 bytes into the rows: the second step of K
    content = np.zeros(1 << 15, np.uint8)
    content[:bytes_a.size], content[16384:16384 + bytes_b.size] = bytes_a, bytes_b
    run = Run(f"{FENCED}{PRODUCT} {accumulators()}, %rd0, %rd1, %p0, 1, -1, {turned[0]}, {turned[1]};\n{WAITED}", 128, content=content,
              rd0=desc_a, rd1=desc_b, p0=True, **{f"r{i}": np.float32(1).view("u4") for i in range(16)})
    np.testing.assert_array_equal(sums(run), 1 - a @ b)


BETWEEN = {   # what stands between the product and its wait, and the sentence it gets
    "mov.b32 %r40, 0;": "a register that a product reads",
    "st.shared.b32 [%r50], %r51;": "shared memory that a product reads",
    "mov.b32 %r3, 0;": "an accumulator is written",
}


def from_registers(between="", fence=FENCED):
    a, b = operands()
    bytes_b, desc_b = described(b.T, 32, 0, 0)
    registers = {f"r{40 + i}": np.concatenate([packed("bf16", a[16 * w:16 * w + 16], a_16bit, 8)[i] for w in range(4)]) for i in range(4)}
    run = Run(f"{fence}{PRODUCT} {accumulators()}, {accumulators(4, 40)}, %rd1, 0, 1, 1, 0;\n{between}{WAITED}", 128,
              content=bytes_b, rd1=desc_b, r50=SHARED_BASE, r51=0, **registers)
    return run, a @ b


def test_wgmma_from_registers():
    run, expected = from_registers()
    np.testing.assert_array_equal(sums(run), expected)


def test_results_come_at_the_wait():
    run, _ = from_registers("mov.b32 %r60, %r5;\n")
    assert np.isnan(run["r60"].view("f4")).all() and np.isfinite(run["r5"].view("f4")).all()


@pytest.mark.parametrize("between, sentence", BETWEEN.items())
def test_operands_stay_until_the_wait(between, sentence):
    with pytest.raises(Fault, match=sentence):
        from_registers(between + "\n")


def test_a_fence_comes_first():
    with pytest.raises(Fault, match="no wgmma.fence"):
        from_registers(fence="")


@pytest.mark.parametrize("span", [128, 64, 32])
def test_a_swizzle_begins_where_its_pattern_does(span):
    """From the second of eight rows on hardware would exchange other chunks; further into the first one is the next step of K."""
    for start, wrong in ((4 * span, True), (span, True), (16, False)):
        code = f"{FENCED}{PRODUCT} {accumulators()}, %rd0, %rd1, 0, 1, 1, 0, 0;\n{WAITED}"
        places = {"rd0": descriptor(start, 16, 8 * span, span), "rd1": descriptor(16384, 16, 8 * span, span)}
        if wrong:
            with pytest.raises(Fault, match=f"begins at multiples of {8 * span}"):
                Run(code, 128, **places)
        else:
            Run(code, 128, **places)


def test_a_barrier_is_for_as_many_threads_as_it_says():
    Run("bar.sync 1, 64;", 64)
    with pytest.raises(Fault, match="more threads at a barrier"):
        Run("bar.sync 1, 32;", 64)


# ------------------------------------------------------------------ proxies
@pytest.mark.parametrize("fence, ok", [
    ("", False), ("fence.proxy.async.shared::cta;\n", True), ("bar.sync 0;\nfence.proxy.async.shared::cta;\n", True),
    ("@%p1 fence.proxy.async.shared::cta;\nbar.sync 0;\n", False)])
def test_what_threads_write_needs_a_fence(fence, ok):
    a, b = operands()
    bytes_b, desc_b = described(b.T, 32, 0, 0)
    store = "st.shared.b32 [%r50], %r51;\n"                     # every thread a word of B, 8 · 64 bytes of it
    body = store + fence + "bar.sync 0;\n" + FENCED
    body += f"{PRODUCT} {accumulators()}, {accumulators(4, 40)}, %rd1, 0, 1, 1, 0;\n" + WAITED
    thread = np.arange(128)

    def run():
        Run(body, 128, content=bytes_b, rd1=desc_b, r50=SHARED_BASE + 4 * thread, r51=bytes_b.view("u4")[:128], p1=thread < 32)

    if ok:
        run()
    else:
        with pytest.raises(Fault, match="no fence.proxy.async followed"):
            run()
