"""Several processes train one network, each some of its layers: a pipeline, through which the parts of a batch go one behind the other.

    python -m tritorch.distributed.run --nproc-per-node 2 tutorials/train_pipeline.py --schedule Interleaved1F1B
    python tutorials/train_pipeline.py                             # one process, the same losses

A transformer learns to add: after "17+25=" come the digits of 42. Its blocks are stages, a batch is eight microbatches. While the second
process computes with the first microbatch, the first one has the second; at the start and at the end some wait. How long depends on the
schedule, which is printed: every column is a moment, F a forward pass, B a backward pass, I and W its two halves, and a dot is a wait.
Change the imports below to `torch`, the command to torchrun, and the same file trains on PyTorch.
"""
import argparse

import tritorch as torch
import tritorch.distributed as dist
from tritorch import nn
from tritorch.distributed.pipelining import PipelineStage
from tritorch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from tritorch.nn import functional as F

SYMBOLS, WIDTH, HEADS, DIGITS, BATCH, MICROBATCHES = "0123456789+=", 48, 4, 2, 64, 8
CONTEXT = 3 * DIGITS + 2


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = nn.Embedding(len(SYMBOLS), WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, tokens):
        return self.symbols(tokens) + self.places(torch.arange(tokens.shape[1]))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def model():
    """The whole network as a list of layers, to be cut anywhere; the same numbers in every process."""
    torch.manual_seed(0)
    return [Embed(), *[Block() for _ in range(4)], nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(SYMBOLS)))]


def sums(generator):
    """(sums as they are read, what comes next): the digits of the result, last one first, in which order they are easy to tell."""
    a, b = torch.randint(10**DIGITS, (2, BATCH), generator=generator)
    digits = lambda n, count: torch.stack([n // 10**k % 10 for k in range(count)], 1)
    plus, equals = [torch.full((BATCH, 1), SYMBOLS.index(symbol)) for symbol in "+="]
    text = torch.cat([digits(a, DIGITS), plus, digits(b, DIGITS), equals, digits(a + b, DIGITS + 1)], 1)
    return text[:, :-1], text[:, 1:].clone()


def loss_of(logits, target):
    """Cross entropy of the digits of the result."""
    return F.cross_entropy(logits[:, -DIGITS - 1:].flatten(0, 1), target[:, -DIGITS - 1:].flatten())


def stages(kind, rank, size):
    """The stages of a process: in a loop, or there and back in a V."""
    each = 1 if not issubclass(kind, PipelineScheduleMulti) else 2
    count, layers, made = size * each, model(), []
    mine = [rank, *[count - 1 - rank if "ZBV" in kind.__name__ or "PipeV" in kind.__name__ else rank + size] * (each - 1)]
    for k in mine:
        part = layers[k * len(layers) // count:(k + 1) * len(layers) // count]
        made.append(PipelineStage(nn.Sequential(*part), k, count, "cpu"))
    return made if each > 1 else made[0]


def timeline(orders, count):
    """(a line for each process of what it does when, if every pass takes as long (a whole backward pass two times), the share of waits)."""
    parts = lambda action: getattr(action, "sub_actions", None) or [action]             # PyTorch writes two that may overlap as one
    left = {rank: [a for action in order if action is not None for a in parts(action) if a.computation_type.value in "FBIW"]
            for rank, order in orders.items()}
    lines, done, moved = {rank: [] for rank in orders}, {}, True
    while moved:
        moved = False
        for rank, order in left.items():
            stage, kind, batch = order[0][:3] if order else (0, None, 0)
            forward, line = kind == "F", lines[rank]
            ahead = (stage - 1, True, batch) if forward else (stage, kind != "W", batch) if stage == count - 1 or kind == "W" else (
                stage + 1, False, batch)
            if order and (ahead in done or ahead[0] < 0):
                line += [" . "] * (done.get(ahead, 0) - len(line)) + [f"{kind.value}{batch}".center(3)] * (2 if kind == "B" else 1)
                done[stage, forward, batch] = len(line)
                moved = order.pop(0)
    end = max(map(len, lines.values()))
    lines = [line + [" . "] * (end - len(line)) for line in lines.values()]
    return ["".join(line) for line in lines], sum(line.count(" . ") for line in lines) / (end * len(lines))


def train(steps, name="1F1B", rank=0, size=1, show=False):
    """The losses of so many steps, in the process of the last stage; the name of a schedule, or alone without one."""
    kind = get_schedule_class(name)
    mine = stages(kind, rank, size)
    schedule = kind(mine, MICROBATCHES, loss_fn=loss_of)
    mine = mine if isinstance(mine, list) else [mine]
    first, last = any(stage.is_first for stage in mine), any(stage.is_last for stage in mine)
    if show:
        lines, waits = timeline(schedule.pipeline_order, mine[0].num_stages)
        print(*[f"process {rank} {line}" for rank, line in enumerate(lines)], f"{kind.__name__}: {waits:.0%} of the time is spent waiting",
              sep="\n")
    optimizer = torch.optim.AdamW([p for stage in mine for p in stage.submod.parameters()], lr=3e-3)
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        tokens, target = sums(generator)                                 # every process makes the batch; two of them need it
        losses = []
        schedule.step(*[tokens] if first else [], target=target if last else None, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        if last:
            found.append(torch.stack(losses).mean().item())
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--schedule", default="1F1B", help="GPipe, 1F1B, LoopedBFS, Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble "
                                                           "or DualPipeV")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)                                             # the processes are the parallelism
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", rank=0, world_size=1)
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = train(args.steps, args.schedule, rank, size, show=rank == 0)
    if losses:
        print(f"{size} processes, loss {losses[0]:.4f} at the start, {losses[-1]:.4f} after {args.steps} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
