"""Device code: Triton kernels, one family per file. Imports triton and nothing else."""

OWNER = "tritorch"          # another package of this name exists; installed over ours it would leave files of both in one folder
