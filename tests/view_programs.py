"""Random programs of views, writes in place and reads, run step by step under either library."""
from hypothesis import strategies as st

VIEWS = {
    "select": lambda t, a, b: t.select(a % t.dim(), b % t.shape[a % t.dim()]),
    "item": lambda t, a, b: t[b % t.shape[0]],
    "slice": lambda t, a, b: t[a % 3:][::1 + b % 2],
    "columns": lambda t, a, b: t[..., a % 2::1 + b % 2],
    "narrow": lambda t, a, b: t.narrow(-1, a % t.shape[-1], t.shape[-1] - a % t.shape[-1]),
    "transpose": lambda t, a, b: t.transpose(a % t.dim(), b % t.dim()),
    "permute": lambda t, a, b: t.permute(*sorted(range(t.dim()), key=lambda d: (d * (a + 1) + b) % 5)),
    "unsqueeze": lambda t, a, b: t.unsqueeze(a % (t.dim() + 1)),
    "squeeze": lambda t, a, b: t.squeeze(),
    "flat": lambda t, a, b: t.view(-1),
    "reshape": lambda t, a, b: t.reshape(-1),
    "expand": lambda t, a, b: t.unsqueeze(0).expand(2, *t.shape),
    "diagonal": lambda t, a, b: t.diagonal(a % 3 - 1),
    "as_strided": lambda t, a, b: t.as_strided((2,), (1 + a % 2,)),
    "chunk": lambda t, a, b: t.chunk(2, a % t.dim())[b % len(t.chunk(2, a % t.dim()))],
    "split": lambda t, a, b: t.split(2)[b % len(t.split(2))],
    "unbind": lambda t, a, b: t.unbind(a % t.dim())[b % t.shape[a % t.dim()]],
    "view_as": lambda t, a, b: t.view_as(t),
    "detach": lambda t, a, b: t.detach(),
}
READS = {
    "mul": lambda t, o, c: t * o,
    "add": lambda t, o, c: t + o,
    "sub": lambda t, o, c: o - t,
    "sin": lambda t, o, c: t.sin(),
    "tanh": lambda t, o, c: t.tanh(),
    "square": lambda t, o, c: t * t,
    "clone": lambda t, o, c: t.clone(),
    "scale": lambda t, o, c: t * c,
    "sum": lambda t, o, c: t.sum(0),
    "contiguous": lambda t, o, c: t.contiguous(),
    "unfold": lambda t, o, c: t.unfold(0, 2, 1) * c,
    "sigmoid": lambda t, o, c: t.sigmoid(),
}


def _assign(t, o, c):
    t[...] = o


def _assign_part(t, o, c):
    t[0] = c


def _assign_slice(t, o, c):
    t[..., 1:] = o[..., 1:]


def _augmented(t, o, c):
    t[..., :1] *= c


WRITES = {
    "mul_": lambda t, o, c: t.mul_(o),
    "add_": lambda t, o, c: t.add_(o),
    "sub_": lambda t, o, c: t.sub_(c),
    "scale_": lambda t, o, c: t.mul_(c),
    "sin_": lambda t, o, c: t.sin_(),
    "tanh_": lambda t, o, c: t.tanh_(),
    "zero_": lambda t, o, c: t.zero_(),
    "fill_": lambda t, o, c: t.fill_(c),
    "copy_": lambda t, o, c: t.copy_(o),
    "clamp_": lambda t, o, c: t.clamp_(-0.5, 0.75),
    "square_": lambda t, o, c: t.mul_(t),
    "relu_": lambda t, o, c: t.relu_(),
    "assign": _assign,
    "assign_part": _assign_part,
    "assign_slice": _assign_slice,
    "augmented": _augmented,
    "masked_fill_": lambda t, o, c: t.masked_fill_(t.detach() > c / 3, c),
}
numbers = st.integers(0, 7)
step = st.one_of(
    st.tuples(st.just("view"), st.sampled_from(sorted(VIEWS)), numbers, numbers, numbers, st.booleans()),
    st.tuples(st.just("read"), st.sampled_from(sorted(READS)), numbers, numbers, numbers, st.booleans()),
    st.tuples(st.just("write"), st.sampled_from(sorted(WRITES)), numbers, numbers, numbers, st.integers(0, 4).map(lambda n: n == 0)),
)
programs = st.lists(step, min_size=2, max_size=14)
MAY_WORK = ("is the output of a function that returns multiple views", "multiple views", "refer to a single memory location",
            "single memory location")


class Machine:
    """The tensors of a program: two leaves, a constant, and what the steps made."""

    def __init__(self, torch, dx=0.0, dy=0.0):
        self.torch = torch
        values = [((3 * k) % 7 - 3) / 4 + dx * (k % 5 - 1) for k in range(12)]
        self.x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        self.y = torch.tensor([0.5 + dy, -1.25, 2.0 - 2 * dy, 0.75], dtype=torch.float64, requires_grad=True)
        self.start(self.x, self.y)

    def start(self, x, y):
        """Begin with these leaves."""
        torch = self.torch
        self.x, self.y = x, y
        self.tensors = [self.x.view(3, 4) * 1, self.y * 1, torch.tensor([[1.0], [-0.5], [0.25]], dtype=torch.float64), self.x, self.y]

    def run(self, step):
        """One step; returns what it made."""
        kind, name, i, j, k, flag = step
        t, o, c = self.tensors[i % len(self.tensors)], self.tensors[j % len(self.tensors)], (k - 3) / 2
        if name in ("permute", "split") and not t.dim():
            raise ValueError("a view of a number")
        if name == "as_strided" and (t.numel() < 4 or not t.is_contiguous()):
            raise ValueError("a view that reads outside of the tensor: its gradient in PyTorch hangs on later writes")
        if kind == "write" and any(n > 1 and not s for n, s in zip(t.shape, t.stride())):
            raise ValueError("an expanded tensor: PyTorch refuses only some of these writes, this library all")
        if kind == "view":
            self.tensors.append(VIEWS[name](t, j, k))
        elif kind == "read":
            self.tensors.append(READS[name](t, o, c).contiguous())       # PyTorch keeps the order of dims of an operand
        elif flag:
            with self.torch.no_grad():
                WRITES[name](t, o, c)
        else:
            WRITES[name](t, o, c)

    def loss(self):
        """A number that depends on every tensor, and each with a weight of its own."""
        total = self.x.sum() * 0 + self.y.sum() * 0
        for n, t in enumerate(self.tensors):
            total = total + (t * (1 + 0.1 * n)).sum()
        return total

    def gradients(self):
        return self.torch.autograd.grad(self.loss(), [self.x, self.y], allow_unused=True)


def function(torch, program):
    """The loss as a function of the leaves."""
    def loss(x, y):
        machine = Machine(torch)
        machine.start(x, y)
        for s in program:
            machine.run(s)
        return machine.loss()

    return loss


def numeric(torch, program, dx, dy, step=1e-5):
    """The change of the loss when the leaves move, by differences."""
    sides = []
    for sign in (1, -1):
        machine = Machine(torch, sign * step * dx, sign * step * dy)
        for s in program:
            machine.run(s)
        sides.append(machine.loss().item())
    return (sides[0] - sides[1]) / (2 * step)


def smooth(program):
    """Whether the gradient is the slope: nothing was hidden from it, and no step has a kink."""
    return not any(flag and kind == "write" or name in ("detach", "masked_fill_", "clamp_", "relu_")
                   for kind, name, _, _, _, flag in program)
