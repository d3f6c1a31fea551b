"""mbarriers, TMA and the registers of warps in the machine in ptx/: what they do, and what it says of their misuse."""
import numpy as np
import pytest

from tritorch.testing.ptx.machine import Fault
from tritorch.testing.ptx.memory import Memory
from tritorch.testing.ptx.parse import SHARED_BASE
from tritorch.testing.ptx.snippet import LANE, Run, laid_out
from tritorch.testing.ptx.tensor_map import TensorMap


@pytest.fixture(scope="module")
def memory():
    return Memory(1 << 24)


INIT = "@%p0 mbarrier.init.shared::cta.b64 [%r0], 1;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
WAIT = "$wait:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r0], %r1;\n@!%p1 bra.uni $wait;\n"


def tensor(memory, rows=5, columns=40, box=(32, 8), swizzle=2, kind=9):
    """(map, its contents) of a matrix of 16 bits; its rows are padded to 48 elements."""
    address = memory.alloc(rows * 96)
    data = memory.host(address, rows * 96).view("u2").reshape(rows, 48)
    data[:] = np.arange(data.size).reshape(data.shape) + 1
    return TensorMap(2, kind, swizzle, address, (columns, rows), (96,), box), data


@pytest.mark.parametrize("to", ["cluster", "cta"])                         # Triton 3.6, 3.9
@pytest.mark.parametrize("corner", [(0, 0), (16, 3), (-8, -2), (100, 100)])
@pytest.mark.parametrize("box, swizzle, span", [((64, 8), 3, 128), ((32, 8), 2, 64), ((16, 8), 1, 32), ((24, 8), 0, None)])
def test_tma_loads_a_tile(memory, corner, box, swizzle, span, to):
    mapped, data = tensor(memory, box=box, swizzle=swizzle)
    body = INIT + f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r0], {mapped.box_bytes};\n" \
        f"@%p0 cp.async.bulk.tensor.2d.shared::{to}.global.mbarrier::complete_tx::bytes [%r2], [%rd0, {{%r3, %r4}}], [%r0];\n" + WAIT
    run = Run(body, memory=memory, parameter=mapped.pack(), p0=LANE == 0, r0=SHARED_BASE + 8192, r1=0, r2=SHARED_BASE, r3=corner[0],
              r4=corner[1], rd0=0)
    wide = np.zeros((400, 400), np.uint16)                      # the tensor in a sea of zeros
    wide[100:105, 100:140] = data[:, :40]
    expected = wide[100 + corner[1]:108 + corner[1], 100 + corner[0]:100 + corner[0] + box[0]]
    expected = laid_out(expected, span) if span else np.ascontiguousarray(expected).view(np.uint8).reshape(-1)
    np.testing.assert_array_equal(run.shared[:mapped.box_bytes], expected)


def test_a_load_that_nobody_waits_for_is_a_fault(memory):
    mapped, _ = tensor(memory)
    body = INIT + "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r0], 512;\n" \
        "@%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0, {%r3, %r4}], [%r0];\n"
    with pytest.raises(Fault, match="ends while loads"):
        Run(body, memory=memory, parameter=mapped.pack(), p0=LANE == 0, r0=SHARED_BASE + 8192, r2=SHARED_BASE, r3=0, r4=0, rd0=0)


STORE = "@%p0 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd0, {%r3, %r4}], [%r2];\ncp.async.bulk.commit_group;\n"
FILL = "st.shared.b32 [%r5], %r6;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
READ = "cp.async.bulk.wait_group.read 0;\n"


def stored(memory, body, **registers):
    mapped, data = tensor(memory, box=(8, 8), swizzle=0)
    data[:] = 0
    Run(body, memory=memory, parameter=mapped.pack(), p0=LANE == 0, r2=SHARED_BASE, r5=SHARED_BASE + 4 * LANE, r6=0x10001 * (LANE + 1),
        rd0=0, **registers)
    return data


def test_tma_stores_a_tile_and_leaves_out_what_is_outside(memory):
    data = stored(memory, FILL + STORE + READ, r3=36, r4=2)
    expected = np.zeros((5, 48), int)
    expected[2:5, 36:40] = np.repeat(np.arange(1, 33), 2).reshape(8, 8)[:3, :4]
    np.testing.assert_array_equal(data, expected)


@pytest.mark.parametrize("body, sentence", [
    (FILL + STORE, "before its stores by TMA have read"),
    (FILL + STORE + "st.shared.b32 [%r5], 0;\n" + READ, "overwritten before its store"),
    (FILL.replace("fence.proxy.async.shared::cta;\n", "") + STORE + READ, "no fence.proxy.async followed")])
def test_stores_that_race(memory, body, sentence):
    with pytest.raises(Fault, match=sentence):
        stored(memory, body, r3=0, r4=0)


def test_mbarrier_phases():
    """Parity 1 passes at once, parity 0 after as many arrivals as were asked for; the first warp waits for the second."""
    arrive = "@%p3 mbarrier.arrive.shared::cta.b64 _, [%r0];\n"
    body = "@%p0 mbarrier.init.shared::cta.b64 [%r0], 2;\nbar.sync 0;\nmbarrier.try_wait.parity.shared.b64 %p1, [%r0], 1;\nbar.sync 0;\n" \
        "selp.b32 %r2, 1, 0, %p1;\n@%p2 bra $wait;\n" + 2 * arrive + "bra $end;\n" + WAIT + "$end:\n"
    thread = np.arange(64)
    run = Run(body, 64, p0=thread == 0, p2=thread < 32, p3=thread == 32, r0=SHARED_BASE, r1=0)
    assert (run["r2"] == 1).all()


@pytest.mark.parametrize("body, sentence", [
    (INIT + WAIT, "never happens"), ("mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0;", "no mbarrier at byte 0"),
    (INIT + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r0], 2;", "more arrivals"),
    (INIT + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r0];\n" + INIT, "in use"),
    (INIT + "st.shared.b32 [%r0], %r1;\n" + WAIT, "overwritten")])
def test_misused_mbarriers(body, sentence):
    with pytest.raises(Fault, match=sentence):
        Run(body, p0=LANE == 0, r0=SHARED_BASE, r1=0)


def test_registers_of_warps_are_one_pool():
    """Two warp groups of 128 threads with 128 registers: one may have 232 when the other has 24, and waits for ever otherwise."""
    lower, first = "@%p0 bra $other;\nsetmaxnreg.inc.sync.aligned.u32 232;\nret;\n$other:\n", np.arange(256) >= 128
    Run(lower + "setmaxnreg.dec.sync.aligned.u32 24;", 256, p0=first)
    with pytest.raises(Fault, match="never happens"):
        Run(lower + "setmaxnreg.dec.sync.aligned.u32 120;", 256, p0=first)
