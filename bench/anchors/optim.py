"""Steps of optimizers, the norm of all gradients and their clipping, over the parameters of GPT-2 124M."""
from bench.anchors import Case, Input

LAYER = [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,), (768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)]
SHAPES = [(50304, 768), (1024, 768), *12 * LAYER]
ALWAYS = 0.999e-6
"""A norm to which every call scales gradients, those too that were clipped before, which leaves another norm at 1: the factor is
ALWAYS / (norm + 1e-6). Gradients shrink slowly enough that they stay normal numbers for thousands of calls."""


def stepping(name, **options):
    def build(torch, *tensors):
        parameters = given(tensors)
        optimizer = getattr(torch.optim, name)(parameters, lr=1e-3, **options)

        def step():
            optimizer.step()
            return parameters[0]

        return step

    return build


def clip(most):
    def build(torch, *tensors):
        parameters = given(tensors)
        return lambda: torch.nn.utils.clip_grad_norm_(parameters, most)

    return build


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
    for name, passes, options in (("AdamW", 7, {}), ("SGD", 5, {"momentum": 0.9})):
        opponents = {"fused": stepping(name, fused=True, **options), "foreach": stepping(name, **options)}
        yield Case(f"{name} 124M", stepping(name, **options), inputs, 4 * passes * count, compare=None, opponents=opponents)
    yield Case("clip_grad_norm 124M", clip(1e9), inputs, 4 * count)
    yield Case("clip_grad_norm 124M, scaling", clip(ALWAYS), inputs, 12 * count, compare=None)
