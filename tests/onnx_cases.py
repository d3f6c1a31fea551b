"""What the tests of the exporter share: a model exported, checked, and computed by numpy's evaluator on other inputs and sizes."""
import numpy as np
import pytest

import tritorch as torch
from tritorch import nn
from tritorch.utils._pytree import tree_leaves

onnx = pytest.importorskip("onnx")


class Of(nn.Module):
    """A function as a model."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *args):
        return self.f(*args)


def drawn(*shape, seed=0, low=None, high=None):
    """Numbers of N(0, 1), or whole ones from low to high - 1."""
    rng = np.random.default_rng([seed, *shape])
    if low is not None:
        return torch.from_numpy(rng.integers(low, high, shape))
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def kinds(program):
    """How often each operator is in the graph."""
    names = [node.op_type for node in program.model_proto.graph.node]
    return {name: names.count(name) for name in names}


def alike(got, want, tolerance):
    assert len(got) == len(want)
    for x, y in zip(got, [y.detach() for y in want]):
        assert x.shape == y.shape and x.dtype is y.dtype, (x.shape, y.shape, x.dtype, y.dtype)
        scale = max(y.double().nan_to_num(0, 0, 0).abs().max().item(), 1) if y.numel() else 1
        np.testing.assert_allclose(x.double().numpy(), y.double().numpy(), rtol=tolerance, atol=tolerance * scale)


def exported(model, args, shapes=None, others=(), tolerance=2e-5, **options):
    """The program of a model, after its results were compared with the model's on `args` and the `others`."""
    model = (model if isinstance(model, nn.Module) else Of(model)).eval()
    program = torch.onnx.export(model, args, dynamic_shapes=shapes, **options)
    onnx.checker.check_model(program.model_proto, full_check=True)
    for given in (args, *others):
        with torch.no_grad():
            want = tensors(model(*given))
        alike(program(*given), want, tolerance)
    return program
