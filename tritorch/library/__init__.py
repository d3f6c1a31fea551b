"""Operators of one's own as plain functions or by their schemas, under the names of torch.library."""
from tritorch.library.opcheck import OpCheckError, opcheck
from tritorch.library.operators import CustomOpDef, custom_op, triton_op, wrap_triton
from tritorch.library.overload import OpOverload
from tritorch.library.registering import (
    Library,
    _scoped_library,
    define,
    fallthrough_kernel,
    get_ctx,
    impl,
    register_autocast,
    register_autograd,
    register_fake,
    register_kernel,
    register_torch_dispatch,
    register_vmap,
)
from tritorch.library.registering import register_fake as impl_abstract
from tritorch.library.schema import infer_schema

__all__ = ["CustomOpDef", "Library", "OpCheckError", "OpOverload", "_scoped_library", "custom_op", "define", "fallthrough_kernel",
           "get_ctx", "impl", "impl_abstract", "infer_schema", "opcheck", "register_autocast", "register_autograd", "register_fake",
           "register_kernel", "register_torch_dispatch", "register_vmap", "triton_op", "wrap_triton"]
