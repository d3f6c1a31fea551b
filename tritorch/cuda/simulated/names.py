"""What the names of `triton.language` mean in a running kernel, as one table."""
from __future__ import annotations

from . import accesses, block_pointers, language, products, reductions
from .values import Value, to_value

_LANGUAGE = """
 program_id num_programs arange full zeros zeros_like cast broadcast broadcast_to trans permute reshape ravel expand_dims cat join split
interleave flip gather item where add sub mul minimum maximum clamp cdiv umulhi fma abs fdiv div_rn exp exp2 log log2 sin cos sqrt sqrt_rn
floor ceil rsqrt erf sigmoid softmax philox_impl multiple_of max_contiguous max_constancy assume device_assert static_assert static_range
constexpr make_tensor_descriptor load_tensor_descriptor store_tensor_descriptor"""
_REDUCTIONS = "reduce associative_scan sum xor_sum reduce_or max argmax min argmin cumsum cumprod sort topk histogram"
_REFUSED = "inline_asm_elementwise dot_scaled map_elementwise"

NAMES = {name: getattr(module, name) for module, names in (
    (language, _LANGUAGE), (reductions, _REDUCTIONS), (products, "dot"), (accesses, "load store atomic_cas")) for name in names.split()}
NAMES |= {f"atomic_{name}": accesses.atomic(name) for name in accesses.UPDATES}
NAMES |= {name: language.refused(name) for name in _REFUSED.split()}
NAMES |= {
    "range": language.range_, "view": language.reshape, "to_tensor": to_value, "tensor": Value, "tuple": tuple,
    "make_block_ptr": block_pointers.BlockPointer, "advance": block_pointers.advance,
    "tensor_descriptor": accesses.Descriptor, "tensor_descriptor_base": accesses.Descriptor, "device_print": print, "static_print": print,
    "debug_barrier": language.nothing, "gdc_wait": language.nothing, "gdc_launch_dependents": language.nothing,
}

for _name in """broadcast_to trans permute split view reshape expand_dims item exp log cos sin sqrt rsqrt exp2 log2 abs floor ceil erf
        reduce associative_scan gather histogram cdiv sigmoid softmax ravel max min argmax argmin sum xor_sum reduce_or cumsum
        cumprod flip store         atomic_cas atomic_xchg atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor""".split():
    setattr(Value, _name, NAMES[_name])
