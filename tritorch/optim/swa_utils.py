"""Averages of a model's weights over the steps of its training: stochastic weight averaging and exponential moving averages."""
import copy
import itertools
import math
from collections import defaultdict

from tritorch.autograd import no_grad
from tritorch.errors import check
from tritorch.nn.module import Module
from tritorch.nn.norm import _BatchNorm
from tritorch.ops.create import tensor
from tritorch.optim.lr_scheduler import LRScheduler
from tritorch.optim.schedule import one_each

__all__ = ["SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn", "update_bn"]


def _check_decay(decay):
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"expected a decay from 0 to 1, got {decay}")


def get_ema_multi_avg_fn(decay=0.999):
    """A function for `AveragedModel(multi_avg_fn=…)`: average ← decay · average + (1 − decay) · weight, for a list of tensors at once."""
    _check_decay(decay)

    @no_grad()
    def ema_update(ema_param_list, current_param_list, _):
        for average, now in zip(ema_param_list, current_param_list, strict=True):
            if average.is_floating_point():
                average.lerp_(now, 1 - decay)
            else:
                average.copy_(average * decay + now * (1 - decay))

    return ema_update


def get_swa_multi_avg_fn():
    """A function for `AveragedModel(multi_avg_fn=…)`: the mean of all weights so far, for a list of tensors at once."""
    one = get_swa_avg_fn()

    @no_grad()
    def swa_update(averaged_param_list, current_param_list, num_averaged):
        for average, now in zip(averaged_param_list, current_param_list, strict=True):
            average.copy_(one(average, now, num_averaged))

    return swa_update


def get_ema_avg_fn(decay=0.999):
    """A function for `AveragedModel(avg_fn=…)`: decay · average + (1 − decay) · weight."""
    _check_decay(decay)

    @no_grad()
    def ema_update(ema_param, current_param, num_averaged):
        return decay * ema_param + (1 - decay) * current_param

    return ema_update


def get_swa_avg_fn():
    """A function for `AveragedModel(avg_fn=…)`: the mean of all weights so far."""

    @no_grad()
    def swa_update(averaged_param, current_param, num_averaged):
        return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return swa_update


class AveragedModel(Module):
    """A copy of a model whose weights are averages of the model's at every `update_parameters(model)`: their mean unless told otherwise.

    `avg_fn(average, weight, n)` gives a new average; `multi_avg_fn(averages, weights, n)` writes lists of them. The first call copies.
    Buffers are averaged if `use_buffers`, else copied; `update_bn` makes the statistics of batch norms anew. Izmailov et al. 2018.

    >>> import tritorch as torch
    >>> net = torch.nn.Linear(1, 1, bias=False)
    >>> average = torch.optim.swa_utils.AveragedModel(net)
    >>> for value in 1.0, 2.0, 6.0:
    ...     _ = net.weight.data.fill_(value)
    ...     average.update_parameters(net)
    >>> average(torch.ones(1, 1)).item(), average.n_averaged.item()
    (3.0, 3)
    """

    def __init__(self, model, device=None, avg_fn=None, multi_avg_fn=None, use_buffers=False):
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("AveragedModel: expected avg_fn or multi_avg_fn, got both")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", tensor(0, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _averaged(self, model):
        return itertools.chain(model.parameters(), model.buffers()) if self.use_buffers else model.parameters()

    @no_grad()
    def update_parameters(self, model):
        """Take the weights that the model has now into the averages."""
        pairs = [(average.detach(), now.detach().to(average.device))
                 for average, now in zip(self._averaged(self.module), self._averaged(model))]
        if self.n_averaged == 0:
            for average, now in pairs:
                average.copy_(now)
        elif self.multi_avg_fn is not None:
            kinds = defaultdict(list)                                    # lists are of one device and dtype
            for average, now in pairs:
                kinds[average.device, average.dtype].append((average, now))
            for (device, _), some in kinds.items():
                self.multi_avg_fn(*map(list, zip(*some)), self.n_averaged.to(device))
        else:
            fn = self.avg_fn or get_swa_avg_fn()
            for average, now in pairs:
                average.copy_(fn(average, now, self.n_averaged.to(average.device)))
        if not self.use_buffers:
            for average, now in zip(self.module.buffers(), model.buffers(), strict=True):
                average.detach().copy_(now.detach().to(average.device))
        self.n_averaged += 1


@no_grad()
def update_bn(loader, model, device=None):
    """Make the running statistics of all batch norms anew: the plain averages over the batches of `loader`.

    A batch is a tensor, or a list or tuple that begins with one.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta, training = [norm.momentum for norm in norms], model.training
    model.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    for batch in loader:
        batch = batch[0] if isinstance(batch, (list, tuple)) else batch
        model(batch if device is None else batch.to(device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(training)


class SWALR(LRScheduler):
    """Rates that go to `swa_lr` in `anneal_epochs` steps, as half a cosine ("cos") or a line ("linear"), and stay there.

    >>> import tritorch as torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.5, anneal_epochs=2, anneal_strategy="linear")
    >>> [optimizer.step() or schedule.step() or schedule.get_last_lr()[0] for _ in range(3)]
    [0.75, 0.5, 0.5]
    """

    def __init__(self, optimizer, swa_lr, anneal_epochs=10, anneal_strategy="cos", last_epoch=-1):
        for rate, group in zip(one_each("swa_lr", optimizer, swa_lr), optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        check(anneal_strategy in ("cos", "linear"), "SWALR", "strategy 'cos' or 'linear'", anneal_strategy, error=ValueError)
        check(isinstance(anneal_epochs, int) and anneal_epochs >= 0, "SWALR", "anneal_epochs ≥ 0", anneal_epochs, error=ValueError)
        self.anneal_epochs, self._anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _share(self, step):
        t = max(0, min(1, step / max(1, self.anneal_epochs)))
        return t if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2

    def get_lr(self):
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now, rates = self._share(step - 1), self._share(step), []
        for group in self.optimizer.param_groups:
            low = group["swa_lr"]
            first = low if before == 1 else (group["lr"] - before * low) / (1 - before)
            rates.append(low * now + first * (1 - now))
        return rates
