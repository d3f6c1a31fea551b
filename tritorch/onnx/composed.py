"""Operators that are noted as others: what is fused here, in the operators that ONNX has. A card's own `formula` does the same."""
from tritorch.dispatch import registry
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.onnx.rules import RULES
from tritorch.ops import loss_terms
from tritorch.ops.compare import where
from tritorch.ops.create import arange, full_like
from tritorch.ops.feed_forward import ACTIVATIONS

COMPOSED = {}


def composed(*names):
    def enter(f):
        COMPOSED.update(dict.fromkeys(names, f))
        return f

    return enter


def instead(op):
    """What runs in the place of an operator without a rule, or None."""
    name = op.__name__
    return None if name in RULES else COMPOSED.get(name, op.formula_body)


# ------------------------------------------------------------------ losses
composed("mse_terms")(lambda x, y: (x - y).square())
composed("l1_terms")(lambda x, y: (x - y).abs())


@composed("smooth_l1_terms")
def smooth_l1_terms(x, y, beta):
    apart = (x - y).abs()
    return where(apart < beta, apart.square() * (0.5 / beta), apart - 0.5 * beta)


@composed("huber_terms")
def huber_terms(x, y, delta):
    apart = (x - y).abs()
    return where(apart <= delta, apart.square() * 0.5, (apart - 0.5 * delta) * delta)


@composed("binary_cross_entropy_terms")
def chance_terms(x, y):
    return -(y * x.log().clamp(min=-100.0) + (1 - y) * (1 - x).log().clamp(min=-100.0))


@composed("loss_of_all")
def loss_of_all(x, y, kind, bend, mean):
    terms = loss_terms.each(kind, x, y, bend)
    return terms.mean() if mean else terms.sum()


@composed("nll_rows")
def nll_rows(input, target, weight=None, ignore_index=-100):
    """-w_t · x_t of every sample, and w_t."""
    dim = min(1, input.ndim - 1)
    known = target != ignore_index
    place = where(known, target, 0).to(types.int64)
    chosen = input.gather(dim, place.unsqueeze(dim)).squeeze(dim)
    share = known.to(chosen.dtype) if weight is None else weight[place] * known
    return -share * chosen, share


@composed("cross_entropy_rows")
def cross_entropy_rows(input, target, weight=None, ignore_index=-100, label_smoothing=0.0):
    """(1 - s) · w_t · (lse - x_t) + s / C · Σ w_c · (lse - x_c)."""
    dim = min(1, input.ndim - 1)
    lse = input.logsumexp(dim)
    scores = input - lse.unsqueeze(dim)
    loss, share = nll_rows(scores, target, weight, ignore_index)
    if label_smoothing:
        weighted = scores if weight is None else scores * weight.view(-1, *[1] * (input.ndim - dim - 1))
        smooth = -weighted.sum(dim) * (label_smoothing / input.shape[dim])
        loss = loss * (1 - label_smoothing) + where(target != ignore_index, smooth, 0.0)
    return loss, share, lse


@composed("weighted_mean")
def weighted_mean(loss, target_weight):
    total = target_weight.sum()
    return loss.sum() / total, total


# ------------------------------------------------------------------ layers
@composed("linear_activation")
def linear_activation(input, weight, bias=None, activation="gelu"):
    pre = registry["linear"](input, weight, bias)
    return ACTIVATIONS[activation][0](pre), pre


@composed("feed_forward_layers")
def feed_forward_layers(input, weight1, bias1, weight2, bias2, activation="gelu"):
    hidden, pre = linear_activation(input, weight1, bias1, activation)
    return registry["linear"](hidden, weight2, bias2), hidden, pre


@composed("linear_cross_entropy_rows")
def linear_cross_entropy_rows(input, linear_weight, linear_bias, target, weight=None, ignore_index=-100, label_smoothing=0.0):
    return cross_entropy_rows(registry["linear"](input, linear_weight, linear_bias), target, weight, ignore_index, label_smoothing)


