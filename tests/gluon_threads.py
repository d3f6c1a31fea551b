"""Runs Hopper kernels in Gluon on threads and numpy: enough of the language to hold a schedule against its results.

Every part of `gl.warp_specialize` is a thread. A load by TMA spoils its buffer at once and fills it a little later, products and stores
by TMA happen as late as the waits allow, and shared memory starts as NaN: a slot given back too early, a barrier waited for too late or a
phase that is off shows as a wrong number, a wait without end or a fence that is missing as an error. Numbers are kept as they are; layouts
mean nothing. Programs run one after the other, or all at once with pauses at random where they meet in memory.
"""
import ast
import builtins
import functools
import math
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import triton_kernels

PATIENCE = 60.0                  # seconds at a barrier or a counter that tell a deadlock; on a busy machine 5 told one that was none
meeting = threading.Lock()                                               # for atomic operations
declared_barriers = {}                                                   # by address
here = threading.local()        # of this thread: products and stores that are under way, whether it wrote what TMA does not see yet


class Tensor(np.ndarray):
    """Registers: an array that keeps its class as a scalar too."""

    type = SimpleNamespace(layout=None)

    def __array_wrap__(self, array, context=None, return_scalar=False):
        return np.asarray(array).view(Tensor)

    def __iadd__(self, other):                                           # the language has values, not places
        return self + other

    def to(self, dtype, bitcast=False):
        return self & 0xFFFFFFFF if dtype == "uint32" else self          # which is what their arithmetic goes by

    def permute(self, order):
        return self.transpose(order)

    def split(self):
        return self[..., 0], self[..., 1]


def tensor(value):
    return np.asarray(value).view(Tensor)


HALF = SimpleNamespace(primitive_bitwidth=16)


class Memory:
    """A piece of shared memory."""

    dtype = HALF

    def __init__(self, array, multiplied=True):
        self.array, self.shape, self.multiplied = array, list(array.shape), multiplied

    def index(self, i):
        return Memory(self.array[int(i)], self.multiplied)

    def permute(self, order):
        return Memory(self.array.transpose(order))

    def reshape(self, shape):
        return Memory(self.array.reshape(shape))

    def slice(self, start, length, dim=0):
        return Memory(self.array[(builtins.slice(None),) * dim + (builtins.slice(start, start + length),)])

    def _reinterpret(self, dtype, shape, layout):
        if len(shape) > len(self.shape) and shape[0] > 1:                # columns lie in blocks, one block after the other
            return Memory(self.array.reshape(shape[1], shape[0], shape[2]).swapaxes(0, 1))
        return self.reshape(shape)

    def load(self, layout):
        if here.unseen is self:                                          # it was for the threads themselves
            here.unseen = False
        return tensor(self.array.copy())

    def store(self, value):
        self.array[...] = value
        if self.multiplied:                                              # other numbers are for the threads alone
            here.unseen = self


def fence():
    here.unseen = False


class Barrier:
    def __init__(self):
        self.phase, self.bytes, self.changed = 0, 0, threading.Condition()

    def init(self, count):
        self.count = self.left = count

    def change(self, arrivals, nbytes):
        with self.changed:
            self.left, self.bytes = self.left - arrivals, self.bytes + nbytes
            assert self.left >= 0, "more arrivals than the barrier counts"
            if self.left == 0 and self.bytes == 0:
                self.phase, self.left = self.phase + 1, self.count
                self.changed.notify_all()

    def wait(self, parity):
        with self.changed:
            if not self.changed.wait_for(lambda: self.phase & 1 != int(parity), PATIENCE):
                raise TimeoutError("a barrier that nobody completes")


class Barriers(list):
    def index(self, i):
        return self[int(i)]


class Descriptor:
    """Boxes of an array; their bytes arrive whole, also where a box crosses the array's edge."""

    dtype, layout = HALF, None

    def __init__(self, array, *box):
        self.array, self.block_type = array, SimpleNamespace(shape=list(box), nbytes=2 * math.prod(box))

    def at(self, place):
        """What there is of the box at a place."""
        assert len(place) == self.array.ndim
        return self.array[tuple(slice(int(i), int(i) + n) for i, n in zip(place, self.block_type.shape))]


class Pointer:
    shape = ()

    def __init__(self, array, place=0):
        self.array, self.place = array, place
        self.dtype = SimpleNamespace(element_ty=SimpleNamespace(is_floating=lambda: array.dtype.kind == "f"))

    def __add__(self, distance):
        return Pointer(self.array, self.place + distance)


