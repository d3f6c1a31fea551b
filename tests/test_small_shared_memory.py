"""GPUs with 100 KiB of shared memory (sm_86, sm_89, sm_120): every tile that they may choose fits, and none is left out that would."""
import pytest

pytest.importorskip("triton")

import machine_code  # noqa: E402

import tritorch as T  # noqa: E402
import tritorch.nn.functional as F  # noqa: E402
from tritorch.cuda import driver, tuner  # noqa: E402
from tritorch.cuda.compiler import recording  # noqa: E402
from tritorch.cuda.dry import DryDriver  # noqa: E402
from tritorch.ops import convolution_cuda, gemm_choice  # noqa: E402
from tritorch.ops.grouped import TILES, grouped_mm  # noqa: E402
from tritorch.precision import get_float32_matmul_precision, set_float32_matmul_precision  # noqa: E402

pytestmark = pytest.mark.records
SHARED = DryDriver(86).properties.shared_memory_per_block_optin
GPU = (82, SHARED, 8)
PRODUCTS = {"half": (T.bfloat16, "highest"), "tf32": (T.float32, "high"), "bf16": (T.float32, "medium"), "ieee": (T.float32, "highest"),
            "parts": (T.float32, "highest"), "fp64": (T.float64, "highest")}


def launched(family, candidates, precision, call):
    """What `call` launches on an sm_86, once for each of the candidates of a family."""
    before = get_float32_matmul_precision()
    set_float32_matmul_precision(precision)
    try:
        with driver.using(DryDriver(86)), recording() as record, T.no_grad():
            for candidate in candidates:
                with tuner.forcing(family, candidate):
                    call()
    finally:
        set_float32_matmul_precision(before)
    return list(record.values())


def of_tile(spec, name):
    """A constexpr or an option of a launch."""
    names = list(spec.signature)
    return spec.constexprs[names.index(name),] if name in names else spec.options[name]


def check(specs, kernel, itemsize):
    """Their shared memory is at most what there is, and what is counted, or what a float32 tile of the result takes on its way out."""
    specs = [spec for spec in specs if spec.kernel.__name__ == kernel]
    for spec, code in zip(specs, machine_code.used(specs, 86)):
        m, n, k, stages = [of_tile(spec, name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages")]
        assert code["shared"] <= SHARED, (m, n, k, stages)
        assert code["shared"] <= max((m + n) * k * itemsize * gemm_choice.held(stages, GPU), m * n * 4), (m, n, k, stages, code)
    return len(specs)


@pytest.mark.parametrize("kind", PRODUCTS)
def test_products(kind):
    dtype, precision = PRODUCTS[kind]
    found = {}
    for k in (2048, 64):                                                 # the smallest tiles are for few elements of K alone
        for _, c in gemm_choice.plain(kind, 2048, 2048, k, 1, dtype.itemsize, GPU):
            if c["splits"] == 1:
                found.setdefault((c["BLOCK_M"], c["BLOCK_N"], c["BLOCK_K"], c["num_warps"]), c)
    found = found.values()
    assert len(found) == len(gemm_choice.TILES[kind])
    specs = launched("matmul", found, precision, lambda: T.empty(2048, 2048, dtype=dtype, device="cuda")
                     @ T.empty(2048, 2048, dtype=dtype, device="cuda"))
    assert check(specs, "matmul_kernel", dtype.itemsize) == len(found)


def test_convolutions():
    tiles = convolution_cuda._tiles(1 << 16, 256, 64, 1, T.bfloat16, "ieee", GPU, most=1 << 16)
    assert max(t["BLOCK_M"] * t["BLOCK_N"] for t in tiles) == 128 * 256
    specs = launched("convolution", tiles, "highest", lambda: F.conv2d(
        T.empty(16, 64, 64, 64, dtype=T.bfloat16, device="cuda"), T.empty(256, 64, 3, 3, dtype=T.bfloat16, device="cuda"), None, 1, 1))
    assert check(specs, "convolution_kernel", 2) == len(tiles)


def test_groups():
    tiles = [dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"), tile)) for tile in TILES[2]]
    specs = launched("grouped", tiles, "highest", lambda: grouped_mm(
        *[T.empty(*s, dtype=T.bfloat16, device="cuda") for s in ((2048, 512), (4, 512, 512))],
        offs=T.empty(4, dtype=T.int32, device="cuda")))
    assert check(specs, "grouped_rows_kernel", 2) == len(tiles)
