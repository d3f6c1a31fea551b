"""A GPU in host memory that is fast: Triton's kernels are compiled for the host's processor by the LLVM inside Triton."""
