"""Sliding blocks of images as columns (im2col), and columns added up to images: F.unfold and F.fold. Pairs are (height, width)."""
import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.dispatch import op
from tritorch.errors import check
from tritorch.ops import view
from tritorch.ops.avg_pooling import launch_places
from tritorch.ops.indexing import finish, in_order
from tritorch.pairs import Parts

K = kernels("unfold")
UNROLLED = 16                                                                # taps of the largest kernel whose loop is unrolled


def blocks_of(size, kernel, dilation, padding, stride):
    """How many blocks begin along each dim of an image."""
    return tuple([(n + 2 * edge - spread * (k - 1) - 1) // step + 1
                  for n, k, spread, edge, step in zip(size, kernel, dilation, padding, stride)])


@op
def unfold_images(input, kernel, dilation, padding, stride):
    """The sliding blocks of images (N, C, H, W), around which lie zeros: (N, C · taps, blocks).

        out[n, c · taps + r · k_w + s, p · Q + q] = input[n, c, p · stride - padding + r · dilation, …]

    >>> import tritorch as torch; from tritorch.ops.unfold import unfold_images
    >>> unfold_images(torch.arange(3.0).view(1, 1, 1, 3), (1, 2), (1, 1), (0, 0), (1, 1)).tolist()
    [[[0.0, 1.0], [1.0, 2.0]]]
    """
    check(input.ndim == 4, "unfold", "an input (N, C, H, W)", input.shape)
    many = blocks_of(input.shape[2:], kernel, dilation, padding, stride)
    check(min(many) > 0, "unfold", f"a kernel that fits into the padded input, got kernel {kernel}, dilation {dilation}, padding {padding}",
          input.shape)
    return (input.shape[0], input.shape[1] * kernel[0] * kernel[1], many[0] * many[1]), input.dtype, input.device


def _taps(size, kernel, dilation, padding, stride):
    """Of each tap of the kernel the places of the blocks and of the elements that they find there, in padded images."""
    many = blocks_of(size, kernel, dilation, padding, stride)
    for tap in np.ndindex(*kernel):
        yield tap[0] * kernel[1] + tap[1], tuple([slice(k * spread, k * spread + (n - 1) * step + 1, step)
                                                  for k, spread, n, step in zip(tap, dilation, many, stride)])


@unfold_images.impl("cpu")
def unfold_images_cpu(out, input, kernel, dilation, padding, stride):
    wide = np.pad(input, ((0, 0), (0, 0), *[(edge, edge) for edge in padding]))
    made = np.empty((*input.shape[:2], kernel[0] * kernel[1], out.shape[2]), input.dtype)
    for tap, places in _taps(input.shape[2:], kernel, dilation, padding, stride):
        made[:, :, tap] = wide[(..., *places)].reshape(*input.shape[:2], out.shape[2])
    out[...] = made.reshape(out.shape)


def _columns(x, channels):
    """(N, C · taps, places) as (N, C, taps, places)."""
    return view.reshape(x, x.shape[0], channels, -1, x.shape[2])


@unfold_images.impl("cuda")
def unfold_images_cuda(out, input, kernel, dilation, padding, stride):
    if out.numel():
        made, many = in_order(out), blocks_of(input.shape[2:], kernel, dilation, padding, stride)
        launch_places(K.unfold_kernel, (_columns(made, input.shape[1]),), (input,), (*input.shape[:2], *many), *input.shape[2:], *many,
                      STRIDE=stride, PADDING=padding, DILATION=dilation, KERNEL=kernel, UNROLL=kernel[0] * kernel[1] <= UNROLLED)
        finish(out, made)


