"""Clusters on the GPU made of PTX (tritorch/testing/ptx/clusters.py): what CTAs do to each other's shared memory, and every way to do it
too early or too late."""
import types

import numpy as np
import pytest

pytest.importorskip("triton")
from test_ptx_races import SEEDS, START  # noqa: E402

from tritorch.testing.ptx.batches import execute
from tritorch.testing.ptx.bindings import Bindings, Kernel  # noqa: E402
from tritorch.testing.ptx.codes import Code  # noqa: E402
from tritorch.testing.ptx.machine import Fault, Launch  # noqa: E402
from tritorch.testing.ptx.memory import Memory  # noqa: E402
from tritorch.testing.ptx.parse import parse  # noqa: E402
from tritorch.testing.ptx.snippet import DECLARED, HEAD  # noqa: E402
from tritorch.testing.ptx.tensor_map import TensorMap  # noqa: E402

MEET = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
FULL = MEET.replace("relaxed", "release")
TOLD = "fence.mbarrier_init.release.cluster;\n"
MADE = "mov.b32 %r8, global_smem;\n@%p0 mbarrier.init.shared::cta.b64 [%r8], {count};\n" + TOLD + "bar.sync 0;\n" + MEET
OTHER = "mov.u32 %r9, %cluster_ctarank;\nxor.b32 %r9, %r9, 1;\nmapa.shared::cluster.u32 %r10, %r8, %r9;\n"
ARRIVE = "@%p0 mbarrier.arrive.shared::cluster.b64 _, [%r10];\n"
WAIT = "again: mbarrier.try_wait.parity.shared.b64 %p3, [%r8], 0;\n@!%p3 bra again;\n"


def run(body, ctas=4, threads=64, seed=0, cluster=2, parameter=b"", memory=None):
    """The words that a kernel leaves of 64 zeros at %rd0; its CTA's own word is at %rd1, %p0 says which thread is its first, and
    kernel_param_0 + 64 is where `parameter` begins."""
    memory = memory or Memory(1 << 20)
    address = memory.alloc(2048)
    words = memory.host(address, 2048).view("u4")
    words[:] = 0
    program = parse(HEAD.format(threads=threads, maxnreg=128).replace("[128]", "[256]") + DECLARED + START + body + "\nret;\n}\n")
    packed = address.to_bytes(8, "little").ljust(64, b"\0") + parameter
    parameters = np.frombuffer(bytes(program.parameters[0].offset) + packed.ljust(256, b"\0"), np.uint8)
    execute(program, Launch((ctas, 1, 1), threads, 4096, parameters, cluster=cluster), memory, seed)
    return words


# ------------------------------------------------------------------ who is where
def test_ranks_and_numbers_of_clusters():
    names = {"%cluster_ctarank": [0, 1, 0, 1], "%cluster_nctarank": [2] * 4, "%cluster_ctaid.x": [0, 1, 0, 1], "%clusterid.x": [0, 0, 1, 1],
             "%nclusterid.x": [2] * 4, "%cluster_nctaid.y": [1] * 4, "%clusterid.y": [0] * 4}
    for name, expected in names.items():
        assert run(f"mov.u32 %r2, {name};\n@%p0 st.global.b32 [%rd1], %r2;")[:4].tolist() == expected, name
    assert run("mov.u32 %r2, %cluster_ctarank;\n@%p0 st.global.b32 [%rd1], %r2;", cluster=4)[:4].tolist() == [0, 1, 2, 3]


