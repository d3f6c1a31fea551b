"""Several passes one after another."""
import functools
import inspect

from tritorch.errors import sentence
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.passes.infra.pass_base import PassResult

__all__ = ["PassManager", "pass_result_wrapper", "this_before_that_pass_constraint"]


def pass_result_wrapper(fn):
    """A pass of a function that changes a module, or returns another, or a `PassResult`."""
    @functools.wraps(fn)
    def wrapped(gm):
        made = fn(gm)
        return made if isinstance(made, PassResult) else PassResult(gm if made is None else made, True)

    wrapped.__name__ = fn.__name__ if inspect.isfunction(fn) else type(fn).__name__
    return wrapped


def this_before_that_pass_constraint(this, that):
    """The constraint that of two passes one does not come after the other."""
    return lambda a, b: not (a is that and b is this)


class PassManager:
    """Runs passes on a module, `steps` times at most, until none changes it: a `PassResult`. GraphModules are recompiled after each.

    `constraints`: functions of two passes that say whether the first may come before the second, by which they are ordered;
    `run_checks_after_each_pass`: call the check of `add_checks` after each, not only before and after all;
    `suppress_check_failures`: never call it.

    Errors: RuntimeError where no order fits the constraints, TypeError for a check that is no function of one module; those of a pass come
    as an Exception that names it.

    >>> import tritorch as torch
    >>> def no_negation(module):
    ...     for node in module.graph.find_nodes(op="call_function", target=torch.neg):
    ...         node.target = torch.abs
    >>> manager = PassManager([pass_result_wrapper(no_negation)])
    >>> manager(torch.fx.symbolic_trace(lambda x: torch.neg(x))).graph_module(torch.tensor(-2))
    tensor(2)
    """

    def __init__(self, passes=None, constraints=None, steps=None, run_checks_after_each_pass=False, suppress_check_failures=False):
        self.passes, self.constraints, self.steps = passes or [], constraints or [], steps or 1
        self.run_checks_after_each_pass, self.suppress_check_failures = run_checks_after_each_pass, suppress_check_failures

    def add_pass(self, _pass):
        """Put a pass behind the others."""
        self.passes.append(_pass)

    def add_constraint(self, constraint):
        """One more constraint."""
        self.constraints.append(constraint)

    def add_checks(self, check):
        """The function of a module that raises where something is wrong with it."""
        if len(inspect.signature(check).parameters) != 1:
            raise TypeError(sentence("add_checks", "a function of one module", inspect.signature(check)))
        self.check = check  # type: ignore[method-assign]

    def check(self, module):
        """The check: nothing, unless a subclass or `add_checks` says otherwise."""

    def _may_precede(self, first, second):
        return all(constraint(first, second) for constraint in self.constraints)

    def validate_constraints(self):
        """RuntimeError unless every pass may come before all after it."""
        for k, first in enumerate(self.passes):
            for second in self.passes[k + 1:]:
                if not self._may_precede(first, second):
                    raise RuntimeError(sentence("PassManager", f"{second} before {first}, by the constraints", "it after that"))

    def solve_constraints(self):
        """Put the passes into an order that the constraints allow: that of the list as far as they do."""
        left, found = list(self.passes), []
        while left:
            first = next((a for a in left if all(a is b or self._may_precede(a, b) for b in left)), None)
            if first is None:
                raise RuntimeError(sentence("PassManager", "constraints that an order of the passes fits", f"none of {left} first"))
            left.remove(first)
            found.append(first)
        self.passes = found

    def __call__(self, module):
        self.solve_constraints()
        self._checked(module)
        modified = False
        for _ in range(self.steps):
            changed = False
            for each in self.passes:
                module, now = self._run(each, module)
                changed = changed or now
                if self.run_checks_after_each_pass:
                    self._checked(module)
            modified = modified or changed
            if not changed:
                break
        return PassResult(module, modified)

    def _checked(self, module):
        if not self.suppress_check_failures:
            self.check(module)

    def _run(self, each, module):
        name = each.__name__ if inspect.isfunction(each) else type(each).__name__
        try:
            result = each(module)
            if not hasattr(result, "graph_module"):
                raise TypeError(sentence("PassManager", f"a PassResult of {name}", type(result).__name__, use="pass_result_wrapper"))
        except Exception as error:
            raise Exception(f"PassManager, in the pass {name}: {error}") from error
        if isinstance(result.graph_module, GraphModule):
            result.graph_module.recompile()
        return result.graph_module, result.modified
