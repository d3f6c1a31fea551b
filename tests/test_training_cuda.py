"""Training on a CUDA device, end to end: the CPU's losses, and captured steps that are the eager ones to the last bit."""
import numpy as np
import pytest
from models import CNN, GPT, images, loss_of, seeded, texts, train_step

import tritorch as torch
from tritorch import nn

STEPS = 4


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, **options)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)


def warm_up(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 3, 1.0))


def train(make, optimizer_of, data, device):
    """(losses, parameters after the last step) with a schedule of the learning rate."""
    model = seeded(make, device)
    optimizer = optimizer_of(model)
    schedule, losses = warm_up(optimizer), []
    for x, y in data:
        losses.append(train_step(model, optimizer, x.to(device), y.to(device)))
        schedule.step()
    return [loss.item() for loss in losses], [t.detach().cpu().numpy() for t in model.state_dict().values()]


@pytest.mark.parametrize("make, optimizer_of, data", [(GPT, adamw, texts), (CNN, momentum, images)])
def test_losses_are_those_of_the_cpu(cuda, make, optimizer_of, data):
    ours, weights = train(make, optimizer_of, data(STEPS), cuda)
    theirs, expected = train(make, optimizer_of, data(STEPS), "cpu")
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for mine, other in zip(weights, expected) if make is CNN else ():    # Adam divides noise by noise where a gradient is 0
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)


# ------------------------------------------------------------------ captured
def rounds(make, optimizer_of, data, captured, step=train_step):
    """Losses and final weights of two eager steps and of the rest, eager or as replays of one capture with the inputs copied in."""
    model = seeded(make, "cuda")
    optimizer = optimizer_of(model)
    schedule, losses, recorded = warm_up(optimizer), [], None
    x, y = [t.to("cuda") for t in data[0]]
    for k, batch in enumerate(data):
        x.copy_(batch[0])
        y.copy_(batch[1])
        if captured and k >= 2:
            if recorded is None:
                recorded = torch.cuda.CUDAGraph()
                with torch.cuda.graph(recorded):
                    static_loss = step(model, optimizer, x, y)
            recorded.replay()
            losses.append(static_loss.item())
        else:
            losses.append(step(model, optimizer, x, y).item())
        schedule.step()
    return losses, [t.detach().cpu().numpy() for t in model.state_dict().values()]


def capturable(model):
    return adamw(model, capturable=True)


def capturable_rate(model):
    """The rate lies on the device: the schedule writes it there, and a replay reads it."""
    return torch.optim.AdamW(model.parameters(), lr=torch.tensor(3e-3, device="cuda"), betas=(0.9, 0.95), capturable=True)


def assert_same_run(ours, theirs):
    assert ours[0] == theirs[0] and len(set(ours[0])) == len(ours[0])
    for mine, other in zip(ours[1], theirs[1]):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("make, optimizer_of, data", [(GPT, capturable_rate, texts), (CNN, capturable_rate, images)])
def test_replays_are_the_eager_steps_to_the_last_bit(cuda, make, optimizer_of, data):
    batches = data(STEPS + 3)
    assert_same_run(rounds(make, optimizer_of, batches, True), rounds(make, optimizer_of, batches, False))


# ------------------------------------------------------------------ in mixed precision
class Mixed:
    """The training step under autocast with a scaled loss."""

    def __init__(self, device, dtype, **options):
        self.device, self.dtype, self.scaler = device, dtype, torch.amp.GradScaler(device, **options)

    def __call__(self, model, optimizer, x, y):
        optimizer.zero_grad()
        with torch.autocast(self.device, self.dtype):
            loss = loss_of(model, x, y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.scaler.step(optimizer)
        self.scaler.update()
        return loss.detach()


@pytest.mark.parametrize("make, optimizer_of, data", [(GPT, adamw, texts), (CNN, momentum, images)])
def test_mixed_precision_follows_the_cpu(cuda, make, optimizer_of, data):
    losses = {}
    for device in ("cuda", "cpu"):
        model, step = seeded(make, device), Mixed(device, torch.bfloat16)
        optimizer = optimizer_of(model)
        losses[device] = [step(model, optimizer, x.to(device), y.to(device)).item() for x, y in data(STEPS)]
        assert all(p.dtype is torch.float32 and p.grad.dtype is torch.float32 for p in model.parameters())
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=0.02)


def test_a_captured_step_skips_what_overflows_as_the_eager_one_does(cuda):
    """The scale is so high that every other step overflows, shrinks it and is skipped, all on the device."""
    scale = 2.0 ** 26

    def run(captured):
        step = Mixed("cuda", torch.float16, init_scale=scale, growth_interval=1, growth_factor=64.0, backoff_factor=1 / 64)
        return *rounds(GPT, capturable_rate, texts(STEPS + 3), captured, step), step.scaler.get_scale()

    ours, theirs = run(True), run(False)
    assert_same_run(ours, theirs)
    assert ours[2] == theirs[2] == scale / 64
