"""Models of Hugging Face's transformers, where that is installed, on tritorch under the name of torch: with random weights, as nothing is
downloaded. What they compute is held against itself: by other attention, from files, with and without a cache."""
import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")

PROGRAM = """
import sys
import tritorch
tritorch.as_torch()
import torch, transformers
assert torch is tritorch
name, folder = sys.argv[1:]
sizes = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, max_position_embeddings=64,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
config = getattr(transformers, name + "Config")(**sizes)
kind = getattr(transformers, name + ("ForMaskedLM" if name == "Bert" else "LMHeadModel" if name == "GPT2" else "ForCausalLM"))
torch.manual_seed(0)
kind(config).save_pretrained(folder)
models = [kind.from_pretrained(folder, attn_implementation=how).eval() for how in ("eager", "sdpa")]
ids = torch.randint(3, 99, (2, 9))
seen = torch.ones_like(ids)
ids[0, :3] = seen[0, :3] = 0
labels = ids.clone()
labels[0, :4] = -100                                                     # the first is foretold by padding, which sees nothing
made = [model(input_ids=ids, attention_mask=seen, labels=labels) for model in models]
torch.testing.assert_close(made[0].logits[seen == 1], made[1].logits[seen == 1])
for out in made:
    out.loss.backward()
for (key, p), q in zip(models[0].named_parameters(), models[1].parameters()):
    torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=key)
if name != "Bert":
    texts = [model.generate(ids, attention_mask=seen, max_new_tokens=6, do_sample=False, **options).tolist() for model in models
             for options in ({}, {"use_cache": False}, {"cache_implementation": "static"})]
    assert all(text == texts[0] for text in texts), texts
"""


@pytest.mark.parametrize("name", ["GPT2", "Llama", "Bert"])
def test_models(name, tmp_path):
    subprocess.run([sys.executable, "-c", PROGRAM, name, str(tmp_path)], check=True)
