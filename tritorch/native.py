"""Functions of `torch` itself that `nn.functional` has with other arguments: losses whose reduction is a number, 0 for none, 1 for mean, 2
for sum; norms that also return their statistics; lookups that take the table first; modes that are numbers."""
from tritorch.autograd.modes import state
from tritorch.errors import check, explained, switches, whole_numbers
from tritorch.nn import functional as F
from tritorch.nn.functional import native_channel_shuffle  # noqa: F401
from tritorch.ops import bags, batchnorm, create, dropout, groupnorm, normalize, pooling
from tritorch.ops.affine import affine_places
from tritorch.ops.copy import deliver
from tritorch.ops.matmul import bilinear  # noqa: F401
from tritorch.ops.padding import pad as padded
from tritorch.ops.sampling import PADDINGS, TAPS, grid_sample
from tritorch.ops.statistics import vector_norm
from tritorch.shape import wrap_dim

MODES = ("bilinear", "nearest", "bicubic")


def _named(reduction):
    """The name of a reduction; what PyTorch does not know it leaves out."""
    check(isinstance(reduction, int), "loss", "a whole number as reduction", repr(reduction), error=TypeError)
    return {1: "mean", 2: "sum"}.get(reduction, "none")


# ------------------------------------------------------------------ losses
def kl_div(input, target, reduction=1, *, log_target=False):
    """`nn.functional.kl_div` with a number as reduction.

    >>> import tritorch as torch
    >>> torch.kl_div(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.0, 1.0]]), 2)
    tensor(0.6931)
    """
    return F.kl_div(input, target, reduction=_named(reduction), log_target=log_target)


def hinge_embedding_loss(input, target, margin=1.0, reduction=1):
    """`nn.functional.hinge_embedding_loss` with a number as reduction."""
    return F.hinge_embedding_loss(input, target, margin, reduction=_named(reduction))


def margin_ranking_loss(input1, input2, target, margin=0.0, reduction=1):
    """`nn.functional.margin_ranking_loss` with a number as reduction."""
    return F.margin_ranking_loss(input1, input2, target, margin, reduction=_named(reduction))


def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction=1):
    """`nn.functional.triplet_margin_loss` with a number as reduction."""
    return F.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction=_named(reduction))


def cosine_embedding_loss(input1, input2, target, margin=0.0, reduction=1):
    """`nn.functional.cosine_embedding_loss` with a number as reduction."""
    return F.cosine_embedding_loss(input1, input2, target, margin, reduction=_named(reduction))


def poisson_nll_loss(input, target, log_input, full, eps, reduction):
    """`nn.functional.poisson_nll_loss` with a number as reduction."""
    return F.poisson_nll_loss(input, target, log_input, full, eps=eps, reduction=_named(reduction))


def binary_cross_entropy_with_logits(input, target, weight=None, pos_weight=None, reduction=1):
    """`nn.functional.binary_cross_entropy_with_logits` with a number as reduction."""
    return F.binary_cross_entropy_with_logits(input, target, weight, reduction=_named(reduction), pos_weight=pos_weight)


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=1, zero_infinity=False):
    """`nn.functional.ctc_loss` with a number as reduction."""
    return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, _named(reduction), zero_infinity)


# ------------------------------------------------------------------ lookups
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """`nn.functional.embedding` with the table first; a padding_idx below 0 is none.

    >>> import tritorch as torch
    >>> torch.embedding(torch.eye(2), torch.tensor([1, 1]))
    tensor([[0., 1.],
            [0., 1.]])
    """
    return F.embedding(indices, weight, padding_idx if padding_idx >= 0 else None, None, 2.0, scale_grad_by_freq, sparse)


@explained
def embedding_bag(weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None,
                  include_last_offset=False, padding_idx=None):
    """What `nn.functional.embedding_bag` gives for vectors, the bag of each index, the size of each bag, and for mode 2 ("max"; 0 is "sum",
    1 "mean") the row that each element comes from, -1 for none; else the sizes again.

    >>> import tritorch as torch
    >>> out, owners, sizes, _ = torch.embedding_bag(torch.eye(2), torch.tensor([0, 1, 1]), torch.tensor([0, 1]))
    >>> out.tolist(), owners.tolist(), sizes.tolist()
    ([[1.0, 0.0], [0.0, 2.0]], [0, 1, 1], [1, 2])
    """
    check(mode in (0, 1, 2), "embedding_bag", "a mode of 0 (sum), 1 (mean) or 2 (max)", mode)
    offsets = bags.first_offsets(offsets, include_last_offset)
    return bags.looked_up(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx)


