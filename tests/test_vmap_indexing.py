"""vmap of what takes elements, rows and slices, writes them, looks up tables, and of losses: one call, and what a loop gives."""
import numpy as np
import pytest
from both import both

import tritorch as torch

F, vmap, SIZE = torch.nn.functional, torch.func.vmap, 3
KINDS = {  # what stands for tensors of a sample: (shape, integers below this; 0: floating numbers, 1: of bools)
    "x": ((4, 5, 2), 0), "row": ((5,), 0), "matrix": ((4, 5), 0), "number": ((), 0), "i": ((), 4), "j": ((), 2), "places": ((3,), 4),
    "columns": ((2, 3), 2), "mask": ((4, 5), 1), "elements": ((3, 5, 2), 4), "among": ((3, 5), 4), "values": ((3, 5, 2), 0),
    "classes": ((4,), 5), "pixels": ((4, 2), 5), "one": ((), 5), "logs": ((4, 5, 2), 0), "table": ((7, 3), 0), "words": ((2, 3), 7),
    "list": ((6,), 7), "factors": ((6,), 0), "weight": ((5,), 0)}


def draw(kind, rng, size=SIZE):
    """A tensor for each of so many samples."""
    shape, below = KINDS[kind]
    shape = shape if size is None else (size, *shape)
    if below > 1:
        return torch.tensor(rng.integers(0, below, shape))
    made = torch.tensor(rng.standard_normal(shape))
    return made > 0 if below else made


def written(x, key, value):
    made = x * 1
    made[key] = value
    return made


def said(logs):
    """log_probs (5, 4, 4)."""
    return logs.repeat(1, 1, 2).log_softmax(-1).movedim(0, 1)


def into_zeros(key, value, *shape):
    made = torch.zeros(*shape, dtype=torch.float64)
    made[key] = value
    return made


