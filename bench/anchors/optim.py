"""A step of AdamW and the norm of all gradients, over the parameters of GPT-2 124M."""
from bench.anchors import Case, Input

LAYER = [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,), (768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)]
SHAPES = [(50304, 768), (1024, 768), *12 * LAYER]


def adamw(**options):
    def build(torch, *tensors):
        parameters = given(tensors)
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, **options)

        def step():
            optimizer.step()
            return parameters[0]

        return step

    return build


def clip(torch, *tensors):
    parameters = given(tensors)
    return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e9)


def given(tensors):
    """Parameters and, as their gradients, tensors of the same shapes."""
    half = len(tensors) // 2
    parameters = [p.requires_grad_() for p in tensors[:half]]
    for p, g in zip(parameters, tensors[half:]):
        p.grad = g
    return parameters


def cases(size):
    shapes = [size(*s) for s in SHAPES]
    count = sum(s[0] * (s[1] if len(s) > 1 else 1) for s in shapes)
    inputs = [Input(s, own=True) for s in shapes] * 2
    yield Case("AdamW 124M", adamw(), inputs, 4 * 7 * count, compare=None, opponents={"fused": adamw(fused=True), "foreach": adamw()})
    yield Case("clip_grad_norm 124M", clip, inputs, 4 * count)
