"""Arguments of another kind and operands of other dtypes: PyTorch takes or refuses them by the type of exception that stands here, and what
is refused gets one sentence with the rule and what came, and leaves its operands as they were."""
import numpy as np
import pytest
from test_wrong_input import refused

import tritorch
from tests.both import pytorch

F, X, IMAGE, SEQUENCE = "lib.nn.functional.", "lib.arange(6.0).reshape(2, 3)", "lib.ones(1, 2, 5, 5)", "lib.ones(1, 2, 5)"
ROWS = "lib.tensor([[0.0, 0.5], [1.0, 0.25]])"


def of(dtype, *shape):
    """The source of a tensor of ones."""
    return f"lib.ones({', '.join(map(str, shape))}, dtype=lib.{dtype})"


LAYERS = [                                                               # the constructor and the call, and what the sentence says
    *[(f"AvgPool2d(2, {flag}={value})({IMAGE})", f"AvgPool2d: expected True or False as {flag}, got {value}")
      for flag in ("ceil_mode", "count_include_pad") for value in ("None", "'a'", "1", "(0, 0)")],
    (f"MaxPool1d(2, ceil_mode='no')({SEQUENCE})", "True or False as ceil_mode, got 'no'"),
    ("LSTM(2, 3, bidirectional=1)(lib.ones(1, 1, 2))", "LSTM: expected True or False as bidirectional, got 1"),
    (f"KLDivLoss(log_target='a')({X}, {X})", "KLDivLoss: expected True or False as log_target, got 'a'"),
    (f"PoissonNLLLoss(log_input=2)({X}, {X})", "True or False as log_input, got 2"),
    (f"PoissonNLLLoss(full=2)({X}, {X})", "poisson_nll_loss: expected True or False as full, got 2"),
    (f"TripletMarginLoss(swap='a')({X}, {X} + 1, {X})", "triplet_margin_loss: expected True or False as swap, got 'a'"),
    ("Embedding(3, 2, sparse=None)(lib.tensor([0]))", "Embedding: expected True or False as sparse, got None"),
    *[(f"Conv2d(2, {arguments})({IMAGE})", f"Conv2d: expected {rule}") for arguments, rule in (
        ("'4', 3", "a whole number as out_channels, got '4'"), ("4.0, 3", "a whole number as out_channels, got 4.0"),
        ("4, 3, stride=True", "whole numbers as stride, got True"), ("4, 3, dilation=1.5", "whole numbers as dilation, got 1.5"),
        ("True, 3", "a whole number as out_channels, got True"), ("4, [3.0, 3]", "whole numbers as kernel_size, got [3.0, 3]"))],
    ("Linear(3, True)(lib.ones(2, 3))", "Linear: expected a whole number as out_features, got True"),
    (f"LayerNorm(3, eps=(2,))({X})", "LayerNorm: expected a number as eps, got (2,)"),
    (f"BatchNorm1d(3, momentum=(0.1,))({X})", "BatchNorm1d: expected a number as momentum, got (0.1,)"),
    (f"InstanceNorm1d(2, momentum='a')({SEQUENCE})", "InstanceNorm1d: expected a number as momentum, got 'a'"),
    (f"PoissonNLLLoss(eps=[1])({X}, {X})", "PoissonNLLLoss: expected a number as eps, got [1]"),
    (f"Threshold(0.1, (1,))({X})", "Threshold: expected a number as value, got (1,)"),
    (f"PixelShuffle(True)({IMAGE})", "PixelShuffle: expected a whole number as upscale_factor, got True"),
    ("GRU(2, 3, num_layers=True)(lib.ones(1, 1, 2))", "GRU: expected a whole number as num_layers, got True"),
    (f"Upsample(1.5)({IMAGE})", "Upsample: expected whole numbers as size, got 1.5"),
    (f"LocalResponseNorm(True)({IMAGE})", "LocalResponseNorm: expected whole numbers as size, got True"),
    (f"CrossEntropyLoss(ignore_index=1.5)({X}, lib.tensor([0, 1]))", "a whole number as ignore_index, got 1.5"),
    (f"Flatten(True)({X})", "Flatten: expected whole numbers as start_dim, got True"),
    ("Conv1d(2, 2 ** 70, 3)(lib.ones(1, 2, 5))", "Conv1d: expected a number of 64 bits as out_channels"),
]
FUNCTIONS = [                                                            # TypeErrors
    *[(f"{F}interpolate({SEQUENCE}, size={size})", "interpolate: expected whole numbers as size") for size in ("(4.0,)", "4.5")],
    (f"{F}interpolate({SEQUENCE}, size=(lib.tensor(4.0),))", "interpolate: expected whole numbers as size"),
    *[(f"lib.{name}(None{rest})", f"{name}: expected a tensor as input, got NoneType") for name, rest in (
        ("sort", ""), ("median", ""), ("chunk", ", 2"), ("flatten", ""), ("unbind", ""), ("roll", ", 1"), ("narrow", ", 0, 0, 1"),
        ("diag", ""), ("movedim", ", 0, 1"), ("tile", ", (2,)"), ("bernoulli", ""), ("multinomial", ", 1"), ("bincount", ""),
        ("nan_to_num", ""), ("clamp", ", 0, 1"), ("quantile", ", 0.5"), ("mm", f", {X}"), ("unflatten", ", 0, (1, 2)"))],
    (f"lib.mm({X}, [1, 2])", "mm: expected a tensor as mat2, got list"),
    ("lib.cdist(None, lib.ones(2, 2))", "cdist: expected a tensor as x1, got NoneType"),
    (f"lib.einsum('ij,jk', {X}, None)", "einsum: expected tensors as args, got NoneType"),
    (f"lib.where(None, {X}, {X})", "where: expected a tensor as condition, got NoneType"),
    (f"{X}.masked_fill(None, 1.0)", "masked_fill: expected a tensor as mask, got NoneType"),
    ("lib.cat(None)", "cat: expected a sequence of tensors, got NoneType"),
    (f"lib.stack([{X}, None])", "expected tensors as tensors, got NoneType"),
    *[(f"{X}.{call}", f"{name}: expected a tensor as index, got NoneType") for name, call in (
        ("gather", "gather(0, None)"), ("index_select", "index_select(0, None)"), ("index_add", f"index_add(0, None, {X})"))],
    (f"{X}.clamp('a')", "clamp: expected a number or a tensor as min, got 'a'"),
    (f"{X}.clamp_(0, ())", "a number or a tensor as max, got ()"),
    (f"{X}.fill_('a')", "fill: expected a number as value, got 'a'"), (f"{X}.fill_(None)", "a number as value, got None"),
    ("lib.full((2,), None)", "a number as value, got None"), ("lib.full((2,), [1.0])", "a number as value, got [1.0]"),
    ("lib.arange(0, 'a')", "arange: expected a number or a tensor as end, got 'a'"),
    (f"{X}.size('a')", "size: expected an int as dim, got 'a'"),
    (f"{X}.cumsum(1.0)", "cumsum: expected an int as dim, got 1.0"), (f"{X}.softmax(True)", "softmax: expected an int as dim, got True"),
    (f"lib.topk({X}, 'a')", "topk: expected a whole number as k, got 'a'"),
    (f"lib.topk({X}, 1, largest=1)", "True or False as largest, got 1"),
    (f"lib.sort({X}, descending=1)", "sort: expected True or False as descending, got 1"),
    (f"{X}.sum(0, keepdim=1)", "True or False as keepdim"),
    (f"{X}.amax(0, keepdim='a')", "amax: expected True or False as keepdim, got 'a'"),
    (f"lib.kthvalue({X}, 1, keepdim=())", "kthvalue: expected True or False as keepdim, got ()"),
    ("lib.multinomial(lib.ones(3), 1, replacement=1)", "True or False as replacement, got 1"),
    (F + f"avg_pool2d({IMAGE}, 2, ceil_mode=1)", "avg_pool2d: expected True or False as ceil_mode, got 1"),
    (F + f"avg_pool1d({SEQUENCE}, 2, count_include_pad='a')", "avg_pool1d: expected True or False as count_include_pad, got 'a'"),
    (F + f"kl_div({X}, {X}, log_target=1)", "kl_div: expected True or False as log_target, got 1"),
    (F + f"gelu({X}, approximate=True)", "gelu: expected approximate 'none' or 'tanh', got True"),
    (F + f"pad({IMAGE}, (1, 1), mode=1)", "pad: expected mode"), ("lib.nn.init.normal_(None)", "expected a tensor as tensor, got NoneType"),
    ("lib.nn.utils.clip_grad_norm_(None, 1.0)", "clip_grad_norm_: expected tensors as parameters, got NoneType"),
    *[(call, "expected a tensor as other, got int") for call in (
        f"lib.maximum({X}, 2)", f"lib.minimum({X}, 2)", f"lib.fmax({X}, 2)", f"lib.atan2({X}, 2)", f"lib.hypot({X}, 2)",
         f"lib.logaddexp({X}, 2)",
        f"lib.logical_and({X}, 2)", "lib.gcd(lib.tensor([4]), 2)", f"lib.heaviside({X}, 2)", f"lib.nextafter({X}, 2)", f"lib.equal({X}, 2)",
        f"{X}.atan2_(2)")],
    *[(call, "expected a tensor as input, got int") for call in (
        f"lib.eq(2, {X})", f"lib.lt(2, {X})", f"lib.fmod(2, {X})", f"lib.copysign(2, {X})", f"lib.ldexp(2, {X})")],
]
INDEX = {"index_copy": RuntimeError, "index_fill": IndexError}
DTYPES = [                                                               # (call, exception, part of the sentence)
    *[(F + call, RuntimeError, words) for call, words in (
        (f"prelu({X}, {of('float64', 1)})", "weights of tritorch.float32, got tritorch.float64"),
        (f"cross_entropy({X}, lib.tensor([0, 1]), {of('float64', 3)})", "cross_entropy: expected weights of tritorch.float32"),
        (f"nll_loss({X}, lib.tensor([0, 1]), {of('int64', 3)})", "nll_loss: expected weights of tritorch.float32, got tritorch.int64"),
        (f"layer_norm({X}, (3,), {of('float64', 3)})", "layer_norm: expected parameters of tritorch.float32, got tritorch.float64"),
        (f"layer_norm({X}, (3,), {of('float16', 3)}, {of('float16', 3)})", "parameters of tritorch.float32, got tritorch.float16"),
        (f"group_norm({IMAGE}, 1, {of('float64', 2)})", "group_norm: expected parameters of tritorch.float32, got tritorch.float64"),
        (f"batch_norm({X}, {of('float64', 3)}, {of('float64', 3)})", "batch_norm: expected parameters of tritorch.float32"),
        (f"instance_norm({SEQUENCE}, weight={of('float16', 2)})", "parameters of tritorch.float32, got tritorch.float16"),
        (f"kl_div({X}, {of('int64', 2, 3)})", "kl_div: expected an input and a target of floating dtypes"),
        (f"binary_cross_entropy({ROWS}, {of('float64', 2, 2)})",
         "input and target of one dtype, got tritorch.float32 and tritorch.float64"),
        (f"binary_cross_entropy_with_logits({X}, {of('int64', 2, 3)})", "targets of a floating dtype, got tritorch.int64"),
        (f"hinge_embedding_loss({of('int64', 2, 3)}, {X})", "an input of a floating dtype, got tritorch.int64"),
        (f"huber_loss({of('int64', 2, 3)}, {X})", "huber_loss: expected an input of a floating dtype"),
        (f"soft_margin_loss({of('int64', 2, 3)}, {X})", "soft_margin_loss: expected an input of a floating dtype"),
        (f"l1_loss({X}, {of('bool', 2, 3)})", "sub: expected numbers"),
        (f"multi_margin_loss({X}, {of('int32', 2)})", "class indices of int64, got tritorch.int32"),
        (f"multilabel_margin_loss({X}, {of('int32', 2, 3)})", "class indices of int64, got tritorch.int32"),
        (f"grid_sample({of('float32', 1, 1, 3, 3)}, {of('float64', 1, 2, 2, 2)})", "an image and a grid of one dtype"),
        (f"hardtanh({of('uint8', 3)})", "hardtanh: expected a min_val of 0 or more for what has no sign"),
        (f"conv_transpose2d({of('bfloat16', 1, 2, 3, 3)}, {of('bfloat16', 2, 1, 2, 2)}, {of('float32', 1)})",
         "elements of tritorch.bfloat16")
    )],
    *[(F + call, NotImplementedError, words) for call, words in (
        (f"prelu({of('int64', 3)}, {of('int64', 1)})", "prelu: expected a floating dtype"),
        (f"rms_norm({of('int64', 3)}, (3,))", "rms_norm: expected a floating dtype, got tritorch.int64"),
        (f"smooth_l1_loss({of('int64', 3)}, {of('int64', 3)})", "smooth_l1_loss: expected a floating dtype"),
        (f"binary_cross_entropy({of('bool', 3)}, {of('bool', 3)})", "binary_cross_entropy: expected a floating dtype"))],
    *[(f"lib.{name}({X}, {of('float64', 2, 3)})", RuntimeError, "dtype, got tritorch.float32 and tritorch.float64")
      for name in ("heaviside", "cross", "cdist")],
    (f"lib.quantile({X}, {of('float64', 2)})", RuntimeError, "q of tritorch.float32, got tritorch.float64"),
    (f"lib.isin({X}, {of('bool', 2)})", RuntimeError, "isin: expected numbers, got tritorch.bool"),
    (f"lib.norm({of('float64', 3)}, dtype=lib.float32)", RuntimeError, "can be cast to without loss, got tritorch.float32"),
    (f"lib.addr({of('int64', 2, 2)}, {of('int64', 2)}, {of('int64', 2)}, beta=1.5)", RuntimeError, "a whole beta and alpha for integers"),
    *[(f"{X}.{name}(0, {of(kind, 1)}, {'1.0' if 'fill' in name else of('float32', 1, 3)})", error, f"{name}: expected an index of int64")
      for name, error in INDEX.items() for kind in ("int32", "float32")],
    (f"{X}.take({of('int32', 2)})", RuntimeError, "take: expected an index of int64, got tritorch.int32"),
    (f"{X}.put_({of('int32', 1)}, {of('float32', 1)})", RuntimeError, "put: expected an index of int64"),
    *[(f"lib.take_along_dim({X}, {of(kind, 1, 3)}, 0)", RuntimeError, "take_along_dim: expected an index of int64")
      for kind in ("float32", "int32", "bool")],
    *[(f"lib.{call}, out=lib.empty({size}, dtype=lib.float64))", RuntimeError, "a destination of tritorch.") for call, size in (
        (f"abs({X}", "2, 3"), (f"amax({X}, 0", 3), (f"argmax({X}, 0", 3), (f"all({X}, 0", 3), (f"softmax({X}, 0", "2, 3"),
        (f"tril({X}", "2, 3"), (f"clamp({X}, 0, 1", "2, 3"), (f"where({X} > 0, {X}, {X}", "2, 3"), (f"matmul({X}, {X}.T", "2, 2"),
        (f"index_select({X}, 0, lib.tensor([0])", "1, 3"), (f"gather({X}, 0, lib.tensor([[0, 0, 0]])", "1, 3"))],
    ("lib.nn.functional.conv_transpose1d(lib.ones(2, 4, 0), lib.ones(4, 4, 3))", RuntimeError, "an image and a result that are not empty"),
    (F + "conv3d(lib.ones(1, 2, 4, 4, 4), lib.ones(2, 2, 2, 2, 2), padding=2 ** 20)", RuntimeError, "a result of fewer than 2⁴⁶ elements"),
    *[(f"bool({X})", RuntimeError, "bool: expected a tensor of 1 element, got 6 elements; use x.any() or x.all()")],
]


