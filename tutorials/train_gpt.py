"""Train a small GPT, character by character, on the text of the Python reference that ships inside every CPython.

    python tutorials/train_gpt.py                      # 800 steps: a few minutes on two CPU cores, no GPU needed
    python tutorials/train_gpt.py --resume             # after Ctrl-C: goes on as if nothing had happened, to the last bit
    TRITORCH_CUDA=native python tutorials/train_gpt.py                                   # in Triton kernels compiled for the CPU, faster
    TRITORCH_CUDA=simulated python tutorials/train_gpt.py --device cuda --steps 2        # every Triton kernel, on a simulated GPU

Change the import below to `import torch` and the same file runs on PyTorch. Read it from top to bottom: the text, the model, the
recipe, the checkpoint, the loop. Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762) is the architecture, Radford et al. 2019
(GPT-2) the arrangement: normalization before each sublayer, learned positions.
"""
import argparse
import math
import signal
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

from tqdm import tqdm

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT, BATCH = 4, 4, 128, 128, 16         # about 0.84 million parameters
LEARNING_RATE, WARMUP, DECAYED, WEIGHT_DECAY = 3e-3, 50, 800, 0.1
SAVE_EVERY, EVAL_EVERY, EVAL_ROWS, SAMPLE = 20, 100, 1000, 300    # steps, a multiple of it, at most so many rows (all), characters


# ---------------------------------------------------------------- the text
class Text:
    """The documentation as integers: `train` to learn from, the last tenth `held_out` to be honest."""

    def __init__(self):
        text = "\n\n".join(topics.values())
        self.vocabulary = "".join(sorted(set(text)))
        code = {character: i for i, character in enumerate(self.vocabulary)}
        tokens = torch.tensor([code[character] for character in text])
        cut = len(tokens) * 9 // 10
        self.train, held_out = tokens[:cut], tokens[cut:]
        rows = min(EVAL_ROWS, (len(held_out) - 1) // CONTEXT)
        self.held_out = held_out[: rows * CONTEXT].view(rows, CONTEXT), held_out[1 : rows * CONTEXT + 1].view(rows, CONTEXT)

    def batch(self):
        """BATCH random windows, and the same windows one character on. The place of every window comes from torch's generator."""
        window = torch.randint(len(self.train) - CONTEXT, (BATCH, 1)) + torch.arange(CONTEXT + 1)
        tokens = self.train[window]
        return tokens[:, :-1], tokens[:, 1:]

    def decode(self, tokens):
        return "".join(self.vocabulary[token] for token in tokens)


# ---------------------------------------------------------------- the model
class Block(nn.Module):
    """Attention lets every position read those before it; the two layers after it think about what was read."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(read.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """(batch, time) tokens to (batch, time, vocabulary) logits of the token that follows each."""

    def __init__(self, vocabulary):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:                               # small weights: at first every character is as likely as any other
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def loss_of(model, tokens, targets):
    """Mean cross entropy in nats a character."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@torch.no_grad()
def held_out_loss(model, text, device):
    tokens, targets = text.held_out
    parts = [loss_of(model, x.to(device), y.to(device)).item() * len(x) for x, y in zip(tokens.split(BATCH), targets.split(BATCH))]
    return sum(parts) / len(tokens)


@torch.no_grad()
def sample(model, text, device, length, prompt="The ", temperature=0.7):
    """Text drawn from the model one character at a time, with a generator of its own so that training does not notice."""
    generator = torch.Generator().manual_seed(0)
    tokens = [text.vocabulary.index(character) for character in prompt]
    for _ in range(length):
        logits = model(torch.tensor([tokens[-CONTEXT:]]).to(device))[0, -1].cpu()
        tokens.append(torch.multinomial(F.softmax(logits / temperature, -1), 1, generator=generator).item())
    return text.decode(tokens)


# ---------------------------------------------------------------- the recipe
def learning_rate(step):
    """A linear warm-up, then half a cosine down to a tenth. It knows only the step: a longer run follows the same curve."""
    progress = min(step / DECAYED, 1.0)
    return LEARNING_RATE * min(step / WARMUP, 1.0) * (0.1 + 0.9 * (0.5 + 0.5 * math.cos(math.pi * progress)))


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)


