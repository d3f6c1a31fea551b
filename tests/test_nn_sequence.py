"""Attention, transformers and recurrent layers against PyTorch."""
import numpy as np
import pytest
from test_nn_layers import _numbers, compare

import tritorch
from tritorch import nn

oracle = pytest.importorskip("torch")

Q, K = _numbers(5, 3, 8), _numbers(6, 3, 8, seed=1)


@pytest.mark.parametrize("kwargs", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True},
                                    {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
                                    {"batch_first": True}])
@pytest.mark.parametrize("call", [{}, {"need_weights": False}, {"average_attn_weights": False}])
def test_multihead_attention(kwargs, call):
    flip = (lambda x: x.swapaxes(0, 1).copy()) if kwargs.get("batch_first") else lambda x: x
    q, k = flip(Q), flip(K)
    compare("MultiheadAttention", (8, 2), [q, k, k + 1], kwargs, call=call)
    ours, theirs = nn.MultiheadAttention(8, 2, **kwargs).double(), oracle.nn.MultiheadAttention(8, 2, **kwargs).double()
    ours.load_state_dict({n: tritorch.tensor(p.numpy()) for n, p in theirs.state_dict().items()})
    for same in ("qkv", "kv"):
        x, y = tritorch.tensor(q), oracle.tensor(q)
        a, b = (x, y) if same == "qkv" else (tritorch.tensor(k), oracle.tensor(k))
        u, v = ours(x, a, a, **call), theirs(y, b, b, **call)
        np.testing.assert_allclose(u[0].detach().numpy(), v[0].detach().numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kwargs", [{}, {"add_bias_kv": True, "add_zero_attn": True}])
@pytest.mark.parametrize("call", [{}, {"need_weights": False}])
def test_attention_masks(kwargs, call):
    padding = np.zeros((3, 6), bool)
    padding[0, 4:] = padding[2, 1] = True
    mask = np.triu(np.ones((5, 6), bool), 2)
    several = np.broadcast_to(mask, (6, 5, 6)) & (_numbers(6, 5, 6) > 0)
    several[..., 0] = False
    for masks in ({"key_padding_mask": padding}, {"attn_mask": mask}, {"attn_mask": several},
                  {"attn_mask": mask, "key_padding_mask": padding},
                  {"attn_mask": _numbers(5, 6, seed=5)}):
        compare("MultiheadAttention", (8, 2), [Q, K, K], kwargs, call={**masks, **call})
    compare("MultiheadAttention", (8, 2), [Q, _numbers(6, 3, 3), _numbers(6, 3, 5)], {"kdim": 3, "vdim": 5, **kwargs}, call=call)
    compare("MultiheadAttention", (8, 2), [Q[:, 0].copy(), K[:, 0].copy(), K[:, 1].copy()], kwargs, call={"attn_mask": mask, **call})


def test_causal_attention():
    x = _numbers(5, 3, 8)
    mask = np.triu(np.full((5, 5), -np.inf), 1)
    for call in ({"need_weights": False}, {}):
        compare("MultiheadAttention", (8, 2), [x, x, x], call={"attn_mask": mask, "is_causal": True, **call})


def test_attention_errors():
    with pytest.raises(AssertionError, match="embed_dim must be divisible by num_heads"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(ValueError, match="expected a positive embed_dim and num_heads, got 0 and 1"):
        nn.MultiheadAttention(0, 1)
    attention = nn.MultiheadAttention(8, 2)
    q, k = tritorch.tensor(Q).float(), tritorch.tensor(K).float()
    for args, kwargs, error, sentence in (
            ((q, k[0], k), {}, AssertionError, "expected a key and a value of 3 dims as the query has, got 2 and 3"),
            ((q[0, 0], k, k), {}, AssertionError, "expected a query of 2 dims, or 3 with a batch, got 1"),
            ((q, k, k), {"is_causal": True}, RuntimeError, "expected an attn_mask, got None"),
            ((q, k, k[:2]), {}, AssertionError, "expected a key and a value of one shape, got"),
            ((q, k, k), {"attn_mask": tritorch.zeros(5, 5)}, RuntimeError, "The shape of the 2D attn_mask"),
            ((q, k, k), {"attn_mask": tritorch.zeros(5, 6, dtype=tritorch.int64)}, AssertionError,
             "expected a bool or floating mask, got tritorch"),
            ((q, k, k), {"key_padding_mask": tritorch.zeros(3, 5)}, AssertionError, "Expected key_padding_mask")):
        with pytest.raises(error, match=sentence):
            attention(*args, **kwargs)


@pytest.mark.parametrize("kwargs", [{}, {"norm_first": True}, {"activation": "gelu", "bias": False}, {"batch_first": True}])
def test_transformer_layers(kwargs):
    src, memory = _numbers(4, 3, 8), _numbers(6, 3, 8)
    if kwargs.get("batch_first"):
        src, memory = src.swapaxes(0, 1).copy(), memory.swapaxes(0, 1).copy()
    padding = np.zeros((3, 4), bool)
    padding[1, 3] = True
    args = (8, 2, 16, 0.0)
    compare("TransformerEncoderLayer", args, [src], kwargs, call={"src_key_padding_mask": padding})
    compare("TransformerEncoderLayer", args, [src], kwargs, train=False)
    compare("TransformerDecoderLayer", args, [src, memory], kwargs, call={"tgt_mask": np.triu(np.full((4, 4), -np.inf), 1)})


def test_transformer():
    src, tgt = _numbers(6, 3, 8), _numbers(4, 3, 8)
    causal = np.triu(np.full((4, 4), -np.inf), 1)
    args = (8, 2, 2, 1, 16, 0.0)
    compare("Transformer", args, [src, tgt], call={"tgt_mask": causal})
    compare("Transformer", args, [src, tgt], {"norm_first": True}, call={"tgt_mask": causal, "tgt_is_causal": True})
    compare("Transformer", args, [src.swapaxes(0, 1).copy(), tgt.swapaxes(0, 1).copy()], {"batch_first": True})
    model = nn.Transformer(8, 2, 1, 1, 16)
    with pytest.raises(RuntimeError, match="expected src and tgt of one batch, got shapes"):
        model(tritorch.ones(6, 3, 8), tritorch.ones(4, 2, 8))
    with pytest.raises(RuntimeError, match="Transformer: expected 8 features, got src of 8 and tgt of 7"):
        model(tritorch.ones(6, 3, 8), tritorch.ones(4, 3, 7))
    with pytest.raises(RuntimeError, match="expected a function, 'relu' or 'gelu', got 'swish'"):
        nn.TransformerEncoderLayer(8, 2, activation="swish")


def test_encoder_sees_causal_masks():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 2, nn.LayerNorm(8))
    seen = []
    encoder.layers[0].register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs["is_causal"]), with_kwargs=True)
    x, mask = tritorch.ones(4, 1, 8), nn.Transformer.generate_square_subsequent_mask(4)
    for given in ({}, {"mask": mask}, {"mask": mask * 0}, {"mask": mask, "is_causal": False}):
        encoder(x, **given)
    assert seen == [False, True, False, False]
    assert all(a is not b for a, b in zip(encoder.layers[0].parameters(), encoder.layers[1].parameters()))