@composed("linear_cross_entropy_sum")
def linear_cross_entropy_sum(input, linear_weight, linear_bias, target, weight=None, ignore_index=-100, label_smoothing=0.0, mean=False,
                             grad_dtype=None):
    loss, share, _ = linear_cross_entropy_rows(input, linear_weight, linear_bias, target, weight, ignore_index, label_smoothing)
    total = share.sum()
    return (loss.sum() / total if mean else loss.sum()), total, input * 0, linear_weight * 0, loss.sum() * 0


@composed("residual_norm")
def residual_norm(input, residual, normalized_shape, weight=None, bias=None, center=True, eps=1e-5, p=0.0, seed=0, offset=0, base=None,
                  input_bias=None):
    total = residual + (input if input_bias is None else input + input_bias)
    if center:
        out, rows = registry["layer_norm_rows"](total, normalized_shape, weight, bias, eps)
        return out, total, rows[0], rows[1]
    out, rstd = registry["rms_norm_rows"](total, normalized_shape, weight, eps)
    return out, total, rstd * 0, rstd


# ------------------------------------------------------------------ others
@composed("close_numbers", "close_or_nan")
def close_numbers(input, other, rtol, atol):
    return (input == other) | ((input - other).abs() <= atol + rtol * abs(other)) & ((input - other).abs() < float("inf"))


@composed("distances")
def distances(x1, x2, p):
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return registry["vector_norm"](apart, p, -1)


@composed("middle")
def middle(input, dim, skip):
    """The lower median of a dim of a fixed size, without a look for NaN."""
    return registry["order_statistic"](input, (input.shape[dim] + 1) // 2, dim)


@composed("middle_of_all")
def middle_of_all(input, skip):
    return middle(input.reshape(-1), 0, skip)[0]


def running(x, dim, join, start):
    """What a running join makes: each element with the one 1, 2, 4, … before it. The size of the dim counts the steps."""
    n, step = x.shape[dim], 1
    while step < n:
        before = full_like(x.narrow(dim, 0, 1), start)
        shifted = registry["concatenated"]((before.expand(*[step if d == dim % x.ndim else -1 for d in range(x.ndim)]),
                                            x.narrow(dim, 0, n - step)), dim, (step, n - step))
        x, step = join(x, shifted), 2 * step
    return x


@composed("cumprod")
def cumprod(input, dim, dtype=None):
    return running(input if dtype is None else input.to(dtype), dim, lambda x, y: x * y, 1)


@composed("logcumsumexp")
def logcumsumexp(input, dim):
    return running(input, dim, lambda x, y: x.logaddexp(y), float("-inf"))


@composed("cummax_pair")
def cummax_pair(input, dim):
    return _reached(input, dim, lambda before, here: before > here)


@composed("cummin_pair")
def cummin_pair(input, dim):
    return _reached(input, dim, lambda before, here: before < here)


def _reached(x, dim, beyond):
    """The best element so far and its index, of equal ones the last: as `running`, with the index beside it."""
    dim = dim % max(x.ndim, 1)
    shape = [-1 if d == dim else 1 for d in range(x.ndim)]
    n, step, places = x.shape[dim] if x.ndim else 1, 1, x.to(types.int64) * 0
    if x.ndim:
        places = places + arange(n, device=x.device).view(shape)
    while step < n:
        last, earlier = x.narrow(dim, step, n - step), x.narrow(dim, 0, n - step)
        better = beyond(earlier, last)
        best = [where(better, y.narrow(dim, 0, n - step), y.narrow(dim, step, n - step)) for y in (x, places)]
        x, places = [registry["concatenated"]((y.narrow(dim, 0, step), z), dim, (step, n - step)) for y, z in zip((x, places), best)]
        step *= 2
    return x, places


@composed("bag_maxima")
def bag_maxima(table, index, offsets=None, padding_idx=-1):
    """Of bags of one length; a bag of padding alone is 0."""
    check(offsets is None and index.ndim == 2, "onnx.export", "bags of one length", "bags that begin at offsets")
    known = (index != padding_idx).unsqueeze(-1)
    rows = where(known, registry["table_rows"](table, index.clamp(min=0), -1), float("-inf"))
    chosen = index.gather(1, rows.argmax(1))
    sizes = known.sum(1).squeeze(-1)
    return where(known.any(1), rows.amax(1), 0.0), chosen, sizes, index.reshape(-1) * 0
