"""The instructions of the GPU made of PTX whose semantics are easy to get wrong, against their definitions written once more, slowly."""
import itertools
from fractions import Fraction

import numpy as np
import pytest

from tritorch.testing.ptx import access, arithmetic, control, convert, integers, warp  # noqa: F401
from tritorch.testing.ptx.machine import Fault, Launch, Machine
from tritorch.testing.ptx.memory import Memory
from tritorch.testing.ptx.parse import SHARED_BASE, ParseError, parse

WIDTHS = {"h": np.uint16, "r": np.uint32, "d": np.uint64, "p": bool}
TEXT = """.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry kernel(
	.param .u64 kernel_param_0
)
.reqntid {threads}
{{
	.local .align 8 .b8 depot[16];
	.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>;
{code}
	ret;
}}
.func  (.param .b32 result) at_most_nine(.param .b32 value)
{{
	.reg .pred %p<2>; .reg .b32 %r<2>;
	ld.param.b32 %r0, [value];
	st.param.b32 [result], %r0;
	setp.lt.u32 %p0, %r0, 10;
	@%p0 bra SMALL;
	st.param.b32 [result], 9;
SMALL:
	ret;
}}
"""


def run(code, threads=32, seed=0, parameter=0, memory=None, **registers):
    """Execute a few lines with values in registers (h0: 16, r0: 32, d0: 64 bits, p0: a predicate); result("r0", dtype) reads one."""
    launch = Launch((1, 1, 1), threads, 256, np.array([parameter], np.uint64).view(np.uint8))
    machine = Machine(parse(TEXT.format(threads=threads, code=code)), launch, memory, np.zeros(1, np.int64), seed)
    places = {name[1:]: i for i, name in enumerate(f"%{kind}{n}" for kind in "phrd" for n in range(9))}
    for name, values in registers.items():
        row = np.resize(np.asarray(values), threads)
        machine.registers[places[name]] = row.view(WIDTHS[name[0]]) if name[0] != "p" else row
    machine.run()
    return lambda name, dtype=None: machine.registers[places[name]].view(dtype or WIDTHS[name[0]])


def nearest(exact, dtype, direction=0):
    """A fraction rounded to float32 or float64: to nearest even, down (-1) or up (1)."""
    guess = dtype(float(exact))
    around = [np.nextafter(guess, dtype(-np.inf)), guess, np.nextafter(guess, dtype(np.inf))]
    if direction:
        return (max if direction < 0 else min)((x for x in around if (Fraction(float(x)) - exact) * direction >= 0), key=float)
    even = np.uint32 if dtype is np.float32 else np.uint64
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(even)) & 1))


# ------------------------------------------------------------------ arithmetic
def hard_sums(dtype, rng):
    """Products whose sum with a third number lies between two numbers, or a hair beside the middle."""
    a = (1 + rng.integers(0, 2 ** 12, 200) / 2 ** 12).astype(dtype)
    b = (1 + rng.integers(0, 2 ** 12, 200) / 2 ** 12).astype(dtype)
    bits = np.finfo(dtype).nmant
    c = (rng.choice([-1, 1], 200) * 2.0 ** rng.integers(-2 * bits - 8, 3, 200) * (1 + 2.0 ** -bits * rng.integers(0, 4, 200))).astype(dtype)
    return a * rng.choice(np.array([1, -1, 3], dtype), 200), b, c


@pytest.mark.parametrize("mode, direction", [("rn", 0), ("rm", -1), ("rp", 1)])
def test_fma_rounds_once(mode, direction):
    a, b, c = hard_sums(np.float32, np.random.default_rng(0))
    a[0], b[0], c[0] = 1 + 2 ** -12, 1 + 2 ** -12, 2 ** -60             # a product between two numbers, and a hair above
    got = run(f"fma.{mode}.f32 %r3, %r0, %r1, %r2;", 224, r0=a, r1=b, r2=c)("r3", np.float32)
    for x, y, z, have in zip(a, b, c, got):
        want = nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), np.float32, direction)
        assert have == want, (x, y, z)


