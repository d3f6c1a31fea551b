"""Modules and files on the device meta: skeletons of models, and how they come to memory."""
import warnings

import numpy as np
import pytest
from test_meta import NO_VALUES, facts, meta

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F
from tritorch.utils.flop_counter import FlopCounterMode


# ------------------------------------------------------------------ modules
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(11, 8), nn.BatchNorm1d(8)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.cell, self.head = nn.LSTM(8, 8, 2), nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, index):
        x = self.body(self.table(index)) * self.scale
        return self.head(self.cell(self.norm(x.mT).mT)[0])


def skeleton():
    with torch.device("meta"):
        return Model()


def test_a_model_on_meta():
    model, index = skeleton(), meta(2, 5, dtype=torch.int64)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in Model().parameters())
    out = model(index)
    F.cross_entropy(out.view(-1, 11), index.view(-1)).backward()
    assert out.shape == (2, 5, 11) and all(p.grad.is_meta and p.grad.shape == p.shape for p in model.parameters())
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0).is_meta
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Muon):
        optimizer = kind([p for p in model.parameters() if p.ndim == 2], lr=0.1)
        optimizer.step()
        assert all(v.is_meta or not v.shape for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor))


def test_gradients_given_on_another_device():
    x = meta(2, 3, requires_grad=True)
    x.sum().backward(torch.tensor(1.0))
    assert x.grad.is_meta
    with pytest.raises(RuntimeError, match="a gradient on the output's device, meta, got cpu"):
        (x * 2).backward(torch.ones(2, 3))


def test_from_meta_to_training():
    model, parameters = skeleton(), []
    model.body.linear1.weight.data = model.body.linear1.weight.data.t().contiguous().t()
    parameters += model.parameters()
    assert model.to_empty(device="cpu") is model and all(a is b for a, b in zip(parameters, model.parameters()))
    assert model.head.weight is model.table.weight and model.body.linear1.weight.stride() == (1, 16)
    torch.manual_seed(0)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    model.body.self_attn._reset_parameters()
    model.scale.fill_(0.5)
    optimizer, index, losses = torch.optim.Adam(model.parameters(), 0.01), torch.randint(11, (4, 5)), []
    for _ in range(3):
        loss = F.cross_entropy(model(index).view(-1, 11), index.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]


@pytest.mark.filterwarnings("ignore:load_state_dict")
def test_load_state_dict():
    state, model = Model().state_dict(), skeleton()
    with pytest.warns(UserWarning, match="norm.weight is on meta, where nothing can be copied to; use assign=True"):
        assert repr(model.load_state_dict(state)) == "<All keys matched successfully>"
    assert all(p.is_meta for p in model.parameters())
    assert repr(model.load_state_dict(state, assign=True)) == "<All keys matched successfully>"
    assert not any(x.is_meta for x in (*model.parameters(), *model.buffers())) and all(p.requires_grad for p in model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert skeleton().load_state_dict(skeleton().state_dict())
    with pytest.raises(RuntimeError, match=NO_VALUES):
        Model().load_state_dict(skeleton().state_dict())


def test_moving_and_skipping():
    layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).to("meta")
    assert layer.weight.is_meta and layer.to_empty(device="cpu").weight.stride() == (27, 1, 9, 3)
    assert layer.weight.requires_grad and layer(torch.ones(1, 3, 5, 5)).shape == (1, 4, 3, 3)
    before = torch.get_rng_state()
    assert nn.utils.skip_init(nn.Linear, 3, 4).weight.is_cpu and nn.utils.skip_init(nn.Linear, 3, 4, device="meta").weight.is_meta
    assert torch.equal(before, torch.get_rng_state())
    real = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    assert torch.func.functional_call(nn.Linear(3, 2, device="meta"), real, torch.ones(1, 3)).tolist() == [[3.0, 3.0]]


def test_init():
    for fn, more in ((nn.init.normal_, ()), (nn.init.trunc_normal_, ()), (nn.init.orthogonal_, ()), (nn.init.kaiming_normal_, ()),
                     (nn.init.sparse_, (0.5,)), (nn.init.eye_, ()), (nn.init.constant_, (1.0,))):
        x = meta(3, 4)
        assert fn(x, *more) is x


def test_registering_on_meta():
    """As programs do that give all parameters of a model away while it is built."""
    register = nn.Module.register_parameter

    def registered(module, name, parameter):
        register(module, name, parameter)
        if parameter is not None:
            kind, options = type(module._parameters[name]), module._parameters[name].__dict__
            options["requires_grad"] = parameter.requires_grad
            module._parameters[name] = kind(module._parameters[name].to(torch.device("meta")), **options)

    nn.Module.register_parameter = registered
    try:
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    finally:
        nn.Module.register_parameter = register
    assert all(p.is_meta and isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())
    assert not any(b.is_meta for b in model.buffers())


def test_flops_without_memory():
    counts = []
    for where in ("cpu", "meta"):
        with torch.device(where):
            model, index = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(2, 5, 8)
        with FlopCounterMode(display=False) as counter:
            model(index).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        nn.Linear(1 << 20, 1 << 20)(torch.empty(64, 1 << 20))
    assert counter.get_total_flops() == 2 * 64 * (1 << 40)


def test_custom_operators():
    @torch.library.custom_op("meta_test::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(x.numpy() * 2)

    with pytest.raises(NotImplementedError, match="use register_fake"):
        double(meta(2))
    double.register_fake(torch.empty_like)
    assert double(meta(2)).is_meta and double(torch.ones(2)).tolist() == [2.0, 2.0]


def test_compiled_functions_run():
    assert torch.compile(lambda x: (x * 2).sum())(meta(3)).is_meta


# ------------------------------------------------------------------ files
def test_saving(tmp_path):
    path, x = tmp_path / "x", meta(3, 4, dtype=torch.float16)
    torch.save({"x": x.t(), "p": nn.Parameter(meta(2)), "y": torch.ones(2), "none": meta(0, 3)}, path)
    found = torch.load(path, map_location="cpu")
    assert {k: facts(v) for k, v in found.items()} == {"x": facts(x.t()), "p": facts(nn.Parameter(meta(2))), "y": facts(torch.ones(2)),
                                                       "none": facts(meta(0, 3))}
    assert [k for k, v in found.items() if v.is_meta] == ["x", "p", "none"] and isinstance(found["p"], nn.Parameter)


def test_loading_to_meta_reads_no_values(tmp_path):
    path, x = tmp_path / "x", torch.arange(6.0).view(2, 3)
    torch.save({"x": x, "row": x[1], "array": np.arange(3), "flags": torch.tensor([True])}, path)
    found = torch.load(path, map_location="meta")
    assert found["x"].is_meta and found["row"].storage is found["x"].storage and facts(found["row"]) == facts(x[1])
    assert found["array"].tolist() == [0, 1, 2] and found["flags"].is_meta
    assert torch.load(path, map_location={"cpu": "meta"})["x"].is_meta
    torch.safetensors.save_file({"x": x}, path)
    assert torch.safetensors.load_file(path, device="meta")["x"].is_meta and torch.load(path, map_location="meta")["x"].is_meta
    with pytest.raises(NotImplementedError, match=NO_VALUES):
        torch.safetensors.save_file({"x": meta(2)}, path)
