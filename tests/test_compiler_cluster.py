"""Kernels for clusters: what their marks become in the PTX, what is refused, what a launch is told."""
import re
from types import SimpleNamespace

import pytest
from test_nvidia_stub import function, stub  # noqa: F401  stub is a fixture

pytest.importorskip("triton")

import tritorch as torch  # noqa: E402
from tritorch.cuda import compiler, driver, tuner  # noqa: E402
from tritorch.cuda.compiler_cluster import BEGIN, END, reaching_all, size_of  # noqa: E402
from tritorch.cuda.dry import DryDriver  # noqa: E402
from tritorch.ops import gemm_choice as choice  # noqa: E402
from tritorch.ops.gemm_pairs import paired  # noqa: E402
from tritorch.testing.ptx.parse import parse  # noqa: E402

H200 = (132, 232448, 9)
LOAD = "@%p6 cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd6, {%r2, %r3, %r4}], [%r5];"
ARRIVE = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];"
KERNEL = """.visible .entry kernel(
	.param .u64 kernel_param_0
)
.reqntid 128
{
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""


def marked(*parts, kernel=KERNEL):
    return kernel + "".join(f"mov.b32 %r9, 0; {BEGIN}\n{part}\nmov.b32 %r9, 0; {END}\n" for part in parts) + "ret;\n}\n"


def test_loads_go_to_all_and_arrivals_are_counted_by_all():
    text = reaching_all(marked(f"elect.sync %r8|%p6, -1;\n{LOAD}\n{LOAD}", f"bar.sync 0, 128;\n{ARRIVE}") + LOAD, 4)
    assert re.search(r"\.reqntid 128\n\.explicitcluster\n\.reqnctapercluster 4\n\{", text)
    assert len(re.findall(r"mov\.b16 (%\w+), 15; @%p6 cp\.async\S+bytes\.multicast::cluster \[%r1\], [^;]*, \[%r5\], \1; \}", text)) == 2
    assert text.endswith(LOAD) and text.count(LOAD) == 1                 # what is not marked stays
    arrivals = re.findall(r"xor\.b32 (%\w+), %self, (\d); mapa\.shared::cluster\.u32 (%\w+), %r1, \1;\s+"
                          r"@%p1 mbarrier\.arrive\.shared::cluster\.b64 _, \[\3\];", text)
    assert [number for _, number, _ in arrivals] == ["1", "2", "3"] and text.count(ARRIVE) == 1


@pytest.mark.parametrize("text", [
    marked(), marked(LOAD), marked(ARRIVE), marked(LOAD, ARRIVE, ""), marked(LOAD, ARRIVE, f"{LOAD}\n{ARRIVE}"),
    marked(LOAD, ARRIVE, kernel=KERNEL.replace("barrier.cluster", "// ")), marked(LOAD, ARRIVE).replace(END, "", 1),
    marked(LOAD, ARRIVE).replace(BEGIN, "", 1), marked(LOAD, ARRIVE.replace("shared::cta", "shared")),
    marked(LOAD, ARRIVE.replace("];", "], 2;")), marked(LOAD, f"{ARRIVE}\n@%p1 bra $L1;"), marked(LOAD, f"{ARRIVE}\nfence.proxy.async;"),
    marked(LOAD.replace("bytes", "bytes.L2::cache_hint"), ARRIVE), marked(LOAD.replace("];", "], %rd1;"), ARRIVE),
    marked(LOAD, ARRIVE.replace("arrive", "arrive.expect_tx"))])
def test_marks_around_anything_else_are_refused(text):
    with pytest.raises(ValueError, match="cluster|marked"):
        reaching_all(text, 2)


def specialisation(cluster=2):
    """Of a product with the first candidate for pairs, or with its tile for single programs."""
    found = paired(choice.gluon(4096, 4096, 4096, 1, H200), 4096, 4096, 1, H200)[0][1]
    with driver.using(DryDriver(90)), compiler.recording() as record, tuner.forcing("matmul", {**found, "CLUSTER": cluster}):
        torch.empty(4096, 512, dtype=torch.bfloat16, device="cuda") @ torch.empty(512, 4096, dtype=torch.bfloat16, device="cuda")
    spec, = record.values()
    return spec


def test_a_product_by_pairs_is_compiled_and_kept(tmp_path, monkeypatch):
    """A record of what a program needs, a compilation, the cache on disk; nothing of Triton's is left changed."""
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    pair, alone = specialisation(), specialisation(1)
    assert (size_of(pair), size_of(alone)) == (2, 1) and pair.key(90) != alone.key(90)
    found = compiler.compile_here(pair, 90)
    path = compiler.path_of(pair, 90)
    compiler.write(path, found)
    assert compiler.read(path) == found and (found.cluster, found.num_ctas, found.pdl) == (2, 1, True)
    program = parse(found.ptx)
    assert program.cluster == 2 and program.threads == 32 * found.num_warps
    assert found.ptx.count("multicast::cluster") and found.ptx.count("mapa.shared::cluster")
    monkeypatch.setattr("tritorch.cuda.compiler_cluster.RULES", ())
    with pytest.raises(compiler.CompileError, match="matmul_gluon_kernel.*expected loads by TMA or arrivals"):
        compiler.compile_here(pair, 90)


def test_the_rules_are_in_the_key(monkeypatch):
    pair, alone = specialisation(), specialisation(1)
    before = pair.key(90), alone.key(90)
    monkeypatch.setattr("tritorch.cuda.compiler_cluster.source", lambda: "another")
    assert pair.key(90) != before[0] and alone.key(90) == before[1]


@pytest.mark.parametrize("pdl", [False, True])
def test_the_driver_is_told_of_clusters(stub, pdl):  # noqa: F811
    """With each launch, in one configuration for a grid and a stream; the grid is that of the CTAs."""
    fake, _ = stub
    k = function(stub, {"n": "i32"}, cluster=2, pdl=pdl)
    for stream in (0x51, 0x51, 0x52):
        k.launch(6, 2, 1, stream, [7])
    configs = [call[1] for call in fake.named("cuLaunchKernelEx")]
    assert len(configs) == 3 and configs[0] is configs[1] is not configs[2] and not fake.named("cuLaunchKernel")
    kinds = {getattr(a.id, "name", a.id).removeprefix("CU_LAUNCH_ATTRIBUTE_"): a.value for a in configs[0].attrs}
    dims = kinds["CLUSTER_DIMENSION"].clusterDim
    assert (dims.x, dims.y, dims.z) == (2, 1, 1) and configs[0].numAttrs == 1 + pdl and configs[0].gridDimX == 6
    assert ("PROGRAMMATIC_STREAM_SERIALIZATION" in kinds) == pdl


def test_kernels_of_other_programs_are_none():
    params = [SimpleNamespace(name=name) for name in ("x_ptr", "BLOCK")]
    assert size_of(SimpleNamespace(kernel=SimpleNamespace(params=params), constexprs={(1,): 8})) == 1
