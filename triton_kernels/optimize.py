"""Kernels over lists of tensors: one launch for all of them, whatever their sizes.

What they share: `table_ptr` holds the address of tensor t of list k at [k * COUNT + t]; `plan_ptr` holds for each program the
tensor it works on, which of its blocks of BLOCK elements, and the number of elements of the tensor; `like_ptr` lends its type to the
addresses. A program whose block is whole needs no mask, so that its loads are as wide as they can be.
"""
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def column(table_ptr, like_ptr, k, t, COUNT, ALIGNED: tl.constexpr):
    """Where tensor t of list k begins."""
    ptr = tl.load(table_ptr + k * COUNT + t).to(like_ptr.dtype)
    if ALIGNED:
        ptr = tl.multiple_of(ptr, 16)
    return ptr


@triton.jit
def task(plan_ptr, BLOCK: tl.constexpr):
    """The tensor that this program works on, its first element, and the tensor's size."""
    row = plan_ptr + 3 * tl.program_id(0).to(tl.int64)
    return tl.load(row), tl.load(row + 1) * BLOCK, tl.load(row + 2)


@triton.jit
def wide(x):
    """Half types compute in float32."""
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


@triton.jit
def number(x, POINTER: tl.constexpr):
    """A number that is given, or lies in device memory."""
    if POINTER:
        return tl.load(x)
    else:
        return x


@triton.jit
def store(ptr, value, mask):
    tl.store(ptr, value.to(ptr.dtype.element_ty), mask=mask)


# ------------------------------------------------------------------ optimizers
@triton.jit
def gradient(g_ptr, p, i, mask, weight_decay, MAXIMIZE: tl.constexpr, DECAY: tl.constexpr):
    """The gradient to descend along, with the one of weight_decay / 2 · p² in it."""
    g = wide(tl.load(g_ptr + i, mask=mask))
    if MAXIMIZE:
        g = -g
    if DECAY:
        g += weight_decay * p
    return g


@triton.jit
def sgd_block(p_ptr, g_ptr, m_ptr, i, mask, lr, momentum, intake, weight_decay,
              MOMENTUM: tl.constexpr, FIRST: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr, DECAY: tl.constexpr):
    p = wide(tl.load(p_ptr + i, mask=mask))
    g = gradient(g_ptr, p, i, mask, weight_decay, MAXIMIZE, DECAY)
    if MOMENTUM:
        if FIRST:
            m = g
        else:
            m = momentum * wide(tl.load(m_ptr + i, mask=mask)) + intake * g
        store(m_ptr + i, m, mask)
        if NESTEROV:
            g += momentum * m
        else:
            g = m
    store(p_ptr + i, p - lr * g, mask)


@triton.jit
def sgd_kernel(table_ptr, plan_ptr, like_ptr, COUNT, lr, momentum, intake, weight_decay, MOMENTUM: tl.constexpr, FIRST: tl.constexpr,
               NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr, DECAY: tl.constexpr, LR_POINTER: tl.constexpr, ALIGNED: tl.constexpr,
               BLOCK: tl.constexpr):
    t, first, size = task(plan_ptr, BLOCK)
    i = first + tl.arange(0, BLOCK)
    lr = number(lr, LR_POINTER)
    p_ptr, g_ptr = column(table_ptr, like_ptr, 0, t, COUNT, ALIGNED), column(table_ptr, like_ptr, 1, t, COUNT, ALIGNED)
    if MOMENTUM:
        m_ptr = column(table_ptr, like_ptr, 2, t, COUNT, ALIGNED)
    else:
        m_ptr = p_ptr
    if first + BLOCK <= size:
        sgd_block(p_ptr, g_ptr, m_ptr, i, None, lr, momentum, intake, weight_decay, MOMENTUM, FIRST, NESTEROV, MAXIMIZE, DECAY)
    else:
        sgd_block(p_ptr, g_ptr, m_ptr, i, i < size, lr, momentum, intake, weight_decay, MOMENTUM, FIRST, NESTEROV, MAXIMIZE, DECAY)


