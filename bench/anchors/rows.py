"""Functions of whole rows or images: softmax, norms, rotary embedding, losses, pooling."""
from bench.anchors import Case, Input, backward, half, of


def both(name, function, inputs, wrt, out, forward_bytes, backward_bytes, **more):
    """A case for the forward pass and one for the backward pass; `out`: the shape and dtype of the result."""
    yield Case(f"{name} fwd", of(function), inputs, forward_bytes, **more)
    graded = [Input(i.shape, i.dtype, i.high, k in wrt, i.own, i.nhwc) for k, i in enumerate(inputs)]
    more = {**more, "compare": slice(None)}
    yield Case(f"{name} bwd", backward(function, wrt), [out, *graded], backward_bytes, **more)


def add_norm(T, x, residual, w, b):
    """The norm of a stream after an addition to it, which is kept as well: one kernel, or PyTorch's two."""
    fused = getattr(T.nn.functional, "dropout_add_layer_norm", None)
    if fused is not None:
        return fused(x, residual, w.shape, w, b)[0]
    return T.nn.functional.layer_norm(residual + x, w.shape, w, b)


def joint(T, x, stream, w, b):
    """(norm, stream) between two blocks of GPT-2 under autocast: a float32 stream, its neighbours in 16 bits."""
    fused = getattr(T.nn.functional, "dropout_add_layer_norm", None)
    if fused is not None:
        return fused(x, stream, w.shape, w, b)
    stream = stream + x
    return T.nn.functional.layer_norm(stream, w.shape, w, b).to(x.dtype), stream


def joint_backward(T, g, g_stream, *inputs):
    outs = joint(T, *inputs)
    return lambda: T.autograd.grad(outs, inputs, (g, g_stream), retain_graph=True)


def rotary(T, x, cos, sin):
    """Rotary position embedding of (batch, heads, T, D): one kernel, or the usual composition."""
    fused = getattr(T.nn.functional, "rotary_embedding", None)
    if fused is not None:
        return fused(x, cos, sin)
    a, b = x.chunk(2, -1)
    return T.cat((a * cos - b * sin, b * cos + a * sin), -1)


def cases(size):
    for columns in (1024, 4096, 16384):
        rows, n = size((1 << 27) // columns, columns)
        x, w, b, e = half(rows, n), half(n), half(n), 2 * rows * n
        shown = f"bf16 {rows}x{n}"
        yield from both(f"softmax {shown}", lambda T, x: T.softmax(x, -1), [x], [0], half(rows, n), 2 * e, 3 * e)
        yield from both(f"layer_norm {shown}", lambda T, x, w, b: T.nn.functional.layer_norm(x, w.shape, w, b), [x, w, b], [0, 1, 2],
                        half(rows, n), 2 * e, 3 * e)
        yield from both(f"rms_norm {shown}", lambda T, x, w: T.nn.functional.rms_norm(x, w.shape, w), [x, w], [0, 1], half(rows, n),
                        2 * e, 3 * e)
        yield Case(f"add and layer_norm {shown}", of(add_norm), [x, x, w, b], 4 * e)
    rows, n = size(32768, 768)
    arrived, e = [half(rows, n), Input((rows, n))], rows * n
    inputs = half(rows, n, grad=True), Input((rows, n), grad=True), Input((n,), grad=True), Input((n,), grad=True)
    yield Case(f"GPT-2 joint {rows}x{n} fwd", of(joint), list(inputs), 12 * e, compare=slice(None))
    yield Case(f"GPT-2 joint {rows}x{n} bwd", joint_backward, [*arrived, *inputs], 16 * e, compare=slice(None))
    shape = size(4, 32, 4096, 128)
    e, table = 2 * shape[0] * shape[1] * shape[2] * shape[3], half(shape[2], shape[3] // 2)
    yield from both("rotary bf16 4x32x4096x128", rotary, [half(*shape), table, table], [0], half(*shape), 2 * e, 2 * e)
    for vocabulary in (32768, 50304, 131072):
        rows, n = size(8192, vocabulary)
        x, target, e = half(rows, n), Input((rows,), "int64", high=n), 2 * rows * n
        yield from both(f"cross_entropy bf16 {rows}x{n}", lambda T, x, target: T.nn.functional.cross_entropy(x, target), [x, target], [0],
                        half(), e, 2 * e)
    for layout in ("nchw", "nhwc"):
        shape = size(128, 256, 56, 56)
        b, c, h, w = shape
        e = 2 * b * c * h * w
        last = layout == "nhwc"
        x, scale, shift = Input(shape, "bfloat16", nhwc=last), Input((c,)), Input((c,))
        pooled = (b, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1)
        yield from both(f"batch_norm bf16 {layout}", lambda T, x, w, b: T.nn.functional.batch_norm(x, None, None, w, b, training=True),
                        [x, scale, shift], [0, 1, 2], Input(shape, "bfloat16", nhwc=last), 3 * e, 5 * e)
        yield from both(f"max_pool2d bf16 {layout}", lambda T, x: T.nn.functional.max_pool2d(x, 3, 2, 1), [x], [0],
                        Input(pooled, "bfloat16", nhwc=last), 1.25 * e, 1.25 * e)
