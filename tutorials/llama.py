"""Text from the weights of a language model of the Llama family, as they lie in a folder of Hugging Face: config.json, *.safetensors and
tokenizer.json. Llama 2 and 3, Mistral, Qwen 2 and 3, TinyLlama, SmolLM and what else has their architecture.

    python tutorials/llama.py FOLDER "The capital of France is" --tokens 50
    python tutorials/llama.py --random "The capital of France is"         # no weights at hand: a small network that knows nothing

On a GPU each token is one CUDA graph: `torch.compile` records the step, keys and values are written into memory that stays where it is,
and the host asks for a token while the GPU is at the next one. Touvron et al. 2023 (https://arxiv.org/abs/2302.13971) is the
architecture: root mean squares instead of layer norms, rotary positions (Su et al. 2021), gated linear units (Shazeer 2020), and queries
that share keys (Ainslie et al. 2023).
"""
import argparse
import json
import math
import sys
import time
from pathlib import Path

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F
from tritorch.safetensors import safe_open

DEFAULTS = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "num_key_value_heads": None, "head_dim": None, "eos_token_id": None}
SMALL = {"model_type": "llama", "vocab_size": 256, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 2, "torch_dtype": "float32"}


class Config:
    """The numbers of a config.json, with the defaults that files leave out."""

    def __init__(self, numbers):
        self.__dict__.update({**DEFAULTS, **(numbers.get("rope_parameters") or {}), **numbers})
        kinds = ("llama", "mistral", "qwen2", "qwen3")
        if self.model_type not in kinds:
            raise ValueError(f"expected a model of type {', '.join(kinds)}, got {self.model_type}")
        self.torch_dtype = getattr(torch, numbers.get("dtype") or self.torch_dtype)
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        self.rope_scaling = self.rope_scaling or numbers.get("rope_parameters")
        self.qkv_bias = self.attention_bias or self.model_type == "qwen2"
        self.norms_heads = self.model_type == "qwen3"
        windowed = numbers.get("use_sliding_window", self.model_type == "mistral")
        self.reach = windowed and numbers.get("sliding_window") or math.inf              # positions that read all before them


# ---------------------------------------------------------------- positions
def frequencies(config):
    """The angle by which a step of one position turns each pair of features; Llama 3.1 slows the slowest down."""
    steps = config.rope_theta ** -(torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim)
    scaling = config.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        return steps / scaling["factor"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * steps / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return steps * (kept + (1 - kept) / scaling["factor"])
    if kind != "default":
        raise ValueError(f"expected rotary positions of type default, linear or llama3, got {kind}")
    return steps


# ---------------------------------------------------------------- the model, under the names of its files
class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.groups, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, self.groups * self.size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, self.groups * self.size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=config.attention_bias)
        self.q_norm = nn.RMSNorm(self.size, config.rms_norm_eps) if config.norms_heads else nn.Identity()
        self.k_norm = nn.RMSNorm(self.size, config.rms_norm_eps) if config.norms_heads else nn.Identity()

    def forward(self, x, turn, position, cache):
        B, T, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(B, T, self.heads, self.size)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(B, T, self.groups, self.size)).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.groups, self.size).transpose(1, 2)
        q, k = F.rotary_embedding(q, *turn), F.rotary_embedding(k, *turn)
        keys, values = cache
        keys.index_copy_(2, position, k)                          # in place: the memory of all steps, and of their graph, is the same
        values.index_copy_(2, position, v)
        if T > 1:                                                 # the prompt reads itself,
            read = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:                                                     # a token all that is there
            there = torch.arange(keys.shape[2], device=x.device) <= position
            read = F.scaled_dot_product_attention(q, keys, values, attn_mask=there, enable_gqa=True)
        return self.o_proj(read.transpose(1, 2).reshape(B, T, self.heads * self.size))