# ------------------------------------------------------------------ the barrier of a cluster
NEIGHBOUR = """
xor.b32 %r2, %r1, 1;
mul.wide.u32 %rd2, %r2, 4;
add.s64 %rd2, %rd0, %rd2;
@%p0 st.global.b32 [%rd1], %r1;
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_written_before_the_barrier_is_read_behind_it(seed):
    read = "@%p0 ld.global.b32 %r3, [%rd2];\n@%p0 st.global.b32 [%rd1+64], %r3;\n"
    assert run(NEIGHBOUR + FULL + read, seed=seed)[16:20].tolist() == [1, 0, 3, 2]
    for between in (MEET, FULL.replace("acquire.aligned", "aligned").replace("release.", "relaxed.")):
        with pytest.raises(Fault, match="a race: reads what warp 0 of CTA . has written"):
            run(NEIGHBOUR + between + read, seed=seed)


@pytest.mark.parametrize("body, fault", [
    ("@!%p4 bra out;\n" + MEET + "out:\n", None), ("@%p4 bra out;\n" + MEET + "out:\nbar.sync 0;\n", "waits? for what never happens"),
    ("setp.eq.u32 %p2, %r1, 1;\n@%p2 bra out;\n" + MEET + "out:\n" + WAIT, "no mbarrier"),
    ("barrier.cluster.arrive.relaxed.aligned;\n" * 2, "arrives again"), ("barrier.cluster.wait.aligned;\n", "without having arrived"),
    ("barrier.cluster.arrive.relaxed.aligned;\n", "ends between its arrival"), (MEET * 3, None),
    ("@%p0 barrier.cluster.arrive.relaxed.aligned;\n", "elsewhere")])
def test_every_thread_that_lives_comes_to_the_barrier(body, fault):
    """%p4: the second warp. Who has ended is not waited for."""
    body = "mov.b32 %r8, global_smem;\nsetp.ge.u32 %p4, %r0, 32;\n" + body
    for seed in SEEDS:
        if fault is None:
            run(body, seed=seed)
        else:
            with pytest.raises(Fault, match=fault):
                run(body, seed=seed)


# ------------------------------------------------------------------ arrivals at barriers of others
@pytest.mark.parametrize("seed", SEEDS)
def test_an_arrival_at_the_other_ctas_barrier(seed):
    """Its own thread and the other's: both are counted, and what they wrote before is seen."""
    both = MADE.format(count=2) + OTHER + NEIGHBOUR + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r8];\n" + ARRIVE + WAIT
    assert run(both + "@%p0 ld.global.b32 %r3, [%rd2];\n@%p0 st.global.b32 [%rd1+64], %r3;\n", seed=seed)[16:20].tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize("change, fault", [
    (lambda text: text.replace(TOLD, ""), "no fence.mbarrier_init"),
    (lambda text: text.replace(MEET, ""), "no mbarrier at byte 0|no cluster barrier lies between"),
    (lambda text: text.replace(WAIT, ""), "may not have learned of an arrival|has ended"),
    (lambda text: text.replace(WAIT, MEET), None),
    (lambda text: text.replace(ARRIVE, MEET + ARRIVE).replace(WAIT, ""), "may not have learned of an arrival|has ended"),
    (lambda text: text.replace("%r9, 1;", "%r9, 2;"), "rank [23] in a cluster of 2"),
    (lambda text: text.replace("cluster.b64 _, [%r10]", "cta.b64 _, [%r10]"), "of shared memory"),
    (lambda text: text.replace("mapa.shared::cluster.u32 %r10, %r8, %r9", "add.u32 %r10, %r8, 0x9000000"), "of no CTA of the cluster"),
    (lambda text: text.replace("[%r8], 1;", "[%r8], 2;"), "for what never happens"),
    (lambda text: text.replace(MEET, FULL), None)])
def test_arrivals_too_early_too_late_and_elsewhere(change, fault):
    """In any order in which the CTAs run."""
    text = MADE.format(count=1) + OTHER + ARRIVE + WAIT
    assert change(text) != text
    for seed in SEEDS:
        if fault is None:
            run(change(text), seed=seed)
        else:
            with pytest.raises(Fault, match=fault):
                run(change(text), seed=seed)


# ------------------------------------------------------------------ loads by TMA
SENT = """
mov.u32 %r9, %cluster_ctarank;
add.u32 %r10, %r8, 1024;
mad.lo.u32 %r11, %r9, 128, %r10;
shl.b32 %r12, %r9, 5;
mov.b64 %rd3, kernel_param_0;
mov.u32 %r13, <ranks>;
cvt.u16.u32 %rs0, %r13;
@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], <nbytes>;
"""
LOAD = ("@%p0 cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r11], "
        "[%rd3+64, {%r12}], [%r8], %rs0;\n")
ADDED = """
shl.b32 %r14, %r0, 2;
add.u32 %r14, %r14, %r10;
ld.shared.b32 %r15, [%r14];
mov.u32 %r16, %tid.x;
mad.lo.u32 %r17, %r1, 64, %r16;
mul.wide.u32 %rd4, %r17, 4;
add.s64 %rd4, %rd0, %rd4;
st.global.b32 [%rd4+512], %r15;
"""


ALL = MADE.format(count=1) + SENT + LOAD + WAIT + ADDED


