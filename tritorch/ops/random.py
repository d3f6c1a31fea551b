"""Random numbers with a Generator: `rand`, `randn`, `randint`, `randperm`, `bernoulli`, `multinomial`, … and the fills in place.

Plain functions: each takes a place in the generator's stream and calls an operator of `tritorch.ops.draws`.
"""
from __future__ import annotations

import math

from tritorch.autograd.modes import state
from tritorch.device import as_device
from tritorch.dtype import bfloat16, chosen, float16, float32, float64, get_default_dtype, iinfo, int64, promote
from tritorch.dtype import bool as bool_
from tritorch.errors import check, no_sizes, sentence, whole_numbers
from tritorch.layout import only_strided
from tritorch.ops.binomial import binomial  # noqa: F401
from tritorch.ops.bounds import HUGE, TINY, within
from tritorch.ops.chances import A_SUM, CHANCES, draw_one, random_bernoulli, random_normal_around, random_race
from tritorch.ops.complex import view_as_complex, view_as_real
from tritorch.ops.copy import deliver, like_strides
from tritorch.ops.create import empty, empty_like, strided_empty
from tritorch.ops.draws import (
    place,
    random_cauchy,
    random_coin,
    random_exponential,
    random_geometric,
    random_integers,
    random_log_normal,
    random_normal,
    random_uniform,
)
from tritorch.ops.poisson import random_poisson
from tritorch.ops.sorting import searchsorted
from tritorch.shape import broadcast_shapes, contiguous_strides, numel
from tritorch.storage import Batched, Spread
from tritorch.tensor import Tensor

MANTISSA = {float64: 53, float32: 24, float16: 11, bfloat16: 8}


def made(fill, shape, a, b, dtype, device, generator, out=None, requires_grad=False, pin_memory=False):
    """A new tensor of draws, or `out` filled with them."""
    shape = whole_numbers("rand", "sizes", shape)
    device, dtype = (as_device(device), dtype) if out is None else (out.device, out.dtype)
    if dtype.is_complex:
        out = empty(shape, dtype=dtype, device=device) if out is None else out
        refill_parts(out, fill, a, b, generator)
        return out.requires_grad_() if requires_grad else out
    values = shape, dtype, device, a, b, *place(device, generator, numel(shape))
    result = fill(*values) if out is None else fill.into(out, *values)
    if pin_memory:
        result = result.pin_memory()
    return result.requires_grad_() if requires_grad else result


def size_of(sizes, size=None):
    size = sizes if size is None else (size,)
    if not size:
        raise TypeError(no_sizes)
    size = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    return whole_numbers("empty", "sizes", size) if float in map(type, size) else size          # 2.0 is 2 where shapes are looked up


def like(fill, x, a, b, dtype, device, generator, requires_grad, memory_format):
    """As `made`, for the shape, dtype, device and order of dims of x."""
    strides, device = like_strides("rand_like", x, memory_format), x.device if device is None else as_device(device)
    out = None if strides == contiguous_strides(x.shape) else strided_empty(x.shape, strides, dtype=chosen(dtype, x.dtype), device=device)
    if type(x.storage) is Batched and out is not None:
        out = Batched.like(x, x.shape, out.dtype, device, strides)
    out = Spread.like(x, chosen(dtype, x.dtype), device) if type(x.storage) is Spread else out
    return made(fill, x.shape, a, b, chosen(dtype, x.dtype), device, generator, out, requires_grad)


