"""Models that `pipeline` cuts into stages: where, what travels, and what is refused."""
import numpy as np
import pytest
from worlds import no_gpu, world  # noqa: F401

import tritorch as torch
from tritorch import nn
from tritorch.distributed.pipelining import ScheduleGPipe, SplitPoint, build_stage, pipe_split, pipeline

pytestmark = pytest.mark.usefixtures("no_gpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.shift = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x, mask):
        if float(x.sum()) > 1e9:                                         # layers may look at numbers
            return x
        return x + torch.tanh(self.layer(x)) * mask + self.shift


class Net(nn.Module):
    """Inputs and an early result that late layers want, a parameter of its own, several outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), nn.ModuleDict({"blocks": nn.ModuleList([Block() for _ in range(4)])})
        self.scale, self.head = nn.Parameter(torch.full((4,), 0.5)), nn.Linear(4, 2)
        self.register_buffer("offset", torch.arange(4.0))

    def forward(self, x, mask, unused=None, factor=2.0):
        early = self.first(x) * self.scale
        y = early
        for block in self.inner["blocks"]:
            y = block(y, mask)
        if unused is not None:
            y = y + unused
        return {"logits": self.head(y + early + self.offset) * factor, "y": y}


def inputs():
    rng = np.random.default_rng(0)
    return tuple(torch.from_numpy(rng.normal(size=(6, 4)).astype(np.float32)) for _ in range(2))


@pytest.mark.parametrize("spec", [
    {"inner.blocks.1": SplitPoint.BEGINNING, "inner.blocks.3": SplitPoint.BEGINNING},
    {"first": SplitPoint.END, "inner.blocks.2": SplitPoint.END, "head": SplitPoint.BEGINNING},
], ids=["before", "behind"])
def test_stages_are_the_model(spec):
    torch.manual_seed(0)
    net, (x, mask) = Net(), inputs()
    pipe = pipeline(net, (x,), {"mask": mask}, split_spec=spec)
    assert pipe.num_stages == 1 + len(spec)
    found, wanted = pipe(x, mask), net(x, mask)
    torch.testing.assert_close(found, wanted)
    (found["logits"].sum() + found["y"].square().sum()).backward()
    got = {name: p.grad.clone() for k in range(pipe.num_stages) for name, p in pipe.get_stage_module(k).named_parameters()}
    net.zero_grad()
    (wanted["logits"].sum() + wanted["y"].square().sum()).backward()
    assert sorted(got) == sorted(name for name, _ in net.named_parameters())           # the names of the model, each in one stage
    for name, p in net.named_parameters():
        torch.testing.assert_close(got[name], p.grad)


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = [nn.Linear(3, 3) for _ in range(3)]

    def forward(self, x):
        x = self.a(x)
        pipe_split()
        x = self.b(x)
        pipe_split()
        return self.c(x)


def test_stages_that_the_model_or_a_policy_names():
    net, x = Marked(), torch.ones(2, 3)
    pipe = pipeline(net, (x,))
    assert pipe.num_stages == 3 and [list(pipe.get_stage_module(k).state_dict()) for k in range(3)] == [
        [f"{name}.weight", f"{name}.bias"] for name in "abc"]
    torch.testing.assert_close(pipe(x), net(x))

    def before_last(traced):
        with traced.graph.inserting_before(next(iter(traced.graph.find_nodes(op="call_module", target="2")))):
            traced.graph.call_function(pipe_split)
        return traced

    layers = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)])
    pipe = pipeline(layers, (x,), split_policy=before_last)
    assert pipe.num_stages == 2 and list(pipe.get_stage_module(1).state_dict()) == ["2.weight", "2.bias"]
    torch.testing.assert_close(pipe(x), layers(x))


def trained(rank, size):
    torch.manual_seed(0)
    net, (x, mask) = Net(), inputs()
    pipe = pipeline(net, (x[:2], mask[:2]), split_spec={"inner.blocks.2": SplitPoint.BEGINNING})
    stage = pipe.build_stage(rank, "cpu")
    schedule = ScheduleGPipe(stage, 3, loss_fn=lambda out, target: nn.functional.mse_loss(out["logits"], target))
    out = schedule.step(*[x, mask] if rank == 0 else [], target=torch.zeros(6, 2) if rank == 1 else None)
    return {name: p.grad.numpy() for name, p in stage.submod.named_parameters()}, None if out is None else out["y"].numpy()


def test_cut_models_train(tmp_path):
    (first, _), (second, out) = world(trained, 2, tmp_path)
    torch.manual_seed(0)
    net, (x, mask) = Net(), inputs()
    wanted = net(x, mask)
    nn.functional.mse_loss(wanted["logits"], torch.zeros(6, 2)).backward()
    np.testing.assert_allclose(out, wanted["y"].detach().numpy(), rtol=1e-5)
    for name, p in net.named_parameters():
        np.testing.assert_allclose((first | second)[name], p.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_wrong_input(capsys):
    net, (x, mask) = Net(), inputs()
    with pytest.raises(ValueError, match="names of layers in split_spec, got 'blocks.9'"):
        pipeline(net, (x, mask), split_spec={"blocks.9": SplitPoint.END})
    with pytest.raises(ValueError, match="split_spec or split_policy"):
        pipeline(net, (x, mask), split_spec={"head": SplitPoint.END}, split_policy=lambda traced: traced)
    net.head.weight = nn.Parameter(torch.ones(4, 4))
    net.first.weight = net.head.weight
    with pytest.raises(ValueError, match="head.weight in the stages 0 and 1"):
        pipeline(net, (x, mask), split_spec={"head": SplitPoint.BEGINNING})
    pipe = pipeline(Marked(), (torch.ones(2, 3),))
    with pytest.raises(ValueError, match="a stage from 0 to 2, got 3"):
        pipe.get_stage_module(3)
    pipe.print_readable()
    assert "stage 2:" in capsys.readouterr().out and pipe.info().num_stages == 3 and build_stage.__doc__
