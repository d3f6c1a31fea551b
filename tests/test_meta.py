"""The device meta: tensors with all but memory. What their operators promise is in the cards (test_ops.py, `promises`)."""
import copy
import math
import pickle
import warnings

import pytest

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F

NO_VALUES = "expected a tensor that has values, got one on meta"


def meta(*shape, **options):
    return torch.empty(shape, device="meta", **options)


def facts(tree):
    """What can be seen of results without their values."""
    if isinstance(tree, torch.Tensor):
        return tuple(tree.shape), tree.dtype, tree.stride(), tree.requires_grad
    return [facts(x) for x in tree] if isinstance(tree, (tuple, list)) else tree


# ------------------------------------------------------------------ tensors
FACTORIES = {
    "empty": (2, 3), "zeros": (2,), "ones": (2,), "full": ((2,), 3.0), "rand": (2,), "randn": (2,), "randint": (5, (2,)),
    "randperm": (4,), "arange": (5,), "linspace": (0, 1, 5), "logspace": (0, 1, 5), "eye": (3,), "tensor": ([1, 2],), "as_tensor": ([1.0],),
    "asarray": ([1],), "scalar_tensor": (2.0,), "tril_indices": (3, 3), "triu_indices": (3, 3), "hann_window": (5,), "kaiser_window": (5,),
    "empty_strided": ((2, 3), (1, 2)), "empty_permuted": ((2, 3), (1, 0)), "normal": (0.0, 1.0, (2,)), "fft.fftfreq": (4,)}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name):
    module, _, function = name.rpartition(".")
    make = getattr(getattr(torch, module) if module else torch, function)
    here, there = make(*FACTORIES[name]), make(*FACTORIES[name], device="meta")
    assert there.is_meta and not here.is_meta and facts(there) == facts(here)
    with torch.device("meta"):
        assert make(*FACTORIES[name]).is_meta


def test_like_and_new():
    x = torch.ones(2, 3, dtype=torch.float64).t()
    for fn in (torch.empty_like, torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like):
        y = fn(x, device="meta")
        assert y.is_meta and facts(y) == facts(x)
    for y in (x.to("meta").new_zeros(2), x.new_ones(2, device="meta"), x.to("meta").new_tensor([1]), x.to("meta").new_full((2,), 1)):
        assert y.is_meta and y.dtype is torch.float64


def test_default_device():
    torch.set_default_device("meta")
    try:
        assert torch.get_default_device() == torch.device("meta") and nn.Linear(2, 3).weight.is_meta
        assert torch.tensor([1.0], device="cpu").is_cpu
    finally:
        torch.set_default_device(None)
    assert torch.device("meta", 1).index == 1 and torch.empty(1, device="meta:1").device == torch.device("meta")


def test_what_it_is():
    x = meta(2, 3, dtype=torch.float16)
    assert x.is_meta and not x.is_cpu and not x.is_cuda and x.get_device() == -1 and x.data_ptr() == 0
    assert x.type() == "tritorch.meta.HalfTensor" and x.nbytes == x.untyped_storage().nbytes() == 12
    assert not x.is_shared() and not x.is_pinned()
    assert meta(10**6, 10**6).sum(0).shape == (10**6,)                   # 4 TB


def test_looks():
    assert repr(meta(2, 3)) == f"{meta(2, 3)}" == "tensor(..., device='meta', size=(2, 3))"
    assert repr(meta(dtype=torch.int64)) == "tensor(..., device='meta', size=(), dtype=tritorch.int64)"
    assert repr(meta(2, requires_grad=True) * 2) == "tensor(..., device='meta', size=(2,), grad_fn=<MulBackward0>)"
    assert repr(nn.Parameter(meta(0))) == "Parameter containing:\ntensor(..., device='meta', size=(0,), requires_grad=True)"


LOOKS = {
    "item": lambda x: x[0].item(), "bool": lambda x: bool(x[0]), "float": lambda x: float(x[0]), "int": lambda x: int(x[0]),
    "tolist": lambda x: x.tolist(), "nonzero": lambda x: x.nonzero(), "mask": lambda x: x[x > 0], "where": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0), "unique": lambda x: x.unique(), "bincount": lambda x: x.long().bincount(),
    "equal": lambda x: torch.equal(x, x), "allclose": lambda x: torch.allclose(x, x), "one_hot": lambda x: F.one_hot(x.long()),
    "index": lambda x: torch.ones(3)[x[0].long()], "size": lambda x: torch.zeros(x[0].long()), "max": lambda x: max(x),
    "repeats": lambda x: torch.repeat_interleave(x, x.long()), "cpu": lambda x: x.cpu(), "copy": lambda x: torch.ones(3).copy_(x),
    "format": lambda x: f"{torch.tensor([x[0], x[1]])}"}


