"""Linear algebra under the names of `tritorch` and of Tensor; those of `tritorch.linalg` are there."""
from tritorch.ops.cholesky import cholesky, cholesky_inverse, cholesky_solve
from tritorch.ops.determinants import logdet, slogdet
from tritorch.ops.householder import geqrf, orgqr, ormqr, qr
from tritorch.ops.low_rank import pca_lowrank, svd_lowrank
from tritorch.ops.lu import lu_unpack
from tritorch.ops.matrix_exp import matrix_exp
from tritorch.ops.pseudo_inverse import pinverse
from tritorch.ops.singular import nuclear_norm, svd
from tritorch.ops.solving import det, inverse, lu, lu_solve
from tritorch.ops.triangular import triangular_solve

__all__ = ["cholesky", "cholesky_inverse", "cholesky_solve", "det", "geqrf", "inverse", "logdet", "lu", "lu_solve", "lu_unpack",
           "matrix_exp", "nuclear_norm", "orgqr", "ormqr", "pca_lowrank", "pinverse", "qr", "slogdet", "svd", "svd_lowrank",
           "triangular_solve"]
