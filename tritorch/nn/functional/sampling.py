"""Sampling images at any places: spatial transformer networks. Jaderberg et al. 2015."""
import itertools
import math

from tritorch.errors import check
from tritorch.ops.compare import where
from tritorch.ops.create import linspace
from tritorch.ops.shaping import meshgrid, stack


def affine_grid(theta, size, align_corners=None):
    """The places, for `grid_sample`, of an image of the given size under the affine maps `theta`.

    theta (N, 2, 3) and size (N, C, H, W) give (N, H, W, 2); (N, 3, 4) and (N, C, D, H, W) give (N, D, H, W, 3). They run from -1 to 1,
    between the middles of the outer pixels with `align_corners`, else between the edges of the image.

    >>> import tritorch as torch
    >>> torch.nn.functional.affine_grid(torch.eye(2, 3).unsqueeze(0), (1, 1, 1, 2)).tolist()
    [[[[-0.5, 0.0], [0.5, 0.0]]]]
    """
    spatial = tuple(size)[2:]
    check(len(spatial) in (2, 3), "affine_grid", "a size of 4 or 5 numbers", tuple(size), error=NotImplementedError)
    fits = tuple(theta.shape) == (size[0], len(spatial), len(spatial) + 1)
    check(fits, "affine_grid", f"theta of shape {(size[0], len(spatial), len(spatial) + 1)}", theta.shape, error=ValueError)
    check(min(size) > 0, "affine_grid", "a size without zeros", tuple(size), error=ValueError)
    axes = [linspace(-1, 1, n, dtype=theta.dtype, device=theta.device) * (1 if align_corners else (n - 1) / n) if n > 1
            else theta.new_zeros(1) for n in spatial]
    x = stack([*reversed(meshgrid(*axes, indexing="ij")), theta.new_ones(spatial)], -1)
    return (x.view(1, -1, len(spatial) + 1) @ theta.mT).view(size[0], *spatial, len(spatial))


def _pixels(x, n, padding_mode, align_corners):
    """Coordinates from -1 to 1 as places among n pixels."""
    x = (x + 1) / 2 * (n - 1) if align_corners else ((x + 1) * n - 1) / 2
    if padding_mode == "reflection":
        low, span = (0, n - 1) if align_corners else (-0.5, n)
        distance = (x - low).abs()
        turns = (distance.detach() / span).floor() if span else distance.detach() * 0
        rest = distance - turns * span if span else distance * 0
        x = where(turns % 2 == 0, rest + low, span - rest + low)
    return x if padding_mode == "zeros" else where(x == x, x, 0).clamp(0, n - 1)           # NaN is at the edge, as in PyTorch


def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    """The values of an image at the places of a grid, between pixels interpolated linearly (also "nearest").

    Image (N, C, H, W) with grid (N, H_out, W_out, 2) of (x, y) gives (N, C, H_out, W_out), and alike for (N, C, D, H, W). Outside of the
    image are zeros, its "border", or its "reflection". Coordinates as in `affine_grid`. Mode "bicubic" is not available.

    >>> import tritorch as torch
    >>> image = torch.tensor([[[[1.0, 2.0, 3.0]]]])
    >>> torch.nn.functional.grid_sample(image, torch.zeros(1, 1, 1, 2)).item()
    2.0
    """
    check(mode in ("bilinear", "nearest"), "grid_sample", "mode 'bilinear' or 'nearest'", repr(mode), error=ValueError)
    check(padding_mode in ("zeros", "border", "reflection"), "grid_sample", "padding_mode 'zeros', 'border' or 'reflection'",
          repr(padding_mode), error=ValueError)
    count = input.ndim - 2
    fits = count in (2, 3) and grid.ndim == input.ndim and grid.shape[0] == input.shape[0] and grid.shape[-1] == count
    check(fits, "grid_sample", "an image (N, C, H, W) with a grid (N, H, W, 2), or one dim more", input.shape, grid.shape)
    sizes = input.shape[2:]
    places = [_pixels(grid[..., count - 1 - d], n, padding_mode, align_corners) for d, n in enumerate(sizes)]
    if mode == "nearest":
        return _read(input, [place.detach().round() for place in places])
    lows, out = [place.detach().floor() for place in places], 0
    for corner in itertools.product((0, 1), repeat=count):
        shares = [place - low if up else 1 - (place - low) for place, low, up in zip(places, lows, corner)]
        out = out + _read(input, [low + up for low, up in zip(lows, corner)]) * math.prod(shares).unsqueeze(1)
    return out


def _read(image, places):
    """The pixels at whole-numbered places (N, *), zero outside."""
    index, inside = 0, True
    for place, n in zip(places, image.shape[2:]):
        within = (place >= 0) & (place <= n - 1)
        index = index * n + where(within, place, 0).long()               # NaN is nowhere
        inside = within & inside
    n, c = image.shape[:2]
    values = image.flatten(2).gather(2, index.view(n, 1, -1).expand(n, c, -1)).view(n, c, *index.shape[1:])
    return values.masked_fill(~inside.unsqueeze(1), 0)