PROGRAMS = {
    "x i": lambda x, i: x[i], "x i j": lambda x, i, j: x[i, :, j], "x j at last": lambda x, j: x[..., j],
    "x i None": lambda x, i: x[None, i], "x i places": lambda x, i, places: x[i, places],
    "x places beyond i": lambda x, places, i: x[i, :, places % 2], "x j slice": lambda x, j, places: x[:, j, places % 2],
    "x places j": lambda x, places, j: x[places, 1:, j], "x places": lambda x, places: x[places],
    "x columns": lambda x, columns: x[:, columns], "x negative": lambda x, places: x[places - 4],
    "x two": lambda x, places, columns: x[places, columns], "x two apart": lambda x, places, columns: x[places, :, columns],
    "x places, a mask": lambda x, places: x[places, torch.tensor([True, False, True, True, False])],
    "write i": lambda x, i, number: written(x, i, number), "write i j": lambda x, i, j: written(x, (i, slice(1, 4), j), 7),
    "write places": lambda x, places, values: written(x, places, values),
    "write column": lambda x, j, places: written(x, (slice(None), j, places % 2), 3.0),
    "write apart": lambda x, places, number: written(x, (places, slice(None), places % 2), number),
    "write beyond": lambda x, j, places: written(x, (j, slice(1, 3), places % 2), torch.arange(6.0, dtype=torch.float64).view(2, 3)),
    "write mask": lambda matrix, mask, number: written(matrix, mask, number), "write rows by mask": lambda x, mask: written(x, mask, 2.0),
    "zeros i": lambda i, number: into_zeros(i, number, 4), "zeros places": lambda places, number: into_zeros(places, number, 4, 2),
    "index_put": lambda x, places, values: x.index_put((places,), values, True),
    "index_put two": lambda x, places, columns: x.index_put((places, columns), torch.ones(2, dtype=torch.float64)),
    "index_select": lambda x, places: x.index_select(0, places), "index_select last": lambda x, j: x.index_select(-1, j),
    "index_select middle": lambda x, places: x.index_select(1, places),
    "index_add": lambda x, places, values: x.index_add(0, places, values, alpha=2),
    "index_add last": lambda matrix, places: matrix.index_add(-1, places, matrix[:, :3]),
    "index_copy": lambda x, places, values: x.index_copy(0, torch.stack([places[0], (places[0] + 1) % 4, (places[0] + 2) % 4]), values),
    "index_fill": lambda x, places: x.index_fill(0, places, 2.0),
    "index_reduce": lambda x, places, values: x.index_reduce(0, places, values, "amax"),
    "gather": lambda x, elements: x.gather(0, elements), "gather last": lambda matrix, among: matrix.gather(-1, among.clamp(max=4)),
    "gather numbers": lambda row, i: row.gather(0, i), "take": lambda x, columns: x.take(columns),
    "take_along_dim": lambda x, places: torch.take_along_dim(x, places.view(3, 1, 1), 0),
    "take_along_dim flat": lambda x, places: torch.take_along_dim(x, places),
    "scatter": lambda x, elements, values: x.scatter(0, elements, values),
    "scatter number": lambda x, elements: x.scatter(0, elements, 1.5),
    "scatter_": lambda x, elements, values: (x * 1).scatter_(0, elements, values),
    "scatter_add": lambda x, elements, values: x.scatter_add(0, elements, values),
    "scatter_add number": lambda row, i, number: row.scatter_add(0, i, number),
    "scatter zeros": lambda elements, values: torch.zeros(4, 5, 2, dtype=torch.float64).scatter_add_(0, elements, values),
    "scatter mean": lambda x, elements, values: x.scatter_reduce(0, elements, values, "mean", include_self=False),
    "put_": lambda x, places, row: (x * 1).put_(places, row[:3], True),
    "masked_fill": lambda matrix, mask, number: matrix.masked_fill(mask, number),
    "where": lambda mask, matrix, number: torch.where(mask, matrix, number),
    "masked_scatter": lambda matrix, mask, x: matrix.masked_scatter(mask, x), "one_hot": lambda places: F.one_hot(places, 5),
    "fill_diagonal_": lambda matrix, number: (matrix * number).fill_diagonal_(2.0),
    "embedding": lambda words, table: F.embedding(words, table, padding_idx=2),
    "embedding by freq": lambda words, table: F.embedding(words, table, scale_grad_by_freq=True),
    "one word": lambda table, i: F.embedding(i, table), "bags": lambda words, table: F.embedding_bag(words, table),
    "max of bags": lambda words, table: F.embedding_bag(words, table, mode="max", padding_idx=1),
    "list of bags": lambda list, table, factors: F.embedding_bag(list, table, torch.tensor([0, 2, 2]), mode="sum",
        per_sample_weights=factors, padding_idx=3),
    "bags by freq": lambda words, table: F.embedding_bag(words, table, scale_grad_by_freq=True, mode="sum"),
    "offsets": lambda list, table, places: F.embedding_bag(list, table, places.sort().values - places.min(), mode="mean"),
    "cross_entropy": lambda matrix, classes, weight: F.cross_entropy(matrix, classes, weight.abs(), ignore_index=1, label_smoothing=0.1),
    "cross_entropy plain": lambda matrix, classes: F.cross_entropy(matrix, classes, reduction="none"),
    "cross_entropy sum": lambda matrix, classes, weight: F.cross_entropy(matrix, classes, weight.exp(), reduction="sum"),
    "cross_entropy of one": lambda row, one, weight: F.cross_entropy(row, one, weight.abs(), label_smoothing=0.2),
    "cross_entropy of pixels": lambda logs, pixels, weight: F.cross_entropy(logs, pixels, weight.abs(), ignore_index=0),
    "cross_entropy of chances": lambda matrix, row, weight: F.cross_entropy(matrix, row.softmax(-1).expand(4, 5), weight),
    "nll": lambda matrix, classes, weight: F.nll_loss(matrix, classes, weight, ignore_index=0),
    "nll of pixels": lambda logs, pixels, weight: F.nll_loss(logs, pixels, weight, reduction="none"),
    "nll of one": lambda row, one: F.nll_loss(row, one),
    "ctc": lambda logs, pixels: F.ctc_loss(said(logs), pixels % 3 + 1, (5, 5, 4, 5), (2, 1, 2, 2), reduction="none"),
    "ctc in a row": lambda logs, list: F.ctc_loss(said(logs), list % 3 + 1, (5, 5, 4, 5), (2, 1, 0, 3)),
    "ctc lengths": lambda logs, pixels, classes: F.ctc_loss(said(logs), pixels % 3 + 1, classes % 3 + 3, classes % 2 + 1),
    "index_add_": lambda x, places, values: (x * 1).index_add_(0, places, values).index_add_(2, places[:1] % 2, x[:, :, :1]),
    "index_add number": lambda number, row: number.index_add(0, torch.tensor([0]), row[0]),
    "binary_cross_entropy": lambda matrix, row: F.binary_cross_entropy(matrix.sigmoid(), row.sigmoid().expand(4, 5)),
    "gaussian_nll_loss": lambda matrix, row: F.gaussian_nll_loss(matrix, row.expand(4, 5), (row * row).expand(4, 5)),
    "quantile": lambda row, number: row.quantile(number.sigmoid()), "cov": lambda matrix, weight: torch.cov(matrix, aweights=weight.abs()),
}