@op
def fold_images(input, size, kernel, dilation, padding, stride):
    """Columns (N, C · taps, blocks) added up to images (N, C, *size): the transpose of `unfold_images`.

    >>> import tritorch as torch; from tritorch.ops.unfold import fold_images
    >>> fold_images(torch.ones(1, 2, 2), (1, 3), (1, 2), (1, 1), (0, 0), (1, 1)).tolist()
    [[[[1.0, 2.0, 1.0]]]]
    """
    taps, many = kernel[0] * kernel[1], blocks_of(size, kernel, dilation, padding, stride)
    check(input.ndim == 3 and input.shape[1] % taps == 0, "fold", f"an input (N, C · {taps}, blocks)", input.shape)
    want = f"{max(many[0], 0) * max(many[1], 0)} blocks for an output of {size}"
    check(min(many) > 0 and input.shape[2] == many[0] * many[1], "fold", want, input.shape)
    return (input.shape[0], input.shape[1] // taps, *size), input.dtype, input.device


@fold_images.impl("cpu")
def fold_images_cpu(out, input, size, kernel, dilation, padding, stride):
    many = blocks_of(size, kernel, dilation, padding, stride)
    x = input.reshape(*out.shape[:2], kernel[0] * kernel[1], *many)
    kind = np.promote_types(x.dtype, np.float32) if x.dtype.kind not in "iu" else x.dtype
    wide = np.zeros((*out.shape[:2], *[n + 2 * edge for n, edge in zip(size, padding)]), kind)
    for tap, places in _taps(size, kernel, dilation, padding, stride):
        wide[(..., *places)] += x[:, :, tap]
    out[...] = wide[..., padding[0]:padding[0] + size[0], padding[1]:padding[1] + size[1]]


@fold_images.impl("cuda")
def fold_images_cuda(out, input, size, kernel, dilation, padding, stride):
    if not out.numel():
        return
    columns, many = _columns(input, out.shape[1]), blocks_of(size, kernel, dilation, padding, stride)
    if kernel == stride and dilation == (1, 1) and padding == (0, 0):
        launch_places(K.tiles_kernel, (out,), (columns,), out.shape, *size, *many, KERNEL=kernel)
    else:
        launch_places(K.fold_kernel, (out,), (columns,), out.shape, *size, *many, STRIDE=stride, PADDING=padding, DILATION=dilation,
                      KERNEL=kernel, UNROLL=kernel[0] * kernel[1] <= UNROLLED)


unfold_images.complex, fold_images.complex = Parts(words=True), Parts()


@unfold_images.grad("input")
def unfold_images_grad(g, input_shape, kernel, dilation, padding, stride):
    return fold_images(g, tuple(input_shape[2:]), kernel, dilation, padding, stride)


@fold_images.grad("input")
def fold_images_grad(g, kernel, dilation, padding, stride):
    return unfold_images(g, kernel, dilation, padding, stride)


def _cases():
    """(image, kernel, dilation, padding, stride)."""
    yield (2, 3, 4, 5), (3, 3), (1, 1), (1, 1), (1, 1)
    yield (1, 2, 6, 7), (2, 3), (2, 1), (0, 2), (3, 2)
    yield (2, 1, 4, 6), (2, 2), (1, 1), (0, 0), (2, 2)
    yield (1, 2, 9, 8), (5, 4), (1, 2), (3, 3), (2, 3)
    yield (2, 2, 7, 6), (2, 3), (1, 1), (0, 0), (2, 3)
    yield (0, 2, 3, 3), (2, 2), (1, 1), (0, 0), (1, 1)


@unfold_images.samples
def unfold_images_samples(make):
    for image, *rest in _cases():
        yield make(*image), *rest


@fold_images.samples
def fold_images_samples(make):
    for (n, c, *size), kernel, *rest in _cases():
        many = blocks_of(size, kernel, *rest)
        yield make(n, c * kernel[0] * kernel[1], many[0] * many[1]), tuple(size), kernel, *rest


@unfold_images.errors
def unfold_images_errors(make):
    yield (make(1, 1, 3, 3), (5, 1), (1, 1), (0, 0), (1, 1)), {}, RuntimeError, "a kernel that fits into the padded input"


@fold_images.errors
def fold_images_errors(make):
    yield (make(1, 7, 3), (4, 6), (2, 2), (1, 1), (0, 0), (1, 1)), {}, RuntimeError, "an input (N, C · 4, blocks)"
    yield (make(1, 8, 3), (4, 6), (2, 2), (1, 1), (0, 0), (1, 1)), {}, RuntimeError, "15 blocks"


@unfold_images.workloads
def unfold_images_workloads(make):
    x = make(16, 64, 56, 56, grad=False)
    yield "16x64x56x56 fp32, 3x3", lambda: (x, (3, 3), (1, 1), (1, 1), (1, 1)), 10 * x.nbytes, 0


@fold_images.workloads
def fold_images_workloads(make):
    x = make(16, 64 * 9, 56 * 56, grad=False)
    yield "16x64x56x56 fp32, 3x3", lambda: (x, (56, 56), (3, 3), (1, 1), (1, 1), (1, 1)), x.nbytes * 10 // 9, 0