@triton.jit
def adam_block(p_ptr, g_ptr, m_ptr, v_ptr, top_ptr, i, mask, lr, beta2, rest1, rest2, eps, weight_decay, correction1,
               root_correction2, AMSGRAD: tl.constexpr, DECOUPLED: tl.constexpr, MAXIMIZE: tl.constexpr, DECAY: tl.constexpr):
    p = wide(tl.load(p_ptr + i, mask=mask))
    g = gradient(g_ptr, p, i, mask, weight_decay, MAXIMIZE, DECAY and not DECOUPLED)
    m = wide(tl.load(m_ptr + i, mask=mask))
    m += rest1 * (g - m)
    v = beta2 * wide(tl.load(v_ptr + i, mask=mask)) + rest2 * g * g
    store(m_ptr + i, m, mask)
    store(v_ptr + i, v, mask)
    if AMSGRAD:
        top = wide(tl.load(top_ptr + i, mask=mask))
        v = tl.where((v > top) | (v != v), v, top)
        store(top_ptr + i, v, mask)
    if DECAY and DECOUPLED:
        p *= 1 - lr * weight_decay
    root = tl.sqrt(v) if v.dtype == tl.float64 else tl.sqrt_rn(v)
    store(p_ptr + i, p - lr / correction1 * (m / (root / root_correction2 + eps)), mask)