def test_fma_of_float64_rounds_once():
    rng = np.random.default_rng(1)
    a, b, c = hard_sums(np.float64, rng)
    a *= 1 + rng.integers(0, 2 ** 20, 200) * 2.0 ** -52
    a[:3], b[:3], c[:3] = [1e300, 1e-200, 3e-310], [1e10, -1e-150, 0.7], [-1e308, 1e-320, 1e-320]     # overflow, underflow
    got = run("fma.rn.f64 %d3, %d0, %d1, %d2;", 224, d0=a, d1=b, d2=c)("d3", np.float64)
    for x, y, z, have in zip(a, b, c, got):
        try:
            assert have == float(Fraction(x) * Fraction(y) + Fraction(z)), (x, y, z)
        except OverflowError:
            assert np.isinf(have)


def test_addition_rounds_as_told():
    one, tiny = np.float32(1), np.float32(2 ** -40)
    result = run("add.rz.ftz.f32 %r2, %r0, %r1; add.rp.f32 %r3, %r0, %r1; sub.rz.ftz.f32 %r4, %r0, %r1;", r0=one, r1=tiny)
    assert result("r2", np.float32)[0] == 1 and result("r3", np.float32)[0] == np.nextafter(one, np.float32(2))
    assert result("r4", np.float32)[0] == np.nextafter(one, np.float32(0))


def test_subnormal_numbers_are_flushed_only_where_it_says_so():
    small = np.float32(1e-40)
    result = run("add.f32 %r1, %r0, %r0; mul.ftz.f32 %r2, %r0, 0fC0000000; add.ftz.f32 %r3, %r0, 0f3F800000;", r0=small)
    assert result("r1", np.float32)[0] == small + small
    assert result("r2")[0] == 0x80000000 and result("r3", np.float32)[0] == 1


def test_extremes_skip_nan_and_order_zeros():
    a, b = np.float32([np.nan, 1, -0.0, 0.0, np.nan]), np.float32([2, np.nan, 0.0, -0.0, np.nan])
    result = run("max.f32 %r2, %r0, %r1; min.f32 %r3, %r0, %r1; max.NaN.f32 %r4, %r0, %r1;", r0=a, r1=b)
    assert result("r2")[:5].tolist() == [0x40000000, 0x3F800000, 0, 0, 0x7FFFFFFF]
    assert result("r3")[:5].tolist() == [0x40000000, 0x3F800000, 0x80000000, 0x80000000, 0x7FFFFFFF]
    assert np.isnan(result("r4", np.float32)[:5]).tolist() == [True, True, False, False, True]


@pytest.mark.parametrize("test, ordered, with_nan", [
    ("eq", [False, True, False], False), ("ne", [True, False, True], False), ("lt", [True, False, False], False),
    ("equ", [False, True, False], True), ("neu", [True, False, True], True), ("geu", [False, True, True], True),
    ("num", [True, True, True], False), ("nan", [False, False, False], True)])
def test_comparisons_with_nan(test, ordered, with_nan):
    a = np.float32([1, 2, 3, np.nan])
    result = run(f"setp.{test}.f32 %p0|%p1, %r0, 0f40000000; setp.{test}.and.f32 %p2|%p3, %r0, 0f40000000, %p4;", r0=a, p4=False)
    assert result("p0")[:4].tolist() == [*ordered, with_nan]
    assert result("p1")[:4].tolist() == [not x for x in [*ordered, with_nan]]
    assert not result("p2").any() and not result("p3").any()


def test_division_of_integers_truncates():
    a, b = (np.array(x, np.int32) for x in zip(*itertools.product([-7, 7, 6, -2 ** 31, 2 ** 31 - 1], [2, -2, 3, -3, 7])))
    result = run("div.s32 %r2, %r0, %r1; rem.s32 %r3, %r0, %r1;", r0=a, r1=b)
    wanted = [int(Fraction(int(x), int(y)).__trunc__()) for x, y in zip(a, b)]
    assert result("r2", np.int32)[:a.size].tolist() == wanted
    assert result("r3", np.int32)[:a.size].tolist() == [int(x) - int(y) * w for x, y, w in zip(a, b, wanted)]


