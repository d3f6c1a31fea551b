"""Matrix products whose accuracy nobody may lower."""
from tritorch.dispatch import common_device, op
from tritorch.ops.matrices import check_matrices, precise, product
from tritorch.ops.products import multiply, product_shape
from tritorch.pairs import OWN, adjoint


@op
def precise_product(a, b):
    """a @ b for matrices (…, m, k) and (…, k, n) of float32 or float64, with the accuracy of their dtype: autocast and
    `set_float32_matmul_precision` leave it alone, as they leave what LAPACK does."""
    check_matrices("precise_product", a=a, b=b)
    return product_shape("precise_product", a, b), a.dtype, common_device("precise_product", a, b)


@precise_product.impl("cpu")
def precise_product_cpu(out, a, b):
    multiply(out, a, b)


@precise_product.impl("cuda")
def precise_product_cuda(out, a, b):
    product(out, a, b)


precise_product.complex = OWN


@precise_product.grad("a")
def precise_product_grad_a(g, b):
    return precise_product(g, adjoint(b))


@precise_product.grad("b")
def precise_product_grad_b(g, a):
    return precise_product(adjoint(a), g)


@precise_product.samples
def precise_product_samples(make):
    kind = dict(dtype=precise(make))
    yield make(3, 4, **kind), make(4, 5, **kind)
    yield make(2, 1, 3, **kind), make(3, 2, **kind)


@precise_product.errors
def precise_product_errors(make):
    yield (make(3, 4), make(5, 6)), {}, RuntimeError, "expected input.shape[-1] == other.shape[-2], got (3, 4) and (5, 6)"


@precise_product.workloads
def precise_product_workloads(make):
    n = 1024
    yield "fp32 1024³", lambda: (make(n, n), make(n, n)), 12 * n * n, 2 * n ** 3
