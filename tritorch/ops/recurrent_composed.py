"""Recurrent layers composed of public operators: what `recurrent_layer` computes, for gradients of its gradients, and with projections."""
from tritorch.ops.linear import linear
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


def compose(mode, data, weights, state, steps, reverse):
    """Run one layer in one direction over `data` (Σ steps, features), `steps[t]` being the batch size at t, which never grows with t.

    `weights` are those of input and state, their biases or None, and of the projection or None. Returns the outputs in the shape of the
    data and the last state of every sample.
    """
    weight_ih, weight_hh, bias_ih, bias_hh, projection = weights
    step = STEPS[mode]

    def recur(h):
        return linear(h, weight_hh, bias_hh)

    gates = linear(data, weight_ih, bias_ih).split(steps)
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
            state = (linear(state[0], projection), *state[1:])
        outputs[t] = state[0]
    if done:
        state = tuple(cat(parts) for parts in zip(state, *reversed(done)))
    return cat(outputs), state
