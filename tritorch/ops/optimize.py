"""What a training step does to all parameters at once: the updates of the optimizers, norm, clipping and unscaling of gradients.

Each takes lists of tensors and writes them in place (see `tritorch.ops.multitensor`). Half types compute in float32.
"""
import math
from typing import NamedTuple

import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dtype import float64
from tritorch.errors import check
from tritorch.ops import update_rules
from tritorch.ops.copy import transfer
from tritorch.ops.create import full
from tritorch.ops.loops import as_number
from tritorch.ops.multitensor import addresses, chunks, launch_rows, multi_tensor, scratch
from tritorch.ops.shaping import stack
from tritorch.quiet import quiet
from tritorch.tensor import Tensor, empty

K, OPTIMIZERS = kernels("optimize"), kernels("optimizers")
NORM_BLOCKS = (8192, 8), (32768, 8), (16384, 4), (65536, 8), (4096, 4), (8192, 16), (32768, 16)       # of programs that only read
SCALE_BLOCKS = (4096, 8), (2048, 4), (8192, 16)                                                        # of those that take them in turns


# ------------------------------------------------------------------ optimizers
class Recipe(NamedTuple):
    """What an optimizer does to every element: a rule and a counter of update_rules.py with their numbers."""

    rule: str
    numbers: tuple
    kind: str = "plain"
    counter: str = "plain_counter"
    constants: tuple = ()
    weight_decay: float = 0.0
    decay: str = "none"
    """Where weight_decay goes: "none", into the "gradient", or off the "parameter"."""
    maximize: bool = False


@multi_tensor("params grads x y z", writes="params x y z steps u v")
def update(params, grads, x, y, z, steps, u, v, lr, coefficients, recipe, found_inf, clip=None, lows=None):
    """One step of an optimizer.

    `x`, `y`, `z` are lists of what it remembers of the elements, or None. `coefficients` are those of the step, from the recipe's counter;
    where they are None, `steps`, `u` and `v` are lists of float32 scalars beside the parameters, or None, and the step is counted there.
    With `found_inf`, a float32 tensor, nothing happens where it is not 0. `clip` is (norm, max_norm): the gradients are taken as
    `clip_by_norm` would leave them, which saves reading and writing them there. `lows` are contiguous copies of parameters in another
    dtype, which get the new values too; a parameter that has none stands there for itself.
    """
    lengths = [len(c) for c in (params, grads, x, y, z, steps, u, v) if c is not None]
    check(lengths.count(len(params)) == len(lengths), recipe.rule, "lists of one length", lengths)


@update.impl("cpu")
@quiet
def update_cpu(params, grads, x, y, z, steps, u, v, lr, coefficients, recipe, found_inf, clip=None, lows=None):
    if found_inf is not None and found_inf.item():
        return
    lr, columns = float(lr), [params, *[c for c in (x, y, z) if c is not None], grads]
    if coefficients is None:
        columns = zip(*columns)
        coefficients = [_counted(recipe, lr, *[c and c[k].array for c in (steps, u, v)]) for k in range(len(params))]
        for row, c in zip(columns, coefficients):
            _apply(recipe, [[column] for column in row], lr, c, clip)
    else:
        _apply(recipe, columns, lr, coefficients, clip)
    for low, p in zip(lows or (), params):
        if low is not p:
            transfer(low, p)


def _counted(recipe, lr, step, *more):
    """Count a step in arrays of one number; its coefficients."""
    step[...] += 1
    coefficients, *moved = getattr(update_rules, recipe.counter)(step.item(), *[n and n.item() for n in more], lr, recipe.constants)
    for number, value in zip(more, moved):
        if number is not None:
            number[...] = value
    return coefficients


def _apply(recipe, columns, lr, coefficients, clip):
    factor, kind = 1.0 if clip is None else clip[1] / (clip[0].item() + 1e-6), columns[-1][0].dtype
    rule, decay, maximize = getattr(update_rules, recipe.rule), recipe.decay, recipe.maximize
    spare, other = scratch(2, columns[0][0])
    for p, *remembered, g in chunks(*columns, written=len(columns) - 1):
        a, b = spare[:p.size], other[:p.size]
        if not factor >= 1:                                              # NaN must get through
            g = (g * factor).astype(kind.numpy).astype(kind.compute.numpy)
        if maximize:
            g = np.negative(g, out=b)
        if decay == "parameter":
            p *= 1 - lr * recipe.weight_decay
        elif decay == "gradient":
            g = np.add(g, np.multiply(p, recipe.weight_decay, out=a), out=b)
        rule(p, g, remembered, a, lr, coefficients, recipe.numbers, recipe.kind)


@update.impl("cuda")
def update_cuda(params, grads, x, y, z, steps, u, v, lr, coefficients, recipe, found_inf, clip=None, lows=None):
    compute, remembered = params[0].dtype.compute, [c for c in (x, y, z) if c is not None]
    number = np.float64 if compute is float64 else float
    pointer, noted = isinstance(lr, Tensor), None
    if coefficients is None:
        columns, coefficients = [c for c in (steps, u, v) if c is not None], (0.0, 0.0, 0.0)
        noted = empty((3 * len(params),), compute, params[0].storage.device)
        launch(K.advance_kernel, (len(params),), noted, addresses([n for column in columns for n in column]), len(params), found_inf,
               lr if pointer else np.float64(lr), tuple([np.float64(c) for c in recipe.constants]),
               COUNTER=getattr(OPTIMIZERS, recipe.counter), MORE=len(columns) - 1, LR_POINTER=pointer, num_warps=1)
    numbers = [*map(number, (0.0 if pointer else lr, recipe.weight_decay, *coefficients, *recipe.numbers))]
    copies = [lows] if lows is not None else []
    like = next((low for low, p in zip(lows or (), params) if low is not p), None)
    launch_rows(K.update_kernel, [params, grads, *remembered, *copies], like, noted, found_inf, *(clip or (None, 0.0)),
                lr if pointer else numbers[0], *numbers[1:5], tuple(numbers[5:]), RULE=getattr(OPTIMIZERS, recipe.rule), KIND=recipe.kind,
                STATES=len(remembered), MAXIMIZE=recipe.maximize, DECAY=recipe.decay, LR_POINTER=pointer)