@pytest.mark.parametrize("name", LOOKS)
def test_values_are_not_there(name):
    with pytest.raises(NotImplementedError, match=NO_VALUES):
        LOOKS[name](meta(3))


def test_ways_out_that_do_not_exist():
    with pytest.raises(NotImplementedError, match=r"use to_empty\(\)"):
        nn.Linear(2, 3, device="meta").to("cpu")
    with pytest.raises(TypeError, match="expected a CPU tensor, got one on meta"):
        meta(2).numpy()
    with pytest.raises(BufferError):
        meta(2).__dlpack__()
    assert not hasattr(meta(2), "__cuda_array_interface__")
    with pytest.raises(RuntimeError, match="share_memory_"):
        meta(2).share_memory_()
    with pytest.raises(RuntimeError, match="Generator"):
        torch.Generator(device="meta")


def test_devices_do_not_mix():
    x, y = meta(2, 3), torch.ones(2, 3)
    for call in (lambda: x + y, lambda: y + x, lambda: y + x[0, 0], lambda: torch.cat([x, y]), lambda: x @ y.t(),
                 lambda: torch.where(y > 0, x, x), lambda: F.embedding(torch.tensor([1]), x), lambda: y[meta(2, dtype=torch.int64)],
                 lambda: F.linear(y, x), lambda: x.add_(y), lambda: torch.sum(x, 0, out=torch.empty(3)), lambda: torch.lerp(x, x, y)):
        with pytest.raises(RuntimeError, match="(one device|destination on meta)"):
            call()
    one = torch.tensor(2.0)
    assert (x + one).is_meta and (one * x).is_meta and torch.clamp(x, one, one).is_meta and x.fill_(one) is x
    assert x[torch.tensor([1, 0])].shape == (2, 3) and x.copy_(y) is x and y.to("meta").is_meta      # indices come along, copies cross


