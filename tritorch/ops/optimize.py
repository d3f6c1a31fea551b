"""What a training step does to all parameters at once: the updates of SGD and Adam, norm, clipping and unscaling of gradients.

Each takes lists of tensors and writes them in place (see `tritorch.ops.multitensor`). Half types compute in float32.
"""
import math

import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.errors import check
from tritorch.ops.elementwise import as_number
from tritorch.ops.multitensor import addresses, chunks, launch_rows, multi_tensor, programs, scratch
from tritorch.tensor import Tensor, empty

K = kernels("optimize")
NORM_BLOCK = 8192                                                        # elements of a program that only reads


def _same_lengths(name, *lists):
    check(len({len(x) for x in lists if x is not None}) <= 1, name, "lists of one length", [len(x) for x in lists if x is not None])


def _numbers(like, *values):
    """Numbers as kernel arguments for tensors such as `like`."""
    return [as_number(v, like.dtype.compute) for v in values]


# ------------------------------------------------------------------ SGD
@multi_tensor("params grads momentum_buffers", writes="params momentum_buffers")
def sgd(params, grads, momentum_buffers, first, lr, momentum, dampening, weight_decay, nesterov, maximize):
    """One step of SGD. `momentum_buffers` is None where momentum is 0; with `first` they are set, not read.

    g ← ±g + λp;  b ← μb + (1 − τ)g, at first g;  p ← p − γ·(g + μb if nesterov, else b)
    """
    _same_lengths("sgd", params, grads, momentum_buffers)


@sgd.impl("cpu")
def sgd_cpu(params, grads, momentum_buffers, first, lr, momentum, dampening, weight_decay, nesterov, maximize):
    columns = [params, grads] if momentum_buffers is None else [params, momentum_buffers, grads]
    spare, other = scratch(2, params[0])
    lr = float(lr)
    for p, *buffer, g in chunks(*columns, written=len(columns) - 1):
        a, b = spare[:p.size], other[:p.size]
        if maximize:
            g = np.negative(g, out=a)
        if weight_decay:
            g = np.add(g, np.multiply(p, weight_decay, out=b), out=a)
        if buffer:
            m = buffer[0]
            if first:
                m[...] = g
            else:
                m *= momentum
                m += np.multiply(g, 1 - dampening, out=b)
            g = np.add(g, np.multiply(m, momentum, out=b), out=a) if nesterov else m
        p -= np.multiply(g, lr, out=b)


@sgd.impl("cuda")
def sgd_cuda(params, grads, momentum_buffers, first, lr, momentum, dampening, weight_decay, nesterov, maximize):
    columns = [params, grads] if momentum_buffers is None else [params, grads, momentum_buffers]
    pointer = isinstance(lr, Tensor)
    rate, *numbers = _numbers(params[0], 0.0 if pointer else lr, momentum, 1 - dampening, weight_decay)
    launch_rows(K.sgd_kernel, (), columns, lr if pointer else rate, *numbers, MOMENTUM=momentum_buffers is not None, FIRST=first,
                NESTEROV=nesterov, MAXIMIZE=maximize, DECAY=weight_decay != 0, LR_POINTER=pointer)


# ------------------------------------------------------------------ Adam
@multi_tensor("params grads exp_avgs exp_avg_sqs max_exp_avg_sqs", writes="params exp_avgs exp_avg_sqs max_exp_avg_sqs")
def adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr, beta1, beta2, eps, weight_decay, decoupled, maximize, found_inf):
    """One step of Adam; Kingma and Ba 2015, with `decoupled` of AdamW; Loshchilov and Hutter 2019.

    g ← ±g [+ λp];  m ← β₁m + (1 − β₁)g;  v ← β₂v + (1 − β₂)g²;  [p ← p − γλp];  p ← p − γ/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε)

    `max_exp_avg_sqs` (amsgrad; Reddi et al. 2018) is None or keeps the largest v. `steps` is t, this step counted: one number, or a list
    of float32 tensors on the device. With `found_inf`, a float32 tensor, nothing happens where it is not 0.
    """
    _same_lengths("adam", params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps if type(steps) is list else None)


