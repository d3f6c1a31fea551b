"""Recurrent layers: their parameters, what they take and return, and how layers and directions follow each other."""
import math
import numbers
import warnings

from tritorch.autograd.places import stacklevel
from tritorch.nn import init
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter, unset
from tritorch.nn.recurrent_cells import run_stack
from tritorch.nn.utils.rnn import PackedSequence
from tritorch.ops.recurrent import GATES


class RNNBase(Module):
    """What `RNN`, `LSTM` and `GRU` share: stacked layers, one or two directions, PyTorch's parameter names."""

    def __init__(self, mode, input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False,
                 proj_size=0, device=None, dtype=None):
        super().__init__()
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.bidirectional, self.proj_size = bidirectional, proj_size
        self._check()
        self.dropout = float(dropout)
        self._all_weights = [self._make_weights(layer, suffix, device, dtype)
                             for layer in range(num_layers) for suffix in self._suffixes()]
        self.reset_parameters()

    def _suffixes(self):
        return ("", "_reverse") if self.bidirectional else ("",)

    def _check(self):
        if not isinstance(self.dropout, numbers.Number) or isinstance(self.dropout, bool) or not 0 <= self.dropout <= 1:
            raise ValueError(f"{type(self).__name__}: expected dropout from 0 to 1, got {self.dropout!r}")
        if self.dropout > 0 and self.num_layers == 1:
            warnings.warn(f"{type(self).__name__}: dropout={self.dropout} lies between layers, and there is one layer",
                          stacklevel=stacklevel())
        for name, kind in (("bias", bool), ("batch_first", bool), ("input_size", int), ("hidden_size", int)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} should be of type {kind.__name__}, got: {type(getattr(self, name)).__name__}")
        for name in ("input_size", "hidden_size", "num_layers"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than zero")
        if self.proj_size < 0:
            raise ValueError(f"{type(self).__name__}: expected proj_size >= 0, got {self.proj_size}")
        if self.proj_size >= self.hidden_size:
            raise ValueError(f"{type(self).__name__}: expected proj_size < hidden_size ({self.hidden_size}), got {self.proj_size}")
        if self.mode not in GATES:
            raise ValueError(f"Unrecognized RNN mode: {self.mode}")

    def _make_weights(self, layer, suffix, device, dtype):
        gates, out = GATES[self.mode] * self.hidden_size, self.proj_size or self.hidden_size
        shapes = {"weight_ih": (gates, self.input_size if layer == 0 else out * len(self._suffixes())), "weight_hh": (gates, out)}
        if self.bias:
            shapes.update(bias_ih=(gates,), bias_hh=(gates,))
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        for name, shape in shapes.items():
            setattr(self, f"{name}_l{layer}{suffix}", Parameter(unset(shape, device, dtype)))
        return [f"{name}_l{layer}{suffix}" for name in shapes]

    def reset_parameters(self):
        """Draw all parameters from U(-k, k), k = 1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def flatten_parameters(self):
        """Does nothing: the parameters need no common memory here."""

    @property
    def all_weights(self):
        """The parameters by layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def forward(self, input, hx=None):
        packed = isinstance(input, PackedSequence)
        if packed:
            data, batch_sizes, order, back = input
            steps, unbatched = tuple(batch_sizes.tolist()), False
            batch = steps[0]
        else:
            steps, order, back, unbatched = None, None, None, input.ndim == 2
            data = self._by_time(input)
            batch = data.shape[1]
        self._check_input(data)
        states = self._states(hx, batch, unbatched)
        if order is not None:
            states = [None if state is None else state.index_select(1, order) for state in states]
        output, states = self._run(data, steps, states)
        if back is not None:
            states = [state.index_select(1, back) for state in states]
        if packed:
            return PackedSequence(output, batch_sizes, order, back), self._as_hidden(states)
        if unbatched:
            return output.squeeze(1), self._as_hidden([state.squeeze(1) for state in states])
        return output.transpose(0, 1) if self.batch_first else output, self._as_hidden(states)

    def _by_time(self, input):
        """The input as (steps, batch, features)."""
        if input.ndim not in (2, 3):
            raise ValueError(f"{type(self).__name__}: expected an input of 2 or 3 dims, got {input.ndim}")
        return input.unsqueeze(1) if input.ndim == 2 else input.transpose(0, 1) if self.batch_first else input

    def _check_input(self, data):
        weight = getattr(self, self._all_weights[0][0])
        if data.shape[-1] != self.input_size:
            raise RuntimeError(f"{type(self).__name__}: expected an input of {self.input_size} features, got {data.shape[-1]}")
        if data.dtype is not weight.dtype:
            raise ValueError(f"RNN input dtype ({data.dtype}) does not match weight dtype ({weight.dtype}). Convert input: "
                             f"input.to({weight.dtype}), or convert model: model.to({data.dtype})")

    def _states(self, hx, batch, unbatched):
        """The initial state as a list of tensors (layers · directions, batch, size), None for zeros."""
        layers = self.num_layers * len(self._suffixes())
        expected = [(layers, batch, self.proj_size or self.hidden_size), (layers, batch, self.hidden_size)][:self._state_count]
        if hx is None:
            return [None] * self._state_count
        given = list(hx) if self._state_count == 2 else [hx]
        if any(state.ndim != (2 if unbatched else 3) for state in given):
            raise RuntimeError(f"For {'unbatched 2-D' if unbatched else 'batched 3-D'} input, hx should also be {2 if unbatched else 3}-D "
                               f"but got {', '.join(f'{state.ndim}-D' for state in given)} tensor")
        if unbatched:
            given = [state.unsqueeze(1) for state in given]
        for i, (state, shape) in enumerate(zip(given, expected)):
            if tuple(state.shape) != shape:
                which = f"hidden[{i}] size" if self._state_count == 2 else "hidden size"
                raise RuntimeError(f"Expected {which} {shape}, got {list(state.shape)}")
        return given

    def _run(self, data, steps, states):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        weights = [[[getattr(self, f"{name}_l{layer}{suffix}", None) for name in names] for suffix in self._suffixes()]
                   for layer in range(self.num_layers)]
        return run_stack(self.mode, data, steps, states, weights, self.dropout if self.training else 0.0)

    def _as_hidden(self, states):
        return tuple(states) if self._state_count == 2 else states[0]

    _state_count = 1

    def extra_repr(self):
        shown = f"{self.input_size}, {self.hidden_size}"
        usuals = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0, "bidirectional": False}
        for name, usual in usuals.items():
            if getattr(self, name) != usual:
                shown += f", {name}={getattr(self, name)}"
        return shown