def test_pairs_of_integers_do_not_reach_into_each_other():
    result = run("add.s16x2 %r2, %r0, %r1; min.s16x2 %r3, %r0, %r1; max.u16x2 %r4, %r0, %r1; add.u16x2 %r5, %r0, 65537;",
                 r0=np.uint32(0x7FFFFFFF), r1=np.uint32(0x00020001))
    assert [int(result(f"r{i}")[0]) for i in (2, 3, 4, 5)] == [0x80010000, 0x0002FFFF, 0x7FFFFFFF, 0x80000000]


def test_upper_halves_of_products():
    numbers = [0, 1, -1, 2 ** 63 - 1, -2 ** 63, 0x123456789ABCDEF, -987654321987654321]
    a, b = (np.array(x[:32], np.int64) for x in zip(*itertools.product(numbers, repeat=2)))
    result = run("mul.hi.s64 %d2, %d0, %d1; mul.hi.u64 %d3, %d0, %d1; mul.wide.s32 %d4, %r0, -3;", d0=a, d1=b, r0=np.int32(-2 ** 31))
    assert result("d2", np.int64).tolist() == [int(x) * int(y) >> 64 for x, y in zip(a, b)]
    assert result("d3").tolist() == [(int(x) % 2 ** 64) * (int(y) % 2 ** 64) >> 64 for x, y in zip(a, b)]
    assert result("d4", np.int64)[0] == 3 * 2 ** 31


def test_bytes_are_permuted():
    rng = np.random.default_rng(2)
    a, b, choice = (rng.integers(0, 2 ** 32, 32, dtype=np.uint32) for _ in range(3))
    got = run("prmt.b32 %r3, %r0, %r1, %r2;", r0=a, r1=b, r2=choice)("r3")
    for x, y, pick, have in zip(a, b, choice, got):
        whole = (int(x) | int(y) << 32).to_bytes(8, "little")
        picks = [int(pick) >> 4 * i & 15 for i in range(4)]
        want = bytes((0xFF if whole[p & 7] & 0x80 else 0) if p & 8 else whole[p] for p in picks)
        assert int(have).to_bytes(4, "little") == want


@pytest.mark.parametrize("kind, bits, signed", [("u32", 32, False), ("s32", 32, True), ("u64", 64, False), ("s64", 64, True)])
def test_fields(kind, bits, signed):
    rng = np.random.default_rng(3)
    letter = "r" if bits == 32 else "d"
    a = rng.integers(0, 2 ** bits, 96, dtype=WIDTHS[letter])
    start, length = (rng.choice([0, 1, 5, 15, 31, 32, 40, 63, 64, 255], 96).astype(np.uint32) for _ in range(2))
    got = run(f"bfe.{kind} %{letter}5, %{letter}4, %r1, %r2;", 96, **{letter + "4": a}, r1=start, r2=length)(letter + "5")
    for x, s, n, have in zip(a.tolist(), start.tolist(), length.tolist(), got.tolist()):
        top = (x >> min(s + n - 1, bits - 1) & 1) if signed and n else 0               # as the manual's loop says
        want = sum((x >> s + i & 1 if i < n and s + i < bits else top) << i for i in range(bits))
        assert have == want, (x, s, n)


def test_bits_are_inserted_counted_and_turned():
    result = run("bfi.b32 %r1, %r0, -1, 8, 4; popc.b32 %r2, %r0; clz.b32 %r3, %r0; brev.b32 %r4, %r0; bfind.u32 %r5, %r0;"
                 "lop3.b32 %r6, %r0, %r1, %r2, 0x1E; shf.l.wrap.b32 %r7, %r0, %r0, 4;", r0=np.uint32(0x00F00003))
    assert [int(result(f"r{i}")[0]) for i in range(1, 6)] == [0xFFFFF3FF, 6, 8, 0xC0000F00, 23]
    assert int(result("r6")[0]) == 0x00F00003 ^ (0xFFFFF3FF | 6) and int(result("r7")[0]) == 0x0F000030


