"""Scaled dot product attention, against PyTorch's backends each by itself; and some of what models ask for beyond the anchors' shapes,
against the backend that PyTorch chooses."""
import functools

from bench.anchors import Case, backward, half, of, within

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
