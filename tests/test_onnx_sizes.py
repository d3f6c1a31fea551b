"""No graph is silently another program at other sizes: whatever is exported computes what Python does at every size, or is refused."""
import math

import pytest
from onnx_cases import Of, alike, drawn, exported, tensors

import tritorch as torch
from tritorch import nn
from tritorch.export import Dim
from tritorch.nn import functional as F
from tritorch.onnx.errors import OnnxExporterError

CONVOLUTIONS = nn.Conv1d(1, 1, 3, stride=3), nn.Conv1d(1, 1, 3, stride=3, padding=1)


def convolved(x, k):
    return CONVOLUTIONS[k](x.t()[None, :1])[0]


EXACT = {
    "third": lambda x: x[: (x.shape[0] + 1) // 3], "half": lambda x: x[x.shape[0] // 2:], "at most five": lambda x: x[:5],
    "at most thirty": lambda x: x[:30], "the last seven": lambda x: x[-7:], "without two": lambda x: x[:-2],
    "at least four": lambda x: torch.zeros(max(x.shape[0], 4), 2), "at least thirty": lambda x: torch.zeros(max(x.shape[0], 30), 2),
    "squared": lambda x: x * x.shape[0] ** 2, "logarithm": lambda x: x * math.log(x.shape[0]), "every third": lambda x: (x[::3], x[1::2]),
    "chunks": lambda x: x.chunk(2), "windows": lambda x: x.unfold(0, 2, 1), "linspace": lambda x: torch.linspace(0, 1, x.shape[0]),
    "steps": lambda x: (torch.arange(convolved(x, 0).shape[-1]), torch.arange(convolved(x, 1).shape[-1])), "roll": lambda x: x.roll(1, 0),
    "halved": lambda x: F.interpolate(x.t()[None], scale_factor=0.5)[0],
    "nearly doubled": lambda x: F.interpolate(x.t()[None], size=x.shape[0] * 2 - 1)[0],
    "pooled": lambda x: F.max_pool1d(x.t()[None], 2, ceil_mode=True)[0], "averaged": lambda x: F.avg_pool1d(x.t()[None], 3, 2, 1)[0],
}
REFUSED = {
    "padded to sixteen": lambda x: F.pad(x, (0, 0, 0, (-x.shape[0]) % 16)), "odd": lambda x: x[x.shape[0] % 2:],
    "a root": lambda x: x[: math.isqrt(x.shape[0])], "a branch": lambda x: x * 2 if x.shape[0] > 50 else x,
    "powers": lambda x: torch.zeros(2 ** x.shape[0] if x.shape[0] < 8 else 5), "eye": lambda x: torch.eye(x.shape[0]),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.filterwarnings("ignore:onnx.export")
def test_exact_at_every_size(name):
    model = Of(EXACT[name]).eval()
    for sample in (3, 8):
        program = torch.onnx.export(model, (drawn(sample, 2),), dynamic_shapes=({0: "rows"},))
        for n in (2, 3, 4, 5, 6, 7, 9, 13, 16, 29, 31, 47, 64):
            try:
                want = tensors(model(drawn(n, 2)))
            except RuntimeError:                                         # a convolution whose kernel does not fit
                continue
            alike(program(drawn(n, 2)), want, 2e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    for sample in (3, 8):
        with pytest.raises(OnnxExporterError):
            torch.onnx.export(Of(REFUSED[name]).eval(), (drawn(sample, 2),), dynamic_shapes=({0: "rows"},))


def test_ranges_are_looked_at_to_their_ends():
    model = Of(lambda x: x[:200]).eval()
    program = torch.onnx.export(model, (drawn(8, 2),), dynamic_shapes=({0: Dim("rows", max=300)},))
    for n in (2, 199, 201, 300):
        assert program(drawn(n, 2))[0].shape[0] == min(n, 200)
    above = Of(lambda x: x * 2 if x.shape[0] > 4 else x).eval()
    program = torch.onnx.export(above, (drawn(8, 2),), dynamic_shapes=({0: Dim("rows", min=5)},))
    alike(program(drawn(5, 2)), [above(drawn(5, 2))], 1e-6)
    with pytest.warns(torch.onnx.errors.OnnxExporterWarning, match="size 2 of the dynamic axis 'rows'"):
        torch.onnx.export(above, (drawn(8, 2),), dynamic_shapes=({0: "rows"},))


def test_a_program_with_a_largest_size_is_run_with_smaller_ones():
    table = drawn(8, 2)
    exported(lambda x: x + table[torch.arange(x.shape[0])], (drawn(8, 2),), ({0: "rows"},), [(drawn(3, 2),), (drawn(5, 2),)])


def test_two_axes_of_one_size_are_told_apart():
    def sized(x, y):
        return x @ y.mT, x.new_zeros(y.shape[0], x.shape[0]), torch.arange(x.shape[0] * y.shape[0])

    exported(sized, (drawn(4, 3), drawn(4, 3)), ({0: "a"}, {0: "b"}), [(drawn(2, 3), drawn(7, 3)), (drawn(9, 3), drawn(5, 3))])


class UNet(nn.Module):
    """Down and up, with whatever an odd size leaves over padded, and channels weighed by their means."""

    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 2, 1)

    def forward(self, x):
        wide = F.relu(self.down(x))
        deep = F.relu(self.deep(F.max_pool2d(wide, 2)))
        up = self.up(deep * F.hardsigmoid(F.adaptive_avg_pool2d(deep, 1)))
        rows, columns = wide.shape[2] - up.shape[2], wide.shape[3] - up.shape[3]
        up = F.pad(up, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        coarse = F.interpolate(deep, size=x.shape[-2:], mode="bilinear")
        return self.out(torch.cat([wide, up], 1)), coarse.argmax(1)


@pytest.mark.filterwarnings("ignore:onnx.export")
def test_unet():
    exported(UNet(), (drawn(2, 3, 16, 16),), ({0: "batch", 2: "height", 3: "width"},), [(drawn(1, 3, 19, 26),), (drawn(3, 3, 24, 20),)])


class Cells(nn.Module):
    """Cells, step after step, and the mean of what is no padding."""

    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.gru = nn.Embedding(20, 6, padding_idx=0), nn.LSTMCell(6, 8), nn.GRUCell(8, 4)

    def forward(self, tokens):
        x, h, c, g, kept = self.words(tokens), torch.zeros(len(tokens), 8), torch.zeros(len(tokens), 8), None, []
        for t in range(tokens.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            kept.append(g := self.gru(h, g))
        mask = (tokens != 0).unsqueeze(-1).float()
        return (torch.stack(kept, 1) * mask).sum(1) / mask.sum(1).clamp(min=1)


def test_cells():
    exported(Cells(), (drawn(2, 5, low=0, high=20),), ({0: "batch"},), [(drawn(4, 5, low=0, high=20),)])


def test_transformer_and_parametrized_weights():
    shapes = {0: "batch", 1: "source"}, {0: "batch", 1: "target"}
    exported(nn.Transformer(16, 4, 1, 1, 32, batch_first=True), (drawn(2, 5, 16), drawn(2, 3, 16)), shapes,
             [(drawn(3, 4, 16), drawn(3, 6, 16))])
    for parametrize in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm):
        exported(parametrize(nn.Linear(6, 3)), (drawn(2, 6),), ({0: "batch"},), [(drawn(4, 6),)])


def test_places_and_bags():
    grid = drawn(2, 4, 4, 2).tanh()
    exported(lambda x, g: F.grid_sample(x, g, align_corners=False), (drawn(2, 3, 5, 6), grid))
    exported(lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False), (drawn(2, 2, 3),))
    table, index = drawn(20, 6), drawn(3, 5, low=0, high=20)
    for mode in ("sum", "mean", "max"):
        exported(lambda i, mode=mode: F.embedding_bag(i, table, mode=mode, padding_idx=3), (index,))
    exported(lambda x: (*x.cummax(1), *x.cummin(0), torch.linalg.det(x.float())), (drawn(5, 5, low=0, high=4),))
