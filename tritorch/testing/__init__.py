"""Comparing tensors, drawing random ones, and the checks that every operator's card gives rise to.

`check_op(op, device)` runs them all for one operator, also for operators of other packages.
"""
from tritorch.testing.cards import CHECKS, check_op, problems
from tritorch.testing.compare import assert_close, make_tensor

__all__ = ["CHECKS", "assert_close", "check_op", "make_tensor", "problems"]