def copy_in(desc, place, barrier, buf, pred=True):
    if not pred:
        return
    assert buf.shape == desc.block_type.shape
    found = desc.at(place)
    buf.array[...] = np.nan
    time.sleep(0)                                                        # whoever does not wait for it meets that
    buf.array[...] = 0
    buf.array[tuple(slice(n) for n in found.shape)] = found
    barrier.change(0, -desc.block_type.nbytes)


def copy_out(desc, place, buf):
    assert buf.shape == desc.block_type.shape and here.unseen is False
    target = desc.at(place)
    here.stores.append(lambda: target.__setitem__(..., buf.array[tuple(slice(n) for n in target.shape)]))


def store_wait(pendings):
    while len(here.stores) > pendings:
        here.stores.pop(0)()


class Product:
    """A product under way. Only the next product may add to it; anything else needs its value."""

    def __init__(self, a, b, acc):
        self.operands, self.value = (a, b, acc), None

    def run(self):
        a, b, acc = [x.array if isinstance(x, Memory) else x.value if isinstance(x, Product) else x for x in self.operands]
        self.value = tensor(a @ b + (0 if acc is None else acc))


def multiply(a, b, acc, use_acc=True, is_async=False):
    assert here.unseen is False
    here.products.append(Product(a, b, acc if use_acc else None))
    return here.products[-1]


def multiply_wait(num_outstanding, deps):
    while len(here.products) > num_outstanding:
        here.products.pop(0).run()
    found = [d if getattr(d, "value", None) is None else d.value for d in deps]
    return found[0] if len(deps) == 1 else tuple(found)


def load(pointer, mask=True, other=0, cache_modifier=""):
    flat = pointer.array.reshape(-1)
    return tensor(np.where(mask, flat[np.where(mask, pointer.place, 0)], other))


def store(pointer, value, mask=True):
    place, value, mask = np.broadcast_arrays(pointer.place, value, mask)
    pointer.array.reshape(-1)[place[mask]] = value[mask]


def atomic_add(pointer, value, sem):
    """What was there before. Whoever adds nothing looks for a change."""
    time.sleep(random.random() * 0.0005)
    with meeting:
        flat, place = pointer.array.reshape(-1), np.asarray(pointer.place)
        before = flat[place].copy()
        flat[place] += value
    if place.ndim == 0 and value == 0:
        if getattr(here, "seen", None) != (int(place), int(before)):
            here.seen, here.since = (int(place), int(before)), time.monotonic()
        if time.monotonic() - here.since > PATIENCE:
            raise TimeoutError("a counter that nobody raises")
    return tensor(before)


def allocate(dtype, shape, layout):
    if layout == "barrier":
        return Barriers(Barrier() for _ in range(shape[0]))
    return Memory(np.full(shape, -1) if dtype in ("int32", "int64") else np.full(shape, np.nan), dtype is HALF)


def specialize(parts, warps, registers):
    failures = []

    def run(part, args):
        here.products, here.stores, here.unseen = [], [], False
        try:
            with np.errstate(all="ignore"):
                part(*args)
            assert not here.products and not here.stores, "something is under way at the end"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=part) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def declared(code):
    """The address of barriers that assembly declares and begins."""
    first = 1 + max(declared_barriers, default=0)
    for place, count in re.findall(r"init\S+ \[\$0 \+ (\d+)\], (\d+)", code):
        declared_barriers[first + int(place)] = barrier = Barrier()
        barrier.init(int(count))
    return tensor(first)


def assembly(code, constraints, args, **options):
    """What instructions are given for: barriers by their address, of which each of a group's four warps arrives; a choice by a bit or a
    comparison, a sign, a product of words, two numbers in a word and out of it; or they round or move a number."""
    if "mbarrier.init" in code:
        return declared(code)
    if "mbarrier.arrive" in code:
        return arrive(declared_barriers[int(args[0])], 4)
    if "mbarrier.try_wait" in code:
        return declared_barriers[int(args[0])].wait(args[1])
    if "x2.f32" in code and len(args) == 2:
        args = [np.fmax(x, 0) for x in args] if "relu" in code else args
        return tensor(np.ascontiguousarray(np.stack(args, -1), np.float64).view(np.complex128)[..., 0])
    if "{$0, $1}, $2" in code:
        return tensor(args[0].real), tensor(args[0].imag)
    if "and.b32" in code:
        return tensor(np.where(args[1] & args[2], args[0], -np.inf))
    if "selp" in code:
        return tensor(np.where(args[1] < args[2], args[0], -np.inf))
    if "lop3" in code:
        return tensor(np.where(args[1] & 0x80000000, -args[0], args[0]))
    if "mul.wide" in code:
        both = np.asarray(args[0]).astype(np.uint64) * np.asarray(args[1]).astype(np.uint64)
        return [tensor(half.astype(np.int64)) for half in (both >> np.uint64(32), both & np.uint64(0xFFFFFFFF))]
    return tensor(np.fmax(args[0], 0)) if "relu" in code else args[0]


