"""Two CUDA devices: tensors and modules on the second, copies between them, and mixtures that are refused."""
import copy

import numpy as np
import pytest
from models import GPT, loss_of, seeded, texts, train_step
from test_training_cuda import adamw

import tritorch as torch
from tritorch import nn
from tritorch.dispatch import registry
from tritorch.testing.samples import each_tensor, leaves, places, replaced, samples_of

ZERO, ONE = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture(params=range(3), autouse=True)
def two(request):
    with torch.cuda.simulate(seed=request.param, devices=2) as driver:
        yield driver


def test_tensors_are_made_where_they_are_wanted():
    assert torch.cuda.device_count() == 2
    x = torch.arange(6.0, device="cuda:1")
    assert x.device is ONE and (x * 2 + 1).device is ONE and torch.zeros(2).cuda(1).device is ONE and x.get_device() == 1
    assert torch.zeros(2, device="cuda").device is ZERO
    with torch.cuda.device(1):
        assert torch.zeros(2, device="cuda").device is ONE and torch.zeros(2).cuda().device is ONE
        assert torch.zeros(2, device="cuda:0").device is ZERO
    with torch.cuda.device_of(x):
        assert torch.ones(2).to("cuda").device is ONE
    assert torch.ones_like(x).device is ONE and x.new_zeros(2).device is ONE and torch.rand(2, device=ONE).device is ONE
    with pytest.raises(RuntimeError, match="index below 2, got 2"):
        torch.zeros(2, device="cuda:2")


def test_work_goes_to_the_device_of_the_tensors_whatever_is_current():
    x = torch.arange(6.0, device="cuda:1")
    before = torch.cuda.memory_allocated(0)
    y = (x.view(2, 3) @ x.view(3, 2)).softmax(-1)
    assert torch.cuda.current_device() == 0 and torch.cuda.memory_allocated(0) == before
    np.testing.assert_allclose(y.sum(-1).cpu(), [1, 1], rtol=1e-6)
    w = torch.ones(3, device="cuda:1", requires_grad=True)
    (w * 2).sum().backward()
    assert w.grad.device is ONE


def test_copies_between_devices_in_every_layout_and_dtype():
    x = torch.arange(24.0, device="cuda:0").view(4, 6)
    for source in (x, x.mT, x[:, ::2], x[1:, 1], x[:0], x[2, 3], x[:1].expand(3, 6)):
        for kind in (torch.float32, torch.float16, torch.int64):
            there = source.to("cuda:1", kind)
            assert there.device is ONE and there.dtype is kind and there.tolist() == source.tolist()
    y = torch.zeros(6, 4, device="cuda:1")
    y.mT.copy_(x)
    assert y.tolist() == x.mT.tolist()
    y[1:3] = x[:2, :4]
    assert y[1:3].tolist() == x[:2, :4].tolist()
    x.add_(1)
    z = x.to("cuda:1", non_blocking=True)
    x.zero_()                                                            # waits for the copy by the order of the streams
    assert z[0].tolist() == [1, 2, 3, 4, 5, 6]


def test_gradients_go_back_over_the_border():
    w = torch.arange(3.0, device="cuda:0", requires_grad=True)
    y = (w * 2).to("cuda:1")
    z = (y * y).sum() + (w.to("cuda:1") * 3).sum()
    z.backward()
    assert w.grad.device is ZERO and w.grad.tolist() == [3, 11, 19]


def test_a_model_in_two_halves_trains_as_on_one_device():
    class Split(nn.Module):
        def __init__(self, whole):
            super().__init__()
            self.whole = whole
            whole.to("cuda:0")
            whole.blocks[1].to("cuda:1"), whole.norm.to("cuda:1"), whole.head.to("cuda:1")

        def forward(self, tokens):
            whole = self.whole
            x = whole.token(tokens) + whole.position.weight[: tokens.shape[1]]
            return whole.head(whole.norm(whole.blocks[1](whole.blocks[0](x).to("cuda:1"))))

    def losses(model, first, second):
        optimizer = adamw(model)
        return [train_step(model, optimizer, x.to(first), y.to(second)).item() for x, y in texts(2)]

    model = seeded(lambda: GPT(dropout=0.0), "cpu")
    whole = copy.deepcopy(model).to("cuda:1")
    assert {p.device for p in whole.parameters()} == {ONE}
    split = Split(model)
    assert {p.device for p in split.parameters()} == {ZERO, ONE}
    np.testing.assert_allclose(losses(split, "cuda:0", "cuda:1"), losses(whole, "cuda:1", "cuda:1"), rtol=1e-6)


