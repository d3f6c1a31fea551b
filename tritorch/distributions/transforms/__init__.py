"""Invertible functions of random variables: values, inverses, shapes and log |det Jacobian|.

>>> import tritorch as torch
>>> from tritorch.distributions.transforms import AffineTransform, ComposeTransform, ExpTransform
>>> t = ComposeTransform([AffineTransform(1.0, 2.0), ExpTransform()])
>>> y = t(torch.tensor([0.0, 1.0])); y, t.inv(y).round(decimals=4), t.log_abs_det_jacobian(torch.tensor([0.0, 1.0]), y)
(tensor([ 2.7183, 20.0855]), tensor([0., 1.]), tensor([1.6931, 3.6931]))
"""
from tritorch.distributions.transforms.composed import (
    ComposeTransform,
    IndependentTransform,
    ReshapeTransform,
    identity_transform,
)
from tritorch.distributions.transforms.elementwise import (
    AbsTransform,
    AffineTransform,
    CumulativeDistributionTransform,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
    TanhTransform,
)
from tritorch.distributions.transforms.joined import CatTransform, StackTransform
from tritorch.distributions.transforms.transform import Transform, _InverseTransform
from tritorch.distributions.transforms.vectors import (
    CorrCholeskyTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    SoftmaxTransform,
    StickBreakingTransform,
)

__all__ = ["AbsTransform", "AffineTransform", "CatTransform", "ComposeTransform", "CorrCholeskyTransform",
           "CumulativeDistributionTransform", "ExpTransform", "IndependentTransform", "LowerCholeskyTransform",
           "PositiveDefiniteTransform", "PowerTransform", "ReshapeTransform", "SigmoidTransform", "SoftmaxTransform", "SoftplusTransform",
           "StackTransform", "StickBreakingTransform", "TanhTransform", "Transform", "identity_transform"]