# ------------------------------------------------------------------ recurrent layers
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("kwargs", [{}, {"num_layers": 2, "bias": False}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True}])
def test_recurrent_layers(name, kwargs):
    x = _numbers(5, 3, 4)
    compare(name, (4, 6), [x], kwargs)
    compare(name, (4, 6), [x[:, 0].copy()], kwargs)
    batch = 5 if kwargs.get("batch_first") else 3
    layers = kwargs.get("num_layers", 1) * (2 if kwargs.get("bidirectional") else 1)
    h, c = _numbers(layers, batch, 6, seed=1), _numbers(layers, batch, 6, seed=2)
    compare(name, (4, 6), [x, (h, c) if name == "LSTM" else h], kwargs)
    compare(name, (4, 6), [x[:, 0].copy(), (h[:, 0].copy(), c[:, 0].copy()) if name == "LSTM" else h[:, 0].copy()], kwargs)


def test_variants_of_recurrent_layers():
    x = _numbers(5, 3, 4)
    compare("RNN", (4, 6), [x], {"nonlinearity": "relu"})
    compare("LSTM", (4, 6), [x], {"proj_size": 3, "num_layers": 2, "bidirectional": True})
    compare("LSTM", (4, 6), [x], {"proj_size": 3, "bias": False})
    net = nn.LSTM(4, 6, 2, dropout=0.5)
    net.flatten_parameters()
    assert repr(net) == repr(oracle.nn.LSTM(4, 6, 2, dropout=0.5)) and [len(w) for w in net.all_weights] == [4, 4]
    a, b = (net(tritorch.tensor(x).float())[0] for _ in range(2))
    assert not (a == b).all()
    net.eval()
    a, b = (net(tritorch.tensor(x).float())[0] for _ in range(2))
    assert (a == b).all()


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("initial", [False, True])
def test_packed_sequences(name, bidirectional, initial):
    x, lengths = _numbers(5, 4, 3), [3, 5, 1, 3]
    hx = []
    outputs = []
    for world in (tritorch, oracle):
        module = getattr(world.nn, name)(3, 2, 2, bidirectional=bidirectional).double()
        if world is tritorch:
            module.load_state_dict({k: tritorch.tensor(np.full(v.shape, 0.1) + np.arange(v.numel()).reshape(v.shape) * 0.01)
                                    for k, v in module.state_dict().items()})
        else:
            module.load_state_dict({k: oracle.tensor(np.full(v.shape, 0.1) + np.arange(v.numel()).reshape(v.shape) * 0.01)
                                    for k, v in module.state_dict().items()})
        h = world.tensor(_numbers(4 if bidirectional else 2, 4, 2))
        hx = [(h, h + 1) if name == "LSTM" else h] if initial else []
        packed = world.nn.utils.rnn.pack_padded_sequence(world.tensor(x), world.tensor(lengths), enforce_sorted=False)
        output, state = module(packed, *hx)
        padded, back = world.nn.utils.rnn.pad_packed_sequence(output)
        assert back.tolist() == lengths
        outputs.append([padded, *(state if name == "LSTM" else [state])])
    for a, b in zip(*outputs, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-10)


