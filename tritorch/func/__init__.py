"""Derivatives of functions of tensors as functions: grad, vjp, jvp, jacrev, jacfwd, hessian."""
from tritorch.func.transforms import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp"]