class RNN(RNNBase):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), or relu. Elman 1990.

    Input (L, N, input_size), (N, L, input_size) if `batch_first`, (L, input_size), or packed; h (layers · directions, N, hidden_size).
    Returns all outputs of the last layer and the last h of every layer.

    >>> import tritorch as torch
    >>> output, h = torch.nn.RNN(10, 20, 2)(torch.ones(5, 3, 10))
    >>> output.shape, h.shape
    (tritorch.Size([5, 3, 20]), tritorch.Size([2, 3, 20]))
    """

    def __init__(self, input_size, hidden_size, num_layers=1, nonlinearity="tanh", bias=True, batch_first=False, dropout=0.0,
                 bidirectional=False, device=None, dtype=None):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNN: expected nonlinearity 'tanh' or 'relu', got {nonlinearity!r}")
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
                         device=device, dtype=dtype)
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """c_t = f ⊙ c_{t-1} + i ⊙ g, h_t = o ⊙ tanh(c_t) with gates i, f, o = σ(·), g = tanh(·) of W_ih x_t + b_ih + W_hh h_{t-1} + b_hh.

    Input as in `RNN`; the state is the pair (h, c). With `proj_size` h is projected to that size. Hochreiter and Schmidhuber 1997.

    >>> import tritorch as torch
    >>> output, (h, c) = torch.nn.LSTM(10, 20, bidirectional=True)(torch.ones(5, 3, 10))
    >>> output.shape, h.shape
    (tritorch.Size([5, 3, 40]), tritorch.Size([2, 3, 20]))
    """

    _state_count = 2

    def __init__(self, input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False, proj_size=0,
                 device=None, dtype=None):
        super().__init__("LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)


class GRU(RNNBase):
    """h_t = (1 - z) ⊙ n + z ⊙ h_{t-1}, n = tanh(W_in x + b_in + r ⊙ (W_hn h + b_hn)), gates r, z = σ(·). Cho et al. 2014.

    >>> import tritorch as torch
    >>> output, h = torch.nn.GRU(10, 20)(torch.ones(5, 3, 10))
    >>> output.shape, h.shape
    (tritorch.Size([5, 3, 20]), tritorch.Size([1, 3, 20]))
    """

    def __init__(self, input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False,
                 device=None, dtype=None):
        super().__init__("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype)