@adam.impl("cpu")
def adam_cpu(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr, beta1, beta2, eps, weight_decay, decoupled, maximize,
             found_inf):
    if found_inf is not None and found_inf.item():
        return
    if type(steps) is list:
        for k, step in enumerate(steps):
            top = None if max_exp_avg_sqs is None else max_exp_avg_sqs[k:k + 1]
            adam_cpu(params[k:k + 1], grads[k:k + 1], exp_avgs[k:k + 1], exp_avg_sqs[k:k + 1], top, step.item(), lr, beta1, beta2, eps,
                     weight_decay, decoupled, maximize, None)
        return
    lr = float(lr)
    size, root = lr / (1 - beta1 ** steps), math.sqrt(1 - beta2 ** steps)
    columns = [params, exp_avgs, exp_avg_sqs, *([] if max_exp_avg_sqs is None else [max_exp_avg_sqs]), grads]
    spare, other = scratch(2, params[0])
    for p, m, v, *top, g in chunks(*columns, written=len(columns) - 1):
        a, b = spare[:p.size], other[:p.size]
        if maximize:
            g = np.negative(g, out=b)
        if weight_decay:
            if decoupled:
                p *= 1 - lr * weight_decay
            else:
                g = np.add(g, np.multiply(p, weight_decay, out=a), out=b)
        np.subtract(g, m, out=a)
        a *= 1 - beta1
        m += a
        np.multiply(g, g, out=a)
        a *= 1 - beta2
        v *= beta2
        v += a
        if top:
            v = np.maximum(top[0], v, out=top[0])
        np.sqrt(v, out=a)
        a /= root
        a += eps
        np.divide(m, a, out=a)
        a *= size
        p -= a


@adam.impl("cuda")
def adam_cuda(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr, beta1, beta2, eps, weight_decay, decoupled, maximize,
              found_inf):
    columns = [params, grads, exp_avgs, exp_avg_sqs, *([] if max_exp_avg_sqs is None else [max_exp_avg_sqs])]
    pointer, there = isinstance(lr, Tensor), type(steps) is list
    t = 1 if there else steps
    logs = [math.log(beta) if beta else -math.inf for beta in (beta1, beta2)]
    rate, *numbers = _numbers(params[0], 0.0 if pointer else lr, beta2, 1 - beta1, 1 - beta2, eps, weight_decay, 1 - beta1 ** t,
                              math.sqrt(1 - beta2 ** t), *logs)
    launch_rows(K.adam_kernel, (), columns, found_inf, lr if pointer else rate, *numbers,
                extra=[s.data_ptr() for s in steps] if there else (), AMSGRAD=max_exp_avg_sqs is not None, DECOUPLED=decoupled,
                MAXIMIZE=maximize, DECAY=weight_decay != 0, STEPS=there, LR_POINTER=pointer)


@multi_tensor("steps", writes="steps")
def advance(steps, found_inf):
    """Add 1 to each of the float32 scalars `steps`, unless `found_inf` is 1."""


@advance.impl("cpu")
def advance_cpu(steps, found_inf):
    more = 1 if found_inf is None else 1 - found_inf.item()
    for step in steps:
        array = step.array
        np.add(array, more, array)


@advance.impl("cuda")
def advance_cuda(steps, found_inf):
    launch(K.advance_kernel, (len(steps),), addresses(steps), found_inf, num_warps=1)


# ------------------------------------------------------------------ gradients
_KINDS = {2.0: "square", 1.0: "abs", math.inf: "max", -math.inf: "min", 0.0: "count"}


@multi_tensor("tensors", writes="")
def norm_parts(tensors, power, parts):
    """Collects in the dict `parts`, by device, 0-dim tensors: the norm of all elements for each dtype."""


