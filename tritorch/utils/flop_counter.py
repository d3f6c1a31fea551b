"""Counts the floating point operations of a program: those of products, convolutions and attention, by module and operator."""
import weakref

from tritorch.autograd.modes import state
from tritorch.dispatch import Interpreter
from tritorch.errors import check
from tritorch.nn.hooks import register_module_forward_hook, register_module_forward_pre_hook
from tritorch.profiler.operators import FLOPS, flops_of, name_of
from tritorch.tensor import Tensor

ELEMENTWISE = "add", "mul"                                               # of which profilers know the operations, too
UNITS = "", "K", "M", "B", "T", "P"
flop_registry = {}                                                       # formulas that programs have given, by the name of the operator


def register_flop_formula(targets, get_raw=False):
    """A decorator that gives operators a formula: of the arguments, tensors as their shapes, and `out_shape`, to the number of operations
    of a call. `get_raw`: of the tensors themselves and `out_val`. targets: an operator, the name of one, or several. RuntimeError where
    one has got its formula already.

    >>> import tritorch as torch
    >>> @register_flop_formula(torch.cumsum)
    ... def cumsum_flops(x_shape, *args, out_shape):
    ...     return out_shape[0]
    >>> with FlopCounterMode(display=False) as counter:
    ...     y = torch.ones(5).cumsum(0)
    >>> counter.get_total_flops(), flop_registry.pop("cumsum") is cumsum_flops
    (5, True)
    """
    def register(formula):
        for target in targets if isinstance(targets, (list, tuple)) else (targets,):
            name = getattr(target, "__name__", target)
            check(name not in flop_registry, "register_flop_formula", "an operator without a formula", name)
            flop_registry[name] = formula
        formula.get_raw = get_raw
        return formula

    return register


class FlopCounterMode(Interpreter):
    """Counts what runs inside, two operations for each product that is summed; with `display` a table is printed at the end.

    depth: how far down modules get lines of their own. custom_mapping: operator or its name → function of the arguments, tensors
    as their shapes, and `out_shape`, that says how many operations a call has. A backward pass counts for the module whose forward pass
    made the node. Operators are named as in profiles ("aten::matmul"). What `tritorch.compile` replays is not seen.

    >>> import tritorch as torch
    >>> with FlopCounterMode(display=False) as counter:
    ...     y = torch.nn.Linear(4, 8)(torch.ones(3, 4))
    >>> counter.get_total_flops(), counter.get_flop_counts()["Linear"]
    (192, {'aten::linear': 192})
    """

    looks_on, views = True, False

    def __init__(self, mods=None, depth=2, display=True, custom_mapping=None):
        self.depth, self.display, self.counts = depth, display, {"Global": {}}
        self.custom = {getattr(op, "__name__", op): f for op, f in (custom_mapping or {}).items()}
        self.stack, self.makers, self.hooks = [], weakref.WeakKeyDictionary(), ()

    def __enter__(self):
        self.counts, self.stack = {"Global": {}}, []
        self.hooks = register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave, always_call=True)
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        for hook in self.hooks:
            hook.remove()
        if self.display and exception[0] is None:
            print(self.get_table())

    def _enter(self, module, inputs):
        above = self.stack[-1] if self.stack else None
        name = type(module).__name__ if above is None else f"{above[1]}.{self._name_in(above[0], module)}"
        self.stack.append((module, name))

    @staticmethod
    def _name_in(parent, module):
        return next((name for name, m in parent.named_modules() if m is module), type(module).__name__)

    def _leave(self, module, inputs, output):
        self.stack.pop()

    def __call__(self, op, args, out):
        made = self.proceed(op, args, out)
        here, run = tuple([name for _, name in self.stack]), state.run
        if run is not None and run.node is not None:
            here = self.makers.get(run.node, ())
        elif here:
            for x in made if isinstance(made, tuple) else (made,):
                if isinstance(x, Tensor) and x.node is not None:
                    self.makers[x.node] = here
        flops = self._flops(op, args, made)
        if flops:
            for place in ("Global", *here):
                found = self.counts.setdefault(place, {})
                name = name_of(op, ())
                found[name] = found.get(name, 0) + flops
        return made

    def _flops(self, op, args, made):
        custom = self.custom.get(op.__name__) or flop_registry.get(op.__name__)
        if getattr(custom, "get_raw", False):
            return custom(*args, out_val=made)
        if custom is not None:
            return custom(*[a.shape if isinstance(a, Tensor) else a for a in args],
                          out_shape=made.shape if isinstance(made, Tensor) else tuple([x.shape for x in made]))
        return flops_of(op, args, made) if op.__name__ in FLOPS and op.__name__ not in ELEMENTWISE else 0

    def get_total_flops(self):
        """All operations that were counted."""
        return sum(self.counts["Global"].values())

    def get_flop_counts(self):
        """{module: {operator: operations}}; what runs in a module's parts counts for it, too, everything for "Global"."""
        return {place: dict(found) for place, found in self.counts.items()}

    def get_table(self, depth=None):
        """The counts as text, each with its share of all."""
        depth, total = self.depth if depth is None else depth, max(self.get_total_flops(), 1)
        power = next((k for k in range(len(UNITS) - 1, 0, -1) if total >= 1000 ** k), 0)
        rows = [("module", f"FLOPs ({UNITS[power]})" if power else "FLOPs", "% of all")]
        for place, found in self.counts.items():
            level = 0 if place == "Global" else place.count(".") + 1
            if level <= depth:
                for name, flops in ((place, sum(found.values())), *((f" - {name}", flops) for name, flops in found.items())):
                    shown = f"{flops / 1000 ** power:.3f}" if power else str(flops)
                    rows.append((" " * level + name, shown, f"{100 * flops / total:.2f}%"))
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join(f"{a.ljust(widths[0])}  {b.rjust(widths[1])}  {c.rjust(widths[2])}" for a, b, c in rows)
