"""Derivatives of functions of tensors as functions: grad, vjp, jvp, jacrev, jacfwd, hessian; vmap; and rearrange."""
from tritorch.func.batch_norm import debug_unwrap, replace_all_batch_norm_modules_
from tritorch.func.functional_call import functional_call, stack_module_state
from tritorch.func.functionalize import functionalize
from tritorch.func.jacobians import hessian, jacfwd, jacrev
from tritorch.func.rearrange import rearrange
from tritorch.func.transforms import grad, grad_and_value, jvp, linearize, vjp
from tritorch.func.vmap import vmap

__all__ = ["debug_unwrap", "functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
           "rearrange", "replace_all_batch_norm_modules_", "stack_module_state", "vjp", "vmap"]
