"""Layers and models as ONNX graphs, at several sizes of batch, time and image."""
import pytest
from onnx_cases import drawn, exported, kinds

import tritorch as torch
from bench.models.gpt2 import GPT2, TINY
from bench.models.resnet import ResNet
from tritorch import nn
from tritorch.nn import functional as F

IMAGE, IMAGES, SIZES = (drawn(2, 3, 8, 9),), [(drawn(3, 3, 11, 14),)], ({0: "batch", 2: "height", 3: "width"},)
ANY_SIZE = {
    "convolution": lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), "depthwise": lambda: nn.Conv2d(3, 6, 3, groups=3, dilation=2,
                                                                                                   bias=False),
    "reflecting": lambda: nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"), "circular": lambda: nn.Conv2d(3, 4, 3, padding=1,
                                                                                                                    padding_mode="circular"),
    "transposed": lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), "batch norm": lambda: nn.BatchNorm2d(3),
    "group norm": lambda: nn.GroupNorm(3, 3), "instance norm": lambda: nn.InstanceNorm2d(3, affine=True),
    "max pool": lambda: nn.MaxPool2d(3, 2, 1),
    "max pool up": lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), "places": lambda: nn.MaxPool2d(3, 2, 1, return_indices=True),
    "average pool": lambda: nn.AvgPool2d(3, 2, 1), "average inside": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "divisor": lambda: nn.AvgPool2d(2, divisor_override=3), "adaptive": lambda: nn.AdaptiveAvgPool2d(1),
    "rows": lambda: nn.AdaptiveAvgPool2d((1, None)),
    "nearest": lambda: nn.Upsample(scale_factor=2), "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "of a size": lambda: nn.Upsample((20, 13), mode="bilinear"),
    "corners": lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), "cubic": lambda: nn.Upsample(scale_factor=1.5,
                                                                                                                      mode="bicubic"),
    "exact": lambda: nn.Upsample(size=(5, 7), mode="nearest-exact"), "unfold": lambda: nn.Unfold(3, padding=1, stride=2),
    "local norm": lambda: nn.LocalResponseNorm(2),
}
ONE_SIZE = {
    "average up": lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), "average up inside": lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True,
                                                                                                           count_include_pad=False),
    "adaptive parts": lambda: nn.AdaptiveAvgPool2d((3, 2)), "adaptive max": lambda: nn.AdaptiveMaxPool2d((3, 2)),
    "fold": lambda: nn.Sequential(nn.Unfold(3), nn.Fold((8, 9), 3)),
}


@pytest.mark.parametrize("name", ANY_SIZE)
def test_images(name):
    exported(ANY_SIZE[name](), IMAGE, SIZES, IMAGES)


@pytest.mark.parametrize("name", ONE_SIZE)
def test_images_of_one_size(name):
    exported(ONE_SIZE[name](), IMAGE, ({0: "batch"},), [(drawn(3, 3, 8, 9),)])


@pytest.mark.parametrize("layer", [nn.Conv1d(3, 4, 3, padding=1), nn.ConvTranspose1d(3, 4, 3, stride=2), nn.BatchNorm1d(3), nn.MaxPool1d(2),
                                   nn.Upsample(scale_factor=2, mode="linear"),
                                   nn.AdaptiveAvgPool1d(1)], ids=lambda m: type(m).__name__)
def test_signals(layer):
    exported(layer, (drawn(2, 3, 10),), ({0: "batch", 2: "time"},), [(drawn(5, 3, 17),)])


@pytest.mark.parametrize("layer", [nn.Conv3d(3, 4, 3, padding=1), nn.BatchNorm3d(3), nn.MaxPool3d(2), nn.AvgPool3d(2)],
                         ids=lambda m: type(m).__name__)
def test_volumes(layer):
    exported(layer, (drawn(2, 3, 4, 6, 5),), ({0: "batch"},), [(drawn(3, 3, 4, 6, 5),)])


def test_activations():
    names = """GELU SiLU Mish Tanh Softplus Softsign LeakyReLU ELU SELU CELU Hardtanh Hardsigmoid Hardswish Hardshrink Softshrink LogSigmoid
        PReLU ReLU6""".split()
    layers = nn.ModuleList([*[getattr(nn, name)() for name in names], nn.GELU("tanh"), nn.Threshold(0.1, 5), nn.Softmax(-1)])
    for opset in (18, 23):
        exported(lambda x: [layer(x) for layer in layers], (drawn(4, 6),), ({0: "rows"},), [(drawn(3, 6) * 3,)], opset_version=opset)
    exported(nn.GLU(), (drawn(4, 6),))


@pytest.mark.parametrize("layer", [nn.LSTM(6, 8, 2, bidirectional=True, batch_first=True), nn.GRU(6, 8, batch_first=True),
                                   nn.RNN(6, 8, bias=False, batch_first=True),
                                   nn.LSTM(6, 8, proj_size=0, batch_first=True, bias=False)], ids=lambda m: type(m).__name__)