def test_shifts_by_more_than_there_are_bits():
    result = run("shl.b32 %r1, %r0, 32; shr.u32 %r2, %r0, 99; shr.s32 %r3, %r0, 99; shl.b64 %d1, %d0, 63;",
                 r0=np.uint32(0x80000001), d0=np.uint64(3))
    assert [int(result(f"r{i}")[0]) for i in (1, 2, 3)] == [0, 0, 0xFFFFFFFF] and int(result("d1")[0]) == 1 << 63


def test_carry_goes_to_the_next_product():
    a, b = 0xFFFFFFFF, 0xFFFFFFF1
    result = run("mad.lo.cc.u32 %r2, %r0, %r1, %r3; madc.hi.u32 %r4, %r0, %r1, 0;", r0=np.uint32(a), r1=np.uint32(b), r3=np.uint32(77))
    whole = a * b + 77
    assert int(result("r2")[0]) == whole & 0xFFFFFFFF and int(result("r4")[0]) == whole >> 32


def test_approximations_err_as_much_as_they_may_and_no_more():
    x = np.random.default_rng(5).uniform(0.1, 10, 992).astype(np.float32)
    got = run("ex2.approx.f32 %r1, %r0; div.full.f32 %r2, 0f3F800000, %r0; div.rn.f32 %r3, 0f3F800000, %r0; sqrt.approx.ftz.f32 %r4, %r0;",
              992, r0=x)
    exact = {"r1": np.exp2(x.astype(float)), "r2": 1 / x.astype(float), "r4": np.sqrt(x.astype(float))}
    for name, limit in (("r1", 2 ** -22), ("r2", 2 ** -22), ("r4", 2 ** -23)):
        error = np.abs(got(name, np.float32) - exact[name]) / exact[name]
        assert limit / 2 < error.max() <= limit + 2 ** -24, name
    assert (got("r3", np.float32) == 1 / x).all()
    got = run("ex2.approx.f32 %r1, 0fC0400000; rcp.approx.ftz.f32 %r2, 0f40800000; lg2.approx.f32 %r3, 0f00000000;")
    assert [float(got(f"r{i}", np.float32)[0]) for i in (1, 2, 3)] == [0.125, 0.25, -np.inf]


# ------------------------------------------------------------------ conversions
def test_bfloat16_rounds_to_even_and_keeps_nan():
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0xFFC00001, 0x7F800001, 0x80000001], np.uint32)
    got = run("cvt.rn.bf16.f32 %h0, %r0; cvt.rn.bf16x2.f32 %r1, 0f40000000, %r0; cvt.rz.bf16.f32 %h1, %r0;", r0=bits)
    wanted = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7F80, 0x7FFF, 0x7FFF, 0x8000]
    assert got("h0")[:9].tolist() == wanted and got("r1")[:9].tolist() == [0x40000000 | x for x in wanted]
    assert got("h1")[:5].tolist() == [0x3F80, 0x3F80, 0x3F81, 0x3F80, 0x7F7F]


def test_float64_reaches_the_narrow_kinds_in_one_step():
    just_above = 1 + 2.0 ** -8 + 2.0 ** -40                             # float32 would lose what breaks the tie
    got = run("cvt.rn.bf16.f64 %h0, %d0; cvt.rn.f16.f64 %h1, %d1;", d0=just_above, d1=1 + 2.0 ** -11 + 2.0 ** -40)
    assert got("h0")[0] == 0x3F81 and got("h1")[0] == 0x3C01


