"""PyTorch's functions behind its recurrent layers and cells: `torch.lstm`, `gru`, `rnn_tanh`, `rnn_relu`, and one step of each."""
from tritorch.errors import check, explained
from tritorch.nn.recurrent_cells import run_layer, run_stack
from tritorch.tensor import Tensor

PADDED = "input hx params has_biases num_layers dropout train bidirectional batch_first".split()
PACKED = "data batch_sizes hx params has_biases num_layers dropout train bidirectional".split()


def _arguments(name, args, kwargs, packed):
    """The arguments by name, of one of the two ways to call these functions."""
    names = PACKED if packed or "data" in kwargs or "batch_sizes" in kwargs else PADDED
    check(len(args) <= len(names), name, f"{len(names)} arguments", len(args), error=TypeError)
    given = dict(zip(names, args))
    wrong = (kwargs.keys() & given.keys()) | (kwargs.keys() - set(names)) or set(names) - given.keys() - kwargs.keys()
    check(not wrong, name, f"the arguments {', '.join(names)}, each once", ", ".join(sorted(wrong)), error=TypeError)
    return given | kwargs


def _run(name, mode, args, kwargs, packed):
    """(outputs, last states) of stacked layers whose parameters come as one list."""
    given = _arguments(name, args, kwargs, packed)
    padded, states = "input" in given, [given["hx"]] if mode != "LSTM" else list(given["hx"])
    check(len(states) == (2 if mode == "LSTM" else 1), name, "the two states h and c", len(states))
    data, steps = (given["input"], None) if padded else (given["data"], tuple(given["batch_sizes"].tolist()))
    if padded:
        check(data.ndim == 3, name, "an input of 3 dims", tuple(data.shape))
        data = data.transpose(0, 1) if given["batch_first"] else data
    directions, layers, params = 2 if given["bidirectional"] else 1, given["num_layers"], list(given["params"])
    batch = data.shape[1] if padded else steps[0] if steps else 0
    for state in states:
        fits = state.ndim == 3 and tuple(state.shape[:2]) == (layers * directions, batch)
        check(fits, name, f"states of shape ({layers * directions}, {batch}, size)", tuple(state.shape))
    projected = mode == "LSTM" and states[0].shape[2] != states[1].shape[2]
    each = (4 if given["has_biases"] else 2) + projected
    check(len(params) == layers * directions * each, name, f"{layers * directions * each} parameters", len(params))
    cut = [params[k:k + each] for k in range(0, len(params), each)]
    full = [[*p[:4 if given["has_biases"] else 2], *([] if given["has_biases"] else [None] * 2), p[-1] if projected else None] for p in cut]
    weights = [full[k:k + directions] for k in range(0, len(full), directions)]
    check(0 <= given["dropout"] <= 1, name, "dropout from 0 to 1", given["dropout"])
    out, finals = run_stack(mode, data, steps, states, weights, given["dropout"] if given["train"] else 0.0)
    return out.transpose(0, 1) if padded and given["batch_first"] else out, *finals


def _packed(args):
    """Whether the third of the arguments is a state: then the second are batch sizes."""
    return len(args) > 2 and isinstance(args[2], Tensor)


@explained
def lstm(*args, **kwargs):
    """Stacked LSTM layers: `lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)`, or of packed
    samples `lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional)`.

    hx is (h, c), each (layers · directions, N, size); params has for every layer and direction weight_ih, weight_hh, bias_ih and bias_hh if
    has_biases, and weight_hr where h is smaller than c. Returns the outputs and the last h and c: see `nn.LSTM`.

    >>> import tritorch as torch
    >>> layer = torch.nn.LSTM(3, 5)
    >>> state = torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)
    >>> [x.shape for x in torch.lstm(torch.ones(4, 2, 3), state, list(layer.parameters()), True, 1, 0.0, False, False, False)]
    [tritorch.Size([4, 2, 5]), tritorch.Size([1, 2, 5]), tritorch.Size([1, 2, 5])]
    """
    return _run("lstm", "LSTM", args, kwargs, len(args) > 1 and isinstance(args[1], Tensor))


@explained
def gru(*args, **kwargs):
    """Stacked GRU layers, called like `lstm`; hx is h. Returns the outputs and the last h: see `nn.GRU`."""
    return _run("gru", "GRU", args, kwargs, _packed(args))


@explained
def rnn_tanh(*args, **kwargs):
    """Stacked Elman layers with tanh, called like `lstm`; hx is h. Returns the outputs and the last h: see `nn.RNN`."""
    return _run("rnn_tanh", "RNN_TANH", args, kwargs, _packed(args))


@explained
def rnn_relu(*args, **kwargs):
    """Stacked Elman layers with relu, called like `lstm`; hx is h. Returns the outputs and the last h: see `nn.RNN`."""
    return _run("rnn_relu", "RNN_RELU", args, kwargs, _packed(args))


def _step(name, mode, input, state, weights):
    """The states after one step."""
    check(input.ndim == 2, name, "an input of 2 dims", tuple(input.shape))
    for x in state:
        check(x.ndim == 2 and x.shape[0] == input.shape[0], name, f"states of {input.shape[0]} samples", tuple(x.shape))
    return run_layer(mode, input, (input.shape[0],), state, (*weights, None), False)[1]


@explained
def lstm_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """One step of an LSTM: the next (h, c), each (N, size), from input (N, features) and hx = (h, c).

    >>> import tritorch as torch
    >>> state = torch.zeros(2, 5), torch.zeros(2, 5)
    >>> [x.shape for x in torch.lstm_cell(torch.ones(2, 3), state, torch.ones(20, 3), torch.ones(20, 5))]
    [tritorch.Size([2, 5]), tritorch.Size([2, 5])]
    """
    check(len(hx) == 2, "lstm_cell", "the two states h and c", len(hx))
    return tuple(_step("lstm_cell", "LSTM", input, tuple(hx), (w_ih, w_hh, b_ih, b_hh)))


@explained
def gru_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """One step of a GRU: the next h, (N, size), from input (N, features) and h."""
    return _step("gru_cell", "GRU", input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]


@explained
def rnn_tanh_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """One step of an Elman layer with tanh: the next h, (N, size), from input (N, features) and h."""
    return _step("rnn_tanh_cell", "RNN_TANH", input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]


@explained
def rnn_relu_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    """One step of an Elman layer with relu: the next h, (N, size), from input (N, features) and h."""
    return _step("rnn_relu_cell", "RNN_RELU", input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]
