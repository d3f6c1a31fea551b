"""Sampling images at any places: spatial transformer networks. Jaderberg et al. 2015."""
from tritorch.errors import check, explained
from tritorch.ops.affine import affine_places
from tritorch.ops.sampling import PADDINGS, TAPS
from tritorch.ops.sampling import grid_sample as sample


@explained
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
    return affine_places(theta, spatial, bool(align_corners))


@explained
def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    """The values of an image at the places of a grid, between pixels interpolated linearly (also "nearest", and "bicubic" by Keys 1981).

    Image (N, C, H, W) with grid (N, H_out, W_out, 2) of (x, y) gives (N, C, H_out, W_out), and, but for "bicubic", alike for (N, C, D, H,
    W). Outside of the image are zeros, its "border", or its "reflection". Coordinates as in `affine_grid`.

    >>> import tritorch as torch
    >>> image = torch.tensor([[[[1.0, 2.0, 3.0]]]])
    >>> torch.nn.functional.grid_sample(image, torch.zeros(1, 1, 1, 2)).item()
    2.0
    """
    check(mode in TAPS, "grid_sample", "mode 'bilinear', 'nearest' or 'bicubic'", repr(mode), error=ValueError)
    check(padding_mode in PADDINGS, "grid_sample", "padding_mode 'zeros', 'border' or 'reflection'", repr(padding_mode), error=ValueError)
    count = input.ndim - 2
    fits = count in (2, 3) and grid.ndim == input.ndim and grid.shape[0] == input.shape[0] and grid.shape[-1] == count
    check(fits, "grid_sample", "an image (N, C, H, W) with a grid (N, H, W, 2), or one dim more", input.shape, grid.shape)
    check(count == 2 or mode != "bicubic", "grid_sample", "an image of 4 dims for mode 'bicubic'", input.shape)
    return sample(input, grid, mode, padding_mode, bool(align_corners), (0,) * count)
