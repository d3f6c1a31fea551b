"""PyTorch's switches for the libraries behind it, so that programs which set them run: what a switch means here is told at each.

There is no library behind tritorch: matrix products, convolutions and attention are its own kernels, results are deterministic, and
configurations come from tables. So most switches read as what is the case, and setting them changes nothing; the precision of float32
products (`backends.cuda.matmul.allow_tf32`) and the choice of attention (`backends.cuda.enable_math_sdp` …) are real.

>>> import tritorch as torch
>>> torch.backends.cuda.matmul.allow_tf32 = True
>>> torch.get_float32_matmul_precision()
'high'
>>> torch.backends.cuda.matmul.allow_tf32 = False
"""
from tritorch.backends import cpu, cuda, cudnn, mkl, mkldnn, mps, openmp  # noqa: F401
