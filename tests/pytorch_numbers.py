"""What PyTorch makes of products and attention on a GPU, carried out in numpy: against its error ours is held. Neither torch nor a GPU is
needed, and where torch computes the same way on the CPU, test_error_ratio.py compares.

Operands are rounded to what the matrix units multiply, products of two are exact, sums are float32, a result is rounded once. (The units
cut off what does not fit when they add up, so sums are held to more than PyTorch reaches.) float32 in full precision and float64 are one
fused multiplication and addition after the other along K, as in cuBLAS's kernels for float32 units.

TF32 is rounded to nearest, halves away from zero. The matrix units would cut: cuBLAS, as CUTLASS does, rounds before them, for
1024.5 · 1 is 1025 there (github.com/pytorch/pytorch/issues/53635) and products of operands rounded like that are PyTorch's bit by bit
(github.com/triton-lang/triton/issues/4574). The error that PyTorch's manual gives for normal numbers, at most 0.1747 with K = 10240
(notes/cuda.html), also is that of rounding, 0.17; cutting makes 0.45 of it.

Attention is FlashAttention-2 (Dao 2023), which PyTorch calls: weights are rounded before they meet the values, and divided by their sum,
which is of unrounded ones, after that; backward, weights and the slopes of the scores are rounded, and delta is of the rounded result.
Weights are CUDA's exp2f, which errs by up to two units (CUDA C++ Programming Guide, "Mathematical Functions").
"""
import numpy as np

BITS = {"bfloat16": 8, "float16": 11, "tf32": 11}                        # of a significand, the first one included
WIDER = {np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}


def rounded(x, kind):
    """float32 numbers that `kind` has, the nearest to x; float32 and float64 have all they get."""
    if kind not in BITS:
        return x.astype(kind)
    if kind == "float16":
        return x.astype(np.float16).astype(np.float32)
    bits, low = x.astype(np.float32).view(np.uint32), np.uint32(24 - BITS[kind])
    even = np.uint32(1) - (bits >> low & np.uint32(1)) if kind == "bfloat16" else np.uint32(0)
    return (bits + (np.uint32(1) << low - np.uint32(1)) - even >> low << low).view(np.float32)


def in_turn(a, b):
    """What float32 units do: one fused multiplication and addition after the other; likewise float64."""
    wide, acc = WIDER[a.dtype], np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    a, b = a.astype(wide), b.astype(wide)
    for k in range(a.shape[-1]):
        acc = (acc.astype(wide) + a[..., k, None] * b[..., k, None, :]).astype(acc.dtype)
    return acc


def product(a, b, kind):
    """a @ b before it is rounded to the type of the result."""
    a, b = rounded(a, kind), rounded(b, kind)
    return a @ b if kind in BITS else in_turn(a, b)


def size_of_error(got, want):
    """Root mean square."""
    return np.sqrt(((got.astype(np.longdouble) - want) ** 2).mean())


def exp2(x):
    exact = np.exp2(x.astype(WIDER.get(x.dtype, x.dtype)))
    if x.dtype == np.float32:
        exact *= 1 + np.random.default_rng(0).uniform(-2.0 ** -22, 2.0 ** -22, x.shape)
    return exact.astype(x.dtype)


def attention(q, k, v, g, hidden, scale, by, dtype):
    """(result, log of the sums, gradients) of (heads, rows, size) arrays by a function for products, rounded to `dtype`; one head of k and
    v serves all of q, and what all rows of these give to its gradients is one sum. `hidden`: what rows do not meet. (PyTorch adds up heads
    by themselves first. With 16-bit types it rounds these sums, a larger error, which is not the measure here; those of float32 are
    shorter, and of n products in turn the error grows as √n does.)"""
    number = q.dtype.type
    s = np.where(hidden, -np.inf, by(q, k.mT)) * number(scale * np.log2(np.e))           # of the powers of 2
    top = s.max(-1, keepdims=True)
    p = exp2(s - top)
    total = p.sum(-1, keepdims=True)
    out = rounded(by(p, v) / total, dtype)
    lse = top * number(np.log(2)) + np.log(total)
    p = exp2(s - lse * number(np.log2(np.e)))
    slopes = p * (by(g, v.mT) - (g * out).sum(-1, keepdims=True))
    all_p, all_slopes, all_q, all_g = [x.reshape(1, -1, x.shape[-1]) for x in (p, slopes, q, g)]
    gradients = [by(slopes, k) * number(scale), by(all_slopes.mT, all_q) * number(scale), by(all_p.mT, all_g)]
    return [out, lse[..., 0], *[rounded(x, dtype) for x in gradients]]
