"""Batch norms in evaluation mode, folded into the layer before them: one layer that does what both do."""
import copy

from tritorch.nn.parameter import Parameter
from tritorch.ops.create import ones_like, zeros_like


def _fold(weight, rows, bias, mean, var, eps, scale, shift):
    kept = weight.dtype if bias is None else bias.dtype
    bias, scale, shift = (start(mean) if x is None else x for x, start in ((bias, zeros_like), (scale, ones_like), (shift, zeros_like)))
    factor = scale * (var + eps).rsqrt()
    return (Parameter((weight * factor.reshape(rows)).to(weight.dtype).detach(), weight.requires_grad),
            Parameter(((bias - mean) * factor + shift).to(kept).detach(), bias.requires_grad))


def _fused(layer, bn, **how):
    if layer.training or bn.training:
        raise AssertionError("fuse: expected both in evaluation mode, got one that trains")
    if bn.running_mean is None or bn.running_var is None:
        raise AssertionError("fuse: expected a batch norm with running statistics, got one without")
    fuse = how.pop("fuse")
    fused = copy.deepcopy(layer)
    fused.weight, fused.bias = fuse(layer.weight, layer.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, **how)
    return fused


def fuse_conv_bn_weights(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, transpose=False):
    """Weight and bias of the convolution that does what a convolution and a batch norm do."""
    rows = [1, -1] if transpose else [-1, 1]
    return _fold(conv_w, rows + [1] * (conv_w.ndim - 2), conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def fuse_conv_bn_eval(conv, bn, transpose=False):
    """A convolution that does what conv and bn do, both in evaluation mode; `transpose` for a transposed one.

    >>> import tritorch as torch
    >>> conv, bn = torch.nn.Conv2d(3, 4, 3).eval(), torch.nn.BatchNorm2d(4).eval()
    >>> x = torch.randn(2, 3, 8, 8)
    >>> torch.allclose(torch.nn.utils.fuse_conv_bn_eval(conv, bn)(x), bn(conv(x)), atol=1e-5)
    True
    """
    return _fused(conv, bn, fuse=fuse_conv_bn_weights, transpose=transpose)


def fuse_linear_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b):
    """Weight and bias of the linear layer that does what a linear layer and a batch norm do."""
    return _fold(linear_w, [-1, 1], linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def fuse_linear_bn_eval(linear, bn):
    """A linear layer that does what linear and bn do, both in evaluation mode."""
    if linear.out_features != bn.num_features and bn.num_features != 1:
        raise AssertionError(f"fuse: expected a batch norm of {linear.out_features} features or of 1, got {bn.num_features}")
    return _fused(linear, bn, fuse=fuse_linear_bn_weights)
