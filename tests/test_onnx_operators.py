"""Operators as ONNX graphs, at several sizes: numpy's evaluator computes what they do here."""
import math

import pytest
from onnx_cases import drawn, exported, kinds

import tritorch as torch
from tritorch.nn import functional as F

BATCH_TIME = ({0: "batch", 1: "time"},)
X, OTHERS = (drawn(2, 3, 6),), [(drawn(4, 5, 6, seed=1),), (drawn(1, 7, 6, seed=2),)]

MOVED = {
    "cat": lambda x: torch.cat([x, x * 2], 1), "cat of dtypes": lambda x: torch.cat([x, (x > 0).long()], -1),
    "stack": lambda x: torch.stack([x, x + 1], 1), "split": lambda x: torch.split(x, 2, -1), "chunk": lambda x: x.chunk(3, 2),
    "transpose": lambda x: x.transpose(0, 2) + 1, "permute": lambda x: x.permute(2, 0, 1), "movedim": lambda x: x.movedim(0, -1),
    "reshape": lambda x: x.reshape(x.shape[0], -1), "view of products": lambda x: x.view(x.shape[0] * x.shape[1], 6),
    "view": lambda x: x.view(x.shape[0], x.shape[1], 2, 3), "rows by time": lambda x: x.reshape(-1, x.shape[1]),
    "heads": lambda x: x.view(*x.shape[:2], 3, 2).transpose(1, 2).reshape(x.shape[0], 3, -1), "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(-1, (2, 3)), "squeeze": lambda x: x[:, :, :1].squeeze(-1), "unsqueeze": lambda x: x.unsqueeze(1) * 2,
    "expand": lambda x: x[:, :1].expand(-1, x.shape[1], -1) + x, "repeat": lambda x: x.repeat(2, 1, 1), "tile": lambda x: x.tile(1, 2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1), "slice": lambda x: x[:, 1:], "without the last": lambda x: x[:, :-1],
    "the last two": lambda x: x[:, -2:], "every second": lambda x: x[..., ::2], "last": lambda x: x[:, -1], "first": lambda x: x[0],
    "lists": lambda x: x[:, :, [0, -1]], "pairs of places": lambda x: x[torch.arange(x.shape[0]), -1], "None": lambda x: x[..., None, 0],
    "gather": lambda x: x.gather(2, torch.zeros(x.shape[0], x.shape[1], 2, dtype=torch.long)), "unbind": lambda x: x.unbind(2)[1],
    "index_select": lambda x: x.index_select(2, torch.tensor([1, 0])), "narrow": lambda x: x.narrow(2, 1, 3),
    "flip": lambda x: x.flip((0, 2)),
    "roll": lambda x: torch.roll(x, (-1, 2), (1, 2)), "tril": lambda x: x.tril(), "triu": lambda x: torch.triu(x, 1),
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "unfold": lambda x: x.unfold(2, 3, 2), "pad": lambda x: F.pad(x, (1, 2, 3, 0), value=3.0),
    "pad less": lambda x: F.pad(x, (-1, 2)),
    "reflect": lambda x: F.pad(x, (2, 2), mode="reflect"), "circular": lambda x: F.pad(x, (2, 1), mode="circular"),
    "scatter": lambda x: torch.zeros_like(x).scatter(2, torch.zeros_like(x, dtype=torch.long)[..., :1], x),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(2, (x > 0).long(), x), "one_hot": lambda x: F.one_hot(x.argmax(-1), 6).float(),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.unsqueeze(1).repeat(1, 4, 1, 1), 2),
    "index_add": lambda x: x.index_add(2, torch.tensor([0, 0]), x[..., :2]),
    "meshgrid": lambda x: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(x.shape[1]), indexing="ij")[0] + x[..., 0],
}
MADE = {
    "arange": lambda x: x + torch.arange(x.shape[1])[:, None], "arange by two": lambda x: torch.arange(0, x.shape[1], 2).float() * 2,
    "causal": lambda x: x @ x.mT + torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1),
    "zeros": lambda x: torch.cat([x.new_zeros(x.shape[0], 1, 6), x], 1),
    "full of a size": lambda x: torch.full((x.shape[0], 3), x.shape[1]),
    "constants": lambda x: x + torch.tensor([1.0, 2, 3, 4, 5, 6]) + torch.eye(6)[0],
    "tensor of a size": lambda x: x * torch.tensor(x.shape[1]), "by a size": lambda x: x / x.shape[1],
    "by a root": lambda x: x * x.shape[1] ** -0.5,
    "by two sizes": lambda x: x.sum() / x.numel() + x.size(0) * x.size(1), "linspace": lambda x: torch.linspace(0, 1, 6) + x,
    "positions": lambda x: torch.where(torch.arange(x.shape[1])[None, :, None] < 2, x, x * 0), "halves": lambda x: x[:, : x.shape[1] // 2],
}
REDUCED = {
    "sum": lambda x: x.sum((0, 2), keepdim=True), "mean": lambda x: (x.mean(), x.mean(1)), "prod": lambda x: x.prod(-1),
    "amax": lambda x: x.amax((1, 2)),
    "max": lambda x: x.max(1), "min": lambda x: (x.min(), x.min(2, keepdim=True)), "any": lambda x: ((x > 1).any(-1), (x > -9).all()),
    "argmax": lambda x: (x.argmax(-1), x.argmax(1, keepdim=True), x.argmax(), x.argmin(0)),
    "count": lambda x: (torch.count_nonzero(x > 0, -1), (x > 0).sum()),
    "var": lambda x: (x.var(-1), x.var(1, unbiased=False), x.std(), torch.var_mean(x, 1)), "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: (x.norm(dim=-1), x.norm(1, dim=1), torch.linalg.vector_norm(x, 3, dim=1), torch.linalg.norm(x),
                       x.norm(math.inf, dim=2)),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "softmax": lambda x: (x.softmax(1), F.softmax(x, -1, dtype=torch.float64), x.log_softmax(0)),
    "cumsum": lambda x: x.cumsum(1), "cumprod": lambda x: x.cumprod(-1), "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "topk": lambda x: x.topk(2),
    "smallest": lambda x: torch.topk(x, 2, dim=1, largest=False),
    "sort": lambda x: (x.sort(-1), torch.sort(x, 1, descending=True), x.argsort(-1)),
    "median": lambda x: (x.median(-1), x.kthvalue(2)), "nansum": lambda x: torch.where(x > 0, x, math.nan).nansum(-1),
    "diff": lambda x: x.diff(dim=1),
    "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=-1), "cdist": lambda x: torch.cdist(x, x),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0, 1])),
    "einsum": lambda x: (torch.einsum("btd,bsd->bts", x, x), torch.einsum("btd,de->bte", x, torch.ones(6, 4))),
    "bmm": lambda x: torch.bmm(x, x.mT),
    "addmm": lambda x: torch.addmm(torch.ones(4), x[0], torch.ones(6, 4), beta=2, alpha=0.5),
    "baddbmm": lambda x: torch.baddbmm(torch.ones(1), x, x.mT),
    "vectors": lambda x: (x[0] @ torch.ones(6), x[0, 0] @ x[0, 0], torch.outer(x[0, 0], x[0, 1])),
    "tensordot": lambda x: torch.tensordot(x, torch.ones(6, 2), 1),
}
ELEMENTS = {
    "clamp": lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0), x.clamp(min=x.mean(), max=torch.ones(6))),
    "where": lambda x: (torch.where(x > 0, x, 0.0), x.masked_fill(x < 0, -1e9)),
    "casts": lambda x: (x.long(), x.bool(), (x * 3).int().float(), (x > 0).to(x.dtype), x.half().float()),
    "masks": lambda x: (x > 0) & (x < 1) | ~(x > 2) ^ (x != 0),
    "lerp": lambda x: (torch.lerp(x, x * 2, 0.3), torch.addcmul(x, x, x, value=0.5), torch.addcdiv(x, x, x.abs() + 1)),
    "powers": lambda x: (x**2, x**3, 2**x, x.abs() ** 0.5, x.square()),
    "reversed": lambda x: (1 - x, 2 / (x.abs() + 1), x.rsub(1, alpha=2)), "close": lambda x: (torch.isclose(x, x), torch.isclose(x, x + 1)),
    "rounding": lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.frac(), x // 0.7, x % 0.7, torch.fmod(x, 0.7),
                           torch.div(x, 0.7, rounding_mode="trunc")),
    "signs": lambda x: (x.sign(), -x, x.abs(), x.signbit()), "finite": lambda x: (x / 0).nan_to_num(1.0, 2.0, -3.0),
    "tests": lambda x: (torch.isnan(x / 0 * 0), torch.isinf(x / 0), torch.isfinite(x / 0), torch.isposinf(x / 0), torch.isneginf(x / 0)),
    "trigonometry": lambda x: (x.sin(), x.cos(), x.tan(), x.tanh().asin(), x.tanh().acos(), x.atan(), x.sinh(), x.cosh(), x.tanh(),
                               x.asinh(), (x.abs() + 1).acosh(), x.tanh().atanh()),
    "angles": lambda x: (torch.atan2(x, x.flip(-1)), torch.hypot(x, x + 1), x.sinc(), torch.deg2rad(x)),
    "logaddexp": lambda x: torch.logaddexp(x, 2 * x),
    "exponentials": lambda x: (x.exp(), x.exp2(), x.expm1(), (x * 1e-6).expm1() * 1e6, x.sigmoid(), x.erf(), x.erfc(),
                               (x.abs() * 1e-6).log1p() * 1e6),
    "logarithms": lambda x: (x.abs().log(), x.abs().log2(), x.abs().log10(), x.sigmoid().logit(), torch.xlogy(x, x.abs()), x.abs().sqrt(),
                             x.abs().rsqrt(), x.reciprocal()),
    "extremes": lambda x: (torch.maximum(x, -x), torch.minimum(x, -x), torch.fmax(x, -x), torch.fmin(x, x / x.relu())),
    "losses": lambda x: (F.mse_loss(x, x * 2), F.l1_loss(x, x * 2, reduction="none"), F.smooth_l1_loss(x, x * 2), F.huber_loss(x, x * 2)),
    "entropies": lambda x: (F.binary_cross_entropy_with_logits(x, (x > 0).float()),
                            F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="sum"),
                            F.cross_entropy(x.flatten(0, 1), x.flatten(0, 1).argmin(-1), label_smoothing=0.1)),
    "embedding": lambda x: F.embedding((x > 0).long(), torch.arange(12.0).view(2, 6)),
    "bags": lambda x: F.embedding_bag((x[0] > 0).long(), torch.arange(12.0).view(2, 6)),
}