def arrive(barrier, count, pred=True):
    if pred:
        barrier.change(count, 0)
        time.sleep(0.0002)                                               # whoever was let go on too early does


def language(program, warps):
    layout = SimpleNamespace(get_default_for=lambda *a: None)
    layouts = "SliceLayout", "NVMMADistributedLayout", "DotOperandLayout", "BlockedLayout", "SwizzledSharedLayout"
    linear = lambda *bases: SimpleNamespace(**dict(zip(("reg_bases", "lane_bases", "warp_bases", "block_bases", "shape"), bases)))
    nothing = dict.fromkeys(layouts, lambda *a, **k: None)
    types = {name: name for name in ("float32", "float64", "float16", "bfloat16", "int16", "int32", "int64", "uint32")}
    gl = SimpleNamespace(
        constexpr=lambda x: x, **types, atomic_add=atomic_add, thread_barrier=lambda: None, inline_asm_elementwise=assembly,
        NVMMASharedLayout=layout, **nothing, static_range=range,
        DistributedLinearLayout=linear, join=lambda a, b: tensor(np.stack([a, b], -1)), PropagateNan=SimpleNamespace(ALL=True),
        program_id=lambda axis: tensor(program), num_warps=lambda: warps, allocate_shared_memory=allocate, warp_specialize=specialize,
        cdiv=lambda a, b: tensor(-(-a // b)), to_tensor=tensor, minimum=lambda a, b, propagate_nan=None: tensor(np.minimum(a, b)),
        maximum=lambda a, b, propagate_nan=None: tensor((np.maximum if propagate_nan else np.fmax)(a, b)),
        where=lambda c, a, b: tensor(np.where(c, a, b)), max=lambda x, axis: tensor(np.asarray(x).max(axis)), load=load, store=store,
        min=lambda x, axis: tensor(np.asarray(x).min(axis)), sum=lambda x, axis: tensor(np.asarray(x).sum(axis)),
        exp2=lambda x: tensor(np.exp2(x)), log2=lambda x: tensor(np.log2(x)), arange=lambda a, b, layout: tensor(np.arange(a, b)),
        zeros=lambda shape, dtype, layout: tensor(np.zeros(shape, int if "int" in dtype else float)),
        convert_layout=lambda x, layout, assert_trivial=False: x,
        full=lambda shape, value, dtype, layout: tensor(np.full(shape, value)), abs=lambda x: tensor(np.abs(x)))
    mbarrier = SimpleNamespace(
        MBarrierLayout=lambda: "barrier", init=lambda b, count: b.init(count), wait=lambda b, parity: b.wait(parity),
        expect=lambda b, nbytes, pred=True: pred and b.change(1, nbytes), arrive=arrive)
    tma = SimpleNamespace(async_copy_global_to_shared=copy_in, async_copy_shared_to_global=copy_out, store_wait=store_wait)
    jit = SimpleNamespace(jit=lambda f=None, **options: f or (lambda f: f), constexpr_function=lambda f: f)
    gl.tuple, gl.int8 = tuple, "int8"
    return {"gl": gl, "tl": gl, "mbarrier": mbarrier, "tma": tma, "gluon": jit, "triton": jit, "fence_async_shared": fence,
            "warpgroup_mma": multiply, "warpgroup_mma_wait": multiply_wait}


@functools.cache
def code_of(family):
    """A file of triton_kernels without its imports."""
    tree = ast.parse((Path(triton_kernels.__path__[0]) / f"{family}.py").read_text())
    tree.body = [node for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    return compile(tree, family, "exec")


def run(kernel, families, *args, PROGRAMS, num_warps=4, at_once=False, **constexprs):
    """Every program of a kernel of the last of `families`, files of triton_kernels that see each other's names."""
    codes = [code_of(family) for family in families]                     # here: Python 3.11 cannot parse in several threads at once

    def one(program):
        names = language(program, num_warps)
        for code in codes:
            exec(code, names)
        with np.errstate(all="ignore"):
            names[kernel](*args, PROGRAMS=PROGRAMS, **constexprs)

    if not at_once:
        for program in range(PROGRAMS):
            one(program)
        return
    with ThreadPoolExecutor(PROGRAMS) as pool:
        list(pool.map(one, random.sample(range(PROGRAMS), PROGRAMS)))
