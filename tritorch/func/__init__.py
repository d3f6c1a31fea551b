"""Derivatives of functions of tensors as functions: grad, vjp, jvp, jacrev, jacfwd, hessian, and vmap."""
from tritorch.func.functional_call import functional_call, stack_module_state
from tritorch.func.jacobians import hessian, jacfwd, jacrev
from tritorch.func.transforms import grad, grad_and_value, jvp, linearize, vjp
from tritorch.func.vmap import vmap

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "stack_module_state",
           "vjp", "vmap"]
