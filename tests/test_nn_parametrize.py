"""Weights that are made of other parameters, by hooks and by parametrizations, and batch norms folded into layers: PyTorch beside ours."""
import copy
import pickle
import warnings

import numpy as np
import pytest
from oracle import torch as pytorch

import tritorch

LAYERS = [lambda nn: nn.Linear(3, 4), lambda nn: nn.Conv2d(2, 4, 3), lambda nn: nn.ConvTranspose1d(2, 4, 3), lambda nn: nn.LSTM(3, 4)]
INPUTS = [(5, 3), (2, 2, 5, 6), (2, 2, 5), (5, 2, 3)]


def values(module):
    return {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}


def trained(torch, change, i, start, steps=3):
    """The state, the outputs and the repr of a changed layer after a few steps of training."""
    warnings.simplefilter("ignore", FutureWarning)
    net = LAYERS[i](torch.nn)
    change(torch, net, "weight_hh_l0" if i == 3 else "weight")
    net.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in start.items()}) if start else None
    start = {name: value.copy() for name, value in values(net).items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    outputs = []
    for step in range(steps):
        x = torch.from_numpy(np.random.default_rng(step).standard_normal(INPUTS[i]).astype(np.float32))
        y = net(x)
        y = y[0] if isinstance(y, tuple) else y
        optimizer.zero_grad()
        (y * y).sum().backward()
        optimizer.step()
        outputs.append(y.detach().numpy())
    net.eval()
    y = net(x)
    outputs.append((y[0] if isinstance(y, tuple) else y).detach().numpy())
    return start, values(net), outputs, repr(net)


CHANGES = {
    "weight_norm": lambda torch, net, name: torch.nn.utils.weight_norm(net, name),
    "weight_norm over all": lambda torch, net, name: torch.nn.utils.weight_norm(net, name, dim=None),
    "weight_norm of columns": lambda torch, net, name: torch.nn.utils.weight_norm(net, name, dim=1),
    "spectral_norm": lambda torch, net, name: torch.nn.utils.spectral_norm(net, name),
    "spectral_norm twice": lambda torch, net, name: torch.nn.utils.spectral_norm(net, name, n_power_iterations=2, dim=1),
    "weight_norm parametrization": lambda torch, net, name: torch.nn.utils.parametrizations.weight_norm(net, name),
    "weight_norm parametrization over all": lambda torch, net, name: torch.nn.utils.parametrizations.weight_norm(net, name, dim=None),
    "spectral_norm parametrization": lambda torch, net, name: torch.nn.utils.parametrizations.spectral_norm(net, name, 2),
    "of a bias, parametrization": lambda torch, net, name: torch.nn.utils.parametrizations.spectral_norm(net, "bias", dim=0),
}


@pytest.mark.parametrize("change, i", [(change, i) for change in CHANGES for i in range(3 if "parametrization" in change else 4)])
def test_changed_weights_train_as_in_pytorch(change, i):                 # PyTorch's LSTM does not see a parametrized weight
    start, state, outputs, shown = trained(pytorch, CHANGES[change], i, None)
    _, ours, our_outputs, our_shown = trained(tritorch, CHANGES[change], i, start)
    assert list(state) == list(ours) and shown == our_shown
    for name in state:
        np.testing.assert_allclose(ours[name], state[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for mine, theirs in zip(our_outputs, outputs, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(theirs).max()))      # of 70 a part is left, 0.006


@pytest.mark.parametrize("kind", ["weight", "spectral"])
def test_norms_by_hooks_are_removed(kind):
    utils, net, x = tritorch.nn.utils, tritorch.nn.Conv2d(2, 3, 3), tritorch.randn(1, 2, 5, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        getattr(utils, f"{kind}_norm")(net)
        with pytest.raises(RuntimeError, match="expected a parameter without it, got 'weight', which has it already"):
            getattr(utils, f"{kind}_norm")(net)
    net.eval()
    y = net(x)
    getattr(utils, f"remove_{kind}_norm")(net)
    assert list(net.state_dict()) == ["bias", "weight"] and isinstance(net.weight, tritorch.nn.Parameter)
    np.testing.assert_allclose(net(x).detach().numpy(), y.detach().numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="expected a parameter of Conv2d that has it, got"):
        getattr(utils, f"remove_{kind}_norm")(net)


def parametrized(torch):
    class Symmetric(torch.nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).T

        def right_inverse(self, a):
            return a.triu()

    class Twice(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    class Product(torch.nn.Module):
        def forward(self, a, b):
            return a * b

        def right_inverse(self, x):
            return x.abs().sqrt(), x.abs().sqrt()

    return Symmetric, Twice, Product


def parametrization_program(torch):
    """What a program sees that registers, reads, assigns, copies, fails and removes: long, for it is one story."""
    P, nn, seen = torch.nn.utils.parametrize, torch.nn, []
    Symmetric, Twice, Product = parametrized(torch)
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    net = nn.Linear(2, 2, bias=False)
    net.weight.data = weight.clone()
    before = net.weight
    P.register_parametrization(net, "weight", Symmetric())
    seen += [net.parametrizations.weight.original is before, net.weight.tolist(), P.is_parametrized(net), P.is_parametrized(net, "bias")]
    P.register_parametrization(net, "weight", Twice())
    seen += [net.weight.tolist(), repr(net), P.type_before_parametrizations(net) is nn.Linear, type(net).__name__]
    net.weight.sum().backward()
    seen += [before.grad.tolist()]
    with P.cached():
        seen += [net.weight is net.weight]
    seen += [net.weight is net.weight]
    copied = copy.deepcopy(net)
    for act in (lambda: setattr(net, "weight", weight), lambda: pickle.dumps(net), lambda: P.remove_parametrizations(net, "bias"),
                lambda: P.register_parametrization(net, "nothing", Twice()),
                lambda: P.register_parametrization(nn.Linear(2, 3), "weight", nn.Flatten(0)),
                lambda: P.remove_parametrizations(P.register_parametrization(nn.Linear(2, 2), "weight", Product()), "weight", False)):
        try:
            act()
            seen.append("no error")
        except Exception as error:
            seen.append(type(error).__name__)
    seen += [list(copied.state_dict()), copied.weight.tolist(), copied(torch.ones(1, 2)).tolist()]
    P.remove_parametrizations(net, "weight")
    seen += [type(net) is nn.Linear, net.weight is before, net.weight.tolist(), repr(net), list(net.state_dict())]
    net = P.register_parametrization(net, "weight", Symmetric())
    P.remove_parametrizations(net, "weight", leave_parametrized=False)
    seen += [net.weight.tolist()]
    both = P.register_parametrization(nn.Linear(2, 2), "weight", Product(), unsafe=True)
    both.weight = weight
    seen += [both.weight.round(decimals=4).tolist(), both.parametrizations.weight.ntensors, [n for n, _ in both.named_parameters()]]
    P.register_parametrization(both, "bias", Twice())
    seen += [list(both.parametrizations), both.to(torch.float64).weight.dtype == torch.float64, len(list(both.parameters()))]
    other = nn.Linear(2, 2)
    P.transfer_parametrizations_and_params(both, other)
    seen += [list(other.state_dict()), torch.equal(other.weight, both.weight.float())]
    P.remove_parametrizations(both, "weight")
    seen += [type(both).__name__, sorted(both.state_dict())]
    buffers = P.register_parametrization(nn.BatchNorm1d(2), "running_mean", Twice())
    seen += [list(buffers.state_dict()), [n for n, _ in buffers.named_buffers()]]
    return seen


def test_parametrizations_as_in_pytorch():
    for mine, theirs in zip(parametrization_program(tritorch), parametrization_program(pytorch), strict=True):
        assert mine == theirs


def test_a_copy_stays_parametrized():                                   # in PyTorch it loses its weight
    P, Twice = tritorch.nn.utils.parametrize, parametrized(tritorch)[1]
    net = P.register_parametrization(tritorch.nn.Linear(2, 2), "weight", Twice())
    copied = copy.deepcopy(net)
    P.remove_parametrizations(net, "weight")
    assert copied.weight.tolist() == (2 * copied.parametrizations.weight.original).tolist() == net.weight.tolist()


def test_a_state_dict_of_the_hook_loads_into_the_parametrization():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        old = tritorch.nn.Sequential(tritorch.nn.utils.weight_norm(tritorch.nn.Linear(3, 4)))
    new = tritorch.nn.Sequential(tritorch.nn.utils.parametrizations.weight_norm(tritorch.nn.Linear(3, 4)))
    assert not any(new.load_state_dict(old.state_dict()))
    assert tritorch.equal(new[0].weight, old[0].weight)


def test_spectral_norm_is_one_for_the_largest_singular_value():
    net = tritorch.nn.utils.parametrizations.spectral_norm(tritorch.nn.Linear(6, 5), n_power_iterations=30)
    assert abs(np.linalg.svd(net.weight.detach().numpy(), compute_uv=False)[0] - 1) < 1e-3


def folded(torch):
    rng, nn, out = np.random.default_rng(0), torch.nn, []
    make = lambda *shape: torch.from_numpy(rng.uniform(0.5, 2, shape).astype(np.float32))  # noqa: E731
    for layer, norm, how, shape in [(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), {}, (2, 3, 5, 5)),
                                    (nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False), {}, (2, 3, 5, 5)),
                                    (nn.ConvTranspose1d(3, 4, 3), nn.BatchNorm1d(4), {"transpose": True}, (2, 3, 5)),
                                    (nn.Linear(3, 4), nn.BatchNorm1d(4), None, (2, 3))]:
        for module in (layer, norm):
            module.eval().load_state_dict({k: make(*v.shape) if v.is_floating_point() else v for k, v in module.state_dict().items()})
        fuse = torch.nn.utils.fusion.fuse_linear_bn_eval if how is None else torch.nn.utils.fusion.fuse_conv_bn_eval
        fused, x = fuse(layer, norm, **(how or {})), make(*shape)
        out += [fused(x).detach().numpy(), norm(layer(x)).detach().numpy(), [p.requires_grad for p in fused.parameters()]]
    return out


def test_batch_norms_fold_into_layers():
    for i, (mine, theirs) in enumerate(zip(folded(tritorch), folded(pytorch), strict=True)):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, err_msg=str(i))
    with pytest.raises(AssertionError, match="eval"):
        tritorch.nn.utils.fuse_conv_bn_eval(tritorch.nn.Conv2d(3, 4, 3), tritorch.nn.BatchNorm2d(4))


def synchronized(torch):
    torch.manual_seed(0)
    nn = torch.nn
    net = nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.Sequential(nn.BatchNorm1d(2, momentum=None, eps=1e-3)).eval())
    inner = net[1][0].weight
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32))
    y = net[0](x)
    return [repr(net), net[1][0].weight is inner, net[1][0].training, list(net.state_dict()), y.numpy().round(4).tolist(),
            net[0].running_var.numpy().round(4).tolist()]


def test_batch_norm_of_all_processes_is_that_of_one():
    assert synchronized(tritorch) == synchronized(pytorch)
    with pytest.raises(ValueError, match="expected an input of 2 dims or more, got 1"):
        tritorch.nn.SyncBatchNorm(3)(tritorch.ones(3))
