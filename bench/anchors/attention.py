"""Scaled dot product attention, against PyTorch's backends each by itself."""
from bench.anchors import Case, backward, half, of, within

SHAPES = [(64, 12, 16, 1024, True), (64, 32, 4, 4096, True), (128, 16, 4, 4096, True), (128, 16, 1, 16384, True), (128, 16, 4, 4096, False)]
BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


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
