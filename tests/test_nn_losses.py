"""Every loss against PyTorch, and the distances."""
import numpy as np
import pytest
from test_nn_layers import _both, _close, _numbers, compare

import tritorch
from tritorch import nn

oracle = pytest.importorskip("torch")


def _target(kind):
    return {"like": _numbers(4, 5, seed=1), "probability": 1 / (1 + np.exp(-_numbers(4, 5, seed=1))),
            "classes": _numbers(4, seed=1, high=5),
            "signs": np.sign(_numbers(4, 5, seed=1)), "counts": _numbers(4, 5, seed=1, high=6).astype(float)}[kind]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name, source, target, kwargs", [
    ("L1Loss", "like", "like", {}), ("MSELoss", "like", "like", {}), ("SmoothL1Loss", "like", "like", {"beta": 0.5}),
    ("HuberLoss", "like", "like", {"delta": 0.5}),
    ("NLLLoss", "like", "classes", {}), ("NLLLoss", "like", "classes", {"ignore_index": 1}), ("CrossEntropyLoss", "like", "classes", {}),
    ("CrossEntropyLoss", "like", "classes", {"label_smoothing": 0.1, "ignore_index": 1}), ("CrossEntropyLoss", "like", "probability", {}),
    ("BCELoss", "probability", "probability", {}), ("BCEWithLogitsLoss", "like", "probability", {}),
    ("KLDivLoss", "like", "probability", {}),
    ("KLDivLoss", "like", "like", {"log_target": True}), ("PoissonNLLLoss", "like", "counts", {"full": True}),
    ("PoissonNLLLoss", "probability", "counts", {"log_input": False}),
    ("HingeEmbeddingLoss", "like", "signs", {"margin": 0.7}), ("SoftMarginLoss", "like", "signs", {}),
    ("MultiMarginLoss", "like", "classes", {"p": 2, "margin": 0.5}),
    ("MultiLabelSoftMarginLoss", "like", "probability", {})])
def test_losses(name, source, target, kwargs, reduction):
    x = _numbers(4, 5) if source == "like" else 1 / (1 + np.exp(-_numbers(4, 5)))
    compare(name, (), [x, _target(target)], {**kwargs, "reduction": reduction}, frozen=(1,) if target in ("signs", "counts") else ())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weighted_losses(reduction):
    weight = np.array([0.5, 1.0, 2.0, 0.3, 1.2])
    for name, target in (("NLLLoss", "classes"), ("CrossEntropyLoss", "classes"), ("MultiMarginLoss", "classes"),
                         ("BCEWithLogitsLoss", "probability"),
                         ("MultiLabelSoftMarginLoss", "probability")):
        x, y = (_both(v) for v in (_numbers(4, 5), _target(target)))
        ours = getattr(nn, name)(weight=tritorch.tensor(weight), reduction=reduction)
        theirs = getattr(oracle.nn, name)(weight=oracle.tensor(weight), reduction=reduction)
        _close(ours(x[0], y[0]), theirs(x[1], y[1]), name, 1e-12)
    x, y = (_both(v) for v in (_numbers(4, 5), _target("probability")))
    ours = nn.BCEWithLogitsLoss(pos_weight=tritorch.tensor(weight), reduction=reduction)
    _close(ours(x[0], y[0]), oracle.nn.BCEWithLogitsLoss(pos_weight=oracle.tensor(weight), reduction=reduction)(x[1], y[1]), "pos_weight",
           1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_several_inputs(reduction):
    a, b, c = (_numbers(4, 5, seed=s) for s in (1, 2, 3))
    signs = np.sign(_numbers(4, seed=4))
    compare("MarginRankingLoss", (), [a[:, 0].copy(), b[:, 0].copy(), signs], {"margin": 0.3, "reduction": reduction})
    compare("CosineEmbeddingLoss", (), [a, b, signs.astype(int)], {"margin": 0.1, "reduction": reduction})
    compare("TripletMarginLoss", (), [a, b, c], {"reduction": reduction})
    compare("TripletMarginLoss", (), [a, b, c], {"reduction": reduction, "swap": True, "p": 1.0})
    compare("TripletMarginWithDistanceLoss", (), [a, b, c], {"reduction": reduction})
    compare("GaussianNLLLoss", (), [a, b, np.abs(c)], {"reduction": reduction, "full": True})
    compare("GaussianNLLLoss", (), [a, b, np.abs(c[:, 0]).copy()], {"reduction": reduction, "eps": 0.5})
    compare("MultiLabelMarginLoss", (), [a, np.array([[3, 0, -1, 1, 2], [0, 1, 2, 3, 4], [-1, 0, 1, 2, 3], [2, -1, -1, -1, -1]])],
            {"reduction": reduction})
    compare("CosineSimilarity", (), [a, b])
    compare("PairwiseDistance", (), [a, b])
    compare("PairwiseDistance", (1.0,), [a, b], {"keepdim": True})


def test_cross_entropy_over_images():
    compare("CrossEntropyLoss", (), [_numbers(2, 5, 3, 4), _numbers(2, 3, 4, seed=1, high=5)])
    compare("NLLLoss", (), [_numbers(2, 5, 3), _numbers(2, 3, seed=1, high=5)], {"reduction": "sum"})


def test_legacy_reductions():
    assert nn.MSELoss(size_average=False).reduction == "sum" and nn.L1Loss(reduce=False).reduction == "none"
    assert nn.MSELoss(reduce=True, reduction="sum").reduction == "mean"
    with pytest.raises(TypeError, match="HuberLoss: expected a number as delta, got '1'"):
        nn.HuberLoss(delta="1")


@pytest.mark.parametrize("kwargs", [{}, {"bias": True, "label_smoothing": 0.1}, {"out_features": (2, 3), "bias": True},
                                    {"reduction": "sum", "ignore_index": 1}, {"reduction": "none"}])
def test_linear_cross_entropy_loss(kwargs):
    target = _numbers(4, *kwargs.get("out_features", ()), seed=1, high=5)
    compare("LinearCrossEntropyLoss", (6, 5), [_numbers(4, 6), target], kwargs)
    with pytest.raises(RuntimeError, match="expected 0 ≤ label_smoothing ≤ 1"):
        nn.LinearCrossEntropyLoss(6, 5, label_smoothing=1.5)
    with pytest.raises(RuntimeError, match="expected a weight of shape"):
        nn.LinearCrossEntropyLoss(6, 5, weight=tritorch.ones(4))