def test_in_place_and_out():
    x, out = meta(2, 3), meta(0)
    base, version = meta(4, 3), x._version
    assert x.add_(1).mul_(x).zero_().relu_() is x and x._version == version + 4
    assert torch.add(x, x, out=out) is out and out.shape == (2, 3)
    base[1:3] += x
    base[0] = 1.0
    base[:, 1] = torch.tensor(2.0)
    assert base._version >= 3 and base[1:3]._base is base
    with pytest.raises(RuntimeError, match="2, 3"):
        x.add_(meta(3, 2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y = meta(3, requires_grad=True).exp()
        y.mul_(2)
        y.sum().backward()


def test_writes_under_a_mask():
    """How many places a mask has shows in no shape, if one writes there; what is written may tell."""
    x, w = meta(4, 3, requires_grad=True), meta(5, 3, requires_grad=True)
    y, mask = x * 1, meta(4, 3, dtype=torch.bool)
    y[mask] = 1.0
    y[mask] = meta(7)
    y[mask[:, 0]] = w
    y[mask[:, 0], 1] = 2.0
    y = y.index_put((mask,), meta()).masked_scatter(mask, meta(12)).masked_fill(mask, 0)
    y.sum().backward()
    assert y.shape == (4, 3) and x.grad.shape == (4, 3) and w.grad.shape == (5, 3)


def test_random_numbers_are_not_drawn():
    own = torch.Generator()
    before = torch.get_rng_state(), own.get_state()
    x = torch.randn(5, device="meta", generator=own).normal_(generator=own).uniform_().bernoulli_(0.5).exponential_()
    F.dropout(x), torch.randperm(5, device="meta"), torch.bernoulli(x), torch.multinomial(x, 2), nn.init.xavier_uniform_(meta(2, 3))
    assert torch.equal(torch.get_rng_state(), before[0]) and torch.equal(own.get_state(), before[1])


def test_copies_and_pickles():
    x = meta(3, 4, requires_grad=True)
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.copy(x)):
        assert y.is_meta and y is not x and facts(y) == facts(x)
    pair = pickle.loads(pickle.dumps((nn.Parameter(x.detach()), x.detach()[1:].t())))
    assert isinstance(pair[0], nn.Parameter) and pair[1].stride() == (1, 4) and pair[0].untyped_storage().storage is pair[1].storage
    assert x.detach().data.untyped_storage().storage.owner is x.storage.owner


# ------------------------------------------------------------------ functions that are no operators
CALLS = """
x.view(3, 4), x.T, x.unfold(1, 2, 1), x.chunk(2), x.flip(0), x.diagonal(), x.view(torch.int32), x.movedim(0, 1), x.roll(1, 0)
x[:, None], x[..., 0], x[[0, 1]], x[k, k], x[:, k], x.gather(1, k[None, :2]), x.take(k), x.index_fill(0, k, 1), x.index_select(1, k)
x.scatter(0, k[None], x), x.index_add(0, k, x), x.masked_fill(x > 0, 1), x.where(x > 0, 0)
x.index_put((k,), x), x.scatter_add(0, k[None], x)
torch.stack([x, x]), torch.cat([x, x], 1), x.repeat(2, 1), torch.meshgrid(k, k, indexing="ij"), x.tile(2), torch.block_diag(x, x)
x.std(), x.norm(), x.median(1), x.mode(), x.aminmax(), x.logsumexp(0), x.quantile(0.5), torch.cov(x), x.histc(4), x.nansum(), x.prod(0)
x.sort(), x.topk(2), x.kthvalue(1), x.argsort(), x.cummax(0), x.cumprod(0), torch.searchsorted(x[0], x[1]), torch.bucketize(x, x[0])
x @ x.T, torch.einsum("ij,kj->ik", x, x), torch.tensordot(x, x.T, 1), torch.kron(x, x), torch.cdist(x, x), torch.cross(s, s)
torch.fft.rfft2(x), torch.fft.ifft(x), torch.complex(x, x).abs(), torch.polar(x, x).real, x.cfloat().angle(), torch.fft.irfft(x)
x.repeat_interleave(2), x.repeat_interleave(k, 0, output_size=3), torch.diff(x), torch.gradient(x), torch.trapezoid(x), torch.vander(k)
F.cross_entropy(x, k), F.huber_loss(x, x), F.kl_div(x, x), F.binary_cross_entropy_with_logits(x, x)
F.mse_loss(x, x), F.multi_margin_loss(x, k)
F.ctc_loss(i[0], k.repeat(6, 1) + 1, (4,) * 6, (1,) * 6), F.triplet_margin_loss(x, x, x), F.nll_loss(x, k, reduction="none")
F.layer_norm(x, (4,)), F.rms_norm(x, (4,)), F.normalize(x), F.batch_norm(x, None, None, training=True), F.softmax(x, 1), F.group_norm(i, 2)
F.dropout(x), F.dropout2d(i), F.rrelu(x, training=True), F.gumbel_softmax(x), F.glu(x), F.gelu(x), F.alpha_dropout(x), F.hardswish(x)
F.embedding(k, x), F.embedding_bag(k, x, k[:2]), F.embedding_bag(k[None, :2], x, mode="max"), F.one_hot(k, 4)
F.max_pool2d(i, 2, return_indices=True), F.adaptive_avg_pool2d(i, 4), F.max_unpool2d(*F.max_pool2d(i, 2, return_indices=True), 2)
F.lp_pool2d(i, 2, 2), F.adaptive_max_pool2d(i, 3, return_indices=True), F.fractional_max_pool2d(i, 2, output_size=3), F.avg_pool2d(i, 2)
F.interpolate(i, scale_factor=2, mode="bicubic"), F.pixel_shuffle(i, 2), F.pad(i, (1, 1, 2, 0), "reflect"), F.unfold(i, 2)
F.grid_sample(i, i[:, :, :, :2], align_corners=False), F.affine_grid(i[:, 0, :2, :3], (2, 1, 3, 3), align_corners=False)
F.conv2d(i, i, padding=1), F.conv_transpose2d(i, i[:1].transpose(0, 1)), F.conv1d(i[0], i[0, :, :, :3], stride=2)
F.conv2d(i.to(memory_format=torch.channels_last), i[:, :2], groups=2), i.to(memory_format=torch.channels_last) + 1
F.scaled_dot_product_attention(i, i, i, is_causal=True), F.scaled_dot_product_attention(i, i, i, i[0, 0]), F.cosine_similarity(x, x)
torch.istft(torch.stft(x.reshape(-1), 4, window=x[0], return_complex=True), 4, window=x[0])
torch.linalg.inv(s), torch.linalg.solve(s, x), torch.linalg.cholesky(s), torch.linalg.lu(x), torch.linalg.lu_factor(s), torch.linalg.det(s)
torch.linalg.svd(x), torch.linalg.eigh(s), torch.linalg.eig(s), torch.linalg.qr(x), torch.linalg.svdvals(x), torch.svd_lowrank(x, 2)
torch.linalg.pinv(x), torch.linalg.matrix_rank(x), torch.linalg.cond(x), torch.linalg.matrix_exp(s), torch.linalg.matrix_norm(x, "nuc")
torch.linalg.lstsq(s, x), torch.linalg.lstsq(x.T, x[:, :1].T.repeat(4, 1), driver="gels"), torch.linalg.svdvals(s.cfloat())
torch.linspace(x[0, 0], x[0, 1], 4, device=x.device), torch.logspace(x[0, 0], 1, 3, device=x.device)
torch.linalg.slogdet(s), torch.linalg.matrix_power(s, 3), torch.linalg.multi_dot([s, s, x]), torch.linalg.vector_norm(x, 3)
torch.segment_reduce(x, "sum", lengths=k), torch.bernoulli(x), torch.multinomial(x, 2), torch.normal(x, x), torch.poisson(x)
torch.func.vmap(torch.sum)(x), torch.func.grad(lambda v: (v * v).sum())(x)
torch.func.jvp(torch.sin, (x,), (x,)), torch.func.jacrev(torch.sin)(x)
torch._foreach_add([x, x], 1), torch._foreach_norm([x]), torch._foreach_mul([x], [x]), nn.utils.parameters_to_vector([x, k.float()])
torch.utils.checkpoint.checkpoint(torch.sin, x.clone().requires_grad_(), use_reentrant=False)
torch.nn.utils.rnn.pack_padded_sequence(i[0], torch.tensor([6, 5, 5, 1]), batch_first=True).data
""".strip().splitlines()


@pytest.mark.parametrize("call", CALLS)
def test_calls(call):
    """Shapes, dtypes and strides are those on the CPU."""
    values = torch.linspace(0.1, 1, 12).view(3, 4), torch.tensor([0, 1, 2]), torch.ones(2, 4, 6, 6), torch.eye(3) * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here, there = [facts(eval(call, {**globals(), **dict(zip("xkis", [v.to(where) for v in values]))})) for where in ("cpu", "meta")]
    assert there == here


def test_assertions():
    torch.testing.assert_close(meta(2), meta(2))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(meta(2), meta(3))
    torch._assert_async(meta())


# ------------------------------------------------------------------ beside a GPU
def test_beside_cuda(cuda):
    x = torch.ones(2, 3, device=cuda)
    for _ in range(3):                                                   # calls on CUDA are repeated by what they were given
        y = x.to("meta")
        assert y.is_meta and (y + 1).is_meta and torch.arange(3, device="meta").is_meta and torch.empty_like(x, device="meta").is_meta
        assert (x + 1).sum().item() == 12.0 and y.copy_(x) is y
    for call in (lambda: x + y, lambda: y + x, lambda: x + y[0, 0], lambda: y + x[0, 0]):
        with pytest.raises(RuntimeError, match="one device"):
            call()
    for call in (lambda: y.to(cuda), lambda: x.copy_(y)):
        with pytest.raises(NotImplementedError, match=NO_VALUES):
            call()
    layer = nn.Linear(3, 2, device="meta").to_empty(device=cuda)
    assert layer.weight.device == cuda and layer.to("meta").weight.is_meta and math.prod(layer.weight.shape) == 6


# ------------------------------------------------------------------ what cards refuse
OF_VALUES = ("indices", "class indices", "offsets", "negative numbers")      # what only values show


def test_cards_refuse_on_meta_what_they_refuse():
    from tritorch.testing.samples import Maker, describe, leaves

    for op in torch.dispatch.registry.values():
        for args, keywords, kind, words in op.errors_body(Maker()) if op.errors_body else ():
            try:
                op(*leaves(list(args), torch.device("meta")), **keywords)
            except kind as error:
                assert words in str(error)
            else:
                assert any(name in words for name in OF_VALUES), describe(op, list(args))
