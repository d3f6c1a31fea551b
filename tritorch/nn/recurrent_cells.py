"""The runs of a recurrent layer and of stacked ones over a sequence, and the cells that take single steps."""
import math

from tritorch.nn import functional as F
from tritorch.nn import init
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter, unset
from tritorch.ops.recurrent import recurrent_layer
from tritorch.ops.recurrent_composed import compose
from tritorch.ops.shaping import cat, stack
from tritorch.tensor import own


def run_layer(mode, data, steps, state, weights, reverse):
    """Run one layer in one direction over data (T, N, features), or (Σ steps, features) with the batch size of every step.

    Returns the outputs and the last state of every sample. `state` holds as many tensors as the mode has, or Nones for zeros.
    """
    h, c = (*state, None)[:2]
    if weights[4] is None:
        out, h, c, *_ = recurrent_layer(data, *weights[:4], h, c, mode, steps, reverse)
        return out, (h, c)[:len(state)]
    rows, sizes = (data.flatten(0, 1), [data.shape[1]] * data.shape[0]) if steps is None else (data, list(steps))
    shapes = (sizes[0], weights[4].shape[0]), (sizes[0], weights[4].shape[1])
    state = [unset(shape, data.device, data.dtype).zero_() if s is None else s for s, shape in zip(state, shapes)]
    out, state = compose(mode, rows, weights, tuple(state), sizes, reverse)
    return out.reshape(*data.shape[:-1], out.shape[-1]), state


def run_stack(mode, data, steps, states, weights, dropout):
    """Run stacked layers: `weights` has for every layer those of every direction. `states` are (layers · directions, batch, size) each, or
    None for zeros; what a layer gives drops out with the chance `dropout` before the next.

    Returns the outputs of the last layer and the last states, like `states`.
    """
    finals = []
    for layer, ways in enumerate(weights):
        outputs = []
        for reverse, own_weights in enumerate(ways):
            state = [None if s is None else s[len(finals)] for s in states]
            output, final = run_layer(mode, data, steps, state, own_weights, reverse=bool(reverse))
            outputs.append(output)
            finals.append(final)
        data = cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        if dropout and layer < len(weights) - 1:
            data = F.dropout(data, dropout)
    return data, [stack(parts) if len(parts) > 1 else own(parts[0].unsqueeze(0)) for parts in zip(*finals)]


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
        states = 2 if mode == "LSTM" else 1
        if state is None:
            state = (None,) * states
        else:
            if any(s.ndim not in (1, 2) for s in state):
                raise ValueError(f"{type(self).__name__}: expected a state of 1 or 2 dims, got {state[0].ndim}")
            state = tuple(s.unsqueeze(0) if unbatched else s for s in state)
        weights = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, None
        _, state = run_layer(mode, input, (input.shape[0],), state, weights, False)
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