def names_of(program):
    return program.__code__.co_varnames[:program.__code__.co_argcount]


def laid_out(x, how):
    """The tensor of all samples with other strides, and its dim of samples."""
    if how == "last":
        return x.movedim(0, -1).contiguous(), -1
    if how == "gaps":
        return torch.stack([x, x], -1)[..., 1], 0
    return x, 0


def check(program, inputs, dims, gradients=True):
    """One call, the values of a loop, and its gradients in the graph around."""
    calls = []

    def counted(*args):
        calls.append(args)
        return program(*args)

    moving = [x for x in inputs if x.dtype.is_floating_point]
    for x in moving:
        x.requires_grad_(gradients)
    made = vmap(counted, tuple(dims))(*inputs)
    rows = [[x if d is None else x.select(d, k) for x, d in zip(inputs, dims)] for k in range(SIZE)]
    want = torch.stack([program(*row) for row in rows])
    assert len(calls) == 1, f"{len(calls)} calls for one"
    assert made.dtype is want.dtype
    torch.testing.assert_close(made, want)
    if gradients and want.requires_grad:
        weight = torch.cos(torch.arange(want.numel(), dtype=torch.float64)).reshape(want.shape)
        for a, b in zip(*[torch.autograd.grad((y * weight).sum(), moving, allow_unused=True) for y in (made, want)]):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_loop_gives(name):
    program, rng = PROGRAMS[name], np.random.default_rng(5)
    kinds = names_of(program)
    every = range(len(kinds))
    choices = [(tuple(every), "last"), *[((k,), "gaps") for k in every], *[(tuple([k for k in every if k != out]), "") for out in every]]
    for mapped, how in {mapped: how for mapped, how in reversed(choices) if mapped}.items():
        pairs = [laid_out(draw(kind, rng), how) if k in mapped else (draw(kind, rng, None), None) for k, kind in enumerate(kinds)]
        check(program, *zip(*pairs))
    same = [draw(kind, rng, 1) for kind in kinds]
    check(program, [x.expand(SIZE, *x.shape[1:]) for x in same], [0] * len(kinds), False)


class Counter(torch.dispatch.Interpreter):
    calls = 0

    def __call__(self, op, args, out):
        self.calls += 1
        return self.proceed(op, args, out)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_loop(name):
    """More samples are no more calls of operators, with gradients of each sample's own."""
    kinds, found = names_of(PROGRAMS[name]), []

    def of_sample(*inputs):
        moving = [k for k, x in enumerate(inputs) if x.dtype.is_floating_point]
        if not moving:
            return PROGRAMS[name](*inputs)
        return torch.func.grad_and_value(lambda *args: PROGRAMS[name](*args).sum(), tuple(moving))(*inputs)

    for size in (2, 5):
        inputs = [draw(kind, np.random.default_rng(1), size) for kind in kinds]
        with Counter() as counter:
            vmap(of_sample)(*inputs)
        found.append(counter.calls)
    assert found[0] == found[1], found


