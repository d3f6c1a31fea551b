"""Adaptive softmax: the probabilities of all classes, the loss and its gradients, predictions, and what is refused."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.nn import AdaptiveLogSoftmaxWithLoss


def layer_for(device, head_bias=True):
    torch.manual_seed(0)
    return AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], div_value=2.0, head_bias=head_bias).double().to(device)


def by_hand(layer, x):
    """log p of all classes: the head's, and for those of a cluster its share times that of the class in it."""
    head, *tails = [layer.head(x), *[part(x) for part in layer.tail]]
    head, tails = head.softmax(1), [tail.softmax(1) for tail in tails]
    return torch.cat([head[:, :3], head[:, 3:4] * tails[0], head[:, 4:5] * tails[1]], 1).log()


@pytest.mark.parametrize("where", ["cpu", "simulated"])
def test_loss_and_gradients(cuda, where):
    device = torch.device("cpu") if where == "cpu" else cuda
    layer, rng = layer_for(device), np.random.default_rng(0)
    x, target = torch.tensor(rng.standard_normal((6, 8)), device=device), torch.tensor([0, 11, 5, 6, 2, 8], device=device)
    want = by_hand(layer, x)
    assert torch.allclose(layer.log_prob(x), want) and layer.log_prob(x).exp().sum(1).tolist() == pytest.approx([1.0] * 6)
    assert layer.predict(x).tolist() == want.argmax(1).tolist()
    output, loss = layer(x, target)
    assert torch.allclose(output, want.gather(1, target[:, None])[:, 0]) and loss.item() == pytest.approx(-output.mean().item())
    got = torch.autograd.grad(loss, list(layer.parameters()))
    expected = torch.autograd.grad(-by_hand(layer, x).gather(1, target[:, None]).mean(), list(layer.parameters()))
    assert all(torch.allclose(a, b) for a, b in zip(got, expected, strict=True))


def test_one_sample_and_head_alone():
    layer = layer_for("cpu", head_bias=False)
    x = torch.tensor(np.random.default_rng(1).standard_normal((2, 8)))
    single = layer(x[0], torch.tensor(9))
    assert single.output.shape == () and single.loss.item() == pytest.approx(-layer.log_prob(x)[0, 9].item())
    layer(x, torch.tensor([0, 1])).loss.backward()
    assert layer.tail[0][0].weight.grad is None                          # no sample went there
    assert [tuple(p.shape) for p in layer.parameters()] == [(5, 8), (4, 8), (4, 4), (2, 8), (5, 2)]
    before = [p.clone() for p in layer.parameters()]
    layer.reset_parameters()
    assert not any(map(torch.equal, before, layer.parameters()))


def test_errors():
    for cutoffs in ([], [3, 3], [5, 3], [0, 3], [3, 12], [-1]):
        with pytest.raises(ValueError):
            AdaptiveLogSoftmaxWithLoss(8, 12, cutoffs)
    layer, x = layer_for("cpu"), torch.zeros(2, 8).double()
    for target in (torch.tensor([1, 12]), torch.tensor([-1, 1]), torch.tensor([1]), torch.tensor([[1], [2]]), torch.tensor(1)):
        with pytest.raises(RuntimeError):
            layer(x, target)
