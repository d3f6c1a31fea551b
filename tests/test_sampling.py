"""Images at any places against a plain reference in float64, one pixel at a time, and what is left of their gradients at the edges."""
import itertools

import numpy as np
import pytest

import tritorch as torch
import tritorch.nn.functional as F
from bench import launches

CUBIC = -0.75


def _weights(mode, x):
    """(pixel, weight) around x along one dim, as Keys and PyTorch have them."""
    if mode == "nearest":
        return [(np.rint(x), 1.0)]
    if mode == "bilinear":
        return [(np.floor(x) + k, 1 - abs(x - np.floor(x) - k)) for k in (0, 1)]
    found = []
    for k in range(-1, 3):
        d = abs(x - np.floor(x) - k)
        near = (CUBIC + 2) * d ** 3 - (CUBIC + 3) * d ** 2 + 1
        found.append((np.floor(x) + k, near if d <= 1 else CUBIC * (d ** 3 - 5 * d ** 2 + 8 * d - 4)))
    return found


def _padded(x, n, padding, corners):
    if padding == "reflection":
        low, high = (0, n - 1) if corners else (-0.5, n - 0.5)
        while high > low and not low <= x <= high:
            x = 2 * low - x if x < low else 2 * high - x
        x = 0 if high == low else x
    return x if padding == "zeros" else min(max(x, 0), n - 1)


def reference(image, grid, mode, padding, corners):
    """F.grid_sample for any number of dims."""
    sizes, out = image.shape[2:], np.zeros((*image.shape[:2], *grid.shape[1:-1]))
    for at in np.ndindex(grid.shape[:-1]):
        axes = []
        for n, g in zip(sizes, grid[at][::-1]):
            x = (g + 1) / 2 * (n - 1) if corners else ((g + 1) * n - 1) / 2
            x = x if mode == "bicubic" else _padded(x, n, padding, corners)
            axes.append([(_padded(p, n, padding, corners) if mode == "bicubic" else p, w) for p, w in _weights(mode, x)])
        for taps in itertools.product(*axes):
            pixel = [int(p) for p, _ in taps]
            if all(0 <= p < n for p, n in zip(pixel, sizes)):
                out[(at[0], slice(None), *at[1:])] += np.prod([w for _, w in taps]) * image[(at[0], slice(None), *pixel)]
    return out


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode, sizes", [("bilinear", (4, 5)), ("nearest", (3, 7)), ("bicubic", (6, 5)), ("bicubic", (1, 3)),
                                         ("bilinear", (3, 4, 2)), ("nearest", (2, 3, 5))])
def test_against_the_reference(cuda, mode, sizes, padding, corners):
    rng = np.random.default_rng(0)
    image, grid = rng.standard_normal((2, 5, *sizes)), rng.uniform(-2.2, 2.2, (2, *[n + 2 for n in sizes], len(sizes)))
    want = reference(image, grid, mode, padding, corners)
    for device in ("cpu", cuda):
        for dtype, near in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
            x, g = torch.tensor(image, dtype=dtype, device=device), torch.tensor(grid, dtype=dtype, device=device)
            turned = x.to(memory_format=torch.channels_last if len(sizes) == 2 else torch.channels_last_3d)
            for images in (x, turned):
                np.testing.assert_allclose(F.grid_sample(images, g, mode, padding, corners).cpu().numpy(), want, rtol=near, atol=near)


def test_half_types_are_sampled_in_float32(cuda):
    image, grid = torch.linspace(-3, 3, 48).view(1, 2, 4, 6), torch.linspace(-0.9, 0.9, 24).view(1, 3, 4, 2)
    for dtype in (torch.bfloat16, torch.float16):
        want = F.grid_sample(image.to(dtype).float(), grid.to(dtype).float(), align_corners=False).to(dtype)
        for device in ("cpu", cuda):
            got = F.grid_sample(image.to(device, dtype), grid.to(device, dtype), align_corners=False)
            assert got.dtype is dtype and got.cpu().tolist() == want.tolist()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_the_gradient_of_a_pixel_that_many_places_read(cuda, mode):
    """All places read the same few pixels: their sum has one order, and as many bits as float32 has."""
    rng = np.random.default_rng(1)
    places, weights = rng.uniform(-0.1, 0.1, (1, 40, 30, 2)), rng.standard_normal((1, 3, 40, 30))
    wide = torch.zeros(1, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    (F.grid_sample(wide, torch.tensor(places), mode) * torch.tensor(weights)).sum().backward()
    found = []
    for _ in range(2):
        image = torch.zeros(1, 3, 5, 4, device=cuda, requires_grad=True)
        grid = torch.tensor(places, dtype=torch.float32, device=cuda, requires_grad=True)
        F.grid_sample(image, grid, mode).backward(torch.tensor(weights, dtype=torch.float32, device=cuda))
        found.append(image.grad.cpu().numpy())
    np.testing.assert_allclose(found[0], wide.grad.numpy(), rtol=1e-4, atol=1e-4)
    assert found[0].tobytes() == found[1].tobytes()


def test_places_at_the_border_do_not_move_it(cuda):
    """The gradient of what is clipped to the border is 0, that of what is reflected has the other sign, that of nearest pixels is 0."""
    for device in ("cpu", cuda):
        image = torch.tensor([[[[0.0, 1.0, 2.0, 3.0]]]], device=device)
        slopes = {}
        for mode, padding in (("bilinear", "border"), ("bilinear", "reflection"), ("bilinear", "zeros"), ("nearest", "zeros")):
            grid = torch.tensor([[[[0.1, 0.0], [1.4, 0.0]]]], device=device, requires_grad=True)
            F.grid_sample(image, grid, mode, padding, align_corners=False).sum().backward()
            slopes[mode, padding] = grid.grad[..., 0].flatten().tolist()
        assert slopes["bilinear", "border"] == [2, 0] and slopes["bilinear", "reflection"] == [2, -2]
        assert slopes["bilinear", "zeros"] == [2, 0] and slopes["nearest", "zeros"] == [0, 0]


def test_few_launches():
    """A grid, an image sampled and its slope are a launch each."""
    with launches.accounting() as account:
        image, theta = torch.ones(2, 3, 4, 4, device="cuda"), torch.ones(2, 2, 3, device="cuda")
        account.launches.clear()
        grid = F.affine_grid(theta, image.shape, align_corners=False)
        assert [launch.kernel for launch in account.launches] == ["sampling.affine_kernel"]
        account.launches.clear()
        sampled = F.grid_sample(image, grid.requires_grad_(), align_corners=False)
        assert [launch.kernel for launch in account.launches] == ["sampling.sample_planes_kernel"]
        account.launches.clear()
        torch.autograd.grad(sampled, grid, image)
        assert [launch.kernel for launch in account.launches] == ["sampling.sample_slope_planes_kernel"]
