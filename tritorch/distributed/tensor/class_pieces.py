"""Cross entropy of logits of which each process has some of the classes: sums over classes are done in pieces, by three numbers a sample,
and no logits are gathered."""
from tritorch.distributed.tensor import exchange
from tritorch.distributed.tensor.placement_types import Shard
from tritorch.distributed.tensor.plans import Plan, R, rule
from tritorch.distributed.tensor.rows import losses
from tritorch.errors import check
from tritorch.ops.cross_entropy import class_dim


@rule("cross_entropy_rows", "cross_entropy_backward")
def by_classes(call, wanted=None):
    """Where one mesh dim cuts the classes, they stay where they are; as other operators on rows otherwise."""
    x, dim = call["input"], class_dim(call["input"])
    cuts = [k for k, p in enumerate(x.placements) if type(p) is Shard and p.dim == dim]
    if len(cuts) != 1:
        return losses(call)
    rows = [Shard(p.dim - (p.dim > dim)) if type(p) is Shard and p.dim != dim else R for p in x.placements]
    logits = tuple([p if type(p) is Shard else R for p in x.placements])
    needs = [tuple(rows)] * len(call.tensors)
    needs[call.where["input"]] = logits
    if "weight" in call.where:
        needs[call.where["weight"]] = (R,) * call.mesh.ndim
    back = call.op.__name__ == "cross_entropy_backward"
    return Plan(needs, [logits] if back else [tuple(rows)] * 3, _backward if back else _forward)


class _Pieces:
    """The classes of this process, and which of the targets are among them."""

    def __init__(self, call, plan, parts):
        given = {name: parts[k] for name, k in call.where.items()}
        self.x, self.target, self.weight = given["input"], given["target"], given.get("weight")
        self.dim, self.classes, self.ignored = class_dim(self.x), call["input"].shape[class_dim(self.x)], call["ignore_index"]
        at = next(k for k, p in enumerate(plan.needs[call.where["input"]]) if p == Shard(self.dim))
        self.group, self.kind, self.smooth = call.mesh.get_group(at), call["input"].dtype.compute, call["label_smoothing"]
        count, first = Shard.local_shard_size_and_offset(self.classes, self.group.size(), self.group.rank())
        self.x, self.counts = self.x.to(self.kind), self.target != self.ignored
        self.first, self.mine = first, self.counts & (self.target >= first) & (self.target < first + count)
        self.place = (self.target - first).clamp(0, max(count - 1, 0)).unsqueeze(self.dim).to(self.target.new_empty(0).long().dtype)
        if self.weight is not None:
            self.weight = self.weight.to(self.kind)
            self.piece = self.weight[first:first + count].reshape([-1 if d == self.dim else 1 for d in range(self.x.ndim)])

    def weights(self):
        """The weight of each sample's target, 0 of those that do not count."""
        if self.weight is None:
            return self.counts.to(self.kind)
        return self.weight[self.target.clamp(0, self.classes - 1).long()] * self.counts.to(self.kind)

    def joined(self, x, op="sum"):
        """A number of each sample from all pieces."""
        return exchange.reduce(x, self.group, op)


def _forward(call, plan, parts):
    p = _Pieces(call, plan, parts)
    x, dim = p.x, p.dim
    if x.device.type == "cpu":
        outside = p.counts & ((p.target < 0) | (p.target >= p.classes))
        check(not bool(outside.any()), "cross_entropy", f"class indices in [0, {p.classes - 1}]", "others", error=IndexError)
    top = p.joined(x.amax(dim) if x.shape[dim] else x.sum(dim) - float("inf"), "max")
    top = top.where(top.isfinite(), 0 * top.new_zeros(()))
    lse = p.joined((x - top.unsqueeze(dim)).exp().sum(dim)).log() + top
    found = x.gather(dim, p.place).squeeze(dim) if x.shape[dim] else x.sum(dim)
    found = p.joined(found.where(p.mine, found.new_zeros(())))
    weights = p.weights()
    loss = (lse - found).where(p.counts, found.new_zeros(())) * weights
    if p.smooth:
        sums = p.joined((x if p.weight is None else x * p.piece).sum(dim))
        total = p.classes if p.weight is None else p.weight.sum()
        loss = ((1 - p.smooth) * loss + p.smooth / p.classes * (lse * total - sums)).where(p.counts, found.new_zeros(()))
    return loss, weights, lse


def _backward(call, plan, parts):
    p = _Pieces(call, plan, parts)
    g, lse = [parts[call.where[name]].to(p.kind) for name in ("gradient", "lse")]
    dim, share = p.dim, p.smooth / p.classes
    g = g.where(p.counts, g.new_zeros(()))
    hit = (1 - p.smooth) * g * p.weights()
    mass = hit if not p.smooth else hit + share * g * (p.classes if p.weight is None else p.weight.sum())
    out = (p.x - lse.unsqueeze(dim)).exp() * mass.unsqueeze(dim)
    if p.smooth:
        out = out - share * g.unsqueeze(dim) * (1 if p.weight is None else p.piece)
    if p.x.shape[dim]:
        out.scatter_add_(dim, p.place, -hit.where(p.mine, hit.new_zeros(())).unsqueeze(dim))
    out = out.where(p.counts.unsqueeze(dim), out.new_zeros(()))
    return out.to(call["input"].dtype)
