"""Wrong input: the type of PyTorch's exception, one sentence that says what was expected, and operands that are what they were."""
import contextlib

import numpy as np
import pytest

import tritorch
from tests.both import pytorch

F = "lib.nn.functional."
M, IMAGE = "lib.nn.", "(lib.ones(1, 2, 5, 5))"
X = "lib.arange(6.0).reshape(2, 3)"
WRONG = [                                                                # (call, exception, part of the sentence)
    # what is no tensor
    (F + "linear(None, lib.ones(2, 3))", TypeError, "linear: expected a tensor as input, got NoneType"),
    (F + "mse_loss(lib.ones(2), [1.0, 2.0])", AttributeError, "mse_loss: expected a tensor as target, got list"),
    (F + "layer_norm(None, (3,))", TypeError, "expected a tensor"),
    ("lib.nn.Linear(3, 2)(np.ones((2, 3)))", TypeError, "expected a tensor as input, got ndarray"),
    ("lib.nn.BatchNorm1d(3)(None)", AttributeError, "expected a tensor as input, got NoneType"),
    ("lib.softmax('a', 0)", TypeError, "softmax: expected a tensor as input, got str"),
    (f"lib.matmul({X}, None)", TypeError, "matmul: expected a tensor as other, got NoneType"),
    ("lib.reshape([1.0, 2.0], (2, 1))", TypeError, "reshape: expected a tensor as input, got list"),
    (F + "conv2d(lib.ones(1, 4, 4), None)", TypeError, "conv2d: expected a tensor as weight, got NoneType"),
    (F + "conv1d(np.ones((1, 4)), lib.ones(1, 1, 2))", TypeError, "conv1d: expected a tensor as input, got ndarray"),
    (f"{X}.cumsum(0, out=1)", TypeError, "expected a"),
    *[(f"lib.{call}", TypeError, "expected a tensor as input, got ") for call in (
        "zeros_like(None)", "full_like([1.0], 1)", "cross(None, None)", "hsplit(np.ones(2), 2)", "histc('a')", "randn_like(None)")],
    (F + "embedding(lib.tensor([0]), None)", TypeError, "embedding: expected a tensor as weight, got NoneType"),
    # what is no number
    ("lib.linspace(None, 1, 5)", TypeError, "linspace: expected a number as start, got None"),
    ("lib.linspace(0, 1, 'a')", TypeError, "linspace: expected whole numbers as steps"),
    ("lib.tril_indices('a', 3)", TypeError, "expected whole numbers as row, col and offset"),
    ("lib.triu_indices(3, -1)", RuntimeError, "row and col of at least 0, got 3 and -1"),
    (f"lib.tensor_split({X}, 2 ** 70)", ValueError, "a number of sections of 64 bits"),
    (f"lib.add({X}, {X}, alpha=None)", TypeError, "add: expected a number as alpha, got None"),
    (f"lib.addcmul({X}, {X}, {X}, value='a')", TypeError, "expected a number as value, got 'a'"),
    (f"lib.addmm({X}, lib.ones(2, 2), {X}, beta=[1])", TypeError, "expected a number as beta, got [1]"),
    (f"{X}.sum('a')", TypeError, "sum: expected whole numbers as dims, got 'a'"),
    (f"{X}.sum(1.0)", TypeError, "sum: expected whole numbers as dims, got 1.0"),
    (f"{X}.sum([0, 1.0])", TypeError, "sum: expected whole numbers as dims"),
    (f"{X}.argmax('a')", TypeError, "expected whole numbers as dims, got 'a'"),
    (f"{X}.movedim('a', 0)", TypeError, "expected"),
    (f"{X}.expand(2.0, 3.0)", TypeError, "expand: expected whole numbers as sizes"),
    (f"{X}.view('a', 2)", TypeError, "view: expected whole numbers as sizes"),
    (f"{X}.repeat(1.5, 2)", TypeError, "repeat: expected whole numbers as sizes"),
    (f"{X}.roll('a')", TypeError, "roll: expected whole numbers as shifts"),
    (f"{X}.as_strided((2, 1.5), (1, 1))", TypeError, "as_strided: expected whole numbers as sizes"),
    ("lib.zeros(2.5)", TypeError, "expected ints or a sequence of ints as sizes, got 2.5"),
    ("lib.zeros([2], 3)", TypeError, "expected whole numbers as sizes"),
    ("lib.rand(2, 1.5)", TypeError, "expected whole numbers as sizes"),
    ("lib.nn.Linear([3], 'a')", TypeError, "Linear: expected a whole number as in_features, got [3]"),
    ("lib.nn.Linear(3, 2, dtype='float32')", TypeError, "expected a tritorch.dtype, got 'float32'"),
    (F + f"pad({X}, None)", TypeError, "pad: expected whole numbers as sizes, got None"),
    (F + "max_pool2d(lib.ones(1, 4, 4), 1.5)", TypeError, "expected whole numbers as kernel_size"),
    (F + "conv2d(lib.ones(1, 1, 4, 4), lib.ones(1, 1, 2, 2), stride=1.5)", TypeError, "conv2d: expected whole numbers as stride"),
    # what is missing
    *[(call, TypeError, "sizes: expected at least one, got none") for call in (
        f"{X}.reshape()", f"{X}.view()", f"{X}.permute()", f"{X}.expand()", f"{X}.repeat()", f"{X}.flip()", f"{X}.tile()", "lib.zeros()",
        "lib.empty()", "lib.rand()", f"{X}.new_ones()")],
    # what used to be taken
    ("lib.tensor(1.0).sum(5)", IndexError, "sum: expected a dim in [-1, 0], got 5"),
    ("lib.tensor(1.0).amax((0, 3))", IndexError, "expected a dim in [-1, 0], got 3"),
    (F + "conv2d(lib.ones(1, 3, 4, 4), lib.ones(0, 3, 3, 3))", RuntimeError, "weights for a channel or more"),
    (F + "conv2d(lib.ones(1, 3, 0, 4), lib.ones(3, 3, 1, 1), padding=2)", RuntimeError, "images that are not empty"),
    (F + f"batch_norm({X}, None, None, training=True, eps=0)", ValueError, "eps > 0 in training"),
    (f"{X}.scatter_reduce(0, lib.tensor([[0, 1, 1]]), lib.ones(1, 3, dtype=lib.float64), 'sum')", RuntimeError, "a source of"),
    ("lib.ones(3, dtype=lib.int64).scatter(0, lib.tensor([1]), lib.tensor([1.5]), reduce='add')", RuntimeError, "a source of"),
    (f"{X}.gather(0, lib.tensor([[1, 0, 1]], dtype=lib.uint8))", RuntimeError, "an index of int64 or int32, got tritorch.uint8"),
    (f"{X}.index_add(0, lib.tensor([[0, 1]]), {X})", IndexError, "a vector of indices"),
    (f"{X}.index_copy(0, lib.tensor([[0, 1]]), {X})", IndexError, "a vector of indices"),
    (f"{X}.index_fill(0, lib.tensor([[0, 1]]), 1.0)", RuntimeError, "a vector of indices"),
    (f"{X}.median(keepdim=True)", TypeError, "median: expected a dim"),
    ("lib.empty_strided((2, 3), (1,))", RuntimeError, "as many strides as sizes"),
    ("lib.meshgrid(lib.ones(2), lib.ones(2, dtype=lib.float64))", RuntimeError, "vectors of one dtype"),
    ("lib.meshgrid(lib.ones(2, 2))", RuntimeError, "at most one dim"),
    ("lib.cartesian_prod(lib.ones(2, 2), lib.ones(2))", RuntimeError, "one or more vectors"),
    ("lib.combinations(lib.ones(2, 2))", RuntimeError, "a vector"),
    (f"{X}.repeat_interleave(lib.tensor([1, 2]), 0, output_size=5)", RuntimeError, "an output_size of 3"),
    (F + f"pdist({X}, p=-1)", RuntimeError, "pdist: expected p ≥ 0, got -1"),
    # layers, when they are made
    *[(M + call, TypeError, words) for call, words in (
        ("Dropout('a')", "Dropout: expected a number as p, got 'a'"), ("Conv2d(2, 4, 2, groups='a')", "a whole number as groups, got 'a'"),
        ("MultiheadAttention({}, 2)", "MultiheadAttention: expected a whole number as embed_dim, got {}"),
        ("GroupNorm([2], 4)", "a whole number as num_groups, got [2]"), ("RNNCell(3, {})", "a whole number as hidden_size, got {}"),
        ("GRU(3, 4, num_layers=2.5)", "a whole number as num_layers, got 2.5"), ("Linear(3, 4, device={})", "a device as device, got {}"),
        ("Hardtanh(min_val=[2])", "a number as min_val, got [2]"), ("Bilinear('a', 4, 2)", "a whole number as in1_features, got 'a'"),
        ("TripletMarginLoss(margin=(1, 2))", "a number as margin, got (1, 2)"),
        ("Upsample(scale_factor={1})", "Upsample: expected numbers as scale_factor, got {1}"))],
    # layers, when they are called
    *[(M + call, TypeError, words) for call, words in (
        ("CELU(())" + IMAGE, "a number as alpha, got ()"), ("GLU(1.5)" + IMAGE, "GLU: expected a whole number as dim, got 1.5"),
        ("RReLU([2])" + IMAGE, "RReLU: expected a number as lower, got [2]"), ("LPPool2d([2.0], 2)" + IMAGE, "as norm_type, got [2.0]"),
        ("PixelShuffle('a')" + IMAGE, "PixelShuffle: expected a whole number as upscale_factor, got 'a'"),
        ("Threshold(0.1, (1, 2))" + IMAGE, "a number as value, got (1, 2)"), ("Unfold(2, stride='a')" + IMAGE, "numbers as stride"),
        ("TransformerEncoderLayer(4, 2, 8, activation=1.5)(lib.ones(1, 1, 4))", "a function or its name as activation, got 1.5"),
        ("LocalResponseNorm([2])" + IMAGE, "whole numbers as size"), ("InstanceNorm2d(2, eps=(0, 0))" + IMAGE, "a number as eps"))],
    # functions
    *[(F + call, TypeError, words) for call, words in (
        (f"layer_norm({X}, 3)", "layer_norm: expected whole numbers as normalized_shape, got 3"),
        (f"dropout({X}, {{}})", "dropout: expected a number as p, got {}"), ("rms_norm('a', (3,))", "a tensor as input, got str"),
        (f"cross_entropy({X}, [1, 2])", "cross_entropy: expected a tensor as target, got list"),
        ("instance_norm(lib.ones(1, 2, 3), bias=(0, 0))", "a tensor as bias, got tuple"),
        ("max_pool2d([1.0], 2)", "a tensor as input, got list"),
        (f"scaled_dot_product_attention({X}, {X}, {X}, dropout_p=())", "a number as dropout_p, got ()"),
        ("conv_transpose2d(lib.ones(1, 1, 2, 2), lib.ones(1, 1, 2, 2), 1.5)", "a tensor as bias, got float"),
        ("affine_grid(lib.ones(1, 2, 3), 3)", "a sequence of whole numbers as size, got 3"),
        (f"embedding(lib.tensor([0]), {X}, padding_idx=())", "whole numbers as padding_idx"))],
    # sizes
    *[(F + f"{call}, {what})", RuntimeError, words) for call in ("unfold(lib.ones(1, 2, 4, 4), 2", "fold(lib.ones(1, 8, 4), (3, 3), 2")
      for what, words in (("stride=0", "1 or more as stride, got 0"), ("dilation=-1", "1 or more as dilation, got -1"),
                          ("padding=-1", "0 or more as padding"), ("stride=[2]", "one or two numbers of 1 or more as stride, got [2]"))],
    (F + f"glu({X}, 5)", IndexError, "glu: expected a dim in [-2, 1], got 5"),
    (M + "GroupNorm(0, 4)", ZeroDivisionError, "num_groups other than 0"),
    (M + "LazyBatchNorm1d()(lib.ones(7))", IndexError, "two dims or more"),
    ("lib.empty(2 ** 50)", RuntimeError, "empty: expected sizes for which the host has memory, got (1125899906842624,) of "),
    (M + "Conv1d(2, 4, 2 ** 40)", RuntimeError, "sizes for which the host has memory"),
    (F + "max_pool2d(lib.ones(1, 2, 5, 5), 2 ** 62, ceil_mode=True)", RuntimeError, "a window of at most 2147483647 elements"),
]


