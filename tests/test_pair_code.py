"""Products by pairs of programs that share b (triton_kernels/matmul_cluster.py): their machine code, which of them are proposed, and what
the timetable of a multiprocessor makes of what they read. Streams whose programs add up their parts (matmul_last_gluon.py): the same."""
import functools
import re

import pytest

pytest.importorskip("triton")

import machine_code  # noqa: E402
from test_product_code import H200, ONE_BEHIND, launched, named, sums_above_zero  # noqa: E402

import tritorch as T  # noqa: E402
from bench import predict, sass  # noqa: E402
from tritorch.cuda import driver, tuner  # noqa: E402
from tritorch.cuda.dry import DryDriver  # noqa: E402
from tritorch.ops import gemm_choice as choice  # noqa: E402
from tritorch.ops.feed_forward import linear_activation  # noqa: E402
from tritorch.ops.gemm import gemm, problem  # noqa: E402
from tritorch.ops.gemm_pairs import PAIRED, joined, paired  # noqa: E402
from tritorch.testing.ptx import device, trace  # noqa: E402


@pytest.mark.records
@pytest.mark.parametrize("candidate", [c for _, c in paired(choice.gluon(8192, 8192, 8192, 1, H200), 8192, 8192, 1, H200)], ids=named)
def test_pairs_of_programs_that_share_b(candidate):
    """In every layout, and with a bias and an activation: b comes by multicast, a does not, and nothing waits for memory: neither the
    arrivals at the other program's barriers nor the meeting at the start, which every warp comes to; of two kinds of idle warps Triton 3.9
    makes one code."""
    def call(e):
        square, bias = e(4096, 4096, dtype=T.bfloat16), e(4096, dtype=T.bfloat16)
        square @ square
        square.mT @ square.mT
        linear_activation(square, square, bias, "gelu_tanh")

    with tuner.forcing("matmul", candidate):
        specs = launched(call)
    groups = candidate["CONSUMERS"] * candidate["PARTS"]
    counts = {name: functools.partial(lambda text, compiled: len(re.findall(text, sass.text(compiled.cubin))), text) for name, text in (
        ("multicasts", r"UTMALDG[^;]*MULTICAST"), ("loads", r"UTMALDG"), ("remote", r"ARRIVE\.TRANS64\.RED"), ("meetings", "UCGABAR_ARV"),
        ("to memory", r"MEMBAR\.\w+\.GPU"))}
    for code in machine_code.used(specs, 90, texts=[ONE_BEHIND], warps=lambda c: c.num_warps, **counts):
        assert code["spills"] <= 8 and code["shared"] <= H200[1] and code[ONE_BEHIND] and code["ahead"], code      # a word for a while
        assert 0 < code["multicasts"] < code["loads"] and code["remote"] == 2 * groups and not code["to memory"], code
        assert code["meetings"] in (groups + 2, groups + 3) and code["warps"] == max(8, 4 * groups) + 4, code


def proposed(M, N, k, dtype=T.bfloat16, fused=None):
    """The candidates of a product of contiguous matrices on an H200."""
    shapes, precision = ((M, N), (N, 1), (M, k), (k, 1), (k, N), (N, 1)), "tf32" if dtype is T.float32 else "ieee"
    with driver.using(DryDriver(90)):
        return problem(*shapes, None, dtype, precision, H200, True, False, fused, True).candidates


@pytest.mark.parametrize("sizes, fused, count", [
    ((32768, 2304, 768), None, 5), ((32768, 768, 3072), None, 5), ((32768, 3072, 768), "gelu_tanh", 5), ((32768, 768, 3072), "residual", 5),
    ((32768, 3072, 768), "gelu_tanh_backward", 3), ((32768, 768, 768), "sums", 1), ((1024, 1024, 1024), None, 0),
    ((128, 65536, 768), None, 1), ((64, 65536, 768), None, 0)])