# ------------------------------------------------------------------ new tensors
def rand(*sizes, size=None, generator=None, out=None, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """Uniform numbers in [0, 1): 24 bits (53 in float64), the same on every device.

    >>> import tritorch as torch
    >>> torch.rand(2, generator=torch.Generator().manual_seed(0))
    tensor([0.3990, 0.8805])
    """
    only_strided("rand", layout)
    return made(random_uniform, size_of(sizes, size), 0.0, 1.0, chosen(dtype, get_default_dtype()), device, generator, out, requires_grad,
                pin_memory)


def randn(*sizes, size=None, generator=None, out=None, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """Standard normal numbers: mean 0, variance 1; of complex dtypes with half of it in each part.

    >>> import tritorch as torch
    >>> torch.randn(2, 3).shape
    tritorch.Size([2, 3])
    """
    only_strided("randn", layout)
    return made(random_normal, size_of(sizes, size), 0.0, 1.0, chosen(dtype, get_default_dtype()), device, generator, out, requires_grad,
                pin_memory)


def randint(*args, low=None, high=None, size=None, generator=None, out=None, dtype=None, layout=None, device=None, requires_grad=False,
            pin_memory=False):
    """Integers in [low, high): `randint(high, size)` or `randint(low, high, size)`, int64 unless `dtype` says otherwise.

    >>> import tritorch as torch
    >>> torch.randint(3, 5, (4,)).dtype
    tritorch.int64
    """
    only_strided("randint", layout)
    args = list(args)
    size = args.pop() if size is None and args else size
    high = args.pop() if high is None and args else high
    low = args.pop() if low is None and args else low or 0
    check(not args and high is not None and size is not None, "randint", "(high, size) or (low, high, size)", args, error=TypeError)
    return made(random_integers, size, int(low), int(high), chosen(dtype, int64), device, generator, out, requires_grad, pin_memory)


def randperm(n, *, generator=None, out=None, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """A random order of 0 … n − 1: the ranks of n random 64-bit integers.

    >>> import tritorch as torch
    >>> sorted(torch.randperm(4).tolist())
    [0, 1, 2, 3]
    """
    only_strided("randperm", layout)
    if chosen(dtype if out is None else out.dtype, int64).is_complex:
        raise NotImplementedError(sentence("randperm", "a real dtype", dtype))
    keys = made(random_integers, (n,), -1 << 63, 1 << 63, int64, device if out is None else out.device, generator)
    order = keys.argsort(stable=True).to(chosen(dtype, int64))
    if pin_memory:
        order = order.pin_memory()
    return order.requires_grad_(requires_grad) if out is None else out.resize_(n).copy_(order)


def rand_like(input, *, generator=None, dtype=None, layout=None, device=None, requires_grad=False, memory_format=None):
    """`rand` with the shape, dtype and device of `input`.

    >>> import tritorch as torch
    >>> torch.rand_like(torch.ones(2, 3, dtype=torch.float64)).dtype
    tritorch.float64
    """
    only_strided("rand_like", layout)
    return like(random_uniform, input, 0.0, 1.0, dtype, device, generator, requires_grad, memory_format)


def randn_like(input, *, generator=None, dtype=None, layout=None, device=None, requires_grad=False, memory_format=None):
    """`randn` with the shape, dtype and device of `input`.

    >>> import tritorch as torch
    >>> torch.randn_like(torch.ones(2, 3)).shape
    tritorch.Size([2, 3])
    """
    only_strided("randn_like", layout)
    return like(random_normal, input, 0.0, 1.0, dtype, device, generator, requires_grad, memory_format)


def randint_like(input, *args, low=None, high=None, generator=None, dtype=None, layout=None, device=None, requires_grad=False,
                 memory_format=None):
    """`randint` with the shape, dtype and device of `input`: `randint_like(x, high)` or `randint_like(x, low, high)`.

    >>> import tritorch as torch
    >>> torch.randint_like(torch.zeros(3, dtype=torch.int64), 5, 6)
    tensor([5, 5, 5])
    """
    only_strided("randint_like", layout)
    args = list(args)
    high = args.pop() if high is None and args else high
    low = args.pop() if low is None and args else low or 0
    check(not args and high is not None, "randint_like", "(input, high) or (input, low, high)", args, error=TypeError)
    return like(random_integers, input, int(low), int(high), dtype, device, generator, requires_grad, memory_format)


def normal(mean=0.0, std=1.0, size=None, *, generator=None, out=None, dtype=None, layout=None, device=None, requires_grad=False,
           pin_memory=False):
    """Normal numbers with elementwise `mean` and `std`, or of one mean and std and a `size`.

    As in PyTorch the gradient to mean and std is zero; write `mean + std * randn_like(std)` for one that flows.

    >>> import tritorch as torch
    >>> torch.normal(torch.zeros(3), torch.ones(3)).shape, torch.normal(2.0, 0.1, (2, 2)).shape
    (tritorch.Size([3]), tritorch.Size([2, 2]))
    """
    only_strided("normal", layout)
    if not isinstance(mean, Tensor) and not isinstance(std, Tensor):
        check(size is not None, "normal", "a size when mean and std are numbers", size, error=TypeError)
        check(std >= 0, "normal", "std ≥ 0", std)
        return made(random_normal, size, mean, std, chosen(dtype, get_default_dtype()), device, generator, out, requires_grad, pin_memory)
    tensor = mean if isinstance(mean, Tensor) else std
    if isinstance(mean, complex) or isinstance(mean, Tensor) and mean.dtype.is_complex:
        return deliver(around(mean, std, tensor, generator), out)
    kind = promote(mean, std)
    mean, std = [v.to(kind) if isinstance(v, Tensor) else tensor.new_full((), v, dtype=kind) for v in (mean, std)]
    shape = broadcast_shapes("normal", mean.shape, std.shape)
    values = mean.expand(shape), std.expand(shape), *place(tensor.device, generator, numel(shape))
    return random_normal_around(*values) if out is None else random_normal_around.into(out, *values)


def around(mean, std, tensor, generator):
    """Complex normal numbers with the elementwise `mean` and real `std`, half of whose square is the variance of each part."""
    kind = promote(mean, std)
    check(not isinstance(std, Tensor) or not std.dtype.is_complex, "normal", "a real std", kind)
    mean, std = [v.to(t) if isinstance(v, Tensor) else tensor.new_full((), v, dtype=t) for v, t in ((mean, kind), (std, kind.to_real()))]
    shape = broadcast_shapes("normal", mean.shape, std.shape)
    count = place(tensor.device, generator, 2 * numel(shape))
    parts = random_normal_around(view_as_real(mean.expand(shape)), (std * math.sqrt(0.5)).unsqueeze(-1).expand(*shape, 2), *count)
    return view_as_complex(parts)


def bernoulli(input, p=None, *, generator=None, out=None):
    """1 with the chance that each element gives (or with chance `p` everywhere), else 0.

    >>> import tritorch as torch
    >>> torch.bernoulli(torch.tensor([0.0, 1.0]))
    tensor([0., 1.])
    """
    if p is not None:
        return bernoulli_(empty_like(input.detach()) if out is None else out, p, generator=generator)
    made = random_bernoulli(input, *place(input.device, generator, input.numel()))
    return made if out is None else deliver(made.to(out.dtype), out)     # of any dtype: 0 and 1 are in all


def poisson(input, generator=None):
    """Poisson numbers whose means are the elements of `input`.

    >>> import tritorch as torch
    >>> torch.poisson(torch.zeros(2))
    tensor([0., 0.])
    """
    return random_poisson(input, *place(input.device, generator, 4 * input.numel()))


def multinomial(input, num_samples, replacement=False, *, generator=None, out=None):
    """Indices drawn with the chances in each row of `input` (rows need not sum to 1): (n,) → (num_samples,), (m, n) → (m, num_samples).

    Without replacement by exponential races: the largest p_i / e_i, e_i exponential, come first (Efraimidis and Spirakis, 2006).
    Elements that are negative, infinite or NaN and rows of zeros raise RuntimeError: at once on the CPU, on CUDA when the host next waits.

    >>> import tritorch as torch
    >>> torch.multinomial(torch.tensor([0.0, 3.0, 0.0]), 2, replacement=True)
    tensor([1, 1])
    """
    p = input.detach()
    check(p.dtype.is_floating_point, "multinomial", "a floating dtype", p.dtype)
    check(p.ndim in (1, 2), "multinomial", "one or two dims", p.ndim)
    check(num_samples > 0, "multinomial", "num_samples > 0", num_samples)
    check(replacement or num_samples <= p.shape[-1], "multinomial", "at most as many samples as categories without replacement",
          num_samples, p.shape[-1], use="replacement=True")
    if num_samples == 1:                                                 # 4096 rows of 32000 classes: 139 µs, as a race 579
        u = made(random_uniform, (*p.shape[:-1], 1), 0.0, 1.0, float64, p.device, generator)
        return deliver(draw_one(p.reshape(-1, p.shape[-1]), u.reshape(-1, 1)).reshape(u.shape), out, exact=True)
    p = p.to(p.dtype.compute)
    if replacement:
        return deliver(invert(p, num_samples, generator), out, exact=True)
    race = random_race(p, *place(p.device, generator, p.numel()))
    best, order = race.topk(num_samples, -1)
    within(best.narrow(-1, 0, 1), TINY, math.inf, "multinomial", A_SUM)
    return deliver(order, out, exact=True)


def invert(p, count, generator):
    """`count` indices a row where the cumulative sums of p pass a uniform number."""
    sums = within(p, 0.0, HUGE, "multinomial", CHANCES).cumsum(-1)
    total = within(sums[..., -1:], TINY, HUGE, "multinomial", A_SUM)
    u = made(random_uniform, (*p.shape[:-1], count), 0.0, 1.0, p.dtype, p.device, generator) * total
    return searchsorted(sums, u, right=True).minimum(searchsorted(sums, total))      # u may round up to the total


# ------------------------------------------------------------------ fills in place
def refill_parts(x, fill, a, b, generator):
    """Fill both parts of a complex tensor: with uniform numbers, or normal ones that have half of the variance each."""
    if fill not in (random_uniform, random_normal):
        raise NotImplementedError(sentence(fill.__name__, "a real tensor", x.dtype))
    parts = view_as_real(x)
    values = parts.shape, parts.dtype, x.device, a, b * math.sqrt(0.5) if fill is random_normal else b
    fill.into(parts, *values, *place(x.device, generator, parts.numel()))


def refill(x, fill, a, b, generator):
    if state.grad and x.requires_grad and x.is_leaf:
        raise RuntimeError("random fill: a leaf Variable that requires grad is being used in an in-place operation; use no_grad()")
    if isinstance(a, Tensor) or isinstance(b, Tensor):                   # of one number without dims, as PyTorch takes it
        a, b = (v.item() if isinstance(v, Tensor) and not v.ndim else v for v in (a, b))
    if x.dtype.is_complex:
        refill_parts(x, fill, a, b, generator)
        return x
    return fill.into(x, x.shape, x.dtype, x.device, a, b, *place(x.device, generator, x.numel()))


def uniform_(x, from_=0.0, to=1.0, *, generator=None):
    """Fill with uniform numbers in [from, to).

    >>> import tritorch as torch
    >>> bool((torch.empty(5).uniform_(2, 3) >= 2).all())
    True
    """
    check(from_ <= to, "uniform_", "from ≤ to", from_, to)
    return refill(x, random_uniform, from_, to, generator)


def normal_(x, mean=0.0, std=1.0, *, generator=None):
    """Fill with normal numbers of a mean and a standard deviation."""
    check(std >= 0, "normal_", "std ≥ 0", std)
    return refill(x, random_normal, mean, std, generator)


def log_normal_(x, mean=1.0, std=2.0, *, generator=None):
    """Fill with exp(normal(mean, std))."""
    check(std > 0, "log_normal_", "std > 0", std)
    return refill(x, random_log_normal, mean, std, generator)


def exponential_(x, lambd=1.0, *, generator=None):
    """Fill with exponential numbers of rate λ: density λ exp(−λ x). Never 0."""
    check(lambd > 0, "exponential_", "lambd > 0", lambd)
    return refill(x, random_exponential, lambd, 0.0, generator)


def cauchy_(x, median=0.0, sigma=1.0, *, generator=None):
    """Fill with Cauchy numbers."""
    check(sigma > 0, "cauchy_", "sigma > 0", sigma)
    return refill(x, random_cauchy, median, sigma, generator)


def geometric_(x, p, *, generator=None):
    """Fill with the number of trials up to the first success of chance p: 1, 2, …"""
    check(0 < p < 1, "geometric_", "0 < p < 1", p)
    return refill(x, random_geometric, math.log1p(-p), 0.0, generator)


def bernoulli_(x, p=0.5, *, generator=None):
    """Fill with 1 at chance p, else 0; p is a number or a tensor that broadcasts.

    >>> import tritorch as torch
    >>> torch.empty(3).bernoulli_(1.0)
    tensor([1., 1., 1.])
    """
    if isinstance(p, Tensor):
        return x.copy_(bernoulli(p.expand(x.shape), generator=generator))
    check(0 <= p <= 1, "bernoulli_", "0 ≤ p ≤ 1", p)
    return refill(x, random_coin, p, 0.0, generator)


def random_(x, from_=None, to=None, *, generator=None):
    """Fill with integers: `random_(to)` in [0, to), `random_(from, to)` in [from, to), `random_()` from 0 to the largest of the dtype.

    >>> import tritorch as torch
    >>> torch.zeros(3).random_(4, 5)
    tensor([4., 4., 4.])
    """
    if to is None and from_ is not None:
        from_, to = 0, from_
    if to is None:
        if x.dtype.is_complex:
            raise NotImplementedError(sentence("random_", "a real tensor", x.dtype))
        to = (1 << MANTISSA[x.dtype] if x.dtype in MANTISSA else 1 if x.dtype is bool_ else iinfo(x.dtype).max) + 1
    return refill(x, random_integers, int(from_ or 0), int(to), generator)