def test_recurrent_cells():
    x, h, c = _numbers(3, 4), _numbers(3, 6, seed=1), _numbers(3, 6, seed=2)
    for name, state in (("RNNCell", h), ("GRUCell", h), ("LSTMCell", (h, c))):
        one = tuple(s[0].copy() for s in state) if isinstance(state, tuple) else state[0].copy()
        for kwargs in ({}, {"bias": False}):
            compare(name, (4, 6), [x], kwargs)
            compare(name, (4, 6), [x, state], kwargs)
            compare(name, (4, 6), [x[0].copy(), one], kwargs)
    compare("RNNCell", (4, 6), [x], {"nonlinearity": "relu"})


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradients_of_packed_sequences(name, bidirectional, cuda):
    """Of the input, the initial states and all parameters, from the outputs, from the last states or from both."""
    x, lengths, layers = _numbers(5, 4, 3), [3, 5, 1, 3], 4 if bidirectional else 2
    starts = [_numbers(layers, 4, 2, seed=seed) for seed in (1, 2)[:2 if name == "LSTM" else 1]]
    theirs = getattr(oracle.nn, name)(3, 2, 2, bidirectional=bidirectional).double()
    ours = getattr(nn, name)(3, 2, 2, bidirectional=bidirectional).double().to(cuda)
    ours.load_state_dict({k: tritorch.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    for outputs, states in ((1, 0), (0, 1), (1, 1)):
        found = []
        for world, module, place in ((tritorch, ours, cuda), (oracle, theirs, "cpu")):
            module.zero_grad()
            leaves = [world.tensor(v, device=place, requires_grad=True) for v in (x, *starts)]
            packed = world.nn.utils.rnn.pack_padded_sequence(leaves[0], lengths, enforce_sorted=False)
            output, last = module(packed, tuple(leaves[1:]) if name == "LSTM" else leaves[1])
            last = last if name == "LSTM" else (last,)
            (outputs * output.data.sin().sum() + sum(states * s.cos().sum() for s in last)).backward()
            found.append([leaf.grad.cpu().numpy() for leaf in (*leaves, *module.parameters())])
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_second_gradients_of_recurrent_layers(name):
    found, made = [], getattr(oracle.nn, name)(3, 2).double()
    for world in (tritorch, oracle):
        module = getattr(world.nn, name)(3, 2).double()
        module.load_state_dict({k: world.tensor(v.numpy()) for k, v in made.state_dict().items()})
        x = world.tensor(_numbers(4, 2, 3), requires_grad=True)
        g, = world.autograd.grad(module(x)[0].sin().sum(), x, create_graph=True)
        (g * g).sum().backward()
        found.append([v.grad.numpy() for v in (x, *module.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


def test_packed_sequences_that_are_where_they_go():
    packed = nn.utils.rnn.pack_padded_sequence(tritorch.ones(3, 2), [3, 1])
    assert packed.to("cpu") is packed.cpu() is packed and packed.to(tritorch.float64).data.dtype is tritorch.float64


def test_recurrent_layers_under_autocast():
    """As on PyTorch's GPU: products and states in the low dtype, gradients in the parameters' own."""
    net, x = nn.LSTM(4, 6), tritorch.tensor(_numbers(5, 3, 4)).float()
    with tritorch.autocast("cpu", tritorch.bfloat16):
        output, (h, c) = net(x)
    assert {output.dtype, h.dtype, c.dtype} == {tritorch.bfloat16}
    np.testing.assert_allclose(output.float().detach().numpy(), net(x)[0].detach().numpy(), atol=2e-2)
    output.float().sum().backward()
    assert {p.grad.dtype for p in net.parameters()} == {tritorch.float32}


def test_recurrent_errors():
    for kwargs, error, sentence in (({"dropout": 2}, ValueError, "expected dropout from 0 to 1, got 2"),
                                    ({"hidden_size": 0}, ValueError, "must be greater than zero"),
                                    ({"proj_size": 7}, ValueError, "LSTM: expected proj_size < hidden_size"),
                                    ({"bias": 1}, TypeError, "bias should be of type bool, got: int"),
                                    ({"num_layers": 0}, ValueError, "num_layers must be greater than zero")):
        with pytest.raises(error, match=sentence):
            nn.LSTM(**{"input_size": 4, "hidden_size": 6, **kwargs})
    with pytest.raises(ValueError, match="expected nonlinearity 'tanh' or 'relu'"):
        nn.RNN(4, 6, nonlinearity="sin")
    with pytest.warns(UserWarning, match="5 lies between layers, and there is one layer"):
        nn.GRU(4, 6, dropout=0.5)
    net = nn.LSTM(4, 6)
    for x, hx, error, sentence in ((tritorch.ones(2, 3, 5), None, RuntimeError, "expected an input of 4 features, got 5"),
                                   (tritorch.ones(2), None, ValueError, "LSTM: expected an input of 2 or 3 dims, got 1"),
                                   (tritorch.ones(2, 3, 4).double(), None, ValueError, "does not match weight dtype"),
                                   (tritorch.ones(2, 3, 4), (tritorch.ones(1, 2, 6),) * 2, RuntimeError,
                                    r"Expected hidden\[0\] size \(1, 3, 6\), got \[1, 2, 6\]"),
                                   (tritorch.ones(2, 3, 4), (tritorch.ones(3, 6),) * 2, RuntimeError, "hx should also be 3-D")):
        with pytest.raises(error, match=sentence):
            net(x, hx)


def test_padded_sequences():
    parts = [_numbers(n, 2, seed=n) for n in (3, 1, 4)]
    for kwargs in ({}, {"batch_first": True}, {"padding_value": 7.0, "padding_side": "left"}):
        a, b = (world.nn.utils.rnn.pad_sequence([world.tensor(p) for p in parts], **kwargs) for world in (tritorch, oracle))
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    rnn = nn.utils.rnn
    ours = [tritorch.tensor(p) for p in parts]
    packed = rnn.pack_sequence(ours, enforce_sorted=False)
    theirs = oracle.nn.utils.rnn.pack_sequence([oracle.tensor(p) for p in parts], enforce_sorted=False)
    np.testing.assert_array_equal(packed.data.numpy(), theirs.data.numpy())
    assert packed.batch_sizes.tolist() == theirs.batch_sizes.tolist()
    assert packed.unsorted_indices.tolist() == theirs.unsorted_indices.tolist()
    assert all((a == b).all() for a, b in zip(rnn.unpack_sequence(packed), ours))
    padded, _ = rnn.pad_packed_sequence(packed, total_length=6, padding_value=-1.0)
    assert padded.shape == (6, 3, 2) and (padded[4:] == -1).all()
    assert packed.float().data.dtype is tritorch.float32 and packed.to(tritorch.float16).data.dtype is tritorch.float16
    assert not packed.cpu().is_cuda
    with pytest.raises(RuntimeError, match="must be sorted in decreasing order"):
        rnn.pack_sequence(ours)
    with pytest.raises(ValueError, match="expected total_length >= 4, the longest sequence, got 2"):
        rnn.pad_packed_sequence(packed, total_length=2)
    with pytest.raises(RuntimeError, match="greater than 0"):
        rnn.pack_padded_sequence(tritorch.ones(3, 2), [0, 2])