def test_a_window_that_is_no_number_of_32_bits():
    """PyTorch's max_pool1d takes it."""
    with pytest.raises(RuntimeError, match="a window of at most 2147483647 elements, got"):
        tritorch.nn.functional.max_pool1d(tritorch.ones(1, 2, 5), 2 ** 31, ceil_mode=True)


def test_the_sentence_is_the_same_where_there_is_memory_on_a_gpu(cuda):
    x = tritorch.ones(2, 3, device=cuda) + 1
    for call, sentence in ((lambda: tritorch.softmax("a", 0), "softmax: expected a tensor as input, got str"),
                           (lambda: tritorch.nn.functional.layer_norm(None, (3,)), "expected a tensor"),
                           (lambda: tritorch.matmul(x, None), "matmul: expected a tensor as other, got NoneType")):
        with pytest.raises(TypeError, match=sentence):
            call()


def refused(call, kind, words):
    """The call is refused with PyTorch's type of exception and a sentence of one line."""
    if pytorch is not None:
        with pytest.raises(kind):
            eval(call, {"lib": pytorch, "np": np})
    with pytest.raises(kind) as error:
        eval(call, {"lib": tritorch, "np": np})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("call, kind, words", WRONG)
def test_wrong_input_is_refused(call, kind, words):
    refused(call, kind, words)


