"""torch.ao.quantization: observers, configurations, models made ready and trained with fake-quantized weights and results."""
import copy
import pickle

import numpy as np
import pytest

import tritorch as torch
from tritorch import nn

q = torch.ao.quantization


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant, self.sum = q.QuantStub(), q.DeQuantStub(), torch.ao.nn.quantized.FloatFunctional()
        self.conv, self.bn, self.relu = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.linear, self.act, self.last, self.sigmoid = nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3), nn.Sigmoid()

    def forward(self, x):
        x = self.relu(self.bn(self.conv(self.quant(x))))
        x = self.act(self.linear(self.sum.add(x, x).flatten(1)))
        return self.dequant(self.sigmoid(self.last(x)))


def ready(qconfig, seed=0):
    torch.manual_seed(seed)
    model = q.fuse_modules_qat(Net().train(), [["conv", "bn", "relu"], ["linear", "act"]])
    model.qconfig = qconfig
    return q.prepare_qat(model)


def images(n, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal((n, 1, 4, 4)), dtype=torch.float32)


@pytest.mark.parametrize("version", [0, 1])
def test_a_model_trains_with_fake_quantized_weights(cuda, version):
    losses = {}
    for device in ("cpu", cuda):
        model = ready(q.get_default_qat_qconfig("fbgemm", version)).to(device)
        assert type(model.conv) is torch.ao.nn.intrinsic.qat.ConvBnReLU2d and type(model.last) is torch.ao.nn.qat.Linear
        assert type(model.relu) is type(model.act) is nn.Identity
        optimizer, losses[str(device)] = torch.optim.SGD(model.parameters(), lr=0.5), []
        for step in range(3):
            if step == 2:
                model.apply(q.disable_observer)
                model.apply(torch.ao.nn.intrinsic.qat.freeze_bn_stats)
                before = model.quant.activation_post_process.scale.item(), model.conv.bn.running_mean.tolist()
            loss = (model(images(6, step).to(device)) - 0.7).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[str(device)].append(loss.item())
        assert before == (model.quant.activation_post_process.scale.item(), model.conv.bn.running_mean.tolist())
        assert losses[str(device)][2] < losses[str(device)][0] and all(p.grad is not None for p in model.parameters())
        out = model.eval()(images(3).to(device))
        steps = out.detach().cpu().numpy() * 256                                  # results of a sigmoid are whole 256ths
        assert np.array_equal(steps, np.rint(steps))
    np.testing.assert_allclose(*losses.values(), rtol=0.05)


def test_what_was_trained_is_saved_and_loaded():
    model = ready(q.get_default_qat_qconfig("qnnpack"))
    model(images(4))
    other = ready(q.get_default_qat_qconfig("qnnpack"), seed=1)
    other.load_state_dict(model.state_dict())
    each = ready(q.get_default_qat_qconfig("fbgemm"))
    each(images(4))
    copied = ready(q.get_default_qat_qconfig("fbgemm"), seed=1)
    copied.load_state_dict(each.state_dict())                            # scales of channels, of which there were none
    x = images(2, 5)
    for made in (model, other, each, copied):
        made.apply(q.disable_observer)
    for a, b in ((model, other), (each, copied), (each, copy.deepcopy(each))):
        assert torch.equal(a.eval()(x), b.eval()(x))


