"""tritorch.compile: gradients of convolutions that are added to what is there as they are stored."""
import numpy as np
import pytest
from test_compile_fusion import replaced

import tritorch as torch
from tritorch import nn

NAME = "gradient of a 1×1 convolution + add"


def trained(compile, device, dtype, conv, size=(5, 6), last=True):
    torch.manual_seed(0)
    first, layer = nn.Sequential(nn.Conv2d(2, 5, 1), nn.Conv2d(5, 6, 1)).to(device, dtype), conv.to(device, dtype)
    x = torch.randn(3, 2, *size, device=device).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)

    def step(x):
        first.zero_grad(), layer.zero_grad()
        y = first(x)
        out = y + layer(y).square() if layer.weight.shape[0] == 6 else y.sum(1, keepdim=True) + layer(y)
        out.square().sum().backward()
        return [out.detach(), *[p.grad for p in (*first.parameters(), *layer.parameters())]]

    step = compile(step)
    return step, [[t.cpu().float().numpy() for t in step(x)] for _ in range(5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("conv, last, found", [
    (lambda: nn.Conv2d(6, 6, 1), True, True), (lambda: nn.Conv2d(6, 6, 1), False, False), (lambda: nn.Conv2d(6, 6, 3, 1, 1), True, False),
    (lambda: nn.Conv2d(6, 6, 1, groups=2), True, False), (lambda: nn.Conv2d(6, 1, 1), True, False)])
def test_a_gradient_that_joins_another_one(dtype, conv, last, found, cuda):
    torch.manual_seed(1)
    layer = conv()
    step, compiled = trained(torch.compile, cuda, dtype, layer, last=last)
    assert (NAME in replaced(step)) == found
    for got, want in zip(compiled, trained(lambda f: f, cuda, dtype, layer, last=last)[1], strict=True):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