@pytest.mark.parametrize("layer, sizes", [
    ("MultiheadAttention(4, 2)(x, x, x)[0]", (2, 0, 4)), ("TransformerEncoderLayer(4, 2, 8)(x)", (2, 0, 4)),
    ("GroupNorm(2, 4)(x)", (0, 4, 3)), ("GroupNorm(2, 4)(x)", (2, 4, 0)), ("Fold((3, 3), 2)(x)", (0, 8, 4)),
    ("Unfold(2)(x)", (0, 2, 4, 4))])
def test_empty_batches_go_through(layer, sizes):
    for device in ("cpu", "cuda"):
        with tritorch.cuda.simulate(), tritorch.device(device):
            x = tritorch.ones(sizes, requires_grad=True)
            eval("lib.nn." + layer, {"lib": tritorch, "x": x}).sum().backward()
            assert x.grad.shape == sizes


KINDS = ("x.sum(dtype=float)", "x.sum(0, dtype=int)", "x.cumsum(0, dtype=float)", "x.prod(dtype=bool)", "x.softmax(0, dtype=float)",
         "x.mean(0, dtype=float)", "lib.zeros_like(x, dtype=int)", "lib.full_like(x, 1, dtype=bool)", "x.to(float)", "x.to(bool)",
         "lib.linalg.vector_norm(x, dtype=float)",
         "lib.promote_types(int, lib.float16)", "lib.frombuffer(bytearray(8), dtype=int)", "lib.randperm(1, dtype=float)",
         "lib.nn.Linear(1, 1, dtype=float).weight.detach() * 0", "lib.rand(2, dtype=float) * 0", "lib.randint(1, (2,), dtype=bool)",
         "lib.nn.Linear(1, 1).to(float).weight.detach() * 0")