@pytest.mark.parametrize("call, words", LAYERS)
def test_layers_say_what_is_of_the_wrong_kind(call, words):
    refused("lib.nn." + call, TypeError, words)


@pytest.mark.parametrize("call, words", FUNCTIONS)
def test_functions_say_what_is_of_the_wrong_kind(call, words):
    refused(call, (TypeError, AttributeError) if ".init." in call else TypeError, words)


@pytest.mark.parametrize("call, kind, words", DTYPES)
def test_dtypes_that_do_not_go_together(call, kind, words):
    refused(call, kind, words)


MADE = [                                                                 # (call, dtype of what PyTorch gives)
    (F + f"huber_loss({of('float16', 3)}, {X}[0])", "float16"), (F + f"huber_loss({X}, {of('float64', 2, 3)})", "float32"),
    (F + f"huber_loss({X}, {of('bool', 2, 3)})", "float32"), (F + f"mse_loss({X}, {of('bool', 2, 3)})", "float32"),
    (F + f"smooth_l1_loss({of('bool', 2, 3)}, {X})", "float32"), (F + f"soft_margin_loss({of('float16', 3)}, {X}[0])", "float16"),
    (F + f"soft_margin_loss({X}, {of('bool', 2, 3)})", "float32"),
    (F + f"binary_cross_entropy_with_logits({of('float64', 3)}, {X}[0])", "float32"),
    (F + f"binary_cross_entropy_with_logits({X}[0], {of('bfloat16', 3)})", "bfloat16"),
    (F + f"binary_cross_entropy_with_logits({X}, {X}, {of('float64', 2, 3)})", "float32"),
    (F + f"binary_cross_entropy({ROWS}, {ROWS}, {of('float64', 2, 2)})", "float32"),
    (F + f"cosine_similarity({X}, {of('int64', 2, 3)})", "float32"), (F + f"cosine_similarity({of('bool', 2, 3)}, {X})", "float32"),
    (F + f"margin_ranking_loss({of('int64', 3)}, {of('int64', 3)}, {of('int64', 3)})", "float32"),
    (F + f"margin_ranking_loss({X}, {X}, {of('float32', 2, 3)}, margin=True)", "float32"),
    (F + f"layer_norm({of('bfloat16', 2, 3)}, (3,), {of('float32', 3)}, {of('float32', 3)})", "bfloat16"),
    (F + f"batch_norm({of('float16', 2, 3)}, {of('float32', 3)}, {of('float32', 3)})", "float16"),
    (F + f"hardtanh({X}, float('nan'))", "float32"), (F + f"hardtanh({of('int64', 3)})", "int64"),
    (f"lib.nextafter({of('bfloat16', 2)}, {of('bfloat16', 2)} * 2)", "bfloat16"),
    (f"lib.put({X}, lib.tensor([1]), lib.tensor([9.0]))", "float32"),
    (f"{X}.put(lib.tensor([1, 1]), lib.ones(2), accumulate=True)", "float32"),
    (f"lib.chunk({X}, np.int64(2), 1)[1]", "float32"),
    (f"lib.nn.AdaptiveAvgPool2d((None, 2))({IMAGE})", "float32"), (f"lib.nn.LocalResponseNorm(2, k=1.5)({IMAGE})", "float32"),
    (F + "conv_transpose1d(lib.ones(0, 4, 1), lib.ones(4, 4, 1))", "float32"), (f"lib.nn.MSELoss(size_average=0)({X}, {X} + 1)", "float32"),
    (f"lib.nn.L1Loss(reduce=())({X}, {X} + 1)", "float32"),
]


