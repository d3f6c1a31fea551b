"""Device code: Triton kernels, one family per file. Imports triton and nothing else."""
