"""tutorials/llama.py against a float64 Llama in numpy, written from the papers, and against itself without a cache."""
import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import tritorch as T
from tritorch.safetensors import save_file

ROOT = Path(__file__).parents[1]
NUMBERS = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "torch_dtype": "float16"}
SLOWED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
STRETCHED = {"rope_theta": 50.0, "rope_type": "linear", "factor": 2.0}
KINDS = {"llama": {"rope_theta": 100.0, "rope_scaling": SLOWED}, "qwen2": {"tie_word_embeddings": True}, "qwen3": {"head_dim": 12},
         "mistral": {"sliding_window": None, "dtype": "bfloat16", "rope_parameters": STRETCHED}}


@pytest.fixture(scope="module")
def llama():
    spec = importlib.util.spec_from_file_location("tutorial_llama", ROOT / "tutorials/llama.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def folder_of(llama, tmp_path, kind, **numbers):
    """A folder as Hugging Face has it, of weights that were drawn."""
    numbers = {"model_type": kind, **NUMBERS, **KINDS[kind], **numbers}
    (tmp_path / "config.json").write_text(json.dumps(numbers))
    model = llama.empty_model(llama.Config(numbers), "cpu")
    for p in model.parameters():
        p.data.normal_(1 if p.ndim == 1 else 0, 0.3)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[::2]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in names[1::2]}, tmp_path / "model-00002-of-00002.safetensors")
    return numbers, {name: x.double().numpy() for name, x in tensors.items()}


def speeds(numbers, size):
    """The angle of a step for each pair of features."""
    rope = {"rope_theta": numbers.get("rope_theta", 1e4), **(numbers.get("rope_scaling") or {}), **(numbers.get("rope_parameters") or {})}
    speed = [rope["rope_theta"] ** (-2 * i / size) for i in range(size // 2)]
    if rope.get("rope_type") == "linear":
        speed = [s / rope["factor"] for s in speed]
    if rope.get("rope_type") == "llama3":
        trained = rope["original_max_position_embeddings"]
        for i, s in enumerate(speed):
            length = 2 * math.pi / s
            smooth = (trained / length - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            speed[i] = s / rope["factor"] if length > trained / rope["low_freq_factor"] else s if length < trained / rope[
                "high_freq_factor"] else (1 - smooth) * s / rope["factor"] + smooth * s
    return speed


def reference(numbers, weights, tokens):
    """Logits of every position, (time, vocabulary)."""
    heads, groups = numbers["num_attention_heads"], numbers["num_key_value_heads"]
    size = numbers.get("head_dim", numbers["hidden_size"] // heads)
    angle = np.outer(np.arange(len(tokens)), speeds(numbers, size))[:, None]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + numbers["rms_norm_eps"]) * weights[name + ".weight"]

    def affine(x, name):
        return x @ weights[name + ".weight"].T + weights.get(name + ".bias", 0)

    def split(x, name, count):
        x = x.reshape(len(tokens), count, size)
        x = norm(x, name) if name + ".weight" in weights else x
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    x = weights["model.embed_tokens.weight"][tokens]
    for i in range(numbers["num_hidden_layers"]):
        at = f"model.layers.{i}."
        h = norm(x, at + "input_layernorm")
        q = split(affine(h, at + "self_attn.q_proj"), at + "self_attn.q_norm", heads)
        k = split(affine(h, at + "self_attn.k_proj"), at + "self_attn.k_norm", groups).repeat(heads // groups, 1)
        v = affine(h, at + "self_attn.v_proj").reshape(len(tokens), groups, size).repeat(heads // groups, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(size) + np.triu(np.full((len(tokens),) * 2, -np.inf), 1)
        chance = np.exp(scores - scores.max(-1, keepdims=True))
        read = np.einsum("hqk,khd->qhd", chance / chance.sum(-1, keepdims=True), v)
        x = x + affine(read.reshape(len(tokens), -1), at + "self_attn.o_proj")
        h = norm(x, at + "post_attention_layernorm")
        gate = affine(h, at + "mlp.gate_proj")
        x = x + affine(gate / (1 + np.exp(-gate)) * affine(h, at + "mlp.up_proj"), at + "mlp.down_proj")
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return norm(x, "model.norm") @ head.T


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_what_is_generated(llama, tmp_path, kind):
    numbers, weights = folder_of(llama, tmp_path, kind)
    model = llama.load(tmp_path, "cpu")
    tokens = T.randint(0, 40, (20,)).tolist()
    found = model(T.tensor([tokens]), T.arange(20), model.cache(1, 20))[0]
    wanted = reference(numbers, weights, tokens)[-1]
    np.testing.assert_allclose(found.double().numpy(), wanted, rtol=1e-4, atol=1e-4 * abs(wanted).max())
    written = list(llama.generate(model, tokens, 8))
    for i, token in enumerate(written):                              # what a cache gave is what all tokens at once give
        logits = reference(numbers, weights, tokens + written[:i])[-1]
        assert logits[token] > logits.max() - 1e-4 * abs(logits).max()
    assert len(list(llama.generate(model, tokens, 3, temperature=1.0))) == 3


def test_it_ends_where_the_model_does(llama, tmp_path):
    folder_of(llama, tmp_path, "llama")
    model = llama.load(tmp_path, "cpu")
    first, second, *_ = llama.generate(model, [1, 2, 3], 5)
    model.config.eos_token_id = [second]
    assert list(llama.generate(model, [1, 2, 3], 5)) == ([first] if first != second else [])


def test_bad_folders_get_a_sentence(llama, tmp_path):
    folder_of(llama, tmp_path, "llama")
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="expected .*weight.* in the .*safetensors"):
        llama.load(tmp_path, "cpu")
    with pytest.raises(ValueError, match="expected a model of type llama, mistral, qwen2, qwen3, got gpt2"):
        llama.Config({"model_type": "gpt2"})
    folder_of(llama, tmp_path, "mistral", sliding_window=6)
    with pytest.raises(ValueError, match="expected at most 6 tokens"):
        next(llama.generate(llama.load(tmp_path, "cpu"), [1, 2, 3], 4))


def test_a_token_is_one_graph(llama, tmp_path, monkeypatch, cuda):
    folder_of(llama, tmp_path, "llama", num_hidden_layers=1, torch_dtype="float32")
    wanted = list(llama.generate(llama.load(tmp_path, "cpu"), [1, 2, 3], 5))          # the first steps warm up
    compiled, steps = T.compile, []
    monkeypatch.setattr(llama.torch, "compile", lambda fn: steps.append(compiled(fn)) or steps[-1])
    assert list(llama.generate(llama.load(tmp_path, "cuda"), [1, 2, 3], 5)) == wanted
    assert "is replayed" in str(steps[0].report())


def test_the_command(llama, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["llama.py", "--random", "tritorch", "--tokens", "4", "--device", "cpu"])
    llama.main()
    assert "0.8 M parameters, tritorch.float32 on cpu\ntritorch" in capsys.readouterr().out
