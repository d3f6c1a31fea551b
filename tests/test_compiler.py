"""Compiling without a GPU: machine code for three architectures, the cache on disk, the parameter layout, recording."""

import dataclasses
import importlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

triton = pytest.importorskip("triton")
K = pytest.importorskip("launch_kernels")

from test_launch import Driver, Tensor  # noqa: E402

import tritorch  # noqa: E402
from tritorch.cuda import compiler, compiler_pool, driver  # noqa: E402
from tritorch.cuda.compiler import CompileError, Specialisation, compile_kernel, compile_many, recording, resources  # noqa: E402
from tritorch.cuda.launch import launch  # noqa: E402

pytestmark = pytest.mark.smoke

DIVISIBLE = [["tt.divisibility", 16]]
OPTIONS = {"num_warps": 4, "num_stages": 3}
ARCHS = (80, 90, 100)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path))
    return tmp_path


def mapped(function=K.twice, **options):
    signature = {"out_ptr": "*fp32", "x_ptr": "*fp32", "n": "i32", "FN": "constexpr", "BLOCK": "constexpr"}
    return Specialisation(K.map_kernel, signature, {(3,): function, (4,): 1024}, {(0,): DIVISIBLE, (1,): DIVISIBLE}, {**OPTIONS, **options})


def build(spec, arch):
    return compile_kernel(spec.kernel, spec.signature, spec.constexprs, spec.attrs, spec.options, arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_compiles_without_a_gpu(arch):
    before = triton.runtime.driver._active
    found = build(mapped(num_warps=8), arch)
    assert found.name == "map_kernel" and found.arch == arch and found.cubin[:4] == b"\x7fELF" and f"sm_{arch}" in found.ptx
    assert (found.num_warps, found.num_ctas, found.shared, found.descriptors) == (8, 1, 0, [])
    used = resources(found)
    assert 8 <= used["registers"] <= 64 and used["spills"] == 0 and used["shared"] == 0
    assert (used["load"], used["store"], used["wgmma"], used["tma"]) == (32, 32, 0, 0)
    assert triton.runtime.driver._active is before


def test_triton_does_not_hash_its_library(cache, monkeypatch):
    """It would in every process, and gets its function back."""
    def reads():
        pytest.fail("400 MB are read")

    monkeypatch.setattr(triton.runtime.cache, "triton_key", reads, raising=False)
    assert build(mapped(num_warps=2), 90).num_warps == 2
    assert triton.runtime.cache.triton_key is reads


def test_triton_keeps_nothing_at_home(cache, monkeypatch):
    """Home may be read-only or full: what Triton makes goes through the folder for temporary files, and is gone at the end."""
    (cache / "home").write_text("")
    monkeypatch.setenv("TRITON_HOME", str(cache / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(cache / "tmp"))
    (cache / "tmp").mkdir()
    before = triton.knobs.cache.dir
    assert build(mapped(num_warps=1), 90).num_warps == 1
    assert triton.knobs.cache.dir == before and "TRITON_CACHE_DIR" not in os.environ and not list((cache / "tmp").iterdir())


def test_a_full_disk_keeps_no_half_files(cache, monkeypatch):
    def full(self, data):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    assert build(mapped(), 90).name == "map_kernel"
    assert not list((cache / "kernels").iterdir())


def test_second_compilation_reads_the_disk(cache, monkeypatch):
    first = build(mapped(), 90)
    monkeypatch.setattr(triton, "compile", lambda *args, **kwargs: pytest.fail("Triton ran"))
    assert build(mapped(), 90) == first
    code = ("import triton; triton.compile = None; from test_compiler import build, mapped; "
            "print(len(build(mapped(), 90).cubin))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    assert int(done.stdout) == len(first.cubin)


def test_a_terminal_shows_what_is_compiled(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for where, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", where)
        spec = mapped(num_warps=1 + shown)
        for _ in range(2):                                                    # the second time it is read
            build(spec, 90)
        lines = where.getvalue().split("\r")
        assert [line.partition(":")[0] for line in lines if line.strip()] == ["compiling map_kernel"] * shown and lines[-1] == ""


def test_a_damaged_cache_is_compiled_again(cache):
    first = build(mapped(), 90)
    (path,) = (cache / "kernels").iterdir()
    for damage in (b"", path.read_bytes()[:100], b"nonsense"):
        path.write_bytes(damage)
        assert build(mapped(), 90) == first
    assert list((cache / "kernels").iterdir()) == [path]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITORCH_CACHE_DIR", str(tmp_path / "file"))
    assert build(mapped(), 90).name == "map_kernel"


def test_key_holds_everything_the_code_depends_on():
    base = mapped()
    others = [
        mapped(K.square), mapped(num_warps=8), dataclasses.replace(base, attrs={(0,): DIVISIBLE}),
        dataclasses.replace(base, constexprs={(3,): K.twice, (4,): 512}),
        dataclasses.replace(base, constexprs={(3,): K.twice, (4,): 1024.0}),
        dataclasses.replace(base, signature={**base.signature, "x_ptr": "*fp16"}), dataclasses.replace(base, kernel=K.axpy_kernel),
        dataclasses.replace(base, options={**OPTIONS, "enable_fp_fusion": False}),
    ]
    keys = {spec.key(90) for spec in (base, *others)} | {base.key(80)}
    assert len(keys) == len(others) + 2
    assert mapped().key(90) == base.key(90)
    assert dataclasses.replace(base, options={"enable_fp_fusion": True, **OPTIONS}).key(90) == base.key(90)


def test_shapes_and_strides_in_tuples_still_give_vector_loads():
    signature = {"out_ptr": "*fp32", "x_ptr": "*fp32", "shape": ("i32", "i32"), "x_strides": ("i32", "constexpr"),
                 "out_strides": ("i32", "constexpr"), "BLOCK": "constexpr"}
    divisible = [(0,), (1,), (2, 0), (2, 1), (3, 0), (4, 0)]
    spec = Specialisation(K.strided_kernel, signature, {(3, 1): 1, (4, 1): 1, (5,): 1024}, dict.fromkeys(divisible, DIVISIBLE), OPTIONS)
    assert "ld.global.v4.b32" in build(spec, 90).ptx
    plain = dataclasses.replace(spec, attrs={(0,): DIVISIBLE, (1,): DIVISIBLE})
    assert "ld.global.v4.b32" not in build(plain, 90).ptx


@pytest.mark.parametrize("arch", ARCHS)
def test_packed_parameters_are_those_of_the_machine_code(arch):
    """Sizes and order of what is packed are held against the parameters in the PTX."""
    pytest.importorskip("cuda.bindings.driver")
    from tritorch.cuda.nvidia_function import Layout

    signature = {"out_ptr": "*fp64", "small": "i32", "wide": "i64", "single": "fp32", "double": "fp64", "flag": "i1",
                 "nothing": "constexpr", "pair": ("fp32", "i64"), "N": "constexpr"}
    tile = {"out_ptr": "*bf16", "x_desc": "tensordesc<bf16[64, 64]>", "row": "i32", "BLOCK": "constexpr"}
    for spec in (Specialisation(K.types_kernel, signature, {(6,): None, (8,): 2}, {}, OPTIONS),
                 Specialisation(K.tile_kernel, tile, {(3,): 64}, {}, OPTIONS),
                 Specialisation(K.annotated_kernel, {"out_ptr": "*fp64", "seed": "i64", "scale": "fp64"}, {}, {}, OPTIONS)):
        found = build(spec, arch)
        layout = Layout(spec.signature, found.descriptors, found.parameters)        # refuses what does not match
        assert len(layout.offsets) == found.ptx.split(")")[0].count(".param")


def test_a_kernel_that_does_not_compile_says_where_and_why():
    broken = Specialisation(K.broken_kernel, {"out_ptr": "*fp32"}, {}, {}, OPTIONS)
    with pytest.raises(CompileError, match=r"(?s)broken_kernel \(.*launch_kernels.py:\d+\) with out_ptr=\*fp32, num_warps=4, num_stages=3 "
                       r"does not compile for sm_90: CompilationError: .*undefined_name is not defined"):
        build(broken, 90)


def test_spills_are_seen():
    heavy = Specialisation(K.heavy_kernel, {"out_ptr": "*fp32", "x_ptr": "*fp32", "BLOCK": "constexpr"}, {(2,): 32}, {},
                           {**OPTIONS, "num_warps": 1, "maxnreg": 32})
    used = resources(build(heavy, 80))
    assert used["registers"] <= 32 and used["spills"] > 0 and used["shared"] > 0


def test_many_kernels_compile_in_processes_and_none_takes_the_others_down(capfd):
    gluon = pytest.importorskip("gluon_kernels")
    hopper = Specialisation(gluon.wgmma_kernel, {"out_ptr": "*fp32"}, {}, {}, {"num_warps": 4})
    broken = Specialisation(K.broken_kernel, {"out_ptr": "*fp32"}, {}, {}, OPTIONS)
    found = compile_many([hopper, broken, mapped()], (100, 90), workers=1)
    assert [type(f).__name__ for f in found] == ["CompilerDied", "Compiled", "CompileError", "CompileError", "Compiled", "Compiled"]
    assert "takes the compiler down for sm_100" in str(found[0]) and "undefined_name" in str(found[2])
    assert found[4] == build(mapped(), 100) and found[1].arch == 90
    with pytest.raises(CompileError, match="takes the compiler down"):
        build(hopper, 100)
    capfd.readouterr()                                                # LLVM's last words


ONLY_HERE = """
import sys
import triton
import triton.language as tl
assert "pytest" in sys.modules
@triton.jit
def one_kernel(out_ptr):
    tl.store(out_ptr, 1.0)
"""


def test_a_module_that_imports_in_one_process_alone(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(ONLY_HERE)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = importlib.import_module("only_here").one_kernel
    found = compile_many([Specialisation(kernel, {"out_ptr": "*fp32"}, {}, {}, OPTIONS), mapped()], [80, 90], workers=1)
    assert [f.arch for f in found] == [80, 90, 80, 90]


def test_processes_outlive_those_who_asked():
    """The next kernels are compiled by the same process; whoever stops waiting leaves it no work."""
    compile_many([mapped()], [80], workers=1)
    pool = compiler_pool.lasting(1)
    process = pool.workers[0].process
    found = compiler.compile_each([mapped(num_warps=2), *[mapped(num_warps=w, maxnreg=100) for w in (1, 2, 4, 8)]], [90], workers=1)
    assert next(found).num_warps == 2 and pool.workers[0].process is process
    found.close()
    assert not pool.questions and pool.unanswered <= 1                # one may be half done
    assert compile_many([mapped(num_warps=8)], [100], workers=1)[0].num_warps == 8 and not pool.unanswered
    assert pool.workers[0].process is process


def test_recording_sees_what_is_launched_on_any_driver():
    x, half = Tensor(64), Tensor(64, dtype=tritorch.float16)
    with driver.using(Driver()):
        launch(K.map_kernel, (1,), x, x, 64, FN=K.twice, BLOCK=64)            # loaded before: recorded all the same
        with recording() as record:
            assert driver.hardware_tiles
            for _ in range(2):
                launch(K.map_kernel, (1,), x, x, 64, FN=K.twice, BLOCK=64)
                launch(K.map_kernel, (1,), half, x, 64, FN=K.square, BLOCK=64, num_warps=2)
        launch(K.map_kernel, (1,), x, half, 64, FN=K.twice, BLOCK=64)
        assert not driver.hardware_tiles
    assert [spec.signature["out_ptr"] for spec in record.values()] == ["*fp32", "*fp16"]
    assert [build(spec, 90).num_warps for spec in record.values()] == [4, 2]


def test_torch_is_not_loaded():
    code = "import sys; from tritorch.cuda import compiler; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert compiler.cache_folder().is_absolute()


def test_instructions_are_counted(monkeypatch):
    ptx = """.entry
 ld.global.L1::evict_last.L2::cache_hint.v8.b32 { %r1 }, [ %rd1 + 0 ], %rd9;
 @%p1 st.global.v2.b64 [ %rd1 + 0 ], { %rd4, %rd5 };
 st.global.b32 [ %rd1 + 0 ], { %r1 };
 wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {
 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1]
 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1]
"""
    monkeypatch.setattr(compiler.Compiled, "ptx", property(lambda self: ptx))
    used = resources(build(mapped(), 90))
    assert (used["load"], used["store"], used["wgmma"], used["tma"]) == (256, 128, 1, 2)
    monkeypatch.setattr(compiler.Compiled, "ptx", property(lambda self: "cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;"))
    assert resources(build(mapped(), 90))["load"] == 128


CONSTANT = """
import triton
import triton.language as tl
STORED = tl.constexpr(1.0)


@triton.jit
def constant_kernel(out_ptr):
    tl.store(out_ptr, STORED)
"""


def test_a_constant_that_another_process_does_not_have(tmp_path, monkeypatch):
    """A package that is configured after its import, or by the device it sees, as the process that compiles does not see it."""
    (tmp_path / "with_constant.py").write_text(CONSTANT)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("with_constant")
    monkeypatch.setattr(module, "STORED", triton.language.constexpr(3.0))
    worker = compiler_pool.Worker()
    assert str(0x40400000) in worker.ask(Specialisation(module.constant_kernel, {"out_ptr": "*fp32"}, {}, {}, OPTIONS), 90).ptx     # 3.0
    worker.close()


def test_recordings_within_each_other():
    """Equal while both are empty; each ends by itself."""
    with compiler.recording() as outer, compiler.recording() as inner:
        pass
    assert outer == inner == {} and not compiler._recorders
    with compiler.recording() as outer:
        with compiler.recording():
            pass
        assert any(r is outer for r in compiler._recorders)


def test_gluon_kernels_share_a_process():
    """It outlives a kernel that does not compile, and another one takes its place when it dies."""
    gluon = pytest.importorskip("gluon_kernels")
    spec = Specialisation(gluon.wgmma_kernel, {"out_ptr": "*fp32"}, {}, {}, {"num_warps": 4})
    worker = compiler_pool.Worker()
    assert worker.ask(spec, 90).cubin
    process = worker.process
    with pytest.raises(CompileError):
        worker.ask(dataclasses.replace(spec, signature={"out_ptr": "fp32"}), 90)
    assert worker.ask(spec, 90).cubin and worker.process is process
    process.kill()
    with pytest.raises(CompileError, match="takes the compiler down"):
        worker.ask(spec, 90)
    assert worker.ask(spec, 90).cubin and worker.process is not process
    worker.close()