def test_a_step_is_captured_on_the_second_device():
    with torch.cuda.device(1):
        model = seeded(GPT, "cuda")
        optimizer = adamw(model, capturable=True)
        x, y = [t.to("cuda") for t in texts(1)[0]]
        train_step(model, optimizer, x, y)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            loss = train_step(model, optimizer, x, y)
    recorded.replay()                                                    # on its own device
    first = loss.item()
    recorded.replay()
    assert loss.device is ONE and loss.item() < first < 4


def test_a_graph_holds_one_capture_whatever_the_device():
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded), torch.cuda.stream(torch.cuda.Stream(1)):
        with pytest.raises(RuntimeError, match="a graph that holds no capture"):
            recorded.capture_begin()


def test_each_device_has_its_generator():
    torch.manual_seed(3)
    draws = [torch.rand(4, device=place).tolist() for place in (ZERO, ONE, "cpu")]
    assert draws[0] == draws[1] == draws[2]
    torch.rand(5, device=ZERO)
    assert torch.rand(4, device=ONE).tolist() == torch.rand(4).tolist()


@pytest.mark.parametrize("call", [
    lambda a, b: a + b, lambda a, b: a @ b, lambda a, b: torch.cat([a, b]), lambda a, b: torch.where(a > 0, a, b), lambda a, b: a.add_(b),
    lambda a, b: torch.nn.functional.linear(a, b), lambda a, b: torch.add(a, a, out=b), lambda a, b: torch.stack([a, b]),
    lambda a, b: a.index_select(0, b.long()[0]), lambda a, b: torch.einsum("ij,jk->ik", a, b), lambda a, b: a.gather(0, b.long()),
    lambda a, b: torch.nn.functional.cross_entropy(a, b.long()[0]), lambda a, b: torch.nn.functional.embedding(a.long(), b),
    lambda a, b: torch.addmm(a, a, b), lambda a, b: a.masked_fill(b > 0, 1.0), lambda a, b: a.lerp(a, b),
    lambda a, b: torch.nn.functional.layer_norm(a, (2,), b[0], b[1]),
    lambda a, b: torch.nn.functional.conv2d(a.view(1, 1, 2, 2), b.view(1, 1, 2, 2)),
    lambda a, b: torch.nn.functional.scaled_dot_product_attention(a[None, None], b[None, None], b[None, None])])
@pytest.mark.parametrize("other", ["cuda:1", "cpu"])
def test_tensors_of_two_devices_are_refused(call, other):
    a, b = torch.ones(2, 2, device="cuda:0"), torch.zeros(2, 2, device=other)
    with pytest.raises(RuntimeError, match=rf"(all tensors on one device|on {other}|on cuda:0).*(cuda:0|{other})") as caught:
        call(a, b)
    assert "\n" not in str(caught.value) and (a == 1).all() and (b == 0).all()


def test_scalars_of_the_cpu_may_join():
    a = torch.ones(2, device="cuda:1")
    assert (a * torch.tensor(3.0)).tolist() == [3, 3] and (torch.tensor(3.0) - a).device is ONE
    with pytest.raises(RuntimeError, match="one device"):
        a * torch.tensor(3.0, device="cuda:0")


def test_the_same_loss_everywhere():
    values = []
    for place in (ZERO, ONE):
        model = seeded(GPT, place)
        x, y = [t.to(place) for t in texts(1)[0]]
        values.append(loss_of(model, x, y).item())
    assert values[0] == values[1]


def test_no_operator_takes_tensors_of_two_devices():
    """Whichever tensor of a sample lies elsewhere: a kernel must never get an address of another device."""
    for name, op in registry.items():
        if name in ("assign", "concatenated") or op.samples_body is None:  # copies from anywhere; cat and stack have refused before
            continue
        for args in samples_of(op):
            args = each_tensor(lambda t: t.detach(), leaves(args, to=ZERO))
            for k, j, t in [place for place in places(args) if place[2].shape and len(list(places(args))) > 1]:
                for elsewhere in (ONE, "cpu"):
                    with pytest.raises(RuntimeError, match="all tensors on one device"):
                        op(*replaced(args, k, j, t.to(elsewhere)))