def test_batch_norm_is_folded_into_what_is_quantized():
    model = ready(q.QConfig(activation=nn.Identity, weight=nn.Identity))  # what quantizes changes nothing: the fused layer alone
    assert not hasattr(model.conv, "no") and isinstance(model.conv.weight_fake_quant, nn.Identity)
    x, plain = images(5), model.conv.to_float()
    torch.testing.assert_close(model.conv(x), plain(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.conv.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)


def test_observers():
    a, b = torch.tensor([[-1.0, 0.5]]), torch.tensor([[2.0, 4.0]])
    observer = q.MinMaxObserver(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
    assert observer.calculate_qparams()[0].tolist() == [1] and observer(a) is a
    observer(b)
    scale, zero = observer.calculate_qparams()
    assert scale.item() == pytest.approx(4 / 127.5) and zero.tolist() == [0]
    assert str(observer) == "MinMaxObserver(min_val=-1.0, max_val=4.0)"
    moving = q.MovingAverageMinMaxObserver(averaging_constant=0.5)
    moving(a)
    moving(b)
    assert (moving.min_val.item(), moving.max_val.item()) == (0.5, 2.25)
    channels = q.PerChannelMinMaxObserver(ch_axis=1)
    channels(a)
    channels(b)
    assert channels.min_val.tolist() == [-1, 0.5] and channels.max_val.tolist() == [2, 4]
    assert channels.calculate_qparams()[1].tolist() == [85, 0]
    again = q.PerChannelMinMaxObserver(ch_axis=1)
    again.load_state_dict(channels.state_dict())
    assert again.max_val.tolist() == [2, 4]
    channels.reset_min_max_vals()
    assert channels.min_val.numel() == 0 and (observer.quant_min, observer.quant_max) == (-128, 127)
    assert q.MinMaxObserver(reduce_range=True).quant_max == 127 and q.default_observer().quant_max == 127


def test_a_histogram_leaves_outliers_out():
    histogram, plain = q.HistogramObserver(), q.MinMaxObserver()
    for observer in (histogram, plain):
        observer(torch.linspace(-1, 1, 1000000))
        observer(torch.tensor([5.0]))
    assert histogram.histogram.sum().item() == pytest.approx(1000001, rel=1e-5) and histogram.max_val.item() == 5.0
    assert histogram.calculate_qparams()[0].item() < 0.5 * plain.calculate_qparams()[0].item()
    with pytest.warns(UserWarning, match="infinities"):
        histogram(torch.tensor([float("inf"), 0.0]))
    assert histogram.max_val.item() == 5.0


def test_calibration_watches_results():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 2)), nn.Dropout(0.5)).eval()
    model.qconfig, model[1][1].qconfig = q.default_qconfig, None
    made = q.prepare(model)
    x = torch.ones(2, 3)
    y = made(x)
    assert torch.equal(y, model(x)) and made[0].activation_post_process.max_val == model[0](x).max()
    assert not hasattr(made[1][1], "activation_post_process") and not hasattr(model[0], "activation_post_process")
    with pytest.warns(UserWarning, match="modules with a qconfig"):
        q.prepare(nn.Linear(1, 1))


def test_tables_and_wrapped_leaves():
    table = nn.Sequential(nn.Embedding(5, 4)).train()
    table.qconfig = q.default_embedding_qat_qconfig
    made = q.prepare_qat(table, q.get_embedding_qat_module_mappings())
    out = made(torch.tensor([1, 2]))
    out.sum().backward()
    assert made[0].weight_fake_quant.zero_point.dtype is torch.float32 and made[0].weight.grad[1].eq(1).all()
    assert (out - table[0].weight[1:3]).abs().max() < 0.02
    table[0].qconfig = q.default_qconfig
    assert isinstance(q.add_quant_dequant(table)[0], q.QuantWrapper)


def test_names_are_values_and_mistakes_are_told():
    assert torch.per_tensor_affine != torch.per_channel_affine and isinstance(torch.per_tensor_affine, torch.qscheme)
    for value in (torch.per_channel_symmetric, torch.qint8):
        assert pickle.loads(pickle.dumps(value)) is value
    assert torch.iinfo(torch.quint8).max == 255 and torch.quint8.itemsize == 1
    assert q.qconfig_equals(q.get_default_qat_qconfig("x86"), q.get_default_qat_qconfig("fbgemm"))
    assert not q.qconfig_equals(q.default_qconfig, q.default_qat_qconfig) and q.qconfig_equals(None, None)
    for wrong, error in ((lambda: q.MinMaxObserver(qscheme=torch.per_channel_affine), NotImplementedError),
                         (lambda: q.MinMaxObserver(quant_min=1, quant_max=5), AssertionError),
                         (lambda: q.FakeQuantize(quant_min=0, quant_max=300), AssertionError),
                         (lambda: q.QConfig(q.MinMaxObserver(), q.MinMaxObserver()), ValueError),
                         (lambda: q.prepare_qat(Net().eval()), AssertionError), (lambda: q.get_default_qat_qconfig("none"), AssertionError),
                         (lambda: q.fuse_modules(Net().eval(), ["linear", "last"]), AssertionError),
                         (lambda: torch.ao.nn.qat.Linear(2, 3), AssertionError),
                         (lambda: torch.zeros(1, dtype=torch.qint8), NotImplementedError),
                         (lambda: torch.ao.nn.intrinsic.ConvReLU2d(nn.ReLU(), nn.ReLU()), AssertionError)):
        with pytest.raises(error):
            wrong()