def loaded(text=ALL, seed=0, ranks=3, nbytes=256):
    """What each of two CTAs finds in its shared memory, of 64 numbers of which each has loaded a half for both."""
    memory = Memory(1 << 20)
    source = memory.alloc(256)
    memory.host(source, 256).view("u4")[:] = np.arange(100, 164)
    text = ".reg .b16 %rs0;\n" + text.replace("<ranks>", str(ranks)).replace("<nbytes>", str(nbytes))
    encoded = TensorMap(1, 2, 0, source, (64,), (), (32,)).pack()
    return run(text, ctas=2, seed=seed, parameter=encoded, memory=memory)[128:256].reshape(2, 64)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_load_comes_to_both(seed):
    assert (loaded(seed=seed) == np.arange(100, 164)).all()


def test_a_load_comes_to_those_of_the_mask():
    """Each half to its own loader, or both to the first CTA alone."""
    own = loaded(ALL.replace("mov.u32 %r13, <ranks>", "add.u32 %r13, %r9, 1"), nbytes=128)
    assert (own[0, :32] == np.arange(100, 132)).all() and (own[1, 32:] == np.arange(132, 164)).all() and (own[0, 32:] == 0xFFFFFFFF).all()
    for seed in SEEDS:
        with pytest.raises(Fault, match="for what never happens|has ended|more arrivals, or bytes"):
            loaded(seed=seed, ranks=1)


@pytest.mark.parametrize("change, options, fault", [
    (lambda text: text, {"nbytes": 128}, "bytes that nobody announced|has ended|is under way"),
    (lambda text: text, {"nbytes": 272}, "for what never happens"),
    (lambda text: text, {"ranks": 4}, "a load for the ranks"), (lambda text: text, {"ranks": 0}, "a load for the ranks"),
    (lambda text: text.replace(WAIT, ""), {}, "ends while a load by TMA is under way|has ended"),
    (lambda text: text.replace(MEET, ""), {}, "no mbarrier at byte 0|no cluster barrier lies between"),
    (lambda text: text.replace(TOLD, ""), {}, "no fence.mbarrier_init"),
    (lambda text: text.replace("bar.sync 0;", "@%p0 st.shared.b32 [%r8+1040], %r0;\nbar.sync 0;"), {}, "no fence.proxy.async")])
def test_loads_too_early_too_late_and_elsewhere(change, options, fault):
    for seed in SEEDS:
        with pytest.raises(Fault, match=fault):
            loaded(change(ALL), seed, **options)


def test_one_cta_ends_while_the_other_loads():
    """Whose bytes it has not announced and does not wait for."""
    text = ALL.replace(WAIT, "setp.eq.u32 %p5, %r9, 1;\n@%p5 bra out;\n" + WAIT) + "out:\n"
    for seed in SEEDS:
        with pytest.raises(Fault, match="ends while a load by TMA is under way|has ended"):
            loaded(text, seed)


# ------------------------------------------------------------------ launches
def launch(kernel, cluster, gx=4, arch=90):
    """What the driver says, and how many CTAs the machine was told to run together."""
    gpu, found = Bindings(arch), []
    gpu.cuInit(0)
    gpu.cuCtxSetCurrent(0x77)
    text = HEAD.format(threads=32, maxnreg=128).replace("{", f"{kernel}\n{{", 1) + "ret;\n}\n"
    loaded = object.__new__(Kernel)
    loaded.program, loaded.registers, loaded.shared_limit = parse(text), 32, 48 << 10
    loaded.parameters = lambda addresses: np.zeros(1024, np.uint8)
    gpu._run = lambda kernel, launch: found.append(launch.cluster)
    attribute = gpu.CUlaunchAttribute()
    attribute.id, dims = "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", attribute.value.clusterDim
    dims.x, dims.y, dims.z = cluster or (1, 1, 1)
    config = types.SimpleNamespace(attrs=[attribute] * bool(cluster), numAttrs=int(bool(cluster)), gridDimX=gx, gridDimY=1, gridDimZ=1,
                                   blockDimX=32, blockDimY=1, blockDimZ=1, sharedMemBytes=0, hStream=0)
    return gpu.cuLaunchKernelEx(config, gpu._new(loaded)[1], None, 0)[0], found


def test_the_launch_says_how_many_run_together_or_the_kernel_does():
    two = ".explicitcluster\n.reqnctapercluster 2"
    assert launch("", (2, 1, 1)) == launch(two, None) == launch(two, (2, 1, 1)) == (Code.SUCCESS, [2])
    assert launch("", None) == (Code.SUCCESS, [1])
    refused = Code.INVALID_CLUSTER_SIZE, []
    assert launch(two, (4, 1, 1)) == launch("", (2, 1, 1), gx=3) == launch("", (16, 1, 1), gx=16) == launch(two, None, arch=80) == refused
    with pytest.raises(Fault, match="along x alone"):
        launch("", (2, 2, 1))