def train_step(model, optimizer, tokens, targets):
    """One step of AdamW; returns the loss as a tensor, because asking for its value would make the CPU wait for the GPU."""
    loss = loss_of(model, tokens, targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


# ---------------------------------------------------------------- the checkpoint
def save(path, model, optimizer, history):
    """All that the next step depends on. `torch.save` writes a new file beside the old one and renames it: never half a checkpoint."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history,
                "rng": torch.get_rng_state(), "cuda_rng": cuda}, path)     # the generator's state is also the place in the data


def load(path, model, optimizer, text):
    if not path.exists():
        sys.exit(f"--resume: expected a checkpoint at {path}, found none; run once without --resume")
    state = torch.load(path, map_location="cpu")
    if state["history"]["vocabulary"] != text.vocabulary:
        sys.exit("--resume: expected the text of the Python that wrote the checkpoint, got another version's; use that Python")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    if state["cuda_rng"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda_rng"])
    return state["history"]


def plot(path, history):
    """The loss curve as PNG, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(history["train"]) + 1), history["train"], lw=0.5, label="train, each step")
    axes.plot(*zip(*history["held_out"]), "o-", label="held out")
    axes.set(xlabel="step", ylabel="cross entropy, nats a character", yscale="log")
    axes.legend()
    figure.savefig(path, dpi=120)


# ---------------------------------------------------------------- the loop
def options(arguments=None):
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=800, help="steps in all, those before --resume included")
    best = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=best, help="default: the best there is, here %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs/gpt"), help="folder for checkpoint and loss curve")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    if args.steps < 1:
        parser.error(f"--steps: expected at least 1, got {args.steps}")
    return args


def interruptions():
    """A list that Ctrl-C fills, so that the step in progress is finished and the checkpoint kept; a second Ctrl-C ends at once."""
    interrupted = []
    def interrupt(number, _):
        interrupted.append(number)
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    return interrupted


def main(arguments=None):
    """A run, in one piece: long, to be read from top to bottom."""
    args = options(arguments)
    torch.manual_seed(args.seed)
    text = Text()
    model = GPT(len(text.vocabulary)).to(args.device)
    optimizer = optimizer_of(model)
    history = {"vocabulary": text.vocabulary, "train": [], "held_out": []}
    checkpoint = args.out / "checkpoint.safetensors"
    args.out.mkdir(parents=True, exist_ok=True)
    if args.resume:
        history = load(checkpoint, model, optimizer, text)
    first = len(history["train"]) + 1
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters on {args.device}, {len(text.train):,} characters to learn from, steps {first} to {args.steps}")

    def evaluate():
        history["held_out"].append([len(history["train"]), held_out_loss(model, text, args.device)])

    def step_of(tokens, targets):
        return train_step(model, optimizer, tokens, targets)

    if args.device == "cuda":
        step_of = torch.compile(step_of)                          # from the third step or so on, all of it is one CUDA graph

    interrupted = interruptions()
    fresh, seconds, start = [], 0.0, time.perf_counter()          # losses not yet asked for; seconds spent in training steps
    with tqdm(range(first, args.steps + 1), initial=first - 1, total=args.steps, unit="step", dynamic_ncols=True) as bar:
        for step in bar:
            tokens, targets = text.batch()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step)
            fresh.append(step_of(tokens.to(args.device), targets.to(args.device)))
            if interrupted or step == args.steps or step % SAVE_EVERY == 0:
                history["train"] += [loss.item() for loss in fresh]
                fresh, seconds = [], seconds + time.perf_counter() - start
                if step == args.steps or step % EVAL_EVERY == 0:
                    evaluate()
                    bar.write(report(history, seconds, first))
                save(checkpoint, model, optimizer, history)
                bar.set_postfix(loss=f"{history['train'][-1]:.3f}")
                start = time.perf_counter()
            if interrupted:
                break
    if not history["held_out"] or history["held_out"][-1][0] < len(history["train"]):
        evaluate()                                                # stopped between two evaluations
    plot(args.out / "loss.png", history)
    if interrupted:
        print(f"stopped; go on with --resume --out {args.out}")
    else:                                                         # who has learned for a few steps has little to say
        print(f"\n{sample(model, text, args.device, length=min(SAMPLE, args.steps))}\n")
    print(report(history, seconds, first))
    return 128 + interrupted[0] if interrupted else 0


def report(history, seconds, first):
    """`step N train L val L tokens/s R`: the mean of the last steps' losses, the held-out loss, the rate of this run."""
    train, (step, held_out) = history["train"], history["held_out"][-1]
    recent = train[-EVAL_EVERY:]
    rate = (len(train) - first + 1) * BATCH * CONTEXT / seconds if seconds else 0
    return f"step {step} train {sum(recent) / len(recent):.4f} val {held_out:.4f} tokens/s {rate:.0f}"


if __name__ == "__main__":
    sys.exit(main())