@pytest.mark.parametrize("name", PROGRAMS)
def test_few_samples_and_samples_of_samples(name):
    program, rng = PROGRAMS[name], np.random.default_rng(7)
    kinds = names_of(program)
    one = [draw(kind, rng, 1) for kind in kinds]
    want = program(*[x[0] for x in one])
    torch.testing.assert_close(vmap(program)(*one), want.unsqueeze(0))
    none = vmap(program)(*[x[:0] for x in one])
    assert none.shape == (0, *want.shape) and none.dtype is want.dtype
    many = [draw(kind, rng, 6).unflatten(0, (2, 3)) for kind in kinds]
    made = vmap(vmap(program, in_dims=0), in_dims=0)(*many)
    torch.testing.assert_close(made, torch.stack([torch.stack([program(*[x[a, b] for x in many]) for b in range(3)]) for a in range(2)]))
    if len(kinds) > 1:                                                   # each level has samples of another argument
        first, second = [(0, *[None] * (len(kinds) - 1)), (None, *[0] * (len(kinds) - 1))]
        made = vmap(vmap(program, in_dims=second), in_dims=first)(many[0][:, 0], *[x[0] for x in many[1:]])
        torch.testing.assert_close(made, torch.stack([torch.stack([program(many[0][a, 0], *[x[0, b] for x in many[1:]])
                                                                   for b in range(3)]) for a in range(2)]))


# ------------------------------------------------------------------ gradients of each sample's own
def per_sample(loss, shared, *samples):
    """Gradients of shared tensors for each sample, and those of a loop; one call."""
    calls = []

    def counted(*args):
        calls.append(args)
        return loss(*args)

    made = vmap(torch.func.grad(counted), (None, *[0] * len(samples)))(shared, *samples)
    assert len(calls) == 1
    want = torch.stack([torch.func.grad(loss)(shared, *[x[k] for x in samples]) for k in range(SIZE)])
    assert made.shape == (SIZE, *shared.shape)
    torch.testing.assert_close(made, want)


