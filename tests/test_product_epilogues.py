"""Every kernel that a product may be given to compiles with all that can be fused behind its sums."""
import pytest

pytest.importorskip("triton")

import machine_code  # noqa: E402
from test_product_code import BF16, H200, launched  # noqa: E402

from tritorch.cuda import tuner  # noqa: E402
from tritorch.ops import gemm_choice as choice  # noqa: E402
from tritorch.ops.feed_forward import linear_activation, linear_slope  # noqa: E402
from tritorch.ops.gemm import gemm  # noqa: E402
from tritorch.ops.linear_residual import linear_residual  # noqa: E402

pytestmark = pytest.mark.records
M, N, K = 1024, 768, 512
KERNELS = {
    "half": [*choice.plain("half", M, N, K, 1, 2, H200), *choice.persistent(M, N, K, 1, H200), *choice.gluon(M, N, K, 1, H200),
             *choice.whole(64, N, K, 1, H200)],
    "float": [*choice.plain("ieee", M, N, K, 1, 4, H200), *choice.exact(M, N, K, 1, H200), *choice.exact(M, N, K, 1, H200, True),
              *choice.whole(64, N, K, 1, H200, True), *choice.groups(M, N, K, 1, H200)],
}
FIRST = {(kind, candidate["kernel"]): candidate for kind, found in KERNELS.items() for _, candidate in reversed(found)}


def every_epilogue(e):
    """A scaled product, one with a row, a matrix, dropout without and with a residual, an activation, its slope."""
    x, w, row, matrix = e(M, K), e(N, K), e(N), e(M, N)
    gemm(e(M, N), x, w.mT, alpha=0.5)
    gemm(e(M, N), x, w.mT, row, beta=0.5)
    gemm(e(M, N), x, w.mT, matrix)
    linear_residual(x, w, row, None, 0.1, 7, 0)
    linear_residual(x, w, row, matrix, 0.1, 7, 0)
    linear_residual(x, w, None, matrix)
    linear_activation(x, w, row, "gelu_tanh")
    linear_slope(x, w.mT, matrix, "gelu_tanh")


@pytest.mark.parametrize("kind, name", FIRST, ids=[" ".join(pair) for pair in FIRST])
def test_every_epilogue(kind, name):
    with tuner.forcing("matmul", FIRST[kind, name]):
        specs = launched(lambda e: every_epilogue(lambda *size: e(*size, **(BF16 if kind == "half" else {}))))
    kernel = {"plain": "matmul_kernel", "parts": "matmul_kernel", "small": "matmul_small_gluon_kernel",
              "groups": "matmul_groups_gluon_kernel"}.get(name, f"matmul_{name}_kernel")
    assert sum(spec.kernel.__name__ == kernel for spec in specs) > 5
    assert all(code["shared"] <= H200[1] for code in machine_code.used(specs, 90))
