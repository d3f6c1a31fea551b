"""L-BFGS: quasi-Newton steps for functions without noise."""
from tritorch.autograd.modes import enable_grad, no_grad
from tritorch.errors import check, real_numbers
from tritorch.ops.complex import view_as_real
from tritorch.ops.create import zeros_like
from tritorch.ops.shaping import cat
from tritorch.optim.optimizer import Optimizer, check_options
from tritorch.tensor import Tensor


class LBFGS(Optimizer):
    """Steps along −H g, H an approximation of the inverse Hessian from the last `history_size` steps. Nocedal and Wright 2006, chapter 7.

    `step(closure)` makes up to `max_iter` of them, each evaluating the closure, `max_eval` times in all (default 1.25 max_iter); it ends
    when no gradient exceeds `tolerance_grad` or no change `tolerance_change`. `line_search_fn="strong_wolfe"` searches the length of each
    step, else it is `lr`. One parameter group. State is a few copies of all parameters.

    >>> import tritorch as torch
    >>> w = torch.tensor([3.0, -1.0], requires_grad=True)
    >>> optimizer = torch.optim.LBFGS([w], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = ((w - torch.tensor([1.0, 2.0])) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> first = optimizer.step(closure); [round(x, 3) for x in w.tolist()]
    [1.0, 2.0]
    """

    def __init__(self, params, lr=1, max_iter=20, max_eval=None, tolerance_grad=1e-7, tolerance_change=1e-9, history_size=100,
                 line_search_fn=None):
        check_options("LBFGS", lr=lr)
        real_numbers("LBFGS", max_iter=max_iter, history_size=history_size, max_eval=0 if max_eval is None else max_eval)
        real_numbers("LBFGS", tolerance_grad=tolerance_grad, tolerance_change=tolerance_change)
        check(line_search_fn in (None, "strong_wolfe"), "LBFGS", "line_search_fn None or 'strong_wolfe'", repr(line_search_fn))
        super().__init__(params, dict(lr=lr, max_iter=max_iter, max_eval=max_iter * 5 // 4 if max_eval is None else max_eval,
                                      tolerance_grad=tolerance_grad, tolerance_change=tolerance_change, history_size=history_size,
                                      line_search_fn=line_search_fn))
        check(len(self.param_groups) == 1, "LBFGS", "one parameter group", len(self.param_groups), error=ValueError)

    @property
    def _params(self):
        return self.param_groups[0]["params"]

    def _gradient(self):
        """All gradients as one vector, complex ones as pairs of numbers."""
        return cat([_as_real(zeros_like(p) if p.grad is None else p.grad.to_dense()).reshape(-1) for p in self._params])

    def _move(self, t, d):
        """p ← p + t d."""
        start = 0
        for p in map(_as_real, self._params):
            p.add_(d[start:start + p.numel()].view_as(p), alpha=t)
            start += p.numel()

    @no_grad()
    def step(self, closure):
        """Minimize; `closure` clears the gradients, computes the loss, calls backward and returns the loss. Returns the first one."""
        check(callable(closure), "LBFGS", "a function as closure", type(closure).__name__, error=TypeError)
        group, state, evaluate = self.param_groups[0], self.state[self._params[0]], enable_grad()(closure)
        lr = group["lr"].item() if isinstance(group["lr"], Tensor) else group["lr"]
        first = evaluate()
        loss, g, evaluations = float(first), self._gradient(), 1
        state["func_evals"], state["n_iter"] = state.get("func_evals", 0) + 1, state.get("n_iter", 0)
        if g.abs().max().item() <= group["tolerance_grad"]:
            return first
        for k in range(group["max_iter"]):
            d = self._direction(g, state, group)
            state["n_iter"] += 1
            state["prev_flat_grad"], before = g, loss
            t, slope = lr if state["n_iter"] > 1 else lr / max(1.0, g.abs().sum().item()), g.dot(d).item()
            state["d"], state["t"] = d, t
            if slope > -group["tolerance_change"]:
                break
            more = 0
            if group["line_search_fn"]:
                search = LineSearch(self._along(evaluate, d), d, loss, g, slope, group["max_eval"] - evaluations)
                t, loss, g, _ = search(t)
                state["t"], more = t, search.count
                self._move(t, d)
            else:
                self._move(t, d)
                if k + 1 < group["max_iter"]:
                    loss, g, more = float(evaluate()), self._gradient(), 1
            evaluations, state["func_evals"] = evaluations + more, state["func_evals"] + more
            if (evaluations >= group["max_eval"] or g.abs().max().item() <= group["tolerance_grad"]
                    or d.abs().max().item() * t <= group["tolerance_change"] or abs(loss - before) < group["tolerance_change"]):
                break
        return first

    def _along(self, evaluate, d):
        """The function of t: loss and gradient at p + t d; p stays."""
        start = [p.clone() for p in self._params]

        def at(t):
            self._move(t, d)
            found = float(evaluate()), self._gradient()
            for p, value in zip(self._params, start):
                p.copy_(value)
            return found

        return at

    def _direction(self, g, state, group):
        """−H g by the two loops over the history, which takes in the last step first."""
        if state["n_iter"] == 0:
            state["old_dirs"], state["old_stps"], state["ro"], state["H_diag"] = [], [], [], 1
            return -g
        y, s = g - state["prev_flat_grad"], state["d"] * state["t"]
        ys = y.dot(s).item()
        if ys > 1e-10:
            for name, value in (("old_dirs", y), ("old_stps", s), ("ro", 1.0 / ys)):
                state[name] = [*state[name], value][-group["history_size"]:]
            state["H_diag"] = ys / y.dot(y).item()
        q, history = -g, list(zip(state["old_dirs"], state["old_stps"], state["ro"]))
        parts = []
        for y, s, ro in reversed(history):
            parts.append(s.dot(q).item() * ro)
            q.add_(y, alpha=-parts[-1])
        q.mul_(state["H_diag"])
        for (y, s, ro), part in zip(history, reversed(parts)):
            q.add_(s, alpha=part - y.dot(q).item() * ro)
        return q


