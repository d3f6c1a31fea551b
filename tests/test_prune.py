"""nn.utils.prune: masks beside PyTorch's, one pruning after another, training, saving, removing."""
import numpy as np
import pytest

import tritorch as torch
from tritorch import nn
from tritorch.nn.utils import prune

WEIGHT = np.random.default_rng(0).standard_normal((6, 4, 3, 3)).astype(np.float32)


def layer(lib):
    made = lib.nn.Conv2d(4, 6, 3)
    with lib.no_grad():
        made.weight.copy_(lib.from_numpy(WEIGHT.copy()))
    return made


def pruned(lib):
    """Masks after chains of ways that leave nothing to chance."""
    p = __import__(lib.__name__ + ".nn.utils.prune", fromlist=["x"])
    scores = lib.from_numpy(WEIGHT[::-1].copy())
    chains = [
        lambda m: p.l1_unstructured(m, "weight", 0.3),
        lambda m: p.l1_unstructured(p.l1_unstructured(m, "weight", 17), "weight", 0.25),
        lambda m: p.ln_structured(m, "weight", 2, 2, 0),
        lambda m: p.ln_structured(p.ln_structured(m, "weight", 0.5, float("inf"), 1), "weight", 1, 1, 1),
        lambda m: p.l1_unstructured(p.ln_structured(m, "weight", 1, 2, -1), "weight", 40),
        lambda m: p.ln_structured(p.l1_unstructured(m, "weight", 100), "weight", 2, 1, 0, importance_scores=scores),
        lambda m: p.custom_from_mask(p.identity(m, "weight"), "weight", (scores > 0).float()),
        lambda m: p.l1_unstructured(m, "weight", 0, importance_scores=scores),
    ]
    return [chain(layer(lib)) for chain in chains], p


def test_masks_are_pytorchs():
    pytorch = pytest.importorskip("torch")
    for ours, theirs in zip(pruned(torch)[0], pruned(pytorch)[0]):
        assert np.array_equal(ours.weight_mask.numpy(), theirs.weight_mask.numpy())
        assert np.array_equal(ours.weight.detach().numpy(), theirs.weight.detach().numpy())
        assert sorted(ours.state_dict()) == sorted(theirs.state_dict()) and [n for n, _ in ours.named_parameters()] == [
            n for n, _ in theirs.named_parameters()]


def test_all_of_a_network_at_once():
    a, b = layer(torch), layer(torch)
    with torch.no_grad():
        b.weight.mul_(3)
    prune.global_unstructured(((m, "weight") for m in [a]), prune.L1Unstructured, amount=20)
    prune.global_unstructured([(a, "weight"), (b, "weight")], prune.L1Unstructured, amount=0.2)
    gone = np.concatenate([np.abs(m.weight_orig.detach().numpy())[m.weight_mask.numpy() == 0] for m in (a, b)])
    left = np.concatenate([np.abs(m.weight_orig.detach().numpy())[m.weight_mask.numpy() == 1] for m in (a, b)])
    assert gone.size == 20 + round(0.2 * (2 * WEIGHT.size - 20)) and gone.max() <= left.min()


def test_chance_prunes_what_was_asked_for():
    torch.manual_seed(0)
    m = prune.random_unstructured(nn.Linear(10, 10), "weight", 0.3)
    first = m.weight_mask.clone()
    prune.random_unstructured(m, "weight", 30)
    assert int((first == 0).sum()) == 30 and int((m.weight_mask == 0).sum()) == 60 and ((first == 0) <= (m.weight_mask == 0)).all()
    prune.random_structured(m, "weight", 2, 0)
    gone = (m.weight_mask == 0).all(1)
    assert int(gone.sum()) >= 2


def test_training_goes_on_around_the_zeros_and_removing_keeps_them():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    prune.l1_unstructured(net[0], "weight", 0.5)
    assert prune.is_pruned(net) and not prune.is_pruned(net[2]) and "weight" not in dict(net[0].named_parameters())
    zero, optimizer = net[0].weight_mask == 0, torch.optim.SGD(net.parameters(), lr=0.1)
    before = net[0].weight_orig.detach().clone()
    for _ in range(3):
        loss = net(torch.randn(16, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (net[0].weight_orig.grad[zero] == 0).all() and not torch.equal(before, net[0].weight_orig)
    twin = nn.Sequential(prune.identity(nn.Linear(4, 8), "weight"), nn.ReLU(), nn.Linear(8, 1))
    twin.load_state_dict(net.state_dict())
    x = torch.randn(2, 4)
    want = net(x)
    assert torch.equal(twin(x), want) and (net[0].weight[zero] == 0).all()
    prune.remove(net[0], "weight")
    assert torch.equal(net(x), want) and not prune.is_pruned(net) and sorted(net[0].state_dict()) == ["bias", "weight"]
    assert isinstance(net[0].weight, nn.Parameter) and (net[0].weight[zero] == 0).all()
    with pytest.raises(ValueError, match="is pruned"):
        prune.remove(net[0], "weight")


def test_what_fails_changes_nothing():
    m = layer(torch)
    for bad, kind in ((lambda: prune.l1_unstructured(m, "weight", 1.5), ValueError),
                      (lambda: prune.l1_unstructured(m, "weight", -1), ValueError),
                      (lambda: prune.l1_unstructured(m, "weight", "x"), TypeError),
                      (lambda: prune.l1_unstructured(m, "weight", 10**6), ValueError),
                      (lambda: prune.ln_structured(m, "weight", 1, 2, 7), IndexError),
                      (lambda: prune.ln_structured(m, "bias", 1, 2, 0), ValueError),
                      (lambda: prune.custom_from_mask(m, "weight", torch.ones(2)), AssertionError),
                      (lambda: prune.global_unstructured([(m, "weight")], prune.LnStructured, amount=1, n=2), TypeError),
                      (lambda: prune.l1_unstructured(m, "absent", 1), AttributeError)):
        with pytest.raises(kind):
            bad()
        assert sorted(m.state_dict()) == ["bias", "weight"] and not m._forward_pre_hooks
    prune.l1_unstructured(m, "weight", 0.5)
    mask = m.weight_mask.clone()
    with pytest.raises(ValueError):
        prune.l1_unstructured(m, "weight", 10**6)
    assert torch.equal(mask, m.weight_mask) and len(m._forward_pre_hooks) == 1


def test_a_way_of_ones_own():
    class EveryOther(prune.BasePruningMethod):
        def compute_mask(self, t, default_mask):
            mask = default_mask.clone()
            mask.view(-1)[::2] = 0
            return mask

    m = nn.Linear(3, 3)
    EveryOther.apply(m, "weight")
    EveryOther.apply(m, "weight")
    assert m.weight_mask.flatten().tolist() == [0, 0, 0, 1, 0, 0, 0, 1, 0]
    assert EveryOther().prune(torch.ones(4)).tolist() == [0, 1, 0, 1] and len(m._forward_pre_hooks) == 1
