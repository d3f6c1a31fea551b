"""Which modules are watched, and which are exchanged for training."""
from tritorch.ao.nn import intrinsic, qat
from tritorch.ao.nn.intrinsic import qat as fused
from tritorch.ao.nn.quantized import FloatFunctional
from tritorch.ao.quantization import fake_quantize as fq
from tritorch.ao.quantization.stubs import DeQuantStub, QuantStub
from tritorch.nn import activation, container, conv, dropout, linear, norm, recurrent_cells, rnn, sparse

_NAMES = [f"{kind}{n}d" for kind in ("ConvBn", "ConvBnReLU") for n in (1, 2, 3)] + ["ConvReLU2d", "ConvReLU3d", "LinearReLU"]
QAT = {conv.Conv2d: qat.Conv2d, conv.Conv3d: qat.Conv3d, linear.Linear: qat.Linear,
       **{getattr(intrinsic, name): getattr(fused, name) for name in _NAMES}}
EMBEDDINGS = {sparse.Embedding: qat.Embedding, sparse.EmbeddingBag: qat.EmbeddingBag}
WATCHED = {QuantStub, DeQuantStub, FloatFunctional, container.Sequential, dropout.Dropout, *QAT, *EMBEDDINGS, *QAT.values(),
           *[getattr(intrinsic, name) for name in intrinsic.__all__],
           *[getattr(conv, name) for name in ("Conv1d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")],
           *[getattr(norm, name) for name in ("BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d",
                                              "InstanceNorm3d", "LayerNorm")],
           *[getattr(activation, name) for name in ("ELU", "Hardswish", "LeakyReLU", "PReLU", "ReLU6")],
           rnn.GRU, rnn.LSTM, recurrent_cells.GRUCell, recurrent_cells.LSTMCell, recurrent_cells.RNNCell}
KNOWN_RANGES = {activation.Hardsigmoid: fq.default_fixed_qparams_range_0to1_fake_quant,
                activation.Sigmoid: fq.default_fixed_qparams_range_0to1_fake_quant,
                activation.Softmax: fq.default_fixed_qparams_range_0to1_fake_quant,
                activation.Tanh: fq.default_fixed_qparams_range_neg1to1_fake_quant}


def get_default_qat_module_mappings():
    """{module: the one that `prepare_qat` puts in its place}.

    >>> import tritorch as torch
    >>> torch.ao.quantization.get_default_qat_module_mappings()[torch.nn.Linear] is torch.ao.nn.qat.Linear
    True
    """
    return dict(QAT)


def get_embedding_qat_module_mappings():
    """The same with embeddings."""
    return {**QAT, **EMBEDDINGS}


def get_default_qconfig_propagation_list():
    """The modules whose results are watched."""
    return set(WATCHED)
