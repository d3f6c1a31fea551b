"""Rules of operators on images: convolution, pooling, padding, resizing. Samples join the dim of images, or of groups of channels."""
from tritorch.func.batching.calls import rule
from tritorch.func.batching.folding import fold, repeated, unfold
from tritorch.ops import create


def _images(call, *names):
    """The operator with all samples' images one after the other, in the order in which they lie."""
    images = [call.all(name) for name in names]
    beside = 0 < images[0].strides[0] < images[0].strides[1]             # the same image of all samples: so a convolution leaves them
    folded = {name: fold(x.movedim(0, 1) if beside else x) for name, x in zip(names, images)}
    made = call.op(*call.put(**folded))
    found = []
    for x, (shape, *_) in zip(made if type(made) is tuple else (made,), call.promises):
        found.append(unfold(x, shape[0], (call.size, *shape[1:])).movedim(1, 0) if beside else unfold(x, call.size, shape))
    return tuple(found)


# which arguments are images, by operators
IMAGES = {("input", ): "max_pool max_pool_values avg_pool avg_pool_volume max_pool_volume max_pool_volume_values resize",
          ("gradient", ): "avg_pool_input avg_pool_volume_input resize_back", ("gradient", "taps"): "max_pool_input",
          ("taps", ): "places_of", ("gradient", "places"): "max_pool_volume_input", ("input", "samples"): "fractional_max_pool"}
for _tensors, _names in IMAGES.items():
    rule(*_names.split())(lambda call, names=_tensors: _images(call, *names))


# ------------------------------------------------------------------ convolution
# Each of the three operators sums over two of: images N, channels K and C of a group, places. What of both operands differs gets groups of
# its own; what of one differs gets more of the channels that stay, the samples next to their group (their order is group, sample, channel).
def _channels(x, groups, dim, parted=True):
    """All samples in a dim of channels: (groups, samples, channels of a group), or samples first where each has groups of its own."""
    if not parted or groups == 1:
        return fold(x, dim)
    size, *shape = x.shape
    x = x.reshape(size, *shape[:dim], groups, shape[dim] // groups, *shape[dim + 1:]).movedim(0, dim + 1)
    return x.reshape(*shape[:dim], size * shape[dim], *shape[dim + 1:])


def _parted(x, size, shape, groups, dim, parted=True):
    """The opposite."""
    if not parted or groups == 1:
        return unfold(x, size, shape, dim)
    x = x.reshape(*shape[:dim], groups, size, shape[dim] // groups, *shape[dim + 1:]).movedim(dim + 1, 0)
    return x.reshape(size, *shape)


def _none(call):
    """Of no samples: there is no convolution with no groups."""
    shape, dtype, device, *_ = call.promises[0]
    return create.empty((0, *shape), dtype=dtype, device=device)


@rule("convolution")
def convolution(call):
    (input, weight, bias, *_), (own, turns, shifts), size, (shape, *_) = call.args, call.where[:3], call.size, call.promises[0]
    groups = call["groups"]
    if not turns:
        return _of_images(call, own, shifts)
    if own and not size:
        return _none(call)
    flat = None if bias is None else _channels(bias if shifts else repeated(bias, size), groups, 0, not own)
    weight = _channels(weight, groups, 0, not own)
    input = fold(input, 1) if own else input
    made = call.op(*call.put(input=input, weight=weight, bias=flat, groups=size * groups if own else groups))
    return _parted(made, size, shape, groups, 1, not own)


def _of_images(call, own, shifts):
    """With one weight for all."""
    if not shifts:
        return _images(call, "input")
    shape, bias = call.promises[0][0], call["bias"].unsqueeze(1).unsqueeze(3).unsqueeze(4)
    made = call.op(*call.put(input=fold(call["input"]) if own else call["input"], bias=None))
    return (unfold(made, call.size, shape) if own else made) + bias


@rule("convolution_input")
def convolution_input(call):
    (gradient, weight, *_), (own, turns, *_), size, (shape, *_), groups = call.args, call.where, call.size, call.promises[0], call["groups"]
    if not turns:
        return _images(call, "gradient")
    if own and not size:
        return _none(call)
    if own:
        made = call.op(*call.put(gradient=fold(gradient, 1), weight=fold(weight), groups=size * groups))
        return unfold(made, size, shape, 1)
    return _parted(call.op(*call.put(weight=fold(weight, 1))), size, shape, groups, 1)


@rule("convolution_weight")
def convolution_weight(call):
    (gradient, input, *_), (own, turns, *_), size, (shape, *_), groups = call.args, call.where, call.size, call.promises[0], call["groups"]
    if own and turns and not size:
        return _none(call)
    if own and turns:
        made = call.op(*call.put(gradient=fold(gradient, 1), input=fold(input, 1), groups=size * groups))
        return unfold(made, size, shape)
    if own:
        return _parted(call.op(*call.put(gradient=_channels(gradient, groups, 1))), size, shape, groups, 0)
    return unfold(call.op(*call.put(input=_channels(input, groups, 1))), size, shape, 1)


# ------------------------------------------------------------------ images at any places
@rule("grid_sample")
def grid_sample(call):
    """Images at the same places are channels of one; one image at many places has more of them."""
    shape, size = call.promises[0][0], call.size
    if call.where[0] and call.where[1]:
        return _images(call, "input", "grid")
    if call.where[0]:
        return unfold(call.op(*call.put(input=fold(call["input"], 1))), size, shape, 1)
    return unfold(call.op(*call.put(grid=fold(call["grid"], 1))), size, shape, 2)


@rule("grid_sample_back")
def grid_sample_back(call):
    if call.where[1]:
        return _images(call, "gradient", "grid")
    return unfold(call.op(*call.put(gradient=fold(call["gradient"], 1))), call.size, call.promises[0][0], 1)


@rule("grid_sample_slope")
def grid_sample_slope(call):
    if call.differs("input"):
        return _images(call, "gradient", "input", "grid")
    changed = {"gradient": fold(call.all(0), 2), "grid": fold(call.all(2), 1)}
    return unfold(call.op(*call.put(**changed)), call.size, call.promises[0][0], 1)