def test_recurrent_layers(layer):
    program = exported(layer, (drawn(2, 5, 6),), ({0: "batch", 1: "time"},), [(drawn(3, 9, 6),)])
    assert type(layer).__name__ in kinds(program)


def test_states_of_recurrent_layers():
    exported(nn.LSTM(6, 8), (drawn(5, 2, 6), (drawn(1, 2, 8), drawn(1, 2, 8, seed=1))),
             others=[(drawn(5, 2, 6, seed=1), (drawn(1, 2, 8), drawn(1, 2, 8)))])
    exported(nn.GRU(6, 8), (drawn(5, 2, 6), drawn(1, 2, 8)))


@pytest.mark.parametrize("opset", [18, 20, 23])
def test_norms(opset):
    layers = nn.ModuleList([nn.LayerNorm(6), nn.LayerNorm((3, 6), elementwise_affine=False), nn.RMSNorm(6),
                            nn.RMSNorm(6, elementwise_affine=False)])
    exported(lambda x: [layer(x) for layer in layers], (drawn(2, 3, 6),), ({0: "batch"},), [(drawn(4, 3, 6),)], opset_version=opset)


def attentions(q, k, v, mask):
    added = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    attend = F.scaled_dot_product_attention
    return (attend(q, k, v), attend(q, k, v, is_causal=True), attend(q, k, v, mask), attend(q, k, v, added, scale=0.3),
            attend(q, k[:, :2], v[:, :2], enable_gqa=True), attend(q, k, v, window_size=(1, 1)), attend(q[0], k[0], v[0], is_causal=True))


def test_attention():
    def inputs(batch, rows, keys):
        mask = drawn(batch, 1, rows, keys) > -0.5
        mask[0, 0, 0] = False                                            # a row that may attend to nothing
        return drawn(batch, 4, rows, 8), drawn(batch, 4, keys, 8), drawn(batch, 4, keys, 8, seed=1), mask

    shapes = {0: "batch", 2: "rows"}, {0: "batch", 2: "keys"}, {0: "batch", 2: "keys"}, {0: "batch", 2: "rows", 3: "keys"}
    exported(attentions, inputs(2, 5, 5), shapes, [inputs(3, 7, 4), inputs(2, 3, 9)])


def test_heads_and_encoder():
    x, other, shapes = drawn(2, 5, 16), drawn(3, 9, 16), {0: "batch", 1: "time"}
    exported(nn.MultiheadAttention(16, 4, batch_first=True), (x, x, x), (shapes,) * 3, [(other,) * 3])
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu", norm_first=True), 2,
                                    enable_nested_tensor=False)
    exported(encoder, (x,), (shapes,), [(other,), (drawn(1, 1, 16),)])
    padding = torch.tensor([[False] * 4 + [True], [False] * 5])
    exported(lambda x, p: encoder(x, src_key_padding_mask=p), (x, padding), (shapes, shapes), [(drawn(3, 5, 16), padding[[0, 1, 0]])])


class Rotary(nn.Module):
    """Queries turned by their positions, as programs write it by hand."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", 10000.0 ** -(torch.arange(0, 8, 2) / 8), persistent=False)

    def forward(self, q):
        angles = torch.arange(q.shape[1], device=q.device)[:, None] * self.steps
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        half = q.shape[-1] // 2
        turned = torch.cat([-q[..., half:], q[..., :half]], -1)
        return q * cos + turned * sin, F.rotary_embedding(q, angles.cos(), angles.sin())


def test_rotary_embedding():
    exported(Rotary(), (drawn(2, 5, 8),), ({0: "batch", 1: "time"},), [(drawn(3, 11, 8),)])


@pytest.mark.parametrize("fused", [False, True])
def test_gpt2(fused):
    model = GPT2(TINY.__class__(**{**TINY.__dict__, "fused": fused}))
    program = exported(model, (drawn(2, 8, low=0, high=61),), ({0: "batch", 1: "time"},), [(drawn(3, 16, low=0, high=61),),
                                                                                           (drawn(1, 3, low=0, high=61),)])
    names = {x.name for x in program.model_proto.graph.initializer}
    assert "transformer.h.0.attn.c_attn.weight" in names and "transformer.wpe.weight" in names
    assert len(names & {"lm_head.weight", "transformer.wte.weight"}) == 1                       # they are one


def test_resnet():
    model = ResNet(blocks=(1, 1, 1, 1), classes=5, width=8)
    program = exported(model, (drawn(2, 3, 32, 32),), ({0: "batch", 2: "height", 3: "width"},), [(drawn(1, 3, 48, 37),)], tolerance=1e-4)
    assert kinds(program)["BatchNormalization"] == sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