def test_which_products_may_go_by_pairs(sizes, fused, count):
    """Those of 16 bits whose tiles fill the GPU and have neighbours; and none before it was timed."""
    found = proposed(*sizes, fused=fused)
    pairs = [c for c in found if c.get("CLUSTER", 1) == 2]
    assert len(pairs) == count and "CLUSTER" not in found[0]
    assert not any(c["STREAM"] or "WHOLE" in c for c in pairs)
    assert not any("CLUSTER" in c for c in proposed(*sizes, T.float32))
    assert len(PAIRED) == 5


def test_a_pair_reads_half_of_b_for_each_program():
    """As loads by TMA say, and the timetable with them: all bytes come to each program's barrier, half of b's from the second cache."""
    tile, found = next(c for _, c in choice.gluon(8192, 8192, 768, 1, H200) if (c["CONSUMERS"], c["BLOCK_N"]) == (2, 128)), {}
    with device.simulate(90) as gpu:
        a, b = T.empty(8192, 768, dtype=T.bfloat16, device="cuda"), T.empty(768, 2048, dtype=T.bfloat16, device="cuda")
        for cluster in (1, 2):
            with tuner.forcing("matmul", {**tile, "CLUSTER": cluster}), trace.tracing(gpu) as launches:
                a @ b
            traced, = launches
            loads = [seen for warp in traced.warps for _, seen in warp if seen.__class__ is trace.Copy and seen.barrier is not None]
            prediction = predict.predict(traced, predict.resident(gpu, traced))
            found[cluster] = sum(load.there for load in loads), sum(load.nbytes for load in loads), prediction
    assert found[2][0] == found[1][0] * 3 // 4 and found[2][1] == found[1][1]
    assert found[2][2].operations == found[1][2].operations and found[2][2].uses["second cache"] < found[1][2].uses["second cache"]


# ------------------------------------------------------------------ streams
STREAMS = [c for _, c in joined(choice.gluon(2304, 768, 32768, 1, H200, 2, 4), 2304, 768, 32768, 1, H200)]


@pytest.mark.records
@pytest.mark.parametrize("candidate", STREAMS, ids=named)
def test_the_last_of_a_tile_adds_up_in_registers(candidate):
    """One kernel, with the sums of rows and with what is added to; at most 8 words move out of its way."""
    def call(e):
        out, g, x, sums = e(2304, 768), e(32768, 2304, dtype=T.bfloat16).mT, e(32768, 768, dtype=T.bfloat16), e(2304)
        gemm(out, g, x, row_sums=sums)
        gemm(out, g, x, out, row_sums=sums)

    with tuner.forcing("matmul", candidate):
        specs = launched(call)
    assert len(specs) == 2
    for code in machine_code.used(specs, 90, texts=["st.global.v2", "ld.global.v2"], wrong=sums_above_zero):
        assert not code["wrong"] and code["spills"] <= 32 and code["shared"] <= H200[1] and code["ahead"], code
        numbers = candidate["BLOCK_M"] * candidate["BLOCK_N"] // (32 * candidate["num_warps"])        # of a thread, two at a time
        assert code["st.global.v2"] == numbers // 2 and code["ld.global.v2"] >= numbers, code


@pytest.mark.parametrize("sizes, fused, count", [
    ((768, 3072, 32768), None, 3), ((2304, 768, 32768), "sums", 4), ((768, 768, 32768), "sums", 3), ((768, 3072, 32768), "dropout", 0),
    ((32768, 768, 3072), None, 0), ((64, 64, 32768), None, 0)])
def test_which_products_are_added_up_by_the_last_of_a_tile(sizes, fused, count):
    """Those of 16 bits of few tiles, and few programs for each; none before it was timed."""
    found = proposed(*sizes, fused=fused)
    assert sum("JOINED" in c for c in found) == count and not found[0].get("JOINED")
    for c in found:
        assert "JOINED" not in c or {name: value for name, value in c.items() if name != "JOINED"} in found
