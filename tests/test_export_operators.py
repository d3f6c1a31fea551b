"""Where a graph has PyTorch's words for an operator, calling them runs this operator, with the arguments that it was called with."""
import itertools

import pytest
from export_cases import Of, alike, called, drawn, proved, tensors

import tritorch as torch
from tritorch.export.encoding import aten_names
from tritorch.export.targets import RULES
from tritorch.nn import functional as F
from tritorch.ops.card_names import card
from tritorch.testing.samples import each_tensor, samples_of, tensors_in
from tritorch.tracing.tracer import Tracer, Value

X = drawn(4, 6)
ONE = {"max_pool_values": "max_pool", "transpose linear": "matmul"}      # other operators that do the same


def run(model, inputs):
    """What a model computes, and the operators that it ran."""
    tracer = Tracer([], inputs)
    with tracer.tracing():
        results = model(*inputs)
    names = " ".join([node.name for node in tracer.nodes])
    return tensors(results), names, [[plain(a) for a in node.args] for node in tracer.nodes]


def plain(a):
    if isinstance(a, tuple):
        return plain(a[0]) if len(a) == 1 else tuple([plain(v) for v in a])       # one dim is a tuple of one
    return f"value {a.number}" if isinstance(a, Value) else repr(a)


@pytest.mark.parametrize("name", sorted(RULES))
def test_words_run_the_operator(name):
    op, found = card(name), set()
    for args in itertools.islice(samples_of(op), 8):
        args = each_tensor(lambda x: x.detach(), args)
        inputs = tensors_in(args)

        def again(self, *given, args=args):
            rest = iter(given)
            return op(*each_tensor(lambda x: next(rest), args))

        program = torch.export.export(Of(again), tuple(inputs))
        found.update(called(program))
        (want, ran, had), (got, runs, has) = run(Of(again), inputs), run(program.module(), inputs)
        other, (ran, runs) = ran != runs, [ONE.get(names, names) for names in (ran, runs)]
        for k, (x, y) in enumerate(zip(got, want)):
            alike(x, y, f"{name} {k}", 0)
        assert ran == runs and (other or had == has), (ran, runs, had, has)
    assert all(target.split(".")[1] in aten_names() for target in found if target.startswith("aten."))


COMPOSED = {
    "views": lambda self, x: (x.view(2, 2, 6), x.t().contiguous(), x.reshape(-1), x[1:, ::2], x[..., None], x[:, [0, 2]], x.unfold(0, 2, 1),
                              x.diagonal(), x.flip(0), x.roll(1, 0), x.chunk(2), x.unbind(0), x.unflatten(1, (2, 3)), x.repeat(2, 1),
                              torch.stack([x, x]), F.pad(x, (1, 1)), x.tril()),
    "reductions": lambda self, x: (x.sum((0, 1)), x.mean(0), x.amin(), x.max(), x.min(0), x.argmax(), x.var(), x.std(0), x.norm(), x.prod(),
                                   x.logsumexp(1), x.sort(), x.topk(2), x.median(), x.all(), x.count_nonzero(), x.sum(dtype=torch.float64)),
    "elementwise": lambda self, x: (F.elu(x), F.relu6(x), 1 - x, 2 / x, 2**x, x // 1, x % 2, x.round(), torch.where(x > 0, x, 0.0),
                                    x.masked_fill(x > 0, 3), x.lerp(x * 2, 0.3), torch.addcmul(x, x, x), x.double().float(), x.long(),
                                    x.add(x, alpha=2), x.rsqrt().nan_to_num(), (x > 0) & (x < 1), x.to(torch.bfloat16)),
    "products": lambda self, x: (x @ x.t(), x.mv(x[0]), x[0].dot(x[1]), torch.einsum("ij,kj->ik", x, x), torch.outer(x[0], x[1]),
                                 torch.addmm(x @ x.t(), x, x.t(), beta=0.5, alpha=2), torch.bmm(x[None], x.t()[None]),
                                 torch.baddbmm(x[None] @ x.t(), x[None], x.t()[None])),
    "losses": lambda self, x: (F.mse_loss(x, x * 2), F.cross_entropy(x, torch.tensor([0, 1, 2, 3])), F.smooth_l1_loss(x, x * 2),
                               F.binary_cross_entropy_with_logits(x, x.sigmoid())),
    "places": lambda self, x: (x.gather(1, torch.tensor([[0, 1]] * 4)), F.embedding(torch.tensor([0, 3]), x), F.one_hot(torch.arange(3)),
                               x.scatter(0, torch.tensor([[0, 1]]), x[:1, :2]), x.index_add(0, torch.tensor([0, 3]), x[:2])),
    "autocast": lambda self, x: under_autocast(x),
    "transforms": lambda self, x: (torch.fft.rfft(x).abs(), torch.linalg.solve(x @ x.t() + torch.eye(4), x), torch.linalg.svd(x).S),
    "constants": lambda self, x: (x[0] + torch.tensor([1.0, 2, 3, 4, 5, 6]), torch.eye(3), torch.linspace(0, 1, 3), torch.arange(1, 9, 3),
                                  torch.full((2,), 5), x.new_zeros(2), torch.zeros(3, dtype=torch.int64) + 1),
}


def under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
    return y, y.float()


@pytest.mark.parametrize("name", COMPOSED)
def test_functions(name):
    proved(Of(COMPOSED[name]), (X,))


def test_dead_code_leaves_writes_and_chance():
    def written(self, x):
        y = x * 2
        y.add_(1)
        x.exp()
        torch.rand(3)
        return y

    program = torch.export.export(Of(written), (X,))
    assert called(program) == ["aten.mul.Tensor", "aten.add_.Tensor", "aten.rand.default"]
    program.graph.eliminate_dead_code()
    assert "aten.add_.Tensor" in called(program)