def _as_real(x):
    return view_as_real(x) if x.dtype.is_complex else x


class LineSearch:
    """A length t of the step d that decreases the loss enough (c1) and flattens the slope enough (c2): the strong Wolfe conditions.

    First a bracket is found by lengthening t, then it is made smaller around the least loss; Nocedal and Wright 2006, section 3.5.
    A point is (t, loss, gradient, slope).
    """

    def __init__(self, at, d, loss, g, slope, most, c1=1e-4, c2=0.9, change=1e-9):
        self.at, self.d, self.start, self.most, self.c1, self.c2 = at, d, (0.0, loss, g, slope), most, c1, c2
        self.change, self.count, self.tries = change / d.abs().max().item(), 0, 0

    def visit(self, t):
        self.count += 1
        loss, g = self.at(t)
        return t, loss, g, g.dot(self.d).item()

    def too_high(self, point):
        return point[1] > self.start[1] + self.c1 * point[0] * self.start[3]

    def flat(self, point):
        return abs(point[3]) <= -self.c2 * self.start[3]

    def __call__(self, t):
        """The point that was found, from the first length t on."""
        points = self.bracket(t)
        if len(points) == 2:
            points = self.zoom(points)
        return min(points, key=lambda point: point[1])

    def bracket(self, t):
        """Two points with a good one between them, or a good one."""
        old, new = self.start, self.visit(t)
        while self.tries < self.most:
            if self.too_high(new) or (self.tries > 1 and new[1] >= old[1]):
                return [old, new]
            if self.flat(new):
                return [new]
            if new[3] >= 0:
                return [old, new]
            old, new = new, self.visit(_interpolated(old, new, (new[0] + 0.01 * (new[0] - old[0]), new[0] * 10)))
            self.tries += 1
        return [self.start, new]

    def zoom(self, points):
        """A shorter bracket, or the point that meets the conditions."""
        stalled = False
        while self.tries < self.most and abs(points[1][0] - points[0][0]) >= self.change:
            low, high = sorted(points, key=lambda point: point[1])
            t, stalled = self._between(low, high, stalled)
            new = self.visit(t)
            self.tries += 1
            if self.too_high(new) or new[1] >= low[1]:
                points = [low, new]
            elif self.flat(new):
                return [new]
            else:
                points = [new, low if new[3] * (high[0] - low[0]) >= 0 else high]
        return points

    @staticmethod
    def _between(low, high, stalled):
        """Where to look next, and whether that is near an end for the first time: the second time it moves inwards."""
        left, right = sorted((low[0], high[0]))
        t, margin = _interpolated(low, high, (left, right)), 0.1 * (right - left)
        near = min(right - t, t - left) < margin
        forced = near and (stalled or t >= right or t <= left)
        if forced:
            t = right - margin if abs(t - right) < abs(t - left) else left + margin
        return t, near and not forced


def _interpolated(a, b, bounds):
    """Where the cubic through two points with their slopes is least, within bounds."""
    (x1, f1, _, g1), (x2, f2, _, g2) = sorted((a, b), key=lambda point: point[0])
    least, most = bounds
    d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2)
    square = d1 * d1 - g1 * g2
    if square < 0:
        return (least + most) / 2.0
    d2 = square ** 0.5
    return min(max(x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2)), least), most)