@pytest.mark.parametrize("call, dtype", MADE)
def test_what_is_taken_has_the_dtype_of_pytorch(call, dtype):
    ours = eval(call, {"lib": tritorch, "np": np})
    assert ours.dtype is getattr(tritorch, dtype)
    if pytorch is not None:
        theirs = eval(call, {"lib": pytorch, "np": np})
        assert theirs.dtype is getattr(pytorch, dtype) and tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_allclose(ours.double().numpy(), theirs.double().numpy(), rtol=4e-3 if "float16" in dtype else 1e-5)


@pytest.mark.parametrize("name", ["device", "ndim", "is_cuda"])
def test_what_a_tensor_is_cannot_be_written(name):
    for x in (tritorch.ones(2, 3), tritorch.nn.Parameter(tritorch.ones(2, 3))):
        for value in (getattr(x, name), (6,), tritorch.float64):
            with pytest.raises(AttributeError):
                setattr(x, name, value)
        with pytest.raises(AttributeError):
            delattr(x, name)
        assert x.shape == (2, 3) and x.dtype is tritorch.float32 and x.sum().item() == 6


@pytest.mark.parametrize("write", [
    "x.clamp_('a')", "x.fill_('a')", "x.masked_fill_(None, 1)", "x.index_fill_(0, y.int(), 1.0)", "x.put_(y.int(), y)",
    "x.index_copy_(0, y, x)", "x.add_('a')", "x.index_add_(0, None, x)", "lib.amax(x, 0, out=y.double())", "lib.nn.init.uniform_(x, 'a')",
    "x.atan2_(2)"])
