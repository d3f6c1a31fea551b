"""One step of a recurrent layer behind its products, and the way back through it, for the N samples that are active at that time.

The samples of a step lie in rows: of `kept`, which comes with the input's share of the gates and goes with what the way back needs, of
`out` and of `cells`. Rows from M on begin with this step: their state before is in h and c, None for zeros; that of the others is in
out_before and cells_before. Rows from END on end with it. gh has the product of the states before it, the rows up to KNOWN.
"""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .scalar import sigmoid

ROWS = ["N", "M", "KNOWN", "END"]                                        # they differ from step to step, where the code should not


@triton.jit
def places(N, H, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rows, columns, and which of their pairs there are."""
    row = (tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    column = (tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    return row, column, (row < N) & (column < H)


@triton.jit
def either(first_ptr, second_ptr, row, column, H, M, inside, ACC: tl.constexpr):
    """Rows up to M of the first matrix, the others of the second; zeros for None."""
    value = tl.load(first_ptr + row * H + column, mask=inside & (row < M), other=0).to(ACC)
    if second_ptr is not None:
        value += tl.load(second_ptr + row * H + column, mask=inside & (row >= M), other=0).to(ACC)
    return value


@triton.jit
def recurrent(gh_ptr, bias_ptr, row, column, nth, H, GATES: tl.constexpr, KNOWN, inside, ACC: tl.constexpr):
    """The share of the state before in the nth gate."""
    value = tl.load(gh_ptr + (row * GATES + nth) * H + column, mask=inside & (row < KNOWN), other=0).to(ACC)
    if bias_ptr is not None:
        value += tl.load(bias_ptr + nth * H + column, mask=column < H, other=0).to(ACC)
    return value


@triton.jit
def gate(kept_ptr, gh_ptr, bias_ptr, row, column, nth, H, WIDTH: tl.constexpr, GATES: tl.constexpr, KNOWN, inside, ACC: tl.constexpr):
    """The nth gate before its activation; `kept` is WIDTH gates wide."""
    share = tl.load(kept_ptr + (row * WIDTH + nth) * H + column, mask=inside, other=0).to(ACC)
    return share + recurrent(gh_ptr, bias_ptr, row, column, nth, H, GATES, KNOWN, inside, ACC)


@triton.jit
def arriving(g_out_ptr, stride_n, stride_h, carried_ptr, last_ptr, row, column, H, END, inside, ACC: tl.constexpr):
    """The gradient of a state: from what is returned of it, from the next step, and for rows that end from the last state."""
    g = tl.load(carried_ptr + row * H + column, mask=inside & (row < END), other=0).to(ACC)
    if last_ptr is not None:
        g += tl.load(last_ptr + row * H + column, mask=inside & (row >= END), other=0).to(ACC)
    if g_out_ptr is not None:
        g += tl.load(g_out_ptr + row * stride_n + column * stride_h, mask=inside, other=0).to(ACC)
    return g


# ------------------------------------------------------------------ LSTM
@triton.jit(do_not_specialize=ROWS)
def lstm_kernel(
    out_ptr, h_last_ptr, c_last_ptr, cells_ptr, kept_ptr, gh_ptr, bias_ptr, out_before_ptr, h_ptr, cells_before_ptr, c_ptr, N, H, M, KNOWN,
    END, ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """c' = σ(f) c + σ(i) tanh(g), h = σ(o) tanh(c'); kept: σ(i), σ(f), tanh(g), σ(o)."""
    row, column, inside = places(N, H, BLOCK_M, BLOCK_N)
    i = sigmoid(gate(kept_ptr, gh_ptr, bias_ptr, row, column, 0, H, 4, 4, KNOWN, inside, ACC))
    f = sigmoid(gate(kept_ptr, gh_ptr, bias_ptr, row, column, 1, H, 4, 4, KNOWN, inside, ACC))
    g = libdevice.tanh(gate(kept_ptr, gh_ptr, bias_ptr, row, column, 2, H, 4, 4, KNOWN, inside, ACC))
    o = sigmoid(gate(kept_ptr, gh_ptr, bias_ptr, row, column, 3, H, 4, 4, KNOWN, inside, ACC))
    c = f * either(cells_before_ptr, c_ptr, row, column, H, M, inside, ACC) + i * g
    h = o * libdevice.tanh(c)
    here = row * H + column
    tl.store(cells_ptr + here, c, mask=inside)
    tl.store(out_ptr + here, h, mask=inside)
    tl.store(c_last_ptr + here, c, mask=inside & (row >= END))
    tl.store(h_last_ptr + here, h, mask=inside & (row >= END))
    kept = kept_ptr + row * (4 * H) + column
    tl.store(kept, i, mask=inside)
    tl.store(kept + H, f, mask=inside)
    tl.store(kept + 2 * H, g, mask=inside)
    tl.store(kept + 3 * H, o, mask=inside)


@triton.jit(do_not_specialize=ROWS)
def lstm_backward_kernel(
    g_gates_ptr, g_recurrent_ptr, previous_ptr, g_h_ptr, g_c_ptr, g_out_ptr, g_h_last_ptr, g_c_last_ptr, out_ptr, cells_ptr, kept_ptr,
    out_before_ptr, h_ptr, cells_before_ptr, c_ptr, stride_n, stride_h, N, H, M, END, ACC: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row, column, inside = places(N, H, BLOCK_M, BLOCK_N)
    here, kept = row * H + column, kept_ptr + row * (4 * H) + column
    dh = arriving(g_out_ptr, stride_n, stride_h, g_h_ptr, g_h_last_ptr, row, column, H, END, inside, ACC)
    dc = arriving(None, 0, 0, g_c_ptr, g_c_last_ptr, row, column, H, END, inside, ACC)
    i, f = tl.load(kept, mask=inside, other=0).to(ACC), tl.load(kept + H, mask=inside, other=0).to(ACC)
    g, o = tl.load(kept + 2 * H, mask=inside, other=0).to(ACC), tl.load(kept + 3 * H, mask=inside, other=0).to(ACC)
    t = libdevice.tanh(tl.load(cells_ptr + here, mask=inside, other=0).to(ACC))
    dc += dh * o * (1.0 - t * t)
    before = either(cells_before_ptr, c_ptr, row, column, H, M, inside, ACC)
    gates = g_gates_ptr + row * (4 * H) + column
    tl.store(gates, dc * g * i * (1.0 - i), mask=inside)
    tl.store(gates + H, dc * before * f * (1.0 - f), mask=inside)
    tl.store(gates + 2 * H, dc * i * (1.0 - g * g), mask=inside)
    tl.store(gates + 3 * H, dh * t * o * (1.0 - o), mask=inside)
    tl.store(g_c_ptr + here, dc * f, mask=inside)
    tl.store(previous_ptr + here, either(out_before_ptr, h_ptr, row, column, H, M, inside, ACC), mask=inside)


# ------------------------------------------------------------------ GRU
@triton.jit(do_not_specialize=ROWS)
def gru_kernel(
    out_ptr, h_last_ptr, c_last_ptr, cells_ptr, kept_ptr, gh_ptr, bias_ptr, out_before_ptr, h_ptr, cells_before_ptr, c_ptr, N, H, M, KNOWN,
    END, ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """n = tanh(x_n + σ(r) s), h' = n + σ(z) (h - n), s being the state's share in n; kept: σ(r), σ(z), n, s."""
    row, column, inside = places(N, H, BLOCK_M, BLOCK_N)
    r = sigmoid(gate(kept_ptr, gh_ptr, bias_ptr, row, column, 0, H, 4, 3, KNOWN, inside, ACC))
    z = sigmoid(gate(kept_ptr, gh_ptr, bias_ptr, row, column, 1, H, 4, 3, KNOWN, inside, ACC))
    s = recurrent(gh_ptr, bias_ptr, row, column, 2, H, 3, KNOWN, inside, ACC)
    kept = kept_ptr + row * (4 * H) + column
    n = libdevice.tanh(tl.load(kept + 2 * H, mask=inside, other=0).to(ACC) + r * s)
    h = n + z * (either(out_before_ptr, h_ptr, row, column, H, M, inside, ACC) - n)
    here = row * H + column
    tl.store(out_ptr + here, h, mask=inside)
    tl.store(h_last_ptr + here, h, mask=inside & (row >= END))
    tl.store(kept, r, mask=inside)
    tl.store(kept + H, z, mask=inside)
    tl.store(kept + 2 * H, n, mask=inside)
    tl.store(kept + 3 * H, s, mask=inside)


@triton.jit(do_not_specialize=ROWS)
def gru_backward_kernel(
    g_gates_ptr, g_recurrent_ptr, previous_ptr, g_h_ptr, g_c_ptr, g_out_ptr, g_h_last_ptr, g_c_last_ptr, out_ptr, cells_ptr, kept_ptr,
    out_before_ptr, h_ptr, cells_before_ptr, c_ptr, stride_n, stride_h, N, H, M, END, ACC: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """g_h is left with what the state before gets directly, for the product to be added."""
    row, column, inside = places(N, H, BLOCK_M, BLOCK_N)
    here, kept = row * H + column, kept_ptr + row * (4 * H) + column
    dh = arriving(g_out_ptr, stride_n, stride_h, g_h_ptr, g_h_last_ptr, row, column, H, END, inside, ACC)
    r, z = tl.load(kept, mask=inside, other=0).to(ACC), tl.load(kept + H, mask=inside, other=0).to(ACC)
    n, s = tl.load(kept + 2 * H, mask=inside, other=0).to(ACC), tl.load(kept + 3 * H, mask=inside, other=0).to(ACC)
    before = either(out_before_ptr, h_ptr, row, column, H, M, inside, ACC)
    dn = dh * (1.0 - z) * (1.0 - n * n)
    dr = dn * s * r * (1.0 - r)
    dz = dh * (before - n) * z * (1.0 - z)
    gates = g_gates_ptr + row * (3 * H) + column
    tl.store(gates, dr, mask=inside)
    tl.store(gates + H, dz, mask=inside)
    tl.store(gates + 2 * H, dn, mask=inside)
    gates = g_recurrent_ptr + row * (3 * H) + column
    tl.store(gates, dr, mask=inside)
    tl.store(gates + H, dz, mask=inside)
    tl.store(gates + 2 * H, dn * r, mask=inside)
    tl.store(g_h_ptr + here, dh * z, mask=inside)
    tl.store(previous_ptr + here, before, mask=inside)


# ------------------------------------------------------------------ Elman's
@triton.jit(do_not_specialize=ROWS)
def rnn_kernel(
    out_ptr, h_last_ptr, c_last_ptr, cells_ptr, kept_ptr, gh_ptr, bias_ptr, out_before_ptr, h_ptr, cells_before_ptr, c_ptr, N, H, M, KNOWN,
    END, RELU: tl.constexpr, ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """`kept` is `out`, which the way back does with."""
    row, column, inside = places(N, H, BLOCK_M, BLOCK_N)
    x = gate(kept_ptr, gh_ptr, bias_ptr, row, column, 0, H, 1, 1, KNOWN, inside, ACC)
    h = tl.where(x > 0, x, tl.where(x == x, 0, x)) if RELU else libdevice.tanh(x)
    here = row * H + column
    tl.store(out_ptr + here, h, mask=inside)
    tl.store(h_last_ptr + here, h, mask=inside & (row >= END))


@triton.jit(do_not_specialize=ROWS)
def rnn_backward_kernel(
    g_gates_ptr, g_recurrent_ptr, previous_ptr, g_h_ptr, g_c_ptr, g_out_ptr, g_h_last_ptr, g_c_last_ptr, out_ptr, cells_ptr, kept_ptr,
    out_before_ptr, h_ptr, cells_before_ptr, c_ptr, stride_n, stride_h, N, H, M, END, RELU: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    row, column, inside = places(N, H, BLOCK_M, BLOCK_N)
    here = row * H + column
    dh = arriving(g_out_ptr, stride_n, stride_h, g_h_ptr, g_h_last_ptr, row, column, H, END, inside, ACC)
    h = tl.load(out_ptr + here, mask=inside, other=0).to(ACC)
    tl.store(g_gates_ptr + here, tl.where(h <= 0, 0, dh) if RELU else dh * (1.0 - h * h), mask=inside)
    tl.store(previous_ptr + here, either(out_before_ptr, h_ptr, row, column, H, M, inside, ACC), mask=inside)
