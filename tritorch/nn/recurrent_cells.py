"""One step of each recurrent network, its run over a sequence, and the cells that take single steps."""
import math

from tritorch.nn import functional as F
from tritorch.nn import init
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter, unset
from tritorch.ops.shaping import cat


def _tanh_step(gates, state, recur):
    return ((gates + recur(state[0])).tanh(),)


def _relu_step(gates, state, recur):
    return ((gates + recur(state[0])).relu(),)


def _lstm_step(gates, state, recur):
    i, f, g, o = (gates + recur(state[0])).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(gates, state, recur):
    h = state[0]
    r_x, z_x, n_x = gates.chunk(3, -1)
    r_h, z_h, n_h = recur(h).chunk(3, -1)
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    return (n + (z_x + z_h).sigmoid() * (h - n),)


STEPS = {"RNN_TANH": _tanh_step, "RNN_RELU": _relu_step, "LSTM": _lstm_step, "GRU": _gru_step}
GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}              # rows of the weights, in hidden sizes


def run_layer(mode, data, steps, state, weights, reverse):
    """Run one layer in one direction over `data` (Σ steps, features), `steps[t]` being the batch size at t, which never grows with t.

    Returns the outputs in the shape of the data and the last state of every sample.
    """
    step, projection = STEPS[mode], weights["weight_hr"]

    def recur(h):
        return F.linear(h, weights["weight_hh"], weights["bias_hh"])

    gates = F.linear(data, weights["weight_ih"], weights["bias_ih"]).split(steps)
    outputs, done, start = [None] * len(steps), [], state
    if reverse:
        state = tuple(s[:steps[-1]] for s in start)
    for t in reversed(range(len(steps))) if reverse else range(len(steps)):
        active, size = state[0].shape[0], steps[t]
        if size < active:                                                # forward: the shortest sequences have ended
            done.append(tuple(s[size:] for s in state))
            state = tuple(s[:size] for s in state)
        elif size > active:                                              # backward: the longer ones come in
            state = tuple(cat((s, new[active:size])) for s, new in zip(state, start))
        state = step(gates[t], state, recur)
        if projection is not None:
            state = (F.linear(state[0], projection), *state[1:])
        outputs[t] = state[0]
    if done:
        state = tuple(cat(parts) for parts in zip(state, *reversed(done)))
    return cat(outputs), state


class RNNCellBase(Module):
    """What the cells share: `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`, drawn from U(-k, k), k = 1 / sqrt(hidden_size)."""

    def __init__(self, input_size, hidden_size, bias, num_chunks, device=None, dtype=None):
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(unset((rows, input_size), device, dtype))
        self.weight_hh = Parameter(unset((rows, hidden_size), device, dtype))
        self.register_parameter("bias_ih", Parameter(unset((rows,), device, dtype)) if bias else None)
        self.register_parameter("bias_hh", Parameter(unset((rows,), device, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draw the parameters anew."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _step(self, mode, input, state):
        if input.ndim not in (1, 2):
            raise ValueError(f"{type(self).__name__}: expected an input of 1 or 2 dims, got {input.ndim}")
        unbatched = input.ndim == 1
        input = input.unsqueeze(0) if unbatched else input
        if state is None:
            state = (unset((input.shape[0], self.hidden_size), input.device, input.dtype).zero_(),) * (2 if mode == "LSTM" else 1)
        else:
            if any(s.ndim not in (1, 2) for s in state):
                raise ValueError(f"{type(self).__name__}: expected a state of 1 or 2 dims, got {state[0].ndim}")
            state = tuple(s.unsqueeze(0) if unbatched else s for s in state)
        state = STEPS[mode](F.linear(input, self.weight_ih, self.bias_ih), state, lambda h: F.linear(h, self.weight_hh, self.bias_hh))
        return tuple(s.squeeze(0) for s in state) if unbatched else state

    def extra_repr(self):
        shown = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            shown += f", bias={self.bias}"
        if getattr(self, "nonlinearity", "tanh") != "tanh":
            shown += f", nonlinearity={self.nonlinearity}"
        return shown


class RNNCell(RNNCellBase):
    """One step of `RNN`: input (N, input_size) and h (N, hidden_size), or without N, give the next h.

    >>> import tritorch as torch
    >>> torch.nn.RNNCell(10, 20)(torch.ones(3, 10)).shape
    tritorch.Size([3, 20])
    """

    def __init__(self, input_size, hidden_size, bias=True, nonlinearity="tanh", device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input, hx=None):
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return self._step(f"RNN_{self.nonlinearity.upper()}", input, None if hx is None else (hx,))[0]


class LSTMCell(RNNCellBase):
    """One step of `LSTM`: input (N, input_size) and (h, c), each (N, hidden_size), or without N, give the next (h, c).

    >>> import tritorch as torch
    >>> h, c = torch.nn.LSTMCell(3, 5)(torch.zeros(2, 3))
    >>> h.shape, c.shape
    (tritorch.Size([2, 5]), tritorch.Size([2, 5]))
    """

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input, hx=None):
        return self._step("LSTM", input, hx)


class GRUCell(RNNCellBase):
    """One step of `GRU`: input (N, input_size) and h (N, hidden_size), or without N, give the next h.

    >>> import tritorch as torch
    >>> torch.nn.GRUCell(3, 5)(torch.zeros(2, 3)).shape
    tritorch.Size([2, 5])
    """

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input, hx=None):
        return self._step("GRU", input, None if hx is None else (hx,))[0]