def test_nothing_is_half_done(write):
    x, y = tritorch.arange(6.0).reshape(2, 3), tritorch.ones(3)
    with pytest.raises((TypeError, RuntimeError, IndexError)):
        eval(write, {"lib": tritorch, "x": x, "y": y})
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]] and y.tolist() == [1, 1, 1] and x._version == 0


def test_kernels_with_more_taps_than_results(monkeypatch):
    """On the CPU a convolution walks along whichever are fewer."""
    generator = np.random.default_rng(0)
    x, w = generator.standard_normal((2, 3, 6, 7)), generator.standard_normal((4, 3, 5, 6))
    got = tritorch.nn.functional.conv2d(tritorch.tensor(x), tritorch.tensor(w), stride=(1, 2), padding=(1, 0), dilation=(1, 1)).numpy()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    want = np.stack([np.einsum("nchw,kchw->nk", padded[:, :, p:p + 5, :6], w) for p in range(4)], -1)[..., None]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    image = tritorch.tensor(x, requires_grad=True)
    (tritorch.nn.functional.conv2d(image, tritorch.tensor(w), stride=(1, 2), padding=(1, 0)) * tritorch.tensor(want)).sum().backward()
    slope = np.zeros(padded.shape)
    for p in range(4):
        slope[:, :, p:p + 5, :6] += np.einsum("nk,kchw->nchw", want[:, :, p, 0], w)
    np.testing.assert_allclose(image.grad.numpy(), slope[:, :, 1:-1], rtol=1e-12)
