"""Programs on models of Hugging Face's transformers: Trainer, accelerate, peft, files, pipelines, ways to generate. Each returns numbers,
texts and tensors' traits that PyTorch and tritorch have to agree on; `torch` is as in hugging_face_models.py."""
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from hugging_face_models import configured, draw, inputs_of, traits, whole

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def home():
    return "cuda" if torch.cuda.is_available() else "cpu"


def texts_of(model, **how):
    inputs = {key: x for key, x in inputs_of(type(model).__name__).items() if key != "labels"}
    return model.generate(**inputs, max_new_tokens=6, **how).tolist()


def logits_of(model, name="LlamaForCausalLM"):
    inputs = {key: x.to(home()) for key, x in inputs_of(name).items()}
    with torch.no_grad():
        return model(**inputs).logits[inputs["attention_mask"] == 1].float()


# ------------------------------------------------------------------ training
class Lines(torch.utils.data.Dataset):
    """24 lines of 8 words."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        ids = whole(8, 24)[:, i]
        return {"input_ids": ids, "labels": ids}


def trainer(folder, steps=10, name="LlamaForCausalLM", **how):
    settings = dict(per_device_train_batch_size=4, learning_rate=1e-3, weight_decay=0.1, warmup_steps=2, max_steps=steps, logging_steps=1,
                    save_strategy="no", report_to=[], use_cpu=home() == "cpu", disable_tqdm=True, train_sampling_strategy="sequential")
    settings = transformers.TrainingArguments(folder, **{**settings, **how})
    return transformers.Trainer(configured(name), settings, train_dataset=Lines(), eval_dataset=Lines())


def history(run):
    lines = [line for line in run.state.log_history if "grad_norm" in line]
    return [[line[what] for line in lines] for what in ("loss", "grad_norm", "learning_rate")]


def weights_of(model):
    return [traits(p, 1)[1:] for p in model.parameters()]


@program
def training():
    """Ten steps of AdamW with clipping and a schedule, and what the model then foretells."""
    with tempfile.TemporaryDirectory() as folder:
        run = trainer(folder)
        run.train()
        foretold = run.predict(Lines())
        return [history(run), weights_of(run.model), run.evaluate()["eval_loss"], traits(torch.tensor(foretold.predictions))]


@program
def training_goes_on():
    """Five steps, a checkpoint, and five more of another process's Trainer."""
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder, save_strategy="steps", save_steps=5).train()
        run = trainer(folder)
        run.train(resume_from_checkpoint=f"{folder}/checkpoint-5")
        return [history(run), weights_of(run.model)]


@program
def training_in_parts():
    """Gradients of two batches added up, layers computed again for the backward pass, a cosine schedule."""
    with tempfile.TemporaryDirectory() as folder:
        run = trainer(folder, 4, gradient_accumulation_steps=2, gradient_checkpointing=True, lr_scheduler_type="cosine", max_grad_norm=0.5,
                      gradient_checkpointing_kwargs={"use_reentrant": False}, label_smoothing_factor=0.1, name="Qwen3ForCausalLM")
        run.train()
        return [history(run), weights_of(run.model)]


@program
def training_with_adafactor():
    with tempfile.TemporaryDirectory() as folder:
        run = trainer(folder, 4, optim="adafactor", lr_scheduler_type="constant")
        run.train()
        return [history(run), weights_of(run.model)]


@program
def training_in_bfloat16():
    with tempfile.TemporaryDirectory() as folder:
        run = trainer(folder, 4, bf16=True, lr_scheduler_type="constant")
        run.train()
        return history(run)[0]


@program
def resnet_in_training():
    """Batch norm by the batch, and the statistics that it keeps."""
    model = configured("ResNetForImageClassification").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(4):
        loss = model(pixel_values=draw("images", 8, 3, 32, 32), labels=torch.arange(8) % 5).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses, [traits(x, 1)[1:] for key, x in model.named_buffers() if "running" in key]]


