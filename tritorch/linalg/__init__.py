"""Linear algebra, under the names of torch.linalg. Matrices are real or complex; on a GPU `qr`, `eigh`, `svd`, `det` and `lu` and what is
made of them take real ones alone."""
from tritorch.errors import LinAlgError
from tritorch.linalg.composites import cond, lstsq, matrix_rank, tensorinv, tensorsolve, vander
from tritorch.linalg.factorizations import (
    cholesky,
    cholesky_ex,
    ldl_factor,
    ldl_factor_ex,
    ldl_solve,
    lu,
    lu_factor,
    lu_factor_ex,
    qr,
)
from tritorch.linalg.norms import (
    cross,
    diagonal,
    matrix_norm,
    multi_dot,
    norm,
    vecdot,
    vector_norm,
)
from tritorch.linalg.solving import det, inv, inv_ex, lu_solve, slogdet, solve, solve_ex
from tritorch.linalg.spectral import eig, eigh, eigvals, eigvalsh, svd, svdvals
from tritorch.ops.householder import householder_product
from tritorch.ops.matmul import matmul, matrix_power
from tritorch.ops.matrix_exp import matrix_exp
from tritorch.ops.pseudo_inverse import pinv
from tritorch.ops.triangular import solve_triangular
