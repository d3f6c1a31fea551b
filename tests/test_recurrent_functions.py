"""`torch.lstm` and its relatives against the layers over them, padded and packed, and the cells against one step."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.nn.utils.rnn import pack_padded_sequence

LAYERS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN, "rnn_relu": torch.nn.RNN}


def drawn(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def layer_and_state(mode, proj=0, **options):
    if mode.startswith("rnn"):
        options["nonlinearity"] = mode[4:]
    layer = LAYERS[mode](3, 4, **options, **({"proj_size": proj} if proj else {}))
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    h = drawn(count, 2, proj or 4, seed=1)
    return layer, (h, drawn(count, 2, 4, seed=2)) if mode == "lstm" else h


def states_of(mode, given):
    return given if mode == "lstm" else (given,)


@pytest.mark.parametrize("mode", LAYERS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False, "num_layers": 2}])
def test_padded_and_packed(mode, options):
    layer, state = layer_and_state(mode, **options)
    x = drawn(2, 5, 3) if options.get("batch_first") else drawn(5, 2, 3)
    layers, both_ways = options.get("num_layers", 1), options.get("bidirectional", False)
    rest = (list(layer.parameters()), options.get("bias", True), layers, 0.0, True, both_ways)
    want, last = layer(x, state)
    got, *finals = getattr(torch, mode)(x, state, *rest, options.get("batch_first", False))
    assert torch.equal(got, want) and all(map(torch.equal, finals, states_of(mode, last)))
    packed = pack_padded_sequence(x, [5, 3], options.get("batch_first", False))
    want, last = layer(packed, state)
    got, *finals = getattr(torch, mode)(packed.data, packed.batch_sizes, state, *rest)
    assert torch.equal(got, want.data) and all(map(torch.equal, finals, states_of(mode, last)))


def test_projections_and_keywords():
    layer, state = layer_and_state("lstm", 2)
    x, params = drawn(5, 2, 3), list(layer.parameters())
    named = dict(params=params, has_biases=True, num_layers=1, dropout=0.0, train=False, bidirectional=False)
    got, h, c = torch.lstm(x, state, **named, batch_first=False)
    want, last = layer(x, state)
    assert torch.equal(got, want) and torch.equal(h, last[0]) and torch.equal(c, last[1])
    assert torch.equal(torch.lstm(data=x.reshape(10, 3), batch_sizes=torch.tensor([2] * 5), hx=state, **named)[0], want.reshape(10, 2))
    for change, kind, words in ((dict(params=params[1:]), RuntimeError, "5 parameters"), (dict(hx=state[:1]), RuntimeError, "two states"),
                                (dict(input=x[0]), RuntimeError, "3 dims"), (dict(num_layers=2), RuntimeError, r"states of shape \(2, 2"),
                                (dict(color=1), TypeError, "each once")):
        with pytest.raises(kind, match=words):
            torch.lstm(**{**named, "input": x, "hx": state, "batch_first": False, **change})


def test_dropout_between_layers():
    layer, state = layer_and_state("gru", num_layers=2)
    call = drawn(5, 2, 3), state, list(layer.parameters()), True, 2, 1.0
    dropped, kept = [torch.gru(*call, train, False, False)[0] for train in (True, False)]
    assert not torch.equal(dropped, kept) and torch.equal(kept, layer(*call[:2])[0])


@pytest.mark.parametrize("mode, cell, kind", [("lstm", torch.nn.LSTMCell, {}), ("gru", torch.nn.GRUCell, {}),
                                              ("rnn_tanh", torch.nn.RNNCell, {}), ("rnn_relu", torch.nn.RNNCell, {"nonlinearity": "relu"})])
def test_cells(mode, cell, kind):
    step, x = getattr(torch, mode + "_cell"), drawn(2, 3)
    state = (drawn(2, 4, seed=1), drawn(2, 4, seed=2)) if mode == "lstm" else drawn(2, 4, seed=1)
    for bias in (True, False):
        module = cell(3, 4, bias, **kind)
        got, want = step(x, state, *module.parameters()), module(x, state)
        assert all(map(torch.equal, states_of(mode, got), states_of(mode, want)))
    with pytest.raises(RuntimeError, match="3 samples"):
        step(drawn(3, 3), state, *module.parameters())
