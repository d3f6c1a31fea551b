"""Kernels over lists of tensors: one launch for all of them, whatever their sizes.

What they share: `table_ptr` holds the address of tensor t of list k at [k * COUNT + t]; `plan_ptr` holds for each program the
tensor it works on, which of its blocks of BLOCK elements, and the number of elements of the tensor; `like_ptr` lends its type to the
addresses. A program whose block is whole needs no mask, so that its loads are as wide as they can be.
"""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .scalar import maximum, minimum


@triton.jit
def column(table_ptr, like_ptr, k, t, COUNT, ALIGNED: tl.constexpr):
    """Where tensor t of list k begins."""
    ptr = tl.load(table_ptr + k * COUNT + t).to(like_ptr.dtype)
    if ALIGNED:
        ptr = tl.multiple_of(ptr, 16)
    return ptr


@triton.jit
def task(plan_ptr, number, BLOCK: tl.constexpr):
    """The tensor that a block belongs to, its first element, and the tensor's size."""
    row = plan_ptr + 3 * number.to(tl.int64)
    return tl.load(row), tl.load(row + 1) * BLOCK, tl.load(row + 2)


@triton.jit
def wide(x):
    """Half types compute in float32."""
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


@triton.jit
def store(ptr, value, mask):
    tl.store(ptr, value.to(ptr.dtype.element_ty), mask=mask)


# ------------------------------------------------------------------ optimizers
@triton.jit
def advance_kernel(coefficients_ptr, table_ptr, COUNT, found_inf_ptr, lr, constants, COUNTER: tl.constexpr, MORE: tl.constexpr,
                   LR_POINTER: tl.constexpr):
    """Count a step of each tensor, unless *found_inf_ptr is 1, and note its coefficients, one program a tensor. The table has the
    addresses of float32 numbers: the steps, then the 0, 1 or 2 columns of MORE."""
    if found_inf_ptr is not None:
        if tl.load(found_inf_ptr) != 0:
            return
    k = tl.program_id(0)
    t_ptr = tl.load(table_ptr + k).to(tl.pointer_type(tl.float32))
    u_ptr = tl.load(table_ptr + (COUNT if MORE > 0 else 0) + k).to(tl.pointer_type(tl.float32))
    v_ptr = tl.load(table_ptr + (2 * COUNT if MORE > 1 else 0) + k).to(tl.pointer_type(tl.float32))
    t = tl.load(t_ptr) + 1
    if LR_POINTER:
        lr = tl.load(lr).to(tl.float64)
    c0, c1, c2, u, v = COUNTER(t.to(tl.float64), tl.load(u_ptr).to(tl.float64), tl.load(v_ptr).to(tl.float64), lr, constants)
    tl.store(t_ptr, t)
    if MORE > 0:
        tl.store(u_ptr, u.to(tl.float32))
    if MORE > 1:
        tl.store(v_ptr, v.to(tl.float32))
    tl.store(coefficients_ptr + 3 * k, c0)
    tl.store(coefficients_ptr + 3 * k + 1, c1)
    tl.store(coefficients_ptr + 3 * k + 2, c2)


@triton.jit
def clipping(norm_ptr, max_norm):
    """What brings a norm down to max_norm; NaN gets through."""
    factor = max_norm / (tl.load(norm_ptr) + 1e-6)
    return tl.where(factor > 1, 1, factor)


@triton.jit
def update_block(p_ptr, g_ptr, x_ptr, y_ptr, z_ptr, low_ptr, apart, i, mask, lr, weight_decay, factor, c0, c1, c2, numbers,
                 RULE: tl.constexpr, KIND: tl.constexpr, STATES: tl.constexpr, MAXIMIZE: tl.constexpr, DECAY: tl.constexpr,
                 CLIP: tl.constexpr, LOW: tl.constexpr):
    p, g = wide(tl.load(p_ptr + i, mask=mask)), wide(tl.load(g_ptr + i, mask=mask))
    if CLIP:                                             # rounded as if it had been stored in between
        g = wide(libdevice.mul_rn(g, factor.to(g.dtype)).to(g_ptr.dtype.element_ty))
    x, y, z = p, p, p
    if STATES > 0 and KIND != "first":
        x = wide(tl.load(x_ptr + i, mask=mask))
    if STATES > 1:
        y = wide(tl.load(y_ptr + i, mask=mask))
    if STATES > 2:
        z = wide(tl.load(z_ptr + i, mask=mask))
    if MAXIMIZE:
        g = -g
    if DECAY == "gradient":
        g += weight_decay * p
    elif DECAY == "parameter":
        p *= 1 - lr * weight_decay
    p, x, y, z = RULE(p, g, x, y, z, lr, c0, c1, c2, numbers, KIND)
    store(p_ptr + i, p, mask)
    if LOW:
        if apart:
            store(low_ptr + i, p.to(p_ptr.dtype.element_ty), mask)
    if STATES > 0:
        store(x_ptr + i, x, mask)
    if STATES > 1:
        store(y_ptr + i, y, mask)
    if STATES > 2:
        store(z_ptr + i, z, mask)