LOSSES = {
    "words": lambda table, words: (F.embedding(words, table, padding_idx=3) ** 2).sum() + table[words].sin().sum(),
    "twice": lambda table, words: F.embedding(words, table).sum() + F.embedding(words + 1 - words // 6, table).cos().sum(),
    "by freq": lambda table, words: F.embedding(words, table, scale_grad_by_freq=True).exp().sum(),
    "bags": lambda table, words: F.embedding_bag(words, table, mode="sum", padding_idx=1).exp().sum(),
    "max of bags": lambda table, words: F.embedding_bag(words, table, mode="max").exp().sum(),
    "classes": lambda table, words: F.cross_entropy(table[:2], words[:, 0] % 3, table[0].exp()) + F.nll_loss(table[:3], words[0] % 3),
    "gathered": lambda table, words: (table.gather(1, words % 3) * table[words[0]].t().take(words)[:, :3]).sum(),
    "written": lambda table, words: ((table * 1).index_add(0, words[0], table[:3]).index_put((words[1],), table[0, 0]) ** 2).sum(),
    "added": lambda table, words: ((table * 1).scatter_add(0, words, table[:2] ** 2).index_add_(0, words[1], table[1:4]) ** 2).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_shared_tensors(name):
    rng = np.random.default_rng(11)
    per_sample(LOSSES[name], draw("table", rng, None), draw("words", rng))


def test_a_loss_around_gradients_of_samples():
    """Second order: the graph around goes through gradients inside."""
    rng = np.random.default_rng(2)
    table, words = draw("table", rng, None).requires_grad_(), draw("words", rng)
    loss = LOSSES["words"]
    made = vmap(torch.func.grad(loss), (None, 0))(table, words)
    want = torch.stack([torch.func.grad(loss)(table, w) for w in words])
    torch.testing.assert_close(*[torch.autograd.grad((g ** 2).sum(), table)[0] for g in (made, want)])


def test_sparse_gradients():
    """They are made sample after sample."""
    rng = np.random.default_rng(4)
    table, words = draw("table", rng, None).requires_grad_(), draw("words", rng)
    vmap(lambda w: F.embedding(w, table, sparse=True))(words).sum().backward()
    assert table.grad.layout is torch.sparse_coo
    torch.testing.assert_close(table.grad.to_dense().sum(1), 3.0 * torch.bincount(words.reshape(-1), minlength=7).double())
    made = vmap(torch.func.grad(lambda t, w: F.embedding(w, t, sparse=True).sum()), (None, 0))(table.detach(), words)
    counts = torch.stack([torch.bincount(w.reshape(-1), minlength=7) for w in words])
    torch.testing.assert_close(made.to_dense().sum(-1), 3.0 * counts.double())


# ------------------------------------------------------------------ what PyTorch gives
@both
def test_as_pytorch(torch):
    F, vmap, grad = torch.nn.functional, torch.func.vmap, torch.func.grad
    x = torch.arange(24.0, dtype=torch.float64).reshape(2, 3, 4).sin()
    i, places = torch.tensor([2, -1]), torch.tensor([[0, 2, 2], [1, 1, 0]])
    table = torch.arange(12.0, dtype=torch.float64).reshape(4, 3).cos()

    def put(row, at):
        made = row.clone()
        made[at] = 5.0
        return made

    def loss(logits, target, weight):
        smooth = F.cross_entropy(logits, target, ignore_index=2, label_smoothing=0.2)
        return F.cross_entropy(logits, target, weight, ignore_index=1) + smooth

    weight = torch.tensor([0.5, 1.0, 2.0, 0.1], dtype=torch.float64)
    return [vmap(lambda row, at: row[at])(x, i), vmap(lambda row, at: row[:, at])(x, i), vmap(lambda row, at: row[at, 1:])(x, places),
            vmap(put)(x, i), vmap(put)(x, places), vmap(lambda row, at: row.index_select(0, at))(x, places),
            vmap(lambda row, at: row.index_put((at,), torch.zeros(4, dtype=torch.float64)))(x, places),
            vmap(grad(lambda t, words: F.embedding(words, t, padding_idx=1).exp().sum()), (None, 0))(table, places),
            vmap(grad(lambda t, words: F.embedding_bag(words.unsqueeze(0), t, mode="sum").exp().sum()), (None, 0))(table, places),
            vmap(loss, (0, 0, None))(x, places, weight), vmap(grad(loss), (0, 0, None))(x, places, weight),
            vmap(grad(lambda row, at: F.nll_loss(row, at) ** 2))(x, places), vmap(lambda at: F.one_hot(at, 4))(places),
            vmap(lambda row, at: row.scatter_add(0, at.unsqueeze(1).expand(3, 4), row))(x, places),
            torch.func.jacrev(lambda v: F.cross_entropy(v, places[0], reduction="none"))(x[0])]


def test_values_of_samples_start_over():
    """What has another shape for other values: a loop where all have the same, an error where they have not."""
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 4.0]])
    assert vmap(lambda row: row[row > 0])(x).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert vmap(lambda row: row.nonzero().squeeze(1))(x).tolist() == [[0, 2], [1, 2]]
    with pytest.raises(RuntimeError, match="one shape"):
        vmap(lambda row: row[row > 1.5])(x)


@pytest.mark.parametrize("program", [lambda x, i: x[i], lambda x, i: x.index_select(0, i.view(1)), lambda x, i: x.gather(0, i.view(1, 1)),
                                     lambda x, i: F.embedding(i, x), lambda x, i: x.index_add(0, i.view(1), x[:1]),
                                     lambda x, i: F.cross_entropy(x[0], i)])
def test_an_index_outside_of_its_sample(program):
    """It does not name a row of the next one."""
    x = torch.arange(12.0).view(2, 3, 2)
    with pytest.raises((IndexError, RuntimeError)):
        vmap(program)(x, torch.tensor([3, 0]))


def test_values_are_checked():
    x = torch.tensor([[0.5, 0.25], [0.75, 1.5]])
    with pytest.raises(RuntimeError, match="probabilities"):
        vmap(F.binary_cross_entropy)(x, x)
    with pytest.raises(RuntimeError, match="class values"):
        vmap(lambda k: F.one_hot(k, 2))(torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match="at least 2 elements"):
        vmap(lambda row: row.masked_scatter(row > 0, torch.ones(1)))(x)
    with pytest.raises(RuntimeError, match="offsets from 0 on"):
        vmap(lambda index, offsets: F.embedding_bag(index, x, offsets))(torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0, 1], [1, 1]]))
