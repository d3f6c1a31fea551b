"""Rules of losses: the samples of all calls are samples of one."""
from tritorch.func.batching.calls import rule
from tritorch.ops import create
from tritorch.ops.compare import where
from tritorch.ops.cross_entropy import class_dim
from tritorch.ops.nll import nll_rows as nll
from tritorch.ops.softmax import log_softmax


def joined(call, name):
    """Logits (N, C, …) or (C,) of all samples, or one value for each of their rows, as those of more samples."""
    x = call.all(name)
    return x if _single(call) else x.flatten(0, 1)


def _single(call):
    """Whether there is one row in each sample of vmap, without a dim."""
    own = call.sample("input" if "input" in call.op.names else "target")
    return own.ndim == (1 if "input" in call.op.names else 0)


def parted(call, *made):
    """Results of a call with what is joined, as promised."""
    return tuple([x.reshape(call.size, *promise[0]) for x, promise in zip(made, call.promises)])


def weights_of(call, target, ignored):
    """The weight of each target, where each sample has weights of its own for the classes: 0 where the target is ignored."""
    weight, rows = call["weight"].detach(), target.shape[1:]
    among = weight.reshape(*weight.shape, *[1] * len(rows)).expand(call.size, weight.shape[1], *rows)
    return -nll(among, target, None, ignored)[0]


def beside(call, weight):
    """Class weights of all samples in the dims of joined logits."""
    own, weight = call.sample("input").shape, weight.detach()
    if len(own) == 1:
        return weight
    weight = weight.unsqueeze(1).expand(call.size, own[0], own[1])
    return weight.reshape(call.size * own[0], own[1], *[1] * (len(own) - 2))


def of_targets(call):
    """Losses of the same logits for targets of each sample's own, which are one more dim of the logits, without memory for it."""
    logits = call["input"].unsqueeze(2)
    logits = logits.expand(*logits.shape[:2], call.size, *logits.shape[3:])
    return tuple([x.movedim(1, 0).contiguous() for x in call.op(logits, call["target"].movedim(0, 1), *call.args[2:])])


@rule("cross_entropy_rows")
def cross_entropy_rows(call):
    """More samples. Weights of each sample's own multiply losses without weights."""
    if call.where[:3] == [False, True, False] and not _single(call):
        return of_targets(call)
    input, target, ignored, smoothing = joined(call, "input"), joined(call, "target"), call["ignore_index"], call["label_smoothing"]
    if not call.differs("weight"):
        return parted(call, *call.op(input, target, call["weight"], ignored, smoothing))
    loss, counts, lse = parted(call, *call.op(input, target, None, ignored, 0.0))
    hit = weights_of(call, call.all(1), ignored).to(loss.dtype)
    loss = loss * hit
    if smoothing:
        own, dim = call.sample("input").shape, class_dim(call.sample("input"))
        logs = log_softmax(input, class_dim(input), dtype=loss.dtype) * beside(call, call["weight"])
        rest = logs.sum(class_dim(input)).reshape(loss.shape)
        loss = where(counts != 0, (1 - smoothing) * loss - smoothing / own[dim] * rest, 0)
    return loss, hit, lse


@rule("cross_entropy_backward")
def cross_entropy_backward(call):
    """More samples. Where it is only gradients of losses that differ, each multiplies what is the same for all."""
    gradient, input, target, lse, weight, ignored, smoothing = call.args
    if call.where == [True] + [False] * 6:
        slope = call.op(create.ones_like(lse), input, target, lse, weight, ignored, smoothing)
        gradient = gradient.masked_fill(target == ignored, 0)
        return (gradient.unsqueeze(1 + class_dim(call.given[1])) * slope).to(slope.dtype)
    rows = [joined(call, name) for name in ("gradient", "input", "target", "lse")]
    if not call.differs("weight"):
        return parted(call, call.op(*rows, weight, ignored, smoothing))[0]
    g, x, t, lse = rows
    counts, share = (t != ignored).to(g.dtype), smoothing / x.shape[class_dim(x)]
    hit = weights_of(call, call.all(2), ignored).to(g.dtype).reshape(g.shape)
    made = call.op(g * hit * (1 - smoothing), x, t, lse, None, ignored, 0.0)
    if smoothing:
        dim, w = class_dim(x), beside(call, weight)
        chances = (x.to(lse.dtype) - lse.unsqueeze(dim)).exp() * w.sum(dim, keepdim=True)
        made = made + share * (g * counts).unsqueeze(dim) * (chances - w)
    return parted(call, made.to(x.dtype))[0]


@rule("nll_rows")
def nll_rows(call):
    """More samples. Weights of each sample's own multiply losses without weights."""
    if call.where[:3] == [False, True, False] and not _single(call):
        return of_targets(call)
    input, target, ignored = joined(call, "input"), joined(call, "target"), call["ignore_index"]
    if not call.differs("weight"):
        return parted(call, *call.op(input, target, call["weight"], ignored))
    loss, _ = parted(call, *call.op(input, target, None, ignored))
    hit = weights_of(call, call.all(1), ignored).to(loss.dtype)
    return loss * hit, hit


@rule("nll_backward")
def nll_backward(call):
    """More samples. Weights of each sample's own multiply the gradient."""
    gradient, target, weight, ignored, classes, dtype = call.args
    g = joined(call, "gradient")
    if call.differs("weight"):
        g, weight = g * weights_of(call, call.all(1), ignored).to(g.dtype).reshape(g.shape), None
    return parted(call, call.op(g, joined(call, "target"), weight, ignored, classes, dtype))[0]


# ------------------------------------------------------------------ sequences
def sequences(call):
    """targets, input_lengths, target_lengths and starts of more samples."""
    targets, steps, labels, starts = map(call.all, ("targets", "input_lengths", "target_lengths", "starts"))
    if starts is not None and call.differs("targets"):
        starts = starts + call.sample("targets").numel() * create.arange(call.size, device=starts.device).unsqueeze(1)
    targets = call["targets"] if starts is not None and not call.differs("targets") else targets.flatten(0, 1)
    return targets, steps.flatten(), labels.flatten(), None if starts is None else starts.flatten()


def in_time(call):
    """The log_probs of more samples."""
    return call.all("log_probs").movedim(0, 1).flatten(1, 2)


@rule("ctc_rows")
def ctc_rows(call):
    """More samples."""
    return parted(call, *call.op(in_time(call), *sequences(call), *call.args[5:]))


@rule("ctc_backward")
def ctc_backward(call):
    """More samples."""
    gradient, loss, alpha = [call.all(k).flatten(0, 1) for k in (0, 6, 7)]
    made = call.op(gradient, in_time(call), *sequences(call), loss, alpha, *call.args[8:])
    return made.unflatten(1, (call.size, call.sample("log_probs").shape[1])).movedim(1, 0).contiguous()
