"""What exported programs do besides computing: gradients, writes to inputs and buffers, chance."""
import pytest
from export_cases import Of, again, alike, called, drawn, hold, proved

import tritorch as torch
from tritorch import nn
from tritorch.export import Dim, UserError
from tritorch.nn import functional as F

X = drawn(3, 4)


def only_as_written(run, why):
    """A program that is right, and has no functional form."""
    model = Of(run, weight=nn.Parameter(drawn(4)))
    program = torch.export.export(model, (X,))
    for follow in (False, True):
        hold(again(program).module(), model, (X,), {}, follow, "program")
    with pytest.raises(UserError, match=why):
        program.run_decompositions()


# ------------------------------------------------------------------ autograd
def test_regions_without_gradients():
    def run(self, x):
        with torch.no_grad():
            y = self.weight * x * 2
        z = x.detach() * self.weight
        self.mean.mul_(0.9).add_(z.detach().mean() * 0.1)
        return y + z + self.weight, y, x.data + 1

    proved(Of(run, weight=nn.Parameter(drawn(4)), mean=torch.zeros(())), (X,))


def test_writes_that_autograd_does_not_see():
    def run(self, x):
        z = x.detach() * self.weight
        z.detach().mul_(2)
        with torch.no_grad():
            z[0] = 1
            z.add_(1)
        return z + self.weight

    only_as_written(run, "writes that autograd sees, got mul at")


def test_gradients_inside():
    def run(self, x):
        x = x.detach().requires_grad_()
        energy = (self.weight * x**3).sum()
        force, = torch.autograd.grad(energy, x, create_graph=True)
        return energy, -force

    proved(Of(run, weight=nn.Parameter(drawn(4))), (X,))


def test_functions_of_autograd_are_told_of():
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.warns(UserWarning, match="Straight"):
        program = torch.export.export(Of(lambda self, x: Straight.apply(x) * 2), (X,))
    alike(program.module()(X), X.round() * 2, "forward")


def test_operators_of_ones_own():
    @torch.library.custom_op("exporting::scaled", mutates_args=())
    def scaled(x: torch.Tensor, k: int, *, by: float = 2.0) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy() * k * by)

    scaled.register_fake(lambda x, k, *, by=2.0: torch.empty_like(x))
    scaled.register_autograd(lambda ctx, g: (g * 6, None))
    program = proved(Of(lambda self, x: torch.ops.exporting.scaled(x * 1, 3) + 1), (X,))
    assert "exporting.scaled.default" in called(program)


# ------------------------------------------------------------------ writes and chance
def test_writes_through_views():
    def run(self, x):
        y = x.clone()
        y[:, 0] = 1
        y[0] += self.weight
        y.t()[1].mul_(3)
        y.view(-1)[2] = 7
        z = y.unsqueeze(0)
        z += 1
        v = y[1:]
        y.mul_(2)
        y[y > 3] = 0
        y[[0, 1]] = 5
        y[:, 1:3] += x[:, 1:3]
        new = torch.empty(3, 2)
        new[:, 0] = x[:, 0]
        new[:, 1:] = x[:, 1:2]
        y.diagonal(1).fill_(0)
        return y, v + 1, z, new, torch.zeros(3, 4).add_(x)

    proved(Of(run, weight=nn.Parameter(drawn(4))), (X,))


def test_writes_through_views_that_have_no_way_back():
    def run(self, x):
        y = x.clone()
        y.unfold(0, 2, 2)[0].add_(self.weight[:, None])
        return y * 2

    only_as_written(run, "followed through views, got unfold at")


def test_writes_to_inputs_and_buffers():
    def run(self, x, y):
        x.mul_(2)
        y[0] = 5
        self.count += 1
        self.total = self.total * 2 + x.sum()
        self.rows[1] = x[0]
        return x + 1, x, self.total

    model = Of(run, count=torch.zeros((), dtype=torch.int64), total=torch.ones(()), rows=torch.zeros(2, 4))
    program = proved(model, (X, drawn(2)), follow=(False,))
    changed = program.run_decompositions().graph_signature
    assert sorted(changed.buffers_to_mutate.values()) == ["count", "rows", "total"]
    assert sorted(changed.user_inputs_to_mutate.values()) == ["args_0", "args_1"]


def test_chance_is_drawn_anew():
    def run(self, x):
        new = torch.rand(3), torch.randint(0, 9, (4,)), torch.randperm(5), torch.empty(3).uniform_(2, 3)
        new += (torch.bernoulli(torch.full((3,), 0.5)),)
        return *new, torch.randn_like(x) * x, F.dropout(x, 0.5, True), torch.multinomial(torch.ones(4), 2), torch.normal(x.detach(), 1.0)

    module = proved(Of(run), (X,)).module()
    assert not bool((module(X)[0] == module(X)[0]).all())
    h = proved(Of(lambda self, x: F.dropout(self.layer(x) + 1, 0.5, True, inplace=True), layer=nn.Linear(4, 2)), (X,))
    assert called(h)[-1] == "tritorch.random_dropout.out"


def test_a_call_leaves_chance_and_state_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    torch.manual_seed(3)
    want = torch.rand(2)
    torch.manual_seed(3)
    torch.export.export(model, (X,), dynamic_shapes=({0: Dim("rows", min=2)},))
    assert bool((torch.rand(2) == want).all()) and model[1].num_batches_tracked.item() == 0 and bool((model[1].running_mean == 0).all())