# ------------------------------------------------------------------ norms, which cuDNN has no part in here
def batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
    """`nn.functional.batch_norm` with its arguments in another order.

    >>> import tritorch as torch
    >>> torch.batch_norm(torch.ones(2, 1), None, None, torch.zeros(1), torch.full((1,), 4.0), False, 0.1, 0.0, True).tolist()
    [[0.5], [0.5]]
    """
    return batchnorm.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled):
    """`nn.functional.instance_norm` with its arguments in another order.

    >>> import tritorch as torch
    >>> torch.instance_norm(torch.tensor([[[1.0, 3.0]]]), None, None, None, None, True, 0.1, 1e-5, True)
    tensor([[[-1.0000,  1.0000]]])
    """
    return batchnorm.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    """`nn.functional.layer_norm`.

    >>> import tritorch as torch
    >>> torch.layer_norm(torch.tensor([1.0, 3.0]), (2,), None, None, 0.0, False)
    tensor([-1.,  1.])
    """
    return normalize.layer_norm(input, normalized_shape, weight, bias, eps)


def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    """`nn.functional.group_norm`.

    >>> import tritorch as torch
    >>> torch.group_norm(torch.tensor([[1.0, 3.0]]), 1, None, None, 0.0, False)
    tensor([[-1.,  1.]])
    """
    return groupnorm.group_norm(input, num_groups, weight, bias, eps)


# ------------------------------------------------------------------ norms with their statistics
@explained
def native_layer_norm(input, normalized_shape, weight, bias, eps):
    """Layer norm, and the mean and 1 / √(var + eps) of every row, whose dims are kept as 1.

    >>> import tritorch as torch
    >>> [x.tolist() for x in torch.native_layer_norm(torch.tensor([[1.0, 3.0]]), (2,), None, None, 0.0)]
    [[[-1.0, 1.0]], [[2.0]], [[1.0]]]
    """
    out, statistics = normalize.layer_norm_rows(input, tuple(normalized_shape), weight, bias, eps)
    shape = *input.shape[:input.ndim - len(normalized_shape)], *[1] * len(normalized_shape)
    if followed(input):
        statistics = normalize.moments(input.to(input.dtype.compute), len(normalized_shape), eps)
    return out, *[x.reshape(shape) for x in statistics.unbind()]


def followed(x):
    """Whether statistics of x are made of operators that have gradients: kernels that make them on the way leave no history."""
    return state.grad and x.requires_grad


@explained
def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    """Group norm of N samples of C channels of HxW elements, and the mean and 1 / √(var + eps) of every group of a sample, (N, group)."""
    check(input.numel() == N * C * HxW, "native_group_norm", f"{N} · {C} · {HxW} elements", tuple(input.shape))
    out, mean, rstd = groupnorm.group_norm_rows(input, group, weight, bias, eps)
    if followed(input):
        mean, rstd = normalize.moments(input.to(input.dtype.compute).reshape(N, group, C // group * HxW), 1, eps).unbind()
    return out, mean.reshape(N, group), rstd.reshape(N, group)


@explained
def native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    """Batch norm, and in training the mean and 1 / √(var + eps) of the batch, else two empty tensors."""
    batchnorm.check_statistics(input, running_mean, running_var, training)
    if not training:
        out = batchnorm.batch_norm_apply(input, running_mean, running_var, weight, bias, eps)
        return out, *[create.empty(0, dtype=input.dtype.compute, device=input.device) for _ in range(2)]
    out, mean, var = batchnorm.batch_norm_train(input, weight, bias, eps)
    batchnorm.follow(running_mean, running_var, (mean, var), input, momentum)
    return out, mean, (var + eps).rsqrt()


@explained
def native_dropout(input, p, train):
    """Dropout, and which elements it kept: all of them if `train` is False. None is True here, as in PyTorch.

    >>> import tritorch as torch
    >>> torch.native_dropout(torch.ones(2), 0.5, False)
    (tensor([1., 1.]), tensor([True, True]))
    """
    if train is False or not input.numel():
        return input.clone(), create.ones_like(input, dtype=bool)
    check(0 <= p <= 1, "native_dropout", "0 ≤ p ≤ 1", p)
    mask = create.empty_like(input, dtype=bool).bernoulli_(1 - p)
    return input * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


# ------------------------------------------------------------------ padding and norms
@explained
def constant_pad_nd(input, pad, value=0):
    """`input` with `pad[0]` elements of a value before its last dim and `pad[1]` behind it, then those of the dim before, and so on;
    negative numbers cut off.

    >>> import tritorch as torch; torch.constant_pad_nd(torch.ones(2), (1, 2))
    tensor([0., 1., 1., 0., 0.])
    """
    return padded(input, pad, "constant", value)


@explained
def norm_except_dim(v, pow=2, dim=0):
    """The p-norm over all dims but one, which are kept as 1; over all of them for dim -1.

    >>> import tritorch as torch; torch.norm_except_dim(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5.],
            [1.]])
    """
    kept = wrap_dim(dim, v.ndim, "norm_except_dim")
    return vector_norm(v, pow) if dim == -1 else vector_norm(v, pow, tuple(d for d in range(v.ndim) if d != kept), True)


@explained
def frobenius_norm(input, dim, keepdim=False, *, out=None):
    """√(Σ x²) over one or two dims.

    >>> import tritorch as torch; torch.frobenius_norm(torch.tensor([[3.0, 4.0]]), (0, 1))
    tensor(5.)
    """
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    check(len(dims) <= 2, "frobenius_norm", "at most 2 dims", dims)
    return deliver(vector_norm(input, 2, dims or None, keepdim), out)


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