# ------------------------------------------------------------------ gradients
_KINDS = {2.0: "square", 1.0: "abs", math.inf: "max", -math.inf: "min", 0.0: "count"}


@multi_tensor("tensors", writes="")
def norm_parts(tensors, power, parts):
    """Collects in the dict `parts`, by device, 0-dim tensors: the norm of all elements for each dtype."""


@norm_parts.impl("cpu")
@quiet
def norm_parts_cpu(tensors, power, parts):
    found = math.inf if power == -math.inf else 0.0
    for (x,) in chunks(tensors, written=0):
        if power == 2:
            found += float(np.dot(x, x))
        elif math.isinf(power):
            found = (np.maximum if power > 0 else np.minimum)(found, (np.max if power > 0 else np.min)(np.abs(x)))
        else:
            found += float(np.count_nonzero(x) if power == 0 else np.sum(np.abs(x) ** power, dtype=np.float64))
    out = empty((), tensors[0].dtype.compute, tensors[0].storage.device)
    out.array[...] = found if power == 0 or math.isinf(power) else np.float64(found) ** (1 / power)
    parts.setdefault(out.storage.device, []).append(out)


@norm_parts.impl("cuda")
def norm_parts_cuda(tensors, power, parts):
    device, kind, name = tensors[0].storage.device, tensors[0].dtype.compute, _KINDS.get(power, "power")
    (partial,) = launch_rows(K.norm_kernel, [tensors], as_number(power, kind), blocks=NORM_BLOCKS,
                             before=lambda count: (empty((count,), kind, device),), KIND=name)
    out, root = empty((), kind, device), 1 / power if name == "power" else 1.0
    launch(K.finish_norm_kernel, (1,), out, partial, partial.numel(), as_number(root, kind), KIND=name, BLOCK=tile(8192, 1 << 14),
           num_warps=16)
    parts.setdefault(device, []).append(out)


@norm_parts.impl("meta")
def norm_parts_meta(tensors, power, parts):
    parts.setdefault(tensors[0].storage.device, []).append(empty((), tensors[0].dtype.compute, tensors[0].storage.device))


def total_norm(tensors, norm_type=2.0):
    """The norm of all elements of several tensors together, a 0-dim tensor on the device of the first; half types give float32.

    >>> import tritorch as torch; total_norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
    tensor(5.)
    """
    parts, squares = {}, norm_type == 2                                  # both parts of complex numbers add alike to these, else moduli do
    norm_parts([x if squares or not x.dtype.is_complex else x.abs() for x in tensors], float(norm_type), parts)
    found = [x.to(tensors[0].storage.device) for some in parts.values() for x in some]
    return found[0] if len(found) == 1 else stack(found).norm(norm_type)


@multi_tensor("tensors", writes="tensors")
def scale_by(tensors, factor, found_inf):
    """Multiply by the float32 scalar `factor`; set `found_inf` to 1 where a product is not finite, unless it is None."""


@scale_by.impl("cpu")
@quiet
def scale_by_cpu(tensors, factor, found_inf):
    number = factor.item()
    for (x,) in chunks(tensors, written=1):
        x *= number
        if found_inf is not None and not np.isfinite(x).all():
            found_inf.array[...] = 1


@scale_by.impl("cuda")
def scale_by_cuda(tensors, factor, found_inf):
    _scale(tensors, factor, found_inf, 0.0, CLIP=False)


def _scale(tensors, *args, CLIP, timed=None):
    launch_rows(K.scale_kernel, [tensors], *args, blocks=SCALE_BLOCKS, before=lambda count: (count,), turns=True, timed=timed, CLIP=CLIP,
                maxnreg=64)                                              # what programs that run at once may have


@multi_tensor("tensors", writes="tensors")
def clip_by_norm(tensors, total, max_norm):
    """Multiply by min(1, max_norm / (total + 10⁻⁶)), `total` a scalar tensor on the device."""


@clip_by_norm.impl("cpu")
@quiet
def clip_by_norm_cpu(tensors, total, max_norm):
    factor = max_norm / (total.item() + 1e-6)
    if not factor >= 1:                                                  # NaN must get through
        for (x,) in chunks(tensors, written=1):
            x *= factor


@clip_by_norm.impl("cuda")
def clip_by_norm_cuda(tensors, total, max_norm):
    there = total.to(tensors[0].storage.device)                          # no need to wait for the norm
    _scale(tensors, there, None, float(max_norm), CLIP=True,               # a clock shall see programs that scale
           timed=lambda: (full((), math.inf, dtype=there.dtype, device=there.device), None, float(max_norm)))


@multi_tensor("scale", writes="scale growth_tracker")
def update_scale(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval):
    """GradScaler's rule: back off where `found_inf` is 1, grow after `growth_interval` steps without. Lists of one scalar each."""


@update_scale.impl("cpu")
@quiet
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
