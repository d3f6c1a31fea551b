"""Where quantized values begin and end in a model."""
from tritorch.nn.module import Module


class _Stub(Module):
    """Returns its input."""

    def __init__(self, qconfig=None):
        super().__init__()
        if qconfig:
            self.qconfig = qconfig

    def forward(self, x):
        return x


class QuantStub(_Stub):
    """Returns its input. After `prepare` or `prepare_qat` what passes is watched: values are quantized from here on."""


class DeQuantStub(_Stub):
    """Returns its input: values are floating from here on."""


class QuantWrapper(Module):
    """A module between a QuantStub and a DeQuantStub."""

    def __init__(self, module):
        super().__init__()
        qconfig = getattr(module, "qconfig", None)
        self.add_module("quant", QuantStub(qconfig))
        self.add_module("dequant", DeQuantStub(qconfig))
        self.add_module("module", module)
        self.train(module.training)

    def forward(self, X):
        return self.dequant(self.module(self.quant(X)))