@triton.jit
def adam_kernel(table_ptr, plan_ptr, like_ptr, COUNT, found_inf_ptr, lr, beta2, rest1, rest2, eps, weight_decay, correction1,
                root_correction2, log_beta1, log_beta2, AMSGRAD: tl.constexpr, DECOUPLED: tl.constexpr, MAXIMIZE: tl.constexpr,
                DECAY: tl.constexpr, STEPS: tl.constexpr, LR_POINTER: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """`rest1` and `rest2` are 1 - beta, which float32 numbers near 1 do not give. STEPS: the number of steps of each tensor lies in
    device memory, a last column of pointers to float32."""
    if found_inf_ptr is not None:
        if tl.load(found_inf_ptr) != 0:
            return
    t, first, size = task(plan_ptr, BLOCK)
    i = first + tl.arange(0, BLOCK)
    lr = number(lr, LR_POINTER)
    p_ptr, g_ptr = column(table_ptr, like_ptr, 0, t, COUNT, ALIGNED), column(table_ptr, like_ptr, 1, t, COUNT, ALIGNED)
    m_ptr, v_ptr = column(table_ptr, like_ptr, 2, t, COUNT, ALIGNED), column(table_ptr, like_ptr, 3, t, COUNT, ALIGNED)
    if AMSGRAD:
        top_ptr = column(table_ptr, like_ptr, 4, t, COUNT, ALIGNED)
    else:
        top_ptr = v_ptr
    if STEPS:
        step = tl.load(tl.load(table_ptr + (5 if AMSGRAD else 4) * COUNT + t).to(tl.pointer_type(tl.float32)))
        correction1 = -libdevice.expm1(step.to(log_beta1.dtype) * log_beta1)   # 1 - beta1 ** step, without the cancellation
        root_correction2 = tl.sqrt(-libdevice.expm1(step.to(log_beta2.dtype) * log_beta2))
    if first + BLOCK <= size:
        adam_block(p_ptr, g_ptr, m_ptr, v_ptr, top_ptr, i, None, lr, beta2, rest1, rest2, eps, weight_decay, correction1, root_correction2,
                   AMSGRAD, DECOUPLED, MAXIMIZE, DECAY)
    else:
        adam_block(p_ptr, g_ptr, m_ptr, v_ptr, top_ptr, i, i < size, lr, beta2, rest1, rest2, eps, weight_decay, correction1,
                   root_correction2, AMSGRAD, DECOUPLED, MAXIMIZE, DECAY)


@triton.jit
def advance_kernel(table_ptr, found_inf_ptr):
    """Add 1 to float32 numbers that lie anywhere, one a program, unless *found_inf_ptr is 1."""
    ptr = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    one = 1.0
    if found_inf_ptr is not None:
        one -= tl.load(found_inf_ptr)
    tl.store(ptr, tl.load(ptr) + one)


# ------------------------------------------------------------------ gradients
@triton.jit
def larger(x, y):
    return tl.where((x >= y) | (x != x), x, y)


@triton.jit
def smaller(x, y):
    return tl.where((x <= y) | (x != x), x, y)


@triton.jit
def gathered(x, KIND: tl.constexpr):
    """All elements as one: their sum, or the largest or smallest, NaN if there is one."""
    if KIND == "max":
        return tl.reduce(x, 0, larger)
    elif KIND == "min":
        return tl.reduce(x, 0, smaller)
    else:
        return tl.sum(x, 0)


@triton.jit
def norm_kernel(partial_ptr, table_ptr, plan_ptr, like_ptr, COUNT, power, KIND: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """What the elements of each block contribute to the norm of all. KIND: "square", "abs", "max", "min", "count" or "power"."""
    t, first, size = task(plan_ptr, BLOCK)
    i = first + tl.arange(0, BLOCK)
    x_ptr = column(table_ptr, like_ptr, 0, t, COUNT, ALIGNED)
    if first + BLOCK <= size:
        x = tl.load(x_ptr + i)
    else:
        x = tl.load(x_ptr + i, mask=i < size, other=float("inf") if KIND == "min" else 0)
    x = tl.abs(wide(x))
    if KIND == "square":
        x = x * x
    elif KIND == "count":
        x = (x != 0).to(x.dtype)
    elif KIND == "power":
        x = libdevice.pow(x, power)
    tl.store(partial_ptr + tl.program_id(0), gathered(x, KIND))


@triton.jit
def finish_norm_kernel(out_ptr, partial_ptr, n, root, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The norm from its parts, by one program."""
    i = tl.arange(0, BLOCK)
    state = tl.load(partial_ptr + i, mask=i < n, other=float("inf") if KIND == "min" else 0)
    for start in range(BLOCK, n, BLOCK):
        more = tl.load(partial_ptr + start + i, mask=start + i < n, other=float("inf") if KIND == "min" else 0)
        if KIND == "max":
            state = larger(state, more)
        elif KIND == "min":
            state = smaller(state, more)
        else:
            state += more
    x = gathered(state, KIND)
    if KIND == "square":
        x = tl.sqrt(x)
    elif KIND == "power":
        x = libdevice.pow(x, root)
    tl.store(out_ptr, x)


@triton.jit
def scale_block(x_ptr, i, mask, factor, found_inf_ptr):
    x = wide(tl.load(x_ptr + i, mask=mask)) * factor
    store(x_ptr + i, x, mask)
    if found_inf_ptr is not None:
        bad = tl.where(tl.abs(x) < float("inf"), 0, 1)
        if mask is not None:
            bad = tl.where(mask, bad, 0)
        if tl.max(bad, 0) > 0:
            tl.store(found_inf_ptr, 1.0)                 # every program that gets here writes the same


@triton.jit
def scale_kernel(table_ptr, plan_ptr, like_ptr, COUNT, factor_ptr, found_inf_ptr, max_norm, CLIP: tl.constexpr, ALIGNED: tl.constexpr,
                 BLOCK: tl.constexpr):
    """Multiply by *factor_ptr, or, where CLIP, by what brings the norm *factor_ptr down to max_norm; note if a product is not finite."""
    t, first, size = task(plan_ptr, BLOCK)
    i = first + tl.arange(0, BLOCK)
    factor = tl.load(factor_ptr)
    if CLIP:
        factor = max_norm / (factor + 1e-6)
        factor = tl.where(factor > 1, 1, factor)
        if factor == 1:                                  # nothing would change: save the traffic
            return
    x_ptr = column(table_ptr, like_ptr, 0, t, COUNT, ALIGNED)
    if first + BLOCK <= size:
        scale_block(x_ptr, i, None, factor, found_inf_ptr)
    else:
        scale_block(x_ptr, i, i < size, factor, found_inf_ptr)


@triton.jit
def update_scale_kernel(scale_ptr, growth_tracker_ptr, found_inf_ptr, growth_factor, backoff_factor, growth_interval):
    """The rule of GradScaler.update."""
    scale, steps = tl.load(scale_ptr), tl.load(growth_tracker_ptr) + 1
    if tl.load(found_inf_ptr) > 0:
        tl.store(scale_ptr, scale * backoff_factor)
        tl.store(growth_tracker_ptr, 0)
    elif steps == growth_interval:
        grown = scale * growth_factor
        tl.store(scale_ptr, tl.where(grown < float("inf"), grown, scale))
        tl.store(growth_tracker_ptr, 0)
    else:
        tl.store(growth_tracker_ptr, steps)
