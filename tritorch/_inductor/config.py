"""Settings of PyTorch's code generator, for programs that assign them: any name can be set, and nothing reads it; kernels are written by
hand here."""