@pytest.mark.parametrize("call", KINDS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pythons_types_are_dtypes(call, device):
    with tritorch.cuda.simulate():
        for _ in range(2):                                               # a second call repeats the launches of the first
            ours = eval(call, {"lib": tritorch, "x": tritorch.arange(6.0, device=device).reshape(2, 3)})
        ours = ours.cpu() if isinstance(ours, tritorch.Tensor) else ours
    if pytorch is not None:
        theirs = eval(call, {"lib": pytorch, "x": pytorch.arange(6.0).reshape(2, 3)})
        assert str(getattr(ours, "dtype", ours)).split(".")[1] == str(getattr(theirs, "dtype", theirs)).split(".")[1]
        if isinstance(theirs, pytorch.Tensor):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


@pytest.mark.parametrize("call", ["lib.zeros({})", "lib.ones({})", "lib.empty({})", "lib.rand({})", "lib.full(({}), 1)", "x.new_zeros({})"])
def test_sizes_are_whole_numbers_whatever_was_seen(call):
    for sizes in ("2, 3", "2.0, 3"):
        with (pytest.raises(TypeError, match="as sizes, got") if "." in sizes else contextlib.nullcontext()):
            eval(call.format(sizes), {"lib": tritorch, "x": tritorch.ones(1)})


RIGHT = (                                                                # what PyTorch takes
    f"{X}.sum(np.int64(1))", f"{X}.sum(lib.tensor(0))", f"{X}.amax(np.int32(0))", f"{X}.all(np.int64(1))", f"{X}.sum([])",
    f"{X}.sum((np.int64(0), 1))", f"{X}.roll(np.int64(1), np.int64(1))", F + "max_pool2d(lib.ones(1, 4, 4), np.int64(2), np.int64(1))",
    F + "avg_pool1d(lib.ones(1, 4), 2, np.int64(1))", f"{X}.repeat(np.int64(2), 1)", "lib.tensor(2.0).sum(-1)", "lib.tensor(2.0).sum(())",
    "lib.zeros(())", "lib.tensor([2.0]).view(())", F + "multi_margin_loss(lib.tensor(2.0), lib.tensor(0))",
    F + "multilabel_margin_loss(lib.tensor(2.0), lib.tensor(0))",
    F + "max_pool1d(lib.arange(5.0).view(1, 5), 10 ** 9, ceil_mode=True)", F + "avg_pool2d(lib.ones(1, 5, 5), 7, ceil_mode=True)",
)


@pytest.mark.parametrize("call", RIGHT)
def test_odd_input_is_taken(call):
    ours = eval(call, {"lib": tritorch, "np": np})
    if pytorch is not None:
        theirs = eval(call, {"lib": pytorch, "np": np})
        assert tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_an_error_of_another_keeps_its_type():
    """An AttributeError of a user's module, though it is about an argument, is theirs."""
    class Mine(tritorch.nn.Module):
        def forward(self, x):
            return x.nonsense

    with pytest.raises(AttributeError, match="nonsense"):
        tritorch.nn.Sequential(Mine())([1])


def test_an_error_of_another_keeps_its_cause():
    class Mine(tritorch.nn.Module):
        def forward(self, x):
            try:
                return {}[x]
            except KeyError as error:
                raise AttributeError("no such field") from error

    with pytest.raises(AttributeError, match="no such field") as raised:
        tritorch.nn.Sequential(Mine())(1)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("of", ["dtype", "gradient", "inference"])
def test_a_refused_destination_keeps_its_shape(of):
    """An empty out= takes the shape of the result only where the result is written."""
    x, out = tritorch.ones(2, 3), tritorch.empty(0)
    if of == "dtype":
        out = tritorch.empty(0, dtype=tritorch.int64)
    elif of == "gradient":
        out.requires_grad_()
    else:
        with tritorch.inference_mode():
            out = tritorch.empty(0)
    with pytest.raises(RuntimeError):
        tritorch.add(x, x, out=out)
    assert out.shape == (0,)