@norm_parts.impl("cpu")
def norm_parts_cpu(tensors, power, parts):
    found = 0.0 if power >= 0 else math.inf
    for (x,) in chunks(tensors, written=0):
        if power == 2:
            found += float(np.dot(x, x))
        elif math.isinf(power):
            found = (np.maximum if power > 0 else np.minimum)(found, (np.max if power > 0 else np.min)(np.abs(x)))
        else:
            found += float(np.count_nonzero(x) if power == 0 else np.sum(np.abs(x) ** power, dtype=np.float64))
    out = empty((), tensors[0].dtype.compute, tensors[0].storage.device)
    out.array[...] = found if power == 0 or math.isinf(power) else found ** (1 / power)
    parts.setdefault(out.storage.device, []).append(out)


@norm_parts.impl("cuda")
def norm_parts_cuda(tensors, power, parts):
    device, kind, count = tensors[0].storage.device, tensors[0].dtype.compute, programs(tensors, NORM_BLOCK)
    partial, out, name = empty((count,), kind, device), empty((), kind, device), _KINDS.get(power, "power")
    root = 1 / power if name == "power" else 1.0
    launch_rows(K.norm_kernel, (partial,), [tensors], as_number(power, kind), block=NORM_BLOCK, KIND=name)
    launch(K.finish_norm_kernel, (1,), out, partial, count, as_number(root, kind), KIND=name, BLOCK=tile(8192, 1 << 14), num_warps=16)
    parts.setdefault(device, []).append(out)


def total_norm(tensors, norm_type=2.0):
    """The norm of all elements of several tensors together, a 0-dim tensor on the device of the first; half types give float32.

    >>> import tritorch as torch; total_norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
    tensor(5.)
    """
    from tritorch.ops.shaping import stack

    parts = {}
    norm_parts(list(tensors), float(norm_type), parts)
    found = [x.to(tensors[0].storage.device) for some in parts.values() for x in some]
    return found[0] if len(found) == 1 else stack(found).norm(norm_type)


@multi_tensor("tensors", writes="tensors")
def scale_by(tensors, factor, found_inf):
    """Multiply by the float32 scalar `factor`; set `found_inf` to 1 where a product is not finite, unless it is None."""


@scale_by.impl("cpu")
def scale_by_cpu(tensors, factor, found_inf):
    number = factor.item()
    for (x,) in chunks(tensors, written=1):
        x *= number
        if found_inf is not None and not np.isfinite(x).all():
            found_inf.array[...] = 1


@scale_by.impl("cuda")
def scale_by_cuda(tensors, factor, found_inf):
    launch_rows(K.scale_kernel, (), [tensors], factor, found_inf, 0.0, CLIP=False)


@multi_tensor("tensors", writes="tensors")
def clip_by_norm(tensors, total, max_norm):
    """Multiply by min(1, max_norm / (total + 10⁻⁶)), `total` a scalar tensor on the device."""


@clip_by_norm.impl("cpu")
def clip_by_norm_cpu(tensors, total, max_norm):
    factor = max_norm / (total.item() + 1e-6)
    if not factor >= 1:                                                  # NaN must get through
        for (x,) in chunks(tensors, written=1):
            x *= factor


@clip_by_norm.impl("cuda")
def clip_by_norm_cuda(tensors, total, max_norm):
    there = total.to(tensors[0].storage.device)                          # no need to wait for the norm
    launch_rows(K.scale_kernel, (), [tensors], there, None, float(max_norm), CLIP=True)


@multi_tensor("scale growth_tracker", writes="scale growth_tracker")
def update_scale(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval):
    """GradScaler's rule: back off where `found_inf` is 1, grow after `growth_interval` steps without. Lists of one scalar each."""


@update_scale.impl("cpu")
def update_scale_cpu(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval):
    (scale,), (tracker,) = [scale[0].array], [growth_tracker[0].array]
    if found_inf.item():
        scale *= backoff_factor
        tracker[...] = 0
    elif tracker + 1 == growth_interval:
        if np.isfinite(scale * np.float32(growth_factor)):
            scale *= growth_factor
        tracker[...] = 0
    else:
        tracker += 1


@update_scale.impl("cuda")
def update_scale_cuda(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval):
    launch(K.update_scale_kernel, (1,), scale[0], growth_tracker[0], found_inf, float(growth_factor), float(backoff_factor),
           growth_interval)
