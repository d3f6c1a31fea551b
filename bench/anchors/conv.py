"""Convolutions in NHWC: forward, and each of the two gradients by itself."""
from bench.anchors import Case, Input, backward, of

# batch, channels, pixels of a side, filters, kernel, stride, groups
SHAPES = [(128, 3, 224, 64, 7, 2, 1), (128, 64, 56, 64, 1, 1, 1), (128, 64, 56, 64, 3, 1, 1), (128, 256, 56, 128, 1, 1, 1),
          (128, 128, 28, 128, 3, 1, 1), (128, 256, 14, 256, 3, 1, 1), (128, 512, 7, 512, 3, 1, 1), (128, 1024, 14, 256, 1, 1, 1),
          (128, 64, 224, 64, 3, 1, 1), (128, 144, 56, 144, 3, 1, 144), (128, 384, 14, 384, 3, 1, 384)]


def cases(size):
    for kind, dtype, width, precision in (("bf16", "bfloat16", 2, "highest"), ("tf32", "float32", 4, "high")):
        for batch, channels, side, filters, k, stride, groups in SHAPES:
            b, c, n, o, g = size(batch, channels, side, filters, groups)
            out = (n + 2 * (k // 2) - k) // stride + 1
            operations = 2 * b * o * out * out * (c // g) * k * k
            moved = (b * c * n * n + b * o * out * out) * width
            x, w = (b, c, n, n), (o, c // g, k, k)

            def call(T, x, w, stride=stride, k=k, g=g):
                return T.nn.functional.conv2d(x, w, None, stride, k // 2, 1, g)

            more = dict(nbytes=moved, operations=operations if g == 1 else 0, precision=precision, tolerance=2e-2 if width == 2 else 3e-3)
            name = f"conv {kind} {channels}->{filters} {side}px k{k} s{stride} g{groups}"
            tensor = lambda shape, grad=False, dtype=dtype: Input(shape, dtype, grad=grad, nhwc=True)
            yield Case(f"{name} fwd", of(call), [tensor(x), tensor(w)], **more)
            if channels != 3:
                yield Case(f"{name} dgrad", backward(call, [0]), [tensor((b, o, out, out)), tensor(x, True), tensor(w)], **more)
            yield Case(f"{name} wgrad", backward(call, [1]), [tensor((b, o, out, out)), tensor(x), tensor(w, True)], **more)