def written_whole(x):
    return (x * 1).add_(1).mul_(2).clamp_(max=3)


def written_parts(x):
    y = x.clone()
    y[:, 0] = 0
    y[..., 1:3] += 1
    y[y < -1] = 0
    y[:, [0, 1], -1] = 5.0
    return y


def written_views(x):
    y = torch.zeros(x.shape[0], x.shape[1], 6)
    v = y.transpose(0, 1)
    v.add_(1)
    y.view(-1)[0] = 7
    y[:, :, ::2] = x[:, :, ::2]
    y.unsqueeze(1).squeeze(1).mul_(2)
    return y, v


def written_unset(x):
    y = torch.empty(x.shape)
    y[:, :-1] = x[:, 1:]
    y[:, -1] = 5
    return y, torch.empty_like(x).copy_(x[:, :1]), x.new_empty(x.shape[0], 2).fill_(x.shape[1])


WRITTEN = {f.__name__: f for f in (written_whole, written_parts, written_views, written_unset)}
CASES = {**MOVED, **MADE, **REDUCED, **ELEMENTS, **WRITTEN}


@pytest.mark.parametrize("name", CASES)
def test_operators(name):
    exported(CASES[name], X, BATCH_TIME, OTHERS)


def integers(x):
    return (x + 2, x * 3 - x, x // 2, x % 3, torch.fmod(x, 3), x / 2, x & 3, x | 1, x ^ 5, ~x, x * 2.5 + (x == 1), x.clamp(-1, 4), x.sum(),
            x.float().mean(), x.abs(), x >= 0,
            torch.div(x, 2, rounding_mode="trunc"), x.max(-1), x.sort(-1), x.bool() | (x > 2), torch.where(x > 0, x, -1), x.to(torch.uint8),
            x.cumsum(-1))


def test_integers():
    exported(integers, (drawn(4, 5, low=-9, high=9),), ({0: "rows"},), [(drawn(7, 5, low=-9, high=9),)])


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 4e-3), (torch.float64, 1e-12)])
def test_dtypes(dtype, tolerance):
    layer = torch.nn.Linear(6, 3).to(dtype)
    exported(lambda x: (layer(x) * 2 + 1).softmax(-1).float(), (drawn(4, 6).to(dtype),), tolerance=tolerance)


def test_bfloat16():
    graph = torch.onnx.export(torch.nn.Linear(6, 3).bfloat16().eval(), (drawn(4, 6).bfloat16(),)).model_proto.graph
    assert {x.data_type for x in graph.initializer} == {16} and graph.output[0].type.tensor_type.elem_type == 16


def test_what_is_not_asked_for_is_left_out():
    assert kinds(exported(lambda x: torch.var_mean(x, 1)[1], X)) == {"ReduceMean": 1}