def test_floats_saturate_as_integers():
    values = np.float32([2.5, -2.5, 3e9, -3e9, np.nan, 1e30, -0.7, 200])
    got = run("cvt.rzi.s32.f32 %r1, %r0; cvt.rni.s32.f32 %r2, %r0; cvt.rzi.u32.f32 %r3, %r0; cvt.rzi.s64.f32 %d0, %r0;"
              "cvt.rmi.f32.f32 %r4, %r0;",
              r0=values)
    assert got("r1", np.int32)[:8].tolist() == [2, -2, 2 ** 31 - 1, -2 ** 31, 0, 2 ** 31 - 1, 0, 200]
    assert got("r2", np.int32)[:2].tolist() == [2, -2] and got("r2", np.int32)[6] == -1
    assert got("r3")[:8].tolist() == [2, 0, 3000000000, 0, 0, 2 ** 32 - 1, 0, 200]
    assert got("d0", np.int64)[:8].tolist() == [2, -2, 3000000000, -3000000000, -2 ** 63, 2 ** 63 - 1, 0, 200]
    assert got("r4", np.float32)[1] == -3


def test_integers_become_floats_in_one_step():
    values = np.array([2 ** 63 + 2 ** 39 + 1, 2 ** 24 + 1, 2 ** 64 - 1, 2 ** 62 + 2 ** 54 + 1], np.uint64)
    got = run("cvt.rn.f32.u64 %r0, %d0; cvt.rn.bf16.s64 %h0, %d0; cvt.rn.f32.s32 %r1, -7;", d0=values)
    assert got("r0", np.float32)[:4].tolist() == [nearest(Fraction(int(v)), np.float32) for v in values]
    assert got("h0")[3] == 0x5E81 and got("r1", np.float32)[0] == -7       # 2**62 + half a step and one more


def test_integers_are_cut_and_extended():
    got = run("cvt.s32.s8 %r1, %r0; cvt.u16.u32 %h0, %r0; cvt.s64.s32 %d0, %r0; cvt.u64.u32 %d1, %r0;", r0=np.uint32(0xFFFE12F0))
    assert got("r1", np.int32)[0] == -16 and got("h0")[0] == 0x12F0
    assert got("d0", np.int64)[0] == np.uint32(0xFFFE12F0).view(np.int32) and got("d1")[0] == 0xFFFE12F0