@triton.jit
def update_kernel(table_ptr, plan_ptr, like_ptr, COUNT, low_like_ptr, coefficients_ptr, found_inf_ptr, norm_ptr, max_norm, lr,
                  weight_decay, c0, c1, c2, numbers, RULE: tl.constexpr, KIND: tl.constexpr, STATES: tl.constexpr, MAXIMIZE: tl.constexpr,
                  DECAY: tl.constexpr, LR_POINTER: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """A step of the optimizer RULE (see optimizers.py): the lists are parameters, gradients and STATES more. The coefficients of each
    tensor are what advance_kernel noted, or c0, c1, c2 for all. DECAY: weight_decay goes to the "gradient" or the "parameter". Gradients
    are clipped on the way if their norm is given. With low_like_ptr, which lends its type, there is one more list, of copies of the
    parameters, in which those without one stand for themselves."""
    if found_inf_ptr is not None:
        if tl.load(found_inf_ptr) != 0:
            return
    t, first, size = task(plan_ptr, tl.program_id(0), BLOCK)
    i = first + tl.arange(0, BLOCK)
    if LR_POINTER:
        lr = tl.load(lr).to(weight_decay.dtype)
    if coefficients_ptr is not None:
        c0, c1 = tl.load(coefficients_ptr + 3 * t), tl.load(coefficients_ptr + 3 * t + 1)
        c2 = tl.load(coefficients_ptr + 3 * t + 2)
    CLIP: tl.constexpr = norm_ptr is not None
    factor = lr
    if CLIP:
        factor = clipping(norm_ptr, max_norm)
    p_ptr, g_ptr = column(table_ptr, like_ptr, 0, t, COUNT, ALIGNED), column(table_ptr, like_ptr, 1, t, COUNT, ALIGNED)
    x_ptr = column(table_ptr, like_ptr, 2 if STATES > 0 else 0, t, COUNT, ALIGNED)
    y_ptr = column(table_ptr, like_ptr, 3 if STATES > 1 else 0, t, COUNT, ALIGNED)
    z_ptr = column(table_ptr, like_ptr, 4 if STATES > 2 else 0, t, COUNT, ALIGNED)
    LOW: tl.constexpr = low_like_ptr is not None
    low_ptr, apart = p_ptr, False
    if LOW:
        low = tl.load(table_ptr + (2 + STATES) * COUNT + t)
        low_ptr, apart = low.to(low_like_ptr.dtype), low != tl.load(table_ptr + t)
        if ALIGNED:                                      # four numbers of 16 bits, as a thread has them: for eight they would be exchanged
            low_ptr = tl.multiple_of(low_ptr, 8)
    if first + BLOCK <= size:
        update_block(p_ptr, g_ptr, x_ptr, y_ptr, z_ptr, low_ptr, apart, i, None, lr, weight_decay, factor, c0, c1, c2, numbers, RULE,
                     KIND, STATES, MAXIMIZE, DECAY, CLIP, LOW)
    else:
        update_block(p_ptr, g_ptr, x_ptr, y_ptr, z_ptr, low_ptr, apart, i, i < size, lr, weight_decay, factor, c0, c1, c2, numbers, RULE,
                     KIND, STATES, MAXIMIZE, DECAY, CLIP, LOW)


# ------------------------------------------------------------------ gradients
@triton.jit
def gathered(x, KIND: tl.constexpr):
    """All elements as one: their sum, or the largest or smallest, NaN if there is one."""
    if KIND == "max":
        return tl.reduce(x, 0, maximum)
    elif KIND == "min":
        return tl.reduce(x, 0, minimum)
    else:
        return tl.sum(x, 0)


@triton.jit
def together(state, more, KIND: tl.constexpr):
    """The same of pairs of elements."""
    if KIND == "max":
        return maximum(state, more)
    elif KIND == "min":
        return minimum(state, more)
    else:
        return state + more


@triton.jit
def contributions(x_ptr, i, mask, power, KIND: tl.constexpr):
    """What elements contribute to a norm."""
    if mask is None:
        x = tl.load(x_ptr + i)
    else:
        x = tl.load(x_ptr + i, mask=mask, other=float("inf") if KIND == "min" else 0)
    x = tl.abs(wide(x))
    if KIND == "square":
        x = x * x
    elif KIND == "count":
        x = (x != 0).to(x.dtype)
    elif KIND == "power":
        x = libdevice.pow(x, power)
        if mask is not None:
            x = tl.where(mask, x, 0)                                     # 0 to a negative power is infinite
    return x


@triton.jit
def norm_kernel(partial_ptr, table_ptr, plan_ptr, like_ptr, COUNT, power, KIND: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
                num_warps: tl.constexpr):
    """What the elements of each block contribute to the norm of all, in steps of 32 elements a thread. KIND: "square", "abs", "max", "min",
    "count" or "power"."""
    STEP: tl.constexpr = min(BLOCK, 1024 * num_warps)
    t, first, size = task(plan_ptr, tl.program_id(0), BLOCK)
    i = first + tl.arange(0, STEP)
    x_ptr = column(table_ptr, like_ptr, 0, t, COUNT, ALIGNED)
    if first + BLOCK <= size:
        state = contributions(x_ptr, i, None, power, KIND)
        for j in range(STEP, BLOCK, STEP):
            state = together(state, contributions(x_ptr, i + j, None, power, KIND), KIND)
    else:
        state = contributions(x_ptr, i, i < size, power, KIND)
        for j in range(STEP, BLOCK, STEP):
            state = together(state, contributions(x_ptr, i + j, i + j < size, power, KIND), KIND)
    tl.store(partial_ptr + tl.program_id(0), gathered(state, KIND))


@triton.jit
def finish_norm_kernel(out_ptr, partial_ptr, n, root, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The norm from its parts, by one program."""
    i = tl.arange(0, BLOCK)
    state = tl.load(partial_ptr + i, mask=i < n, other=float("inf") if KIND == "min" else 0)
    for start in range(BLOCK, n, BLOCK):
        more = tl.load(partial_ptr + start + i, mask=start + i < n, other=float("inf") if KIND == "min" else 0)
        state = together(state, more, KIND)
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
def scale_kernel(blocks, table_ptr, plan_ptr, like_ptr, COUNT, factor_ptr, found_inf_ptr, max_norm, CLIP: tl.constexpr,
                 ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """Multiply by *factor_ptr, or, where CLIP, by what brings the norm *factor_ptr down to max_norm; note if a product is not finite.
    Programs take the `blocks` in turns, so that few of them begin where nothing is to be scaled, and together go from the end to the
    beginning: what a norm has read last is still in the second cache."""
    if CLIP:
        factor = clipping(factor_ptr, max_norm)
    else:
        factor = tl.load(factor_ptr)
    if CLIP:
        if factor == 1:                                  # nothing would change: save the traffic
            return
    for turn in range(tl.program_id(0), blocks, tl.num_programs(0)):
        t, first, size = task(plan_ptr, blocks - 1 - turn, BLOCK)
        i = first + tl.arange(0, BLOCK)
        x_ptr = column(table_ptr, like_ptr, 0, t, COUNT, ALIGNED)
        if first + BLOCK <= size:
            scale_block(x_ptr, i, None, factor, found_inf_ptr)
        else:
            scale_block(x_ptr, i, i < size, factor, found_inf_ptr)


@triton.jit
def cast_kernel(table_ptr, plan_ptr, like_ptr, COUNT, out_like_ptr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """Write tensors in another type: the lists are what is read and what is written, whose type out_like_ptr lends."""
    t, first, size = task(plan_ptr, tl.program_id(0), BLOCK)
    i = first + tl.arange(0, BLOCK)
    x_ptr, out_ptr = column(table_ptr, like_ptr, 0, t, COUNT, ALIGNED), column(table_ptr, out_like_ptr, 1, t, COUNT, ALIGNED)
    if first + BLOCK <= size:
        store(out_ptr + i, tl.load(x_ptr + i), None)
    else:
        store(out_ptr + i, tl.load(x_ptr + i, mask=i < size), i < size)


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
