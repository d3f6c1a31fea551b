"""PyTorch's names of files, from which programs import: what they name there is ours."""
import importlib
import json

import pytest

import tritorch as torch

NAMES = {
    "nn.modules.activation": "MultiheadAttention ReLU", "nn.modules.linear": "LazyLinear NonDynamicallyQuantizableLinear Linear",
    "nn.modules.rnn": "GRUCell LSTMCell RNNCell RNNCellBase LSTM", "nn.modules.batchnorm": "LazyBatchNorm2d BatchNorm1d",
    "nn.modules.conv": "LazyConv1d LazyConvTranspose3d Conv2d", "nn.modules.instancenorm": "LazyInstanceNorm1d InstanceNorm2d",
    "optim.adadelta": "Adadelta", "optim.adamax": "Adamax", "optim.adamw": "AdamW", "optim.asgd": "ASGD", "optim.nadam": "NAdam",
    "optim.radam": "RAdam", "optim.rmsprop": "RMSprop", "optim.rprop": "Rprop", "optim.adam": "Adam", "optim.sgd": "SGD",
    "cuda.streams": "Stream ExternalStream Event", "cuda.graphs": "CUDAGraph graph make_graphed_callables graph_pool_handle",
    "utils.data._utils.collate": "default_collate default_convert", "utils.data._utils.worker": "get_worker_info",
    "utils.data._utils.pin_memory": "pin_memory", "amp.grad_scaler": "OptState GradScaler",
    "cuda.nccl": "version is_available", "nn.attention.bias": "CausalBias causal_lower_right",
    "distributed._tensor.device_mesh": "init_device_mesh DeviceMesh", "distributed._tensor.placement_types": "Shard Replicate",
    "distributed.elastic.multiprocessing.errors": "record", "distributed.checkpoint.state_dict": "_init_optim_state",
}


@pytest.mark.parametrize("file", NAMES)
def test_names(file):
    module = importlib.import_module("tritorch." + file)
    assert all(getattr(module, name).__name__ == name for name in NAMES[file].split())
    *_, last = parent, name = file.rpartition(".")[::2]
    assert getattr(importlib.import_module("tritorch." + parent), last) is module and name == last


def test_modules_have_one_class_of_a_name():
    assert torch.nn.modules.activation.MultiheadAttention is torch.nn.MultiheadAttention
    assert torch.optim.adamw.AdamW is torch.optim.AdamW and torch.cuda.streams.Stream is torch.cuda.Stream


def test_the_version_of_nccl_is_asked_of_it():
    nccl = importlib.import_module("tritorch.cuda.nccl")
    assert not nccl.is_available([torch.ones(1)])
    try:
        importlib.import_module("nccl.core")
    except ImportError:
        with pytest.raises(RuntimeError, match=r"version: expected NCCL, .*pip install tritorch\[nccl\]"):
            nccl.version()
    else:
        assert len(nccl.version()) == 3


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_causal_biases(device, cuda):
    from tritorch.nn.attention.bias import CausalBias, CausalVariant, causal_lower_right, causal_upper_left

    attend = torch.nn.functional.scaled_dot_product_attention
    q, k, v = torch.randn(1, 4, 3, 8, device=device), torch.randn(1, 2, 5, 8, device=device), torch.randn(1, 2, 5, 6, device=device)
    for made, diagonal in ((causal_lower_right, 2), (causal_upper_left, 0)):
        bias = made(3, 5)
        mask = torch.ones(3, 5, device=device).tril(diagonal).bool()
        assert torch.equal(bias._materialize(device), mask)
        torch.testing.assert_close(attend(q, k, v, bias, enable_gqa=True), attend(q, k, v, mask, enable_gqa=True))
    with pytest.warns(UserWarning, match="see no key, and give 0"):
        bias = causal_lower_right(5, 3)
    assert torch.equal(attend(k, q[:, :2], q[:, :2], bias)[:, :, :2], torch.zeros(1, 2, 2, 8, device=device))
    assert repr(bias) == "CausalBias(variant=LOWER_RIGHT, seq_len_q=5, seq_len_kv=3)"
    with pytest.raises(ValueError, match="either a CausalBias or is_causal"):
        attend(q, k, v, causal_upper_left(3, 5), is_causal=True, enable_gqa=True)
    with pytest.raises(TypeError, match="as attn_mask of scaled_dot_product_attention alone"):
        bias + 1
    with pytest.raises(AssertionError, match="expected a CausalVariant, got int"):
        CausalBias(1, 2, 3)
    assert [variant.name for variant in CausalVariant] == ["UPPER_LEFT", "LOWER_RIGHT"]


def test_errors_are_left_for_the_launcher(tmp_path, monkeypatch):
    from tritorch.distributed.elastic.multiprocessing.errors import record

    @record
    def main(what):
        if what is SystemExit:
            raise SystemExit(0)
        raise what("no luck")

    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert main(SystemExit) is None and not path.exists() and main.__name__ == "main"
    with pytest.raises(KeyError):
        main(KeyError)
    told = json.loads(path.read_text())["message"]
    assert told["message"] == "KeyError: 'no luck'" and "in main" in told["extraInfo"]["py_callstack"]


def test_loaders_of_packages_are_iterated_as_ours():
    from tritorch.utils.data import dataloader

    class Loader:
        dataset, collate_fn, drop_last, generator, pin_memory, num_workers = range(5), staticmethod(sum), True, None, False, 0
        _dataset_kind, _auto_collation = dataloader._DatasetKind.Iterable, True
        _index_sampler = [[None, None]] * 3

    assert list(dataloader._SingleProcessDataLoaderIter(Loader())) == [1, 5]
