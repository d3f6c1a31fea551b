"""ListWise: the optimizers that update all parameters of a group at once, on CUDA by one kernel, or two where steps are counted there."""
from tritorch.autograd.modes import enable_grad, no_grad
from tritorch.cuda.stream import captures, current_handle, is_capturing
from tritorch.cuda.watching import watched
from tritorch.dtype import float32
from tritorch.errors import check, real_numbers
from tritorch.layout import others
from tritorch.ops import optimize, update_rules
from tritorch.ops.complex import view_as_complex, view_as_real
from tritorch.ops.create import full, zeros_like
from tritorch.optim import differentiable
from tritorch.optim.optimizer import Optimizer, evaluated, rate_of
from tritorch.tensor import Tensor

_USUAL = (float, int)


class ListWise(Optimizer):
    """Subclasses give `recipe(group)`, an `optimize.Recipe`, and say what they remember.

    `remembers(group)` are the names of the tensors such as the parameter, in the order of the rule; `counts` those of the float32 scalars,
    the first of which is the step. They are set to 0, unless `started` says otherwise. Scalars lie on the parameter's device where a group
    is `capturable` or `fused`, so that a captured step counts and GradScaler need not wait for the GPU; else on the host.
    """

    switch = "capturable"                                                # the option that brings the counting to the device

    def remembers(self, group):
        """The names of what is remembered of each element."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method remembers in the subclass")

    def recipe(self, group):
        """What a step does."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method recipe in the subclass")

    def started(self, name, p, group):
        """What a parameter's state begins with: a number for a scalar, a tensor such as `p` otherwise."""
        return 0.0 if name in self.counts else zeros_like(p)

    @property
    def _step_supports_amp_scaling(self):
        if any(group.get("differentiable") for group in self.param_groups):
            return False
        self.become_capturable()
        return all(map(counts_on_device, self.param_groups)) or not self.counts and (watched.watcher is not None or bool(captures))

    @no_grad()
    def step(self, closure=None):
        self.become_capturable()
        self._refuse_capture()
        loss, work = evaluated(closure), []
        for group in self.param_groups:                                  # all options are read before the first parameter is written
            params = self.with_gradients(group)
            if params:
                if group["lr"].__class__ not in _USUAL:
                    real_numbers(type(self).__name__, lr=group["lr"])
                work.append((group, params, self.recipe(group)))
        for group, params, recipe in work:
            if group.get("differentiable"):
                self._differentiable_update(group, params, getattr(differentiable, recipe.rule))
                continue
            states = [self.state_of(p, group) for p in params]
            if not self.counts or counts_on_device(group):
                self._update(group, recipe, params, states, None if self.counts else (0.0, 0.0, 0.0))
                continue
            for some, coefficients in self._counted(recipe, states, float(group["lr"])):
                if len(some) == len(params):
                    self._update(group, recipe, params, states, coefficients)
                else:
                    self._update(group, recipe, [params[k] for k in some], [states[k] for k in some], coefficients)
        if others and self.sparse_step is not None:
            self._sparse_steps()
        return loss

    def _differentiable_update(self, group, params, rule):
        """A step that gradients go through; what is remembered becomes new tensors."""
        for p in params:
            state = self.state_of(p, group)
            t = state["step"].item() + 1 if "step" in self.counts else None
            found = dict(state)
            with enable_grad():
                g, old = -p._grad if group.get("maximize") else p._grad, p.clone()         # p itself may not be saved: it is overwritten
                if p.dtype.is_complex:                                   # the parts of complex numbers are numbers of their own
                    pairs = [k for k, v in found.items() if v is not None and v.dtype.is_complex]
                    found.update({k: view_as_real(found[k]) for k in pairs})
                    made = view_as_complex(rule(view_as_real(old), view_as_real(g), found, t, group))
                    found.update({k: view_as_complex(found[k]) for k in self.remembers(group)})
                else:
                    made = rule(old, g, found, t, group)
                p.copy_(made)
            if t is not None:
                found["step"] = state["step"] + 1
            state.update(found)

    def _counted(self, recipe, states, lr):
        """Count a step of every state on the host: (places, coefficients) of those that are equally far."""
        columns, places = [[s[name] for s in states] for name in self.counts], {}
        rows = [*zip(*map(_numbers, columns))]
        if rows.count(rows[0]) == len(rows):                             # mostly all parameters have come equally far
            places[rows[0]] = range(len(rows))
        else:
            for k, numbers in enumerate(rows):
                places.setdefault(numbers, []).append(k)
        for (t, *more), some in places.items():
            coefficients, *more = getattr(update_rules, recipe.counter)(t + 1, *more, *[None] * (2 - len(more)), lr, recipe.constants)
            yield some, coefficients
            for column, number in zip(columns, (t + 1, *more)):          # afterwards: a step that raised an error was none
                _put([column[k] for k in some], number)

    def state_of(self, p, group):
        """What is remembered of a parameter."""
        return self.state[p] or self.start(p, group)

    def start(self, p, group):
        """The state of a parameter before its first step."""
        found, device = {}, p.device if counts_on_device(group) else "cpu"
        for name in (*self.counts, *self.remembers(group)):
            value = self.started(name, p, group)
            found[name] = value if isinstance(value, Tensor) else full((), value, dtype=float32, device=device)
        self.state[p].update(found)                                      # all of it, or nothing where there is no memory for it
        return self.state[p]

    def _update(self, group, recipe, params, states, coefficients):
        columns = [[s[name] for s in states] for name in self.remembers(group)]
        counted = [[s[name] for s in states] for name in self.counts] if coefficients is None else []
        optimize.update(params, [p._grad for p in params], *columns, *[None] * (3 - len(columns)), *counted, *[None] * (3 - len(counted)),
                        rate_of(group, params), coefficients, recipe, self.found_inf)

    def become_capturable(self):
        """In a step that is being compiled: count the steps of CUDA parameters on the device from here on."""
        for group in self.param_groups if self.counts and watched.watcher is not None else ():
            if not counts_on_device(group) and group["params"][0].is_cuda:
                group[self.switch] = True
                with watched.watcher.unseen(), no_grad():
                    for p in group["params"]:
                        for name in self.counts if self.state.get(p) else ():
                            self.state[p][name] = self.state[p][name].to(p.device, float32)
                watched.watcher.note(f"{type(self).__name__}: {self.switch}=True was set, so that its steps are counted on the device")

    def _refuse_capture(self):
        """Numbers that the host computes are frozen in a CUDA graph: only groups that count on the device may be recorded."""
        for group in self.param_groups if self.counts and captures else ():
            for p in group["params"]:
                index = p.device.index if p.is_cuda else None
                check(index is None or counts_on_device(group) or not is_capturing(index, current_handle(index)), type(self).__name__,
                      f"{self.switch}=True in all parameter groups while a CUDA graph is captured", "False")


def counts_on_device(group):
    """Whether steps are counted where the parameters are."""
    return bool(group.get("capturable") or group.get("fused"))


def _numbers(scalars):
    try:
        return [x.array.item() for x in scalars]                         # 1 µs less for each
    except TypeError:                                                    # some are on a GPU, where a checkpoint had them
        return [x.item() for x in scalars]


def _put(scalars, number):
    try:
        for x in scalars:
            x.array.fill(number)
    except TypeError:
        for x in scalars:
            x.fill_(number)


def decay_of(group, decoupled=False):
    """A recipe's fields for the options `weight_decay` and `maximize`."""
    rate = group["weight_decay"]
    if rate.__class__ not in _USUAL:
        real_numbers("step", weight_decay=rate)
    rate = rate.item() if isinstance(rate, Tensor) else rate
    place = "none" if rate == 0 else "parameter" if decoupled else "gradient"
    return dict(weight_decay=float(rate), decay=place, maximize=bool(group.get("maximize")))
