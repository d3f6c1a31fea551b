"""Rules of linear algebra: factors, solutions, eigenvalues, of matrices in the last two dims."""