@program
def accelerate_training():
    """Accelerator: two batches a step, clipping, a schedule, and states that come back from files."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)                  # what Trainer has left: bfloat16
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = configured("LlamaForCausalLM")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 1, 6)
    batches = torch.utils.data.DataLoader(Lines(), batch_size=4)
    model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, batches, schedule)
    found = []
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                found.append(float(accelerator.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        found.append(accelerator.gather_for_metrics(loss).item())
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        with torch.no_grad():
            next(model.parameters()).zero_()
        accelerator.load_state(folder)
    return [found, weights_of(accelerator.unwrap_model(model))]


# ------------------------------------------------------------------ peft
def adapted(settings, name="LlamaForCausalLM"):
    import peft

    model = peft.get_peft_model(configured(name), settings)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.requires_grad:
                p.copy_(draw(key, *p.shape, scale=0.1))
    return model


def fitted(model, steps=3):
    """Losses, and what was learned."""
    optimizer, losses = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2), []
    for _ in range(steps):
        loss = model(**inputs_of("LlamaForCausalLM")).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses, [traits(p, 1)[1:] for p in model.parameters() if p.requires_grad]]


@program
def lora():
    """Trained, saved, put on the model again and merged into its weights."""
    import peft

    model = adapted(peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM"))
    found = fitted(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = peft.PeftModel.from_pretrained(configured("LlamaForCausalLM"), folder).eval()
    with model.disable_adapter():
        plain = logits_of(model)
    merged = again.merge_and_unload()
    return [*found, traits(plain), traits(logits_of(again)), traits(logits_of(merged)), texts_of(merged, do_sample=False)]


@program
def other_adapters():
    """DoRA, rank-stabilised LoRA on every layer, IA³, LoHa, LoKr, and prompts that are learned."""
    import peft

    places, found = ["q_proj", "v_proj"], []
    for settings in (peft.LoraConfig(r=2, target_modules=places, use_dora=True),
                     peft.LoraConfig(r=2, target_modules="all-linear", use_rslora=True),
                     peft.IA3Config(target_modules=[*places, "down_proj"], feedforward_modules=["down_proj"]),
                     peft.LoHaConfig(r=2, target_modules=places), peft.LoKrConfig(r=2, target_modules=places),
                     peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)):
        found.append(fitted(adapted(settings), 2))
    return found


# ------------------------------------------------------------------ files
@program
def files():
    """Pieces of safetensors, read whole, in another dtype, onto a map of devices, and by the name of the kind of task."""
    found, kind = [], transformers.AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        configured("LlamaForCausalLM").save_pretrained(folder, max_shard_size="20KB")
        found.append(sorted(path.name for path in Path(folder).iterdir()))
        parts = {"model.embed_tokens": home(), "model.rotary_emb": home(), "model.layers.0": home(), "model.layers.1": "cpu",
                 "model.norm": "cpu", "lm_head": "cpu"}
        for how in (dict(device_map=home(), attn_implementation="eager"), dict(device_map={"": home()}, low_cpu_mem_usage=True),
                    dict(device_map=home(), dtype=torch.float64), dict(device_map="auto"), dict(device_map=parts)):
            found.append(traits(logits_of(kind.from_pretrained(folder, **how))))
        halved = kind.from_pretrained(folder, dtype=torch.bfloat16, device_map=home())
        found.append([str(halved.dtype), halved.num_parameters(), halved.get_memory_footprint(), halved.device.type == home()])
        config = transformers.AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            empty = kind.from_config(config)
        found.append([{p.device.type for p in empty.parameters()} == {"meta"}, sum(p.numel() for p in empty.parameters())])
    return found


@program
def offloaded():
    """accelerate keeps weights on disk and brings each to its layer, numbers of half precision and whole ones too."""
    import accelerate

    found = []
    for kind in (torch.float32, torch.bfloat16):
        model = configured("LlamaForCausalLM").to(kind)
        model.register_buffer("steps", torch.tensor([3, 4]))
        with tempfile.TemporaryDirectory() as folder:
            model = accelerate.disk_offload(model, folder, execution_device=torch.device("cpu"), offload_buffers=True)
            index = json.loads((Path(folder) / "index.json").read_text())
            found.append([traits(logits_of(model)), sorted({entry["dtype"] for entry in index.values()})])
    sizes = accelerate.utils.compute_module_sizes(configured("LlamaForCausalLM"), dtype=torch.float16)
    return [*found, sizes[""], accelerate.infer_auto_device_map(configured("LlamaForCausalLM"), {0: 20000, "cpu": 10**6})]


@program
def half_precision():
    """bfloat16 rounds after every operator; where it rounds is the same, so outputs are near."""
    found = {}
    for name in ("LlamaForCausalLM", "BertForMaskedLM", "GPT2LMHeadModel", "Gemma2ForCausalLM"):
        found[name] = traits(logits_of(configured(name).bfloat16(), name))
    return found


# ------------------------------------------------------------------ attention, compiled, pipelines
@program
def attention_ways():
    found = {}
    for how in ("eager", "sdpa", "flex_attention"):
        model = configured("LlamaForCausalLM")
        model.set_attn_implementation(how)
        found[how] = traits(logits_of(model))
    model = configured("BertForMaskedLM")
    model.set_attn_implementation("eager")
    out = model(**inputs_of("BertForMaskedLM"), output_attentions=True, output_hidden_states=True)
    return [found, [traits(x) for x in out.hidden_states], [traits(x) for x in out.attentions]]


@program
def compiled():
    """A model compiled by itself, and by `generate` with a cache of fixed size."""
    model = configured("LlamaForCausalLM")
    found = [traits(logits_of(torch.compile(model)))]
    model.forward = torch.compile(model.forward)
    return [*found, texts_of(model, do_sample=False, cache_implementation="static")]


def words_of(folder):
    """A tokenizer of 90 words and those that a model wants."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[BOS]", "[EOS]", "[MASK]", "[UNK]", *[f"w{i}" for i in range(90)]])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", bos_token="[BOS]", eos_token="[EOS]",
                                                     mask_token="[MASK]", unk_token="[UNK]", padding_side="left")
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