class Gated(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn, self.mlp = Attention(config), Gated(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, *where):
        x = x + self.self_attn(self.input_layernorm(x), *where)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class Llama(nn.Module):
    """(batch, time) tokens at `position` (time) to the logits (batch, vocabulary) of the token that follows the last."""

    def __init__(self, config):
        super().__init__()
        self.config, self.model = config, Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.register_buffer("frequencies", frequencies(config), persistent=False)

    def cache(self, batch, length):
        """Room for the keys and values of `length` positions, for each layer."""
        c, weight = self.config, self.lm_head.weight
        shape = (batch, c.num_key_value_heads, length, c.head_dim)
        return [tuple(torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in "kv") for _ in self.model.layers]

    def forward(self, tokens, position, cache):
        angles = position[:, None] * self.frequencies
        turn = angles.cos(), angles.sin()
        x = self.model.embed_tokens(tokens)
        for layer, room in zip(self.model.layers, cache):
            x = layer(x, turn, position, room)
        return self.lm_head(self.model.norm(x[:, -1]))


# ---------------------------------------------------------------- the files
def load(folder, device):
    """The model of a folder, in the dtype of its files, or on the CPU, which computes half types by float32, in that."""
    folder = Path(folder)
    config = Config(json.loads((folder / "config.json").read_text()))
    if torch.device(device).type == "cpu":
        config.torch_dtype = torch.float32
    model = empty_model(config, device)
    wanted = dict(model.named_parameters())
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path) as file:                             # mapped: a tensor is read when it is copied
            for name in file.keys():
                if name in wanted:
                    wanted.pop(name).data.copy_(file.get_tensor(name))
    if wanted:
        raise FileNotFoundError(f"expected {', '.join(wanted)} in the *.safetensors of {folder}, got files without")
    return model


def empty_model(config, device):
    before = torch.get_default_dtype()
    torch.set_default_dtype(config.torch_dtype)
    try:
        with torch.device(device):
            model = Llama(config)
    finally:
        torch.set_default_dtype(before)
    model.frequencies = frequencies(config).to(device)            # angles of far positions need all of float32's digits
    return model.eval().requires_grad_(False)


class Bytes:
    """Stands for a tokenizer: a token is a byte."""

    def encode(self, text):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(tokens).decode(errors="replace")


class Vocabulary:
    """The tokenizer of a folder, by the package `tokenizers`."""

    def __init__(self, path):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            sys.exit("expected the package tokenizers to read tokenizer.json, got none; pip install tokenizers")
        self.of_file = Tokenizer.from_file(str(path))

    def encode(self, text):
        return self.of_file.encode(text).ids

    def decode(self, tokens):
        return self.of_file.decode(tokens)


# ---------------------------------------------------------------- a token after the other
def pick(logits, temperature, generator=None):
    """(batch, 1) tokens: the likeliest at temperature 0, else drawn."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial(F.softmax(logits.float() / temperature, -1), 1, generator=generator)


@torch.no_grad()
def generate(model, prompt, count, temperature=0.0):
    """Yields up to `count` tokens that follow the list of tokens `prompt`, until the model ends."""
    device, ends = model.lm_head.weight.device, model.config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    if len(prompt) + count > model.config.reach:
        raise ValueError(f"expected at most {model.config.reach} tokens, after which a window is read, got {len(prompt) + count}")
    cache = model.cache(1, len(prompt) + count)

    @torch.compile
    def step(token, position):
        token = pick(model(token, position, cache), temperature)
        return token, position + 1

    position = torch.arange(len(prompt), device=device)
    token = pick(model(torch.tensor([prompt], device=device), position, cache), temperature)
    position = position[-1:] + 1
    for i in range(count):
        last = token
        if i + 1 < count:
            token, position = step(token, position)               # queued: the GPU works while the line below waits for the token before
        found = last.item()
        if found in ends:
            return
        yield found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="config.json, *.safetensors, tokenizer.json")
    parser.add_argument("prompt", nargs="?", default="The capital of France is")
    parser.add_argument("--random", action="store_true", help="a small network without training")
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if options.random:
        options.prompt = options.folder or options.prompt
        torch.manual_seed(0)
        model, vocabulary = empty_model(Config(SMALL), options.device), Bytes()
    elif options.folder is None:
        parser.error("a folder, or --random")
    else:
        model, vocabulary = load(options.folder, options.device), Vocabulary(Path(options.folder) / "tokenizer.json")

    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {model.config.torch_dtype} on {options.device}")
    print(options.prompt, end="", flush=True)
    prompt, tokens, shown, began = vocabulary.encode(options.prompt), [], "", time.perf_counter()
    for token in generate(model, prompt, options.tokens, options.temperature):
        tokens.append(token)
        text = vocabulary.decode(tokens)
        if not text.endswith("\ufffd"):                           # a character may take several tokens
            print(text[len(shown):], end="", flush=True)
            shown = text
    print(f"\n{len(tokens) / (time.perf_counter() - began):.1f} tokens a second")


if __name__ == "__main__":
    main()