@pytest.mark.parametrize("kind, name", [("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2")])
def test_float8(kind, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(4)
    values = np.concatenate([rng.normal(size=40) * 10.0 ** rng.integers(-6, 4, 40), [0, -0.0, 2 ** -10, 1.0625]]).astype(np.float32)
    got = run(f"cvt.rn.satfinite.{kind}x2.f32 %h0, 0f3F800000, %r0; cvt.rn.f16x2.{kind}x2 %r1, %h0;", 64, r0=values)
    largest = float(ml_dtypes.finfo(name).max)
    want = np.clip(values, -largest, largest).astype(name)
    assert (got("h0").view(np.uint8)[:2 * values.size:2] == want.view(np.uint8)).all()
    assert (got("h0").view(np.uint8)[1::2] == np.ones(1, name).view(np.uint8)).all()
    assert (got("r1").view(np.float16)[:2 * values.size:2] == want.astype(np.float16)).all()


# ------------------------------------------------------------------ warps
@pytest.mark.parametrize("way", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize("distance", [0, 1, 3, 9, 31])
def test_shuffles_stay_inside_their_segment(way, width, distance):
    clamp = (32 - width << 8) + (0 if way == "up" else 31)
    got = run(f"shfl.sync.{way}.b32 %r1|%p0, %r0, {distance}, {clamp}, -1;", r0=np.arange(32, dtype=np.uint32) + 100)
    for lane in range(32):                                              # the manual's pseudocode
        segment, limit = clamp >> 8 & 31, clamp & 31
        last = lane & segment | limit & ~segment & 31
        source = {"up": lane - distance, "down": lane + distance, "bfly": lane ^ distance, "idx": lane & segment | distance & ~segment}[way]
        inside = source >= last if way == "up" else source <= last
        assert got("r1")[lane] == 100 + (source if inside else lane) and got("p0")[lane] == inside


def test_a_shuffle_that_not_all_lanes_reach():
    with pytest.raises(Fault, match=r"lanes \[0, 1\] of the warp are elsewhere .*line \d+ of the PTX"):
        run("mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 2; @%p0 bra DONE; shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; DONE:")


def test_a_shuffle_waits_for_lanes_that_come_from_behind():
    got = run("""mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 2; @%p0 bra LATER;
MEET: shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; bra DONE;
LATER: add.s32 %r0, %r0, 50; bra MEET;
DONE:""")
    assert got("r1").tolist() == [51, 50] + [i ^ 1 for i in range(2, 32)]


def test_votes_and_reductions_of_a_warp():
    got = run("""mov.u32 %r0, %laneid; setp.lt.u32 %p0, %r0, 5; vote.sync.ballot.b32 %r1, %p0, -1; vote.sync.any.pred %p1, %p0, -1;
                 redux.sync.add.s32 %r2, %r0, -1; redux.sync.min.s32 %r3, %r4, -1; elect.sync %r5|%p2, -1;
                 match.any.sync.b32 %r6, %r4, -1;""",
              r4=np.array([5, -3] * 16, np.int32))
    assert got("r1")[7] == 31 and got("p1").all() and (got("r2") == 496).all() and (got("r3", np.int32) == -3).all()
    assert got("p2").tolist() == [True] + [False] * 31 and got("r6")[0] == 0x55555555


# ------------------------------------------------------------------ threads
def test_lanes_leave_a_loop_one_by_one_and_meet_again():
    got = run("""mov.u32 %r0, %tid.x; mov.b32 %r1, 0; mov.b32 %r2, 0;
LOOP:
add.s32 %r1, %r1, %r0; add.s32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, %r0; @%p0 bra LOOP;
activemask.b32 %r3;""")
    assert got("r1").tolist() == [i * max(i, 1) for i in range(32)] and (got("r3") == 0xFFFFFFFF).all()


SHARE = """mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; add.s32 %r1, %r1, {base}; st.shared.b32 [%r1], %r0; {barrier}
xor.b32 %r2, %r1, 128; ld.shared.b32 %r3, [%r2];"""


def test_a_forgotten_barrier_is_seen():
    with_barrier = SHARE.format(base=SHARED_BASE, barrier="bar.sync 0;")
    without = SHARE.format(base=SHARED_BASE, barrier="")
    for seed in range(5):
        assert (run(with_barrier, 64, seed)("r3") == np.arange(64) ^ 32).all()
    seen = [(run(without, 64, seed)("r3") == np.arange(64) ^ 32).all() for seed in range(20)]
    assert not all(seen)


def test_a_barrier_that_some_never_reach():
    with pytest.raises(Fault, match="threads wait at a barrier"):
        run("mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 32; @%p0 bra OTHER; bar.sync 1; ret; OTHER: bar.sync 2;", 64)


def test_each_warp_takes_its_own_branch_of_a_table():
    got = run("""mov.u32 %r0, %tid.x; shr.u32 %r0, %r0, 5;
$L_brx_0: .branchtargets ONE, TWO;
brx.idx %r0, $L_brx_0; ONE: mov.b32 %r1, 11; bra DONE; TWO: mov.b32 %r1, 22; DONE: bar.sync 0;""", 64)
    assert got("r1").tolist() == [11] * 32 + [22] * 32


def test_a_function_is_called():
    call = """{ .param .b32 in; .param .b32 out; st.param.b32 [in], %r0; call.uni (out), at_most_nine, (in); ld.param.b32 %r1, [out]; }"""
    got = run("mov.u32 %r0, %tid.x;" + call + "add.s32 %r2, %r1, 100;" + call.replace("%r1", "%r3").replace("%r0", "%r2"))
    assert got("r1").tolist() == [min(i, 9) for i in range(32)] and (got("r3") == 9).all() and got("r0")[20] == 20


# ------------------------------------------------------------------ memory
def test_global_memory_is_guarded():
    memory = Memory(1 << 20)
    address = memory.alloc(64)
    memory.host(address, 64)[:] = np.arange(64)
    code = "ld.param.b64 %d0, [kernel_param_0]; ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%d0+{}];"
    assert run(code.format(16), parameter=address, memory=memory)("r1")[0] == 0x17161514
    with pytest.raises(Fault, match="misaligned address .* of 16 bytes"):
        run(code.format(8), parameter=address, memory=memory)
    with pytest.raises(Fault, match=r"kernel in thread 0 of CTA \(0, 0, 0\): 16 bytes at .* are not inside live memory"):
        run(code.format(64), parameter=address, memory=memory)
    memory.free(address)
    with pytest.raises(Fault, match="not inside live memory"):
        run(code.format(0), parameter=address, memory=memory)


def test_shared_and_local_memory_are_guarded_and_poisoned():
    got = run(f"ld.shared.b32 %r0, [{SHARED_BASE}]; st.local.b32 [depot+4], 7; ld.local.b32 %r1, [depot+4]; ld.local.b32 %r2, [depot];")
    assert (got("r0")[0], got("r1")[0], got("r2")[0]) == (0xFFFFFFFF, 7, 0xFFFFFFFF)
    got = run("mov.b32 %r0, -4; st.local.b32 [%r0+12], 9; ld.local.b32 %r1, [depot+8];")                 # 32-bit addresses wrap
    assert got("r1")[0] == 9
    for place, message in ((SHARED_BASE + 256, "byte 256 of 256"), (0, "byte -1024"), (SHARED_BASE + 2, "misaligned shared address")):
        with pytest.raises(Fault, match=message):
            run(f"st.shared.b32 [{place}], 1;")


def test_threads_that_store_different_values_to_one_address():
    run(f"st.shared.b32 [{SHARED_BASE}], 7;")
    store = f"mov.u32 %r0, %tid.x; st.shared.b32 [{SHARED_BASE}], %r0;"
    run(store)                                                          # one of a warp's lanes wins
    with pytest.raises(Fault, match="thread 0 .* another thread stores another value to the same address"):
        run(store, 64, seed=None)
    memory = Memory(1 << 20)
    with pytest.raises(Fault, match="another thread stores another value"):
        run("ld.param.b64 %d0, [kernel_param_0]; mov.u32 %r0, %tid.x; st.global.b32 [%d0], %r0;", parameter=memory.alloc(4), memory=memory)


def test_atomic_operations_take_turns():
    memory = Memory(1 << 20)
    address = memory.alloc(16)
    memory.host(address, 16)[:] = 0
    got = run("""ld.param.b64 %d0, [kernel_param_0]; mov.u32 %r0, %tid.x; atom.global.gpu.relaxed.add.u32 %r1, [%d0], 2;
red.global.gpu.relaxed.max.s32 [%d0+4], %r0; atom.global.cas.b32 %r2, [%d0+8], 0, %r3;""", parameter=address, memory=memory,
              r3=np.arange(7, 39, dtype=np.uint32))
    assert sorted(got("r1").tolist()) == list(range(0, 64, 2))
    assert memory.host(address, 12).view(np.uint32).tolist() == [64, 31, 7] and got("r2").tolist() == [0] + [7] * 31


def test_registers_are_packed_and_unpacked():
    got = run("mov.b32 %r1, {%h0, %h1}; mov.b64 {%r2, %r3}, %d0; mov.b64 %d1, {%r3, %r2}; mov.b32 {_, %h2}, %r1;",
              h0=np.uint16(0x1111), h1=np.uint16(0x2222), d0=np.uint64(0x1234567890ABCDEF))
    assert got("r1")[0] == 0x22221111 and got("h2")[0] == 0x2222
    assert (got("r2")[0], got("r3")[0], got("d1")[0]) == (0x90ABCDEF, 0x12345678, 0x90ABCDEF12345678)


def test_what_is_not_understood_is_said():
    with pytest.raises(ParseError, match="what is"):
        run("add.s32 %r0, %r1, %q9;")
    with pytest.raises(Fault, match="no such instruction .*: wonder.b32"):
        run("wonder.b32 %r0;")
