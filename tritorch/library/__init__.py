"""Operators of one's own as plain functions, under the names of torch.library."""
from tritorch.library.opcheck import OpCheckError, opcheck
from tritorch.library.operators import (
    CustomOpDef,
    custom_op,
    register_autocast,
    register_autograd,
    register_fake,
    register_kernel,
    triton_op,
    wrap_triton,
)
from tritorch.library.schema import infer_schema

__all__ = ["CustomOpDef", "OpCheckError", "custom_op", "infer_schema", "opcheck", "register_autocast", "register_autograd", "register_fake",
           "register_kernel", "triton_op", "wrap_triton"]
