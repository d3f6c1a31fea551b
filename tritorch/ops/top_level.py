"""Functions of `tritorch` that are those of `nn.functional` with other arguments: all have to be given, modes are numbers, and so on."""
from tritorch.errors import check, explained, switches, whole_numbers
from tritorch.ops import dropout, pooling
from tritorch.ops.affine import affine_places
from tritorch.ops.sampling import PADDINGS, TAPS, grid_sample

MODES = ("bilinear", "nearest", "bicubic")


# ------------------------------------------------------------------ images at the places of a grid
@explained
def grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    """`nn.functional.grid_sample` with the number of a mode (bilinear, nearest, bicubic) and of a padding (zeros, border, reflection).

    >>> import tritorch as torch
    >>> torch.grid_sampler(torch.tensor([[[[1.0, 4.0]]]]), torch.zeros(1, 1, 1, 2), 0, 0, False).item()
    2.5
    """
    return _sampled("grid_sampler", input, grid, interpolation_mode, padding_mode, align_corners, input.ndim)


@explained
def grid_sampler_2d(input, grid, interpolation_mode, padding_mode, align_corners):
    """`grid_sampler` of images (N, C, H, W)."""
    return _sampled("grid_sampler_2d", input, grid, interpolation_mode, padding_mode, align_corners, 4)


@explained
def grid_sampler_3d(input, grid, interpolation_mode, padding_mode, align_corners):
    """`grid_sampler` of volumes (N, C, D, H, W)."""
    return _sampled("grid_sampler_3d", input, grid, interpolation_mode, padding_mode, align_corners, 5)


def _sampled(name, input, grid, mode, padding, corners, dims):
    switches(name, align_corners=corners)
    (mode,), (padding,) = whole_numbers(name, "interpolation_mode", (mode,)), whole_numbers(name, "padding_mode", (padding,))
    check(0 <= mode < len(TAPS) and 0 <= padding < len(PADDINGS), name, "an interpolation_mode and a padding_mode of 0 to 2", mode, padding)
    fits = dims in (4, 5) and input.ndim == grid.ndim == dims and grid.shape[0] == input.shape[0] and grid.shape[-1] == dims - 2
    check(fits, name, "images (N, C, H, W) with a grid (N, H, W, 2), or one dim more", input.shape, grid.shape)
    check(dims == 4 or MODES[mode] != "bicubic", name, "an image of 4 dims for interpolation_mode 2", input.shape)
    return grid_sample(input, grid, MODES[mode], PADDINGS[padding], corners, (0,) * (dims - 2))


@explained
def affine_grid_generator(theta, size, align_corners):
    """`nn.functional.affine_grid`, whose errors are RuntimeErrors here.

    >>> import tritorch as torch
    >>> torch.affine_grid_generator(torch.eye(2, 3).unsqueeze(0), (1, 1, 1, 2), False).tolist()
    [[[[-0.5, 0.0], [0.5, 0.0]]]]
    """
    name = "affine_grid_generator"
    switches(name, align_corners=align_corners)
    size = whole_numbers(name, "size", size)
    check(len(size) in (4, 5), name, "a size of 4 or 5 numbers", size)
    fits = tuple(theta.shape) == (size[0], len(size) - 2, len(size) - 1)
    check(fits, name, f"theta of shape {(size[0], len(size) - 2, len(size) - 1)}", theta.shape)
    return affine_places(theta, size[2:], align_corners)


@explained
def adaptive_max_pool1d(input, output_size):
    """`nn.functional.adaptive_max_pool1d` with its places: (values, places along L).

    >>> import tritorch as torch
    >>> [x.tolist() for x in torch.adaptive_max_pool1d(torch.tensor([[1.0, 2.0, 4.0, 3.0]]), 2)]
    [[[2.0, 4.0]], [[1, 2]]]
    """
    return pooling.adaptive_max_pool1d(input, output_size, True)


# ------------------------------------------------------------------ dropout
def _dropping(name, f, inplace):
    def drop(input, p, train):
        check(0 <= p <= 1, name, "0 ≤ p ≤ 1", p)
        switches(name, train=train)
        check(not train or input.dtype.is_floating_point, name, "a floating tensor", input.dtype, use="input.float()")
        return f(input, p, train, inplace)

    drop.__name__ = drop.__qualname__ = name
    drop.__doc__ = f"`{f.__name__}` of a tensor{' itself' if inplace else ''}, with chance p, if `train`."
    return explained(drop)


dropout_ = _dropping("dropout_", dropout.dropout, True)
alpha_dropout, alpha_dropout_ = [_dropping("alpha_dropout" + end, dropout.alpha_dropout, bool(end)) for end in ("", "_")]
feature_dropout, feature_dropout_ = [_dropping("feature_dropout" + end, dropout.feature_dropout, bool(end)) for end in ("", "_")]
feature_alpha_dropout, feature_alpha_dropout_ = [
    _dropping("feature_alpha_dropout" + end, dropout.feature_alpha_dropout, bool(end)) for end in ("", "_")]
