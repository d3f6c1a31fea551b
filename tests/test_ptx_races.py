"""What CTAs tell each other through global memory without an order between them is found, in whatever order they run
(tritorch/testing/ptx/races.py)."""
import numpy as np
import pytest

pytest.importorskip("triton")
from tritorch.testing.ptx.batches import execute
from tritorch.testing.ptx.machine import Fault, Launch  # noqa: E402
from tritorch.testing.ptx.memory import Memory  # noqa: E402
from tritorch.testing.ptx.parse import parse  # noqa: E402
from tritorch.testing.ptx.snippet import DECLARED, HEAD  # noqa: E402

START = """
ld.param.b64 %rd0, [kernel_param_0];
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
mul.wide.u32 %rd1, %r1, 4;
add.s64 %rd1, %rd0, %rd1;
setp.eq.u32 %p0, %r0, 0;
"""
LAST = """
@%p0 st.global.b32 [%rd1], %r1;
{barrier}
@%p0 atom.global.gpu.{order}.add.u32 %r2, [%rd0+64], 1;
setp.eq.u32 %p1, %r2, 3;
and.pred %p1, %p0, %p1;
@%p1 ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd0];
@%p1 st.global.v4.b32 [%rd0+32], {{%r7, %r6, %r5, %r4}};
"""
SEEDS = range(6)


def run(body, ctas=4, threads=32, seed=0, times=1, early=False):
    """The words that a kernel leaves of 64 zeros; its CTA's own word is at %rd1, %p0 says which thread is its first."""
    memory = Memory(1 << 20)
    address = memory.alloc(256)
    words = memory.host(address, 256).view("u4")
    words[:] = 0
    program = parse(HEAD.format(threads=threads, maxnreg=128) + DECLARED + START + body + "\nret;\n}\n")
    parameters = np.frombuffer(bytes(program.parameters[0].offset) + address.to_bytes(128, "little"), np.uint8)
    for _ in range(times):
        execute(program, Launch((ctas, 1, 1), threads, 1024, parameters, early), memory, seed)
    return words


@pytest.mark.parametrize("seed", SEEDS)
def test_who_reads_what_another_cta_writes(seed):
    """Neighbours' words, in place: before or after they are written."""
    copy = "@%p0 ld.global.b32 %r2, [%rd1{}];\nadd.u32 %r2, %r2, 1;\n@%p0 st.global.b32 [%rd1{}], %r2;"
    with pytest.raises(Fault, match="a race"):
        run(copy.format("+4", ""), seed=seed)
    assert run(copy.format("+128", ""), seed=seed, times=2)[:4].tolist() == [1] * 4       # of a launch before it may
    assert run(copy.format("", ""), seed=seed, times=2)[:4].tolist() == [2] * 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("order, right", [("acq_rel", True), ("release", False), ("acquire", False), ("relaxed", False)])
def test_the_last_to_come_has_to_acquire_what_the_others_release(order, right, seed):
    body = LAST.format(order=order, barrier="")
    if right:
        assert run(body, seed=seed)[8:12].tolist() == [3, 2, 1, 0]
    else:
        with pytest.raises(Fault, match="a race: reads what .*CTA . has written"):
            run(body, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("right", [True, False])
def test_a_warp_releases_what_others_wrote_before_a_barrier(right, seed):
    """Here the second warp writes and the first one releases."""
    body = "setp.eq.u32 %p2, %r0, 32;\n" + LAST.replace("@%p0 st", "@%p2 st").format(order="acq_rel", barrier="bar.sync 0;" * right)
    if right:
        assert run(body, seed=seed, threads=64)[8:12].tolist() == [3, 2, 1, 0]
    else:
        with pytest.raises(Fault, match="a race: reads what warp 1 of CTA . has written"):
            run(body, seed=seed, threads=64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("right", [True, False])
def test_a_warp_releases_what_another_gave_to_it_by_an_mbarrier(right, seed):
    body = """
    mov.b32 %r8, global_smem;
    @%p0 mbarrier.init.shared::cta.b64 [%r8], 1;
    bar.sync 0;
    setp.eq.u32 %p2, %r0, 32;
    """ + ("" if right else "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r8];\n") + LAST.replace("@%p0 st", "@%p2 st").format(
        order="acq_rel", barrier="@%p2 mbarrier.arrive.shared::cta.b64 _, [%r8];\n" * right + """
    setp.ge.u32 %p3, %r0, 32;
    @%p3 bra done;
    again: mbarrier.try_wait.parity.shared.b64 %p3, [%r8], 0;
    @!%p3 bra again;
    """).replace("\nst", "st") + "done:\n"
    if right:
        assert run(body, seed=seed, threads=64)[8:12].tolist() == [3, 2, 1, 0]
    else:
        with pytest.raises(Fault, match="a race: reads what warp 1 of CTA . has written"):
            run(body, seed=seed, threads=64)


def test_atomics_are_in_no_order_and_need_none_but_reading_them_does():
    assert run("@%p0 red.global.gpu.relaxed.add.u32 [%rd0], 5;")[0] == 20
    with pytest.raises(Fault, match="a race: reads what an atomic operation has written"):
        run("@%p0 red.global.gpu.relaxed.add.u32 [%rd0], 5;\n@%p0 ld.global.b32 %r2, [%rd0];")
    with pytest.raises(Fault, match="a race: writes what an atomic operation has written"):
        run("@%p0 red.global.gpu.relaxed.add.u32 [%rd0], 5;\n@%p0 st.global.b32 [%rd0], 7;")


@pytest.mark.parametrize("seed", SEEDS)
def test_who_stores_what_is_there_changes_nothing(seed):
    assert run("mov.b32 %r2, 9;\n@%p0 st.global.b32 [%rd0], %r2;\n@%p0 ld.global.b32 %r3, [%rd0];\n@%p0 st.global.b32 [%rd1+64], %r3;",
               seed=seed)[16:20].tolist() == [9] * 4


def test_what_is_read_as_constant_is_not_written():
    with pytest.raises(Fault, match="a race"):
        run("@%p0 st.global.b32 [%rd1], 1;\n@%p0 ld.global.nc.b32 %r2, [%rd1];")


def test_a_cta_waits_only_for_those_that_began_before_it():
    """By its number, it may wait for one that has no place to run; by a ticket it does not."""
    wait = """
    @!%p0 bra done;
    mov.u32 %r3, {order};
    add.u32 %r4, %r3, 1;
    again: ld.acquire.gpu.global.b32 %r2, [%rd0];
    setp.lt.u32 %p1, %r2, %r3;
    @%p1 bra again;
    red.release.gpu.global.add.u32 [%rd0], 1;
    done:
    """
    ticket = "atom.global.gpu.relaxed.add.u32 %r5, [%rd0+64], 1;\n"
    for seed in SEEDS:
        assert run(wait.format(order="%r5").replace("mov", ticket + "mov", 1), seed=seed)[0] == 4
    with pytest.raises(Fault, match="wait for what never happens"):
        for seed in SEEDS:
            run(wait.format(order="%r1"), seed=seed)
