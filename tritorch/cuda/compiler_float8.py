"""Casts to and from 8-bit floating numbers in any kernel, which Triton refuses, or rounds otherwise than PyTorch, on some GPUs.

Triton knows float8_e4m3fn from sm_89 on, casts to float8 from float32 and half types alone, and what is too large for a float8_e5m2 becomes
its largest number there. So a kernel that says float8 is compiled with a cast of ours, which goes through float32 as PyTorch's does and
calls triton_kernels/float8.py where there is no instruction.
"""
import contextlib

import triton.language as tl
from triton.language.semantic import TritonSemantic

from tritorch.cuda.compiler_keys import key_of
from tritorch.cuda.launch import kernels

K = kernels("float8")
NATIVE = 89                                                              # the first architecture with instructions for both
KNOWN = ("fp8e4b15", "fp8e4nv", "fp8e5")


def appears(spec):
    """Whether a kernel is given 8-bit floating numbers."""
    return "fp8" in repr((spec.signature, spec.constexprs))


def sources():
    """What the machine code of such a kernel depends on besides itself."""
    return [key_of(fn) for fn in (K.half_of_e4m3, K.e4m3_of_float, K.e5m2_of_float, K.with_infinity)]


def options(spec, arch):
    """Options with which Triton's frontend lets the types through."""
    return {"supported_fp8_dtypes": KNOWN} if arch < NATIVE and appears(spec) else {}


@contextlib.contextmanager
def casts(spec, arch):
    """Compile a kernel with these casts inside; Triton as it was after it."""
    if not appears(spec):
        yield
        return
    from triton.compiler.code_generator import CodeGenerator  # a tenth of the start of a program whose kernels are compiled already

    begin, cast = CodeGenerator.__init__, TritonSemantic.cast

    def remembering(self, *args, **kw):
        begin(self, *args, **kw)
        self.semantic.generator = self

    def ours(self, input, dst_ty, fp_downcast_rounding=None):
        source, target = input.type.scalar, dst_ty.scalar
        if source != target and arch < NATIVE and source.is_fp8e4nv():
            half = self.generator.call_JitFunction(K.half_of_e4m3, [self.bitcast(input, tl.uint8)], {})
            return self.cast(half, dst_ty)
        if source == target or not target.is_fp8():
            return cast(self, input, dst_ty, fp_downcast_rounding)
        x = input if arch >= NATIVE and source in (tl.float32, tl.float16, tl.bfloat16) else self.cast(input, tl.float32)
        if arch < NATIVE:
            code = self.generator.call_JitFunction(K.e4m3_of_float if target.is_fp8e4nv() else K.e5m2_of_float, [x], {})
            return self.bitcast(code, target)
        value = cast(self, x, dst_ty, fp_downcast_rounding)
        return value if target.is_fp8e4nv() else self.generator.call_JitFunction(K.with_infinity, [value, x], {})

    CodeGenerator.__init__, TritonSemantic.cast = remembering, ours
    try:
        yield
    finally:
        CodeGenerator.__init__, TritonSemantic.cast = begin, cast