@program
def pipelines():
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = words_of(folder)
    text = ["w1 w2 w3 w4", "w7 w8"]
    write = transformers.pipeline("text-generation", model=configured("LlamaForCausalLM"), tokenizer=tokenizer, device="cpu")
    fill = transformers.pipeline("fill-mask", model=configured("BertForMaskedLM"), tokenizer=tokenizer)
    sort = transformers.pipeline("text-classification", model=configured("BertForSequenceClassification"), tokenizer=tokenizer)
    tell = transformers.pipeline("feature-extraction", model=configured("BertForMaskedLM").bert, tokenizer=tokenizer)
    return [write(text, max_new_tokens=5, do_sample=False, batch_size=2), [[m["token"], m["score"]] for m in fill("w1 [MASK] w3")],
            sort(text, top_k=None), traits(torch.tensor(np.array(tell(text[0]))))]


# ------------------------------------------------------------------ generate
@program
def generating():
    """Ways to choose words that draw no random numbers."""
    model, other = configured("LlamaForCausalLM"), configured("Qwen2ForCausalLM")
    other.config.pad_token_id = 0
    ways = dict(one=dict(do_sample=True, top_k=1), several=dict(num_beams=4, num_return_sequences=2, early_stopping=True),
                penalty=dict(repetition_penalty=1.5, no_repeat_ngram_size=2), without=dict(suppress_tokens=[5, 6, 7], min_new_tokens=5),
                without_cache=dict(use_cache=False), words=dict(bad_words_ids=[[10], [14, 39]]), forced=dict(forced_eos_token_id=2))
    found = {way: texts_of(model, **{"do_sample": False, **how}) for way, how in ways.items()}
    ids = whole(1, 9)
    found["assisted"] = model.generate(ids, assistant_model=other, max_new_tokens=6, do_sample=False).tolist()
    found["looked up"] = model.generate(ids.repeat(1, 2), prompt_lookup_num_tokens=2, max_new_tokens=6, do_sample=False).tolist()
    out = model.generate(ids, max_new_tokens=3, do_sample=False, return_dict_in_generate=True, output_scores=True, output_logits=True)
    found["scores"] = [traits(x) for x in out.scores] + [traits(model.compute_transition_scores(out.sequences, out.scores))]
    model.eval()
    cache = model(ids[:, :5], use_cache=True).past_key_values
    found["cache"] = [traits(model(ids[:, 5:], past_key_values=cache).logits), cache.get_seq_length()]
    return found
