"""Your own operator, with your own Triton kernel, in forty lines of code: y = x · sigmoid(βx), known as swish (https://arxiv.org/abs/1710.05941).

    python tutorials/custom_op.py                                  # on the CPU
    TRITORCH_CUDA=simulated python tutorials/custom_op.py          # the kernel too, on a simulated GPU

It goes through the same door as the built-in operators, at the same speed, and gets the same generated tests.
"""
import numpy as np
import triton
import triton.language as tl

import tritorch as torch
from tritorch.cuda.launch import launch
from tritorch.testing import check_op


@triton.jit
def swish_kernel(y_ptr, x_ptr, N, beta, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < N).to(tl.float32)
    tl.store(y_ptr + i, x / (1 + tl.exp(-beta * x)), mask=i < N)


@torch.op                                                          # the signature is the schema, the docstring the manual,
def swish(x, beta=1.0):
    """x · sigmoid(βx) of a floating tensor of any shape."""
    return x.shape, x.dtype, x.device                              # and what is returned the promise of the output


@swish.impl("cpu")                                                 # numpy: the specification
def swish_cpu(y, x, beta):
    y[...] = x / (1 + np.exp(-beta * x))


@swish.impl("cuda")                                                # tensors: the kernel, for flat memory; other layouts are copied
def swish_cuda(y, x, beta):
    flat = y if y.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)
    launch(swish_kernel, (triton.cdiv(x.numel(), 1024),), flat, x.contiguous(), x.numel(), float(beta), BLOCK=1024)
    if flat is not y:
        y.copy_(flat)


@swish.grad("x")                                                   # written in operators, so it can be differentiated again;
def swish_grad(g, x, beta):                                        # what the rule names is what is saved
    s = torch.sigmoid(beta * x)
    return g * (s + beta * x * s * (1 - s))


@swish.samples                                                     # calls that the generated tests make
def swish_samples(make):
    yield make(3, 5),
    yield make(2, 1000), 1.5


def main():
    x = torch.linspace(-2, 2, 5, requires_grad=True)
    y = swish(x, 1.5)
    y.sum().backward()
    print("swish    ", y.detach())
    print("gradient ", x.grad)
    check_op(swish, "cpu")                                         # values, layouts, dtypes, gradients to second order, out=, capture …
    if torch.cuda.is_available():
        print("on", torch.cuda.get_device_name(), swish(x.detach().to("cuda"), 1.5))
        check_op(swish, "cuda")


if __name__ == "__main__":
    main()
