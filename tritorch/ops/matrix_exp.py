"""The exponential of matrices."""
import math

from tritorch.dtype import types
from tritorch.errors import explained
from tritorch.ops import compare, create
from tritorch.ops.bounds import every
from tritorch.ops.extremes import amax
from tritorch.ops.matrices import check_matrices
from tritorch.ops.precise_product import precise_product

DEGREE = 16                                                              # of Taylor's polynomial, in A⁴ with coefficients in A⁰ to A³
RADIUS = {4: 2.0, 8: 0.78}                                               # where what it leaves out cannot be told, by bytes of a number


@explained
def matrix_exp(input):
    """Σₖ Aᵏ / k! of square matrices (…, n, n), half types in float32: Taylor's polynomial of A / 2ˢ, squared s times. Waits for the device
    once, to know s. (N. Higham, "The scaling and squaring method for the matrix exponential revisited", 2005; M. Paterson and
    L. Stockmeyer, "On the number of nonscalar multiplications necessary to evaluate polynomials", 1973.)

    >>> import tritorch as torch
    >>> torch.linalg.matrix_exp(torch.zeros(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    if input.dtype in (types.float16, types.bfloat16):
        return matrix_exp(input.float()).to(input.dtype)
    check_matrices("linalg.matrix_exp", True, A=input)
    if not input.numel():
        return input.clone()
    size = amax(input.detach().abs().sum(-2), -1)
    steps = (size / RADIUS[input.dtype.to_real().itemsize]).log2().ceil().clamp(min=0)
    all_steps = every(steps)
    most = 0 if steps.is_meta or not all_steps.numel() else all_steps.max().item()
    most = int(most) if math.isfinite(most) else 0                       # numbers that are none stay so without being squared
    made = polynomial(input * (0.5 ** steps.clamp(max=most)).unsqueeze(-1).unsqueeze(-1))
    for k in range(most):
        squared = precise_product(made, made)
        made = squared if all_steps.numel() == 1 else compare.where((steps > k).unsqueeze(-1).unsqueeze(-1), squared, made)
    return made


def polynomial(A):
    """Taylor's polynomial by six products."""
    square = precise_product(A, A)
    powers = create.eye(A.shape[-1], dtype=A.dtype, device=A.device), A, square, precise_product(square, A)
    fourth = precise_product(square, square)
    made = fourth / math.factorial(DEGREE)
    for low in range(DEGREE - 4, -1, -4):
        part = sum(p / math.factorial(low + k) for k, p in enumerate(powers))
        made = part + made if low == DEGREE - 4 else part + precise_product(fourth, made)
    return made
