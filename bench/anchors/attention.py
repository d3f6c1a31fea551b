"""Scaled dot product attention, against PyTorch's backends each by itself; and some of what models ask for beyond the anchors' shapes,
against the backend that PyTorch chooses."""
import functools

import numpy as np

from bench.anchors import Case, Input, backward, half, of, within

SHAPES = [(64, 12, 16, 1024, True), (64, 32, 4, 4096, True), (128, 16, 4, 4096, True), (128, 16, 1, 16384, True), (128, 16, 4, 4096, False)]
BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
# name, shape of the query, (heads, rows) of the key, shape of an added mask, keywords, the share of the scores that is asked for, and what
# share of the work these are where tiles are not full, or heads filled up
BEYOND = [("ViT-H", (64, 16, 257, 80), (16, 257), None, {}, 1, 0.48),
          ("BERT, padding", (32, 12, 512, 64), (12, 512), (32, 1, 1, 512), {}, 1, 1),
          ("Swin, bias", (2048, 4, 49, 32), (4, 49), (1, 4, 49, 49), {}, 1, 0.59),
          ("GPT-2, dropout", (16, 12, 1024, 64), (12, 1024), None, {"is_causal": True, "dropout_p": 0.1}, 0.5, 0.94),
          ("Mistral, window 1024", (2, 32, 4096, 128), (8, 4096), None, {"window": 1024}, 0.219, 0.89),
          ("Gemma, heads of 256", (2, 8, 4096, 256), (4, 4096), None, {"is_causal": True}, 0.5, 0.98),
          ("a word of Llama", (16, 32, 1, 128), (8, 4096), None, {}, 1, 0.25)]


# ------------------------------------------------------------------ masks
def shares(shape):
    """Of each sequence the share of the scores that `seen` shows."""
    ends, rows = ends_of(shape), np.arange(shape[2]) + shape[3] - shape[2] + 1
    return np.minimum(rows, ends[:, None]).mean(1) / shape[3]


def ends_of(shape):
    """How many keys each sequence has: the first all of them, the last half."""
    return np.linspace(shape[3], shape[3] // 2, shape[0], dtype=int)


def seen(shape):
    """A mask that is causal and hides what sequences are filled up with."""
    return np.tri(*shape[2:], shape[3] - shape[2], dtype=bool) & (np.arange(shape[3]) < ends_of(shape)[:, None, None, None])


def added(shape):
    """The same for scores to be added to."""
    return np.where(seen(shape), np.float32(0), np.float32(-np.inf))


def slopes(shape):
    """The same with ALiBi's slopes of each head in it."""
    heads, rows, keys = [np.arange(n, dtype=np.float32) for n in shape[1:]]
    return added((shape[0], 1, *shape[2:])) + np.exp2(-8 * (heads + 1) / shape[1])[:, None, None] * (keys - rows[:, None])


def numbers(shape):
    """Some of every score's own."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


# name, shape of the query, (heads, rows) of the key, shape of a mask of rows and keys, its dtype and what is in it, keywords, and whether
# its gradient is asked for
MASKED = [("GPT-2, causal and padding", (16, 12, 1024, 64), (12, 1024), (16, 1, 1024, 1024), "bool", seen, {}, False),
          ("GPT-2, the same added", (16, 12, 1024, 64), (12, 1024), (16, 1, 1024, 1024), "bfloat16", added, {}, False),
          ("GPT-2, the same and dropout", (16, 12, 1024, 64), (12, 1024), (16, 1, 1024, 1024), "bool", seen, {"dropout_p": 0.1}, False),
          ("Llama, causal and padding", (4, 32, 2048, 128), (8, 2048), (4, 1, 2048, 2048), "bool", seen, {}, False),
          ("Gemma, causal and padding", (4, 8, 2048, 256), (4, 2048), (4, 1, 2048, 2048), "bool", seen, {}, False),
          ("MPT, slopes as a mask", (4, 12, 1024, 64), (12, 1024), (4, 12, 1024, 1024), "bfloat16", slopes, {}, False),
          ("T5, bias of heads", (16, 12, 1024, 64), (12, 1024), (1, 12, 1024, 1024), "bfloat16", numbers, {}, True)]


def backend(name):
    """A context in which PyTorch takes one backend."""
    def context():
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel(getattr(SDPBackend, name))

    return context


def cases(size):
    for width, heads, batch, length, causal in SHAPES:
        shape = size(batch, heads, length, width)
        b, h, t, d = shape
        operations, moved = 4 * b * h * t * t * d * (0.5 if causal else 1), 8 * b * h * t * d
        call = lambda T, q, k, v, causal=causal: T.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        name = f"B{batch}H{heads}T{length}D{width}{' causal' if causal else ''}"
        for way, build, inputs, factor in (("fwd", of(call), [half(*shape)] * 3, 1),
                                           ("bwd", backward(call, [0, 1, 2]), [half(*shape), *[half(*shape, grad=True)] * 3], 2.5)):
            yield Case(f"{name} {way}", build, inputs, factor * moved, factor * operations, compare=slice(None), tolerance=3e-2,
                       opponents={known: within(backend(kind), build) for known, kind in BACKENDS.items()})
    for name, query, key, mask, keywords, asked, full in BEYOND:
        shape, key = size(*query), size(query[0], *key, query[3])
        (b, h, t, d), mask = shape, [] if mask is None else [half(*size(*mask))]
        operations, moved = 4 * b * h * t * key[2] * d * asked, 4 * (b * h * t * d + b * key[1] * key[2] * d)
        call = functools.partial(attend, **keywords)
        for way, build, inputs, factor in (
                ("fwd", of(call), [half(*shape), half(*key), half(*key), *mask], 1),
                ("bwd", backward(call, [0, 1, 2]), [half(*shape), *[half(*x, grad=True) for x in (shape, key, key)], *mask], 2.5)):
            if way == "fwd" or t > 1:
                yield Case(f"beyond: {name} {way}", build, inputs, factor * moved, factor * operations, full=full, tolerance=3e-2,
                           compare=None if "dropout_p" in keywords else slice(None))


    for name, query, key, mask, dtype, made, keywords, grad in MASKED:
        shape, key = size(*query), size(query[0], *key, query[3])
        (b, h, t, d), asked = shape, 1 if made is numbers else shares(size(*mask)).mean()
        operations, moved = 4 * b * h * t * key[2] * d * asked, 4 * (b * h * t * d + b * key[1] * key[2] * d)
        call = functools.partial(attend, **keywords)
        mask = Input(size(*mask), dtype, values=made, grad=grad)
        for way, build, inputs, factor in (
                ("fwd", of(call), [half(*shape), half(*key), half(*key), mask], 1),
                ("bwd", backward(call, [0, 1, 2, *[3] * grad]),
                 [half(*shape), *[half(*x, grad=True) for x in (shape, key, key)], mask], 2.5)):
            yield Case(f"beyond: {name} {way}", build, inputs, factor * moved, factor * operations, full=asked, tolerance=3e-2,
                       compare=None if "dropout_p" in keywords else slice(None))


def attend(T, q, k, v, mask=None, window=None, **keywords):
    """PyTorch knows a window as a mask only."""
    if window is not None and T.__name__ == "tritorch":
        keywords["window_size"] = window - 1, 0
    elif window is not None:
        mask = window_mask(T, q.shape[2], window, q.device)
    return T.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1], **keywords)


@functools.cache
def window_mask(T, rows, window, device):
    return T.ones(rows, rows, dtype=T.bool, device=device).tril().triu(1 - window)
