"""Of PTX, what Triton 3.6 does not write itself: instructions and calls of libdevice, as in the sine of a large float64, of what users
write, such as tl.clamp(x, -limit, limit) and x % y, and forms of later versions."""
import numpy as np
import pytest

pytest.importorskip("triton")

from test_ptx_instructions import run  # noqa: E402

from tritorch.testing.ptx.machine import Fault  # noqa: E402
from tritorch.testing.ptx.memory import Memory  # noqa: E402
from tritorch.testing.ptx.parse import SHARED_BASE  # noqa: E402
from tritorch.testing.ptx.snippet import LANE, Run  # noqa: E402


def test_extremes_of_magnitudes():
    a, b = np.float32([-5, 5, 0.5, -0.5, -np.inf, np.nan]), np.float32([1, 1, 1, 1, -1, 1])
    result = run("min.xorsign.abs.f32 %r2, %r0, %r1; max.xorsign.abs.f32 %r3, %r0, %r1;", r0=a, r1=b)
    assert result("r2", np.float32)[:6].tolist() == [-1, 1, 0.5, -0.5, 1, 1]
    assert result("r3", np.float32)[:6].tolist() == [-5, 5, 1, -1, np.inf, 1]


@pytest.mark.parametrize("kind, found", [
    ("finite", [0, 0, 0, 1, 1, 1]), ("infinite", [0, 1, 1, 0, 0, 0]), ("number", [0, 1, 1, 1, 1, 1]),
    ("notanumber", [1, 0, 0, 0, 0, 0]), ("normal", [0, 0, 0, 1, 0, 0]), ("subnormal", [0, 0, 0, 0, 1, 0])])
def test_kinds_of_numbers(kind, found):
    result = run(f"testp.{kind}.f32 %p0, %r0;", r0=np.float32([np.nan, np.inf, -np.inf, -1.5, 1e-40, 0]))
    assert result("p0")[:6].tolist() == [bool(x) for x in found]


def test_a_borrow_goes_to_the_next_difference():
    a, b = 0x00000001_00000000_00000005, 0x00000000_FFFFFFFF_00000006
    parts = {f"r{3 * i + k}": np.uint32(v >> 32 * k & 0xFFFFFFFF) for i, v in enumerate((a, b)) for k in range(3)}
    result = run("sub.cc.u32 %r6, %r0, %r3; subc.cc.u32 %r7, %r1, %r4; subc.u32 %r8, %r2, %r5;", **parts)
    assert sum(int(result(f"r{6 + k}")[0]) << 32 * k for k in range(3)) == a - b


def test_generic_addresses_of_local_memory():
    got = run("mov.b64 %d0, depot; cvta.local.u64 %d1, %d0; mov.b32 %r2, %tid.x; st.b32 [%d1+4], %r2; ld.b32 %r0, [%d1+4];"
              "cvta.to.local.u64 %d2, %d1; ld.local.b32 %r1, [%d2+4];")
    assert got("r0").tolist() == got("r1").tolist() == list(range(32))   # every thread has its own
    with pytest.raises(Fault, match="a generic address that is none of local memory"):
        run(f"st.b32 [{SHARED_BASE}], 7;")


def test_an_array_that_assembly_declares_lies_before_that_of_the_launch():
    result = run(".shared .align 16 .b8 own[80]; mov.u32 %r1, own; mov.u32 %r2, memory; st.shared.u32 [%r1+76], %r0; "
                 "st.shared.u32 [%r2+252], %r1; ld.shared.u32 %r3, [%r1+76];", r0=np.uint32([7]))
    assert [int(result(name)[0]) for name in ("r1", "r2", "r3")] == [SHARED_BASE, SHARED_BASE + 1024, 7]


FUNCTION = """ret;
}}
.func  (.param .align 16 .b8 out[16]) next(
	.param .align 8 .b8 in[12]
)
{{
	.reg .b32 %r<2>; .reg .b64 %rd<3>;
	ld.param.b64 %rd0, [in];
	ld.param.b32 %r0, [in+8];
	add.s64 %rd1, %rd0, 1;
	add.s32 %r1, %r0, 1;
	{out}
"""


@pytest.mark.parametrize("out", ["st.param.b64 [out], %rd1; st.param.b32 [out+8], %r1;",
                                 "cvt.u64.u32 %rd2, %r1; st.param.v2.b64 [out], {%rd1, %rd2};"])
def test_a_function_takes_and_gives_several_words(out):
    """As that of libdevice which reduces a large angle, with the Triton that has it since 3.9."""
    call = """{ .param .align 8 .b8 in[12]; .param .align 16 .b8 out[16];
st.param.b64 [in], %rd0; st.param.b32 [in+8], %r0; call.uni (out), next, (in); ld.param.b32 %r1, [out+8]; ld.param.b64 %rd1, [out]; }"""
    got = Run(call + FUNCTION.format(out=out), rd0=(np.uint64(1) << np.uint64(32)) - np.uint64(1), r0=LANE.astype(np.uint32))
    assert (got["rd1"] == 1 << 32).all() and got["r1"].tolist() == (LANE + 1).tolist() and got["r0"].tolist() == LANE.tolist()


FIRST = "JTI0_0:\n\t.branchtargets\n\t\tTWO,\n\t\tONE;\nJTI0_1:\n\t.branchtargets\n\t\tONE,\n\t\tTWO;\n"


def test_tables_of_branches_that_come_before_all_code():
    """Of Triton 3.9; those of 3.6 stand where they are used, under other names."""
    got = Run(FIRST + "mov.u32 %r0, %tid.x; shr.u32 %r0, %r0, 5; brx.idx %r0, JTI0_1; ONE: mov.b32 %r1, 11; bra DONE; "
              "TWO: mov.b32 %r1, 22; DONE: bar.sync 0;", threads=64)
    assert got["r1"].tolist() == [11] * 32 + [22] * 32


def test_a_sum_of_a_vector_without_a_result():
    """Triton 3.9 writes red where it wrote atom."""
    memory = Memory(1 << 20)
    address = memory.alloc(16)
    memory.host(address, 16).view(np.float32)[:] = 1, 2, 3, 4
    Run("red.global.gpu.relaxed.v4.add.f32 [%rd0], {%r0, %r1, %r0, %r1};", memory=memory, rd0=address, r0=np.float32(1).view(np.uint32),
        r1=np.float32(2).view(np.uint32))
    assert memory.host(address, 16).view(np.float32).tolist() == [33, 66, 35, 68]
