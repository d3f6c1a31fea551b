"""The functions of `tritorch` itself whose arguments differ from those of nn.functional: the same values, and the statistics of norms."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.nn import functional as F

X, Y = [torch.tensor(np.random.default_rng(seed).standard_normal((4, 6))) for seed in (0, 1)]
SIGNS = Y[:, 0].sign()


@pytest.mark.parametrize("number, name", [(0, "none"), (1, "mean"), (2, "sum"), (3, "none")])
@pytest.mark.parametrize("loss, args, options", [
    ("kl_div", (X, Y.exp()), {}), ("hinge_embedding_loss", (X, Y.sign()), {"margin": 0.7}),
    ("margin_ranking_loss", (X[:, 0], X[:, 1], SIGNS), {"margin": 0.2}), ("triplet_margin_loss", (X, Y, X * Y), {"p": 3.0, "swap": True}),
    ("cosine_embedding_loss", (X, Y, SIGNS), {"margin": 0.1}), ("poisson_nll_loss", (X, Y.abs(), True, True), {"eps": 1e-8}),
    ("binary_cross_entropy_with_logits", (X, Y.sigmoid()), {"pos_weight": Y.abs()}),
    ("ctc_loss", (X.reshape(4, 2, 3).log_softmax(-1), torch.tensor([[1], [2]]), (4, 3), (1, 1)), {})])
def test_losses(loss, args, options, number, name):
    got = getattr(torch, loss)(*args, **options, reduction=number)
    assert torch.equal(got, getattr(F, loss)(*args, **options, reduction=name))


def test_lookups():
    index = torch.tensor([[1, 3], [3, 0]])
    assert torch.equal(torch.embedding(X, index), X[index])
    leaf = X.clone().requires_grad_()
    torch.embedding(leaf, index, 3, True).sum().backward()
    assert leaf.grad[:, 0].tolist() == [1, 1, 0, 0]
    out, owners, sizes, _ = torch.embedding_bag(X, index.reshape(-1), torch.tensor([0, 1, 4]), mode=1, include_last_offset=True)
    assert torch.equal(out, torch.stack([X[1], X[[3, 3, 0]].mean(0)])) and owners.tolist() == [0, 1, 1, 1] and sizes.tolist() == [1, 3]


def test_norms_take_parameters_before_statistics():
    """And are told of cuDNN, as PyTorch's are."""
    x, w, b = X.reshape(2, 2, 6), torch.tensor([2.0, 3.0]).double(), torch.tensor([-1.0, 1.0]).double()
    mean, var = torch.tensor([0.5, -0.5]).double(), torch.tensor([4.0, 0.25]).double()
    running = mean.clone(), var.clone()
    assert torch.equal(torch.batch_norm(x, w, b, mean, var, False, 0.1, 1e-3, True), F.batch_norm(x, mean, var, w, b, eps=1e-3))
    assert torch.equal(torch.instance_norm(x, w, b, mean, var, True, 0.5, 1e-3, cudnn_enabled=False),
                       F.instance_norm(x, *running, w, b, momentum=0.5, eps=1e-3))
    assert torch.equal(mean, running[0]) and torch.equal(var, running[1])
    assert torch.equal(torch.layer_norm(x, (6,), eps=1e-3, cudnn_enable=False), F.layer_norm(x, (6,), eps=1e-3))
    assert torch.equal(torch.group_norm(x, 2, w, b, 1e-3, False), F.group_norm(x, 2, w, b, 1e-3))


def test_norms_give_their_statistics():
    """And those of layer norm and group norm have gradients."""
    x, w, b = X.reshape(2, 2, 6).clone().requires_grad_(), torch.tensor([2.0, 3.0]).double(), torch.tensor([-1.0, 1.0]).double()
    for (out, mean, rstd), like, dims, groups in (
            (torch.native_layer_norm(x, (2, 6), None, None, 1e-3), F.layer_norm(x, (2, 6), eps=1e-3), (1, 2), (2, 1, 1)),
            (torch.native_group_norm(x, w, b, 2, 2, 6, 2, 1e-3), F.group_norm(x, 2, w, b, 1e-3), 2, (2, 2)),
            (torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-3), F.batch_norm(x, None, None, w, b, True, eps=1e-3), (0, 2), 2)):
        assert torch.equal(out, like)
        assert torch.allclose(mean, x.mean(dims).reshape(groups))
        assert torch.allclose(rstd, (x.var(dims, correction=0).reshape(groups) + 1e-3).rsqrt())
        if mean.requires_grad:
            g, = torch.autograd.grad(mean.sum(), x)
            assert torch.allclose(g, torch.ones_like(g) * mean.numel() / x.numel())
    assert not mean.requires_grad
    assert [y.shape for y in torch.native_group_norm(x[:0], w, b, 0, 2, 6, 2, 1e-3)] == [(0, 2, 6), (0, 2), (0, 2)]
    running = torch.zeros(2).double(), torch.ones(2).double()
    out, *empty = torch.native_batch_norm(x, w, b, *running, False, 0.1, 0.0)
    assert torch.allclose(out, x * w[:, None] + b[:, None]) and [e.numel() for e in empty] == [0, 0]


def test_dropout_with_its_mask():
    torch.manual_seed(0)
    out, mask = torch.native_dropout(torch.ones(1000), 0.25, True)
    assert mask.dtype is torch.bool and 650 < mask.sum().item() < 850
    assert torch.equal(out, mask / 0.75)
    assert not torch.native_dropout(torch.ones(3), 1.0, None)[0].any() and torch.native_dropout(X, 0.5, False)[1].all()


def test_padding_and_norms():
    assert torch.equal(torch.constant_pad_nd(X, (1, -2), 7.0), F.pad(X, (1, -2), value=7.0))
    x = X.reshape(2, 3, 4)
    for dim in range(3):
        assert torch.allclose(torch.norm_except_dim(x, 2, dim), x.square().sum([d for d in range(3) if d != dim], keepdim=True).sqrt())
    assert torch.norm_except_dim(x, 1, -1).item() == pytest.approx(x.abs().sum().item())
    out = torch.empty(2, 1, 4).double()
    assert torch.frobenius_norm(x, 1, True, out=out) is out and torch.allclose(out, x.square().sum(1, keepdim=True).sqrt())
    with pytest.raises(RuntimeError, match="at most 2 dims"):
        torch.frobenius_norm(x, (0, 1, 2))
    with pytest.raises(IndexError):
        torch.norm_except_dim(x, 2, 3)
