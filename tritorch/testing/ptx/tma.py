"""Tiles between global and shared memory by TMA (cp.async.bulk.tensor), as late as PTX allows.

A load is issued with its destination poisoned; its bytes come when somebody waits at its mbarrier (mbarrier.py). A store takes what it
finds when it is issued, and where that has changed at the wait_group that covers it, somebody reused the buffer too early.
"""
import functools
import math
from dataclasses import dataclass

import numpy as np

from tritorch.testing.ptx import clusters, mbarrier, proxies
from tritorch.testing.ptx.convert import tf32_bits
from tritorch.testing.ptx.memory import POISON
from tritorch.testing.ptx.operands import DTYPES
from tritorch.testing.ptx.parse import SHARED_BASE
from tritorch.testing.ptx.registry import instruction
from tritorch.testing.ptx.swizzle import CHUNK, swizzled
from tritorch.testing.ptx.tensor_map import FLOATS, SPANS, TFLOAT32, TensorMap

_ALIGNMENT = 128                                    # of a tile in shared memory


def tile(tensor_map, corner, chunk=1):
    """Addresses of the elements of a tile in global memory, from the outermost dimension on, and which of them are inside the tensor, the
    rows of which are rounded up to chunks of so many bytes."""
    address, inside = np.zeros((1,) * tensor_map.rank, np.int64), np.ones((1,) * tensor_map.rank, bool)
    for axis, (start, box, size) in enumerate(zip(corner, tensor_map.box, tensor_map.shape)):
        if axis == 0:
            size = -(-size * tensor_map.itemsize // chunk) * chunk // tensor_map.itemsize
        index = start + np.arange(box).reshape([-1 if i == tensor_map.rank - 1 - axis else 1 for i in range(tensor_map.rank)])
        address = address + index * (tensor_map.strides[axis - 1] if axis else tensor_map.itemsize)
        inside = inside & (index >= 0) & (index < size)
    return tensor_map.address + address, inside


@functools.lru_cache(512)
def shared_offsets(box, width, span, start):
    """Addresses in shared memory of the same elements: densely one after the other, then swizzled."""
    dense = start + width * np.arange(math.prod(box)).reshape(box[::-1])
    return swizzled(dense, span) if span else dense


def operands_of(machine, place, lane):
    """Tensor map and corner of [map, {coordinates}] for a lane."""
    at = int(machine.address(place)[lane])
    found = TensorMap.unpack(machine.launch.parameters[at:at + 128]) if at + 128 <= machine.launch.parameters.size else None
    if found is None:
        raise machine.fault("no tensor map at this address", lane)
    coordinates = place.rest[0].items
    if len(coordinates) != found.rank or f"{found.rank}d" not in machine.at.modifiers:
        raise machine.fault(f"{len(coordinates)} coordinates for a tensor of {found.rank} dimensions", lane)
    return found, [int(machine.spread(machine.read(c, DTYPES["s32"]))[lane]) for c in coordinates]


def shared_places(machine, tensor_map, operand, lane):
    """Flat places of the tile's elements in shared memory, in units of an element."""
    start = int(machine.address(operand)[lane])
    span = SPANS[tensor_map.swizzle]
    if start % _ALIGNMENT:
        raise machine.fault(f"a tile at {start:#x} in shared memory, no multiple of {_ALIGNMENT}", lane)
    if span and tensor_map.box[0] * tensor_map.itemsize != span:
        raise machine.fault("the machine wants rows of a tile as long as the span of its swizzle", lane)
    width = tensor_map.itemsize
    addresses = shared_offsets(tensor_map.box, width, span, start)
    machine.shared_places(np.array([addresses.min(), addresses.max()], np.uint64), width, np.array([lane, lane]))
    return (addresses + (machine.shared_start[lane] - SHARED_BASE)) // width


def chunks(places, width):
    """The first bytes of the 16-byte chunks of a tile, none of which a swizzle takes apart."""
    return places.reshape(-1, CHUNK // width)[:, 0] * width


def global_places(machine, tensor_map, corner, lane, chunk=1):
    """(flat places of the elements inside the tensor, mask of the tile)."""
    wanted, inside = _inside(tensor_map, tuple(corner), chunk)
    problem = machine.global_problem(wanted, tensor_map.itemsize, np.full(wanted.size, lane)) if wanted.size else None
    if problem:
        raise machine.fault(problem[1], lane)
    return (wanted - np.uint64(machine.memory.base)) // np.uint64(tensor_map.itemsize), inside


@functools.lru_cache(256)
def _inside(tensor_map, corner, chunk):
    """(addresses of the elements inside the tensor, mask of the tile), of a tile that several CTAs load."""
    addresses, inside = tile(tensor_map, corner, chunk)
    inside = np.broadcast_to(inside, tensor_map.box[::-1])
    return np.broadcast_to(addresses, inside.shape)[inside].astype(np.uint64), inside


_TO = [f"cp.async.bulk.tensor.{n}d.shared::{{}}.global.mbarrier::complete_tx::bytes" for n in range(1, 6)]
_LOADS = [name.format(kind) for kind in ("cluster", "cta") for name in _TO]             # Triton 3.6, 3.9: the CTA's own memory with both


@instruction(*_LOADS, *(f"{name.format('cluster')}.multicast::cluster" for name in _TO))
def load(machine, ins):
    """[shared], [map, {coordinates}], [mbarrier]: what lies outside of the tensor arrives as zero or NaN, and counts as bytes. With a mask
    of ranks it comes to the same place of these CTAs of the cluster, and counts at the same mbarrier of each."""
    to, source, where, *_ = ins.operands
    for lane in machine.active().tolist():
        tensor_map, corner = operands_of(machine, source, lane)
        dtype = np.dtype(f"u{tensor_map.itemsize}")
        places = shared_places(machine, tensor_map, to, lane)
        found, inside = global_places(machine, tensor_map, corner, lane)
        if machine.races is not None:                            # without a fence, and there is none, TMA sees nothing of the same launch
            machine.races.read(machine, found.astype(np.int64) * dtype.itemsize, dtype.itemsize, np.full(found.size, lane), still=True)
        data = np.full(inside.shape, FLOATS[tensor_map.kind] if tensor_map.fill else 0, dtype)
        data[inside] = machine.memory.view(dtype)[found]
        if tensor_map.kind == TFLOAT32:
            data = tf32_bits(data, "rn")
        own, byte = mbarrier.place_of(machine, where, lane)
        for cta in targets(machine, ins, lane):
            barrier = mbarrier.find(machine, (cta, byte), lane)
            if cta != own:
                clusters.check_reach(machine, cta, barrier, (cta, byte), lane)
            _send(machine, places + (cta - own) * machine.shared.shape[1] // dtype.itemsize, data, (cta, byte), barrier, lane)


def targets(machine, ins, lane):
    """The rows of the CTAs to which a load comes."""
    if len(ins.operands) < 4:
        return [int(machine.cta[lane])]
    mask, rows = int(machine.spread(machine.read(ins.operands[3], DTYPES["u16"]))[lane]), machine.clusters.rows(int(machine.cta[lane]))
    if not 0 < mask < 1 << len(rows):
        raise machine.fault(f"a load for the ranks {mask:#b} of a cluster of {len(rows)}", lane)
    return [int(row) for rank, row in enumerate(rows) if mask >> rank & 1]


def _send(machine, places, data, place, barrier, lane):
    """The tile is under way to shared memory, and to a barrier."""
    nbytes = data.itemsize
    proxies.check_async(machine, chunks(places, nbytes)[None], np.array([lane]))
    proxies.cleared(machine, chunks(places, nbytes))
    machine.shared.reshape(-1).view(data.dtype)[places] = np.frombuffer(bytes([POISON] * nbytes), data.dtype)

    def arrive():
        machine.shared.reshape(-1).view(data.dtype)[places] = data
        barrier.expected -= data.nbytes
        barrier.settle(machine)

    if "loads" not in machine.state:
        machine.state["loads"] = {}
        machine.at_end.append(_all_loads_came)
    machine.state["loads"].setdefault(place, []).append(arrive)


def _all_loads_came(machine):
    if machine.state["loads"]:
        raise machine.fault(f"the kernel ends while loads by TMA are under way to mbarriers at {list(machine.state['loads'])}")


# ------------------------------------------------------------------ stores, and the groups of a thread
@dataclass(slots=True)
class Store:
    lane: int
    group: int
    places: np.ndarray
    content: np.ndarray


def _stores(machine):
    if "stores" not in machine.state:
        machine.state["stores"] = np.zeros(machine.lanes, np.int64), []
        machine.at_end.append(_all_stores_read)
    return machine.state["stores"]


def _all_stores_read(machine):
    """Shared memory belongs to another CTA as soon as this one has ended."""
    for store in machine.state["stores"][1]:
        raise machine.fault("a thread ends before its stores by TMA have read shared memory", store.lane)


@instruction(*(f"cp.async.bulk.tensor.{n}d.global.shared::cta.bulk_group" for n in range(1, 6)))
def store(machine, ins):
    """[map, {coordinates}], [shared]: what lies outside of the tensor is left out, except that the last 16 bytes of a row are written as a
    whole where the tensor ends in their middle. Seen on an H100."""
    to, source = ins.operands
    committed, pending = _stores(machine)
    for lane in machine.active().tolist():
        tensor_map, corner = operands_of(machine, to, lane)
        dtype = np.dtype(f"u{tensor_map.itemsize}")
        places = shared_places(machine, tensor_map, source, lane)
        proxies.check_async(machine, chunks(places, dtype.itemsize)[None], np.array([lane]))
        content = machine.shared.reshape(-1).view(dtype)[places]
        found, inside = global_places(machine, tensor_map, corner, lane, CHUNK)
        if machine.races is not None:
            machine.races.write(machine, found.astype(np.int64) * dtype.itemsize, dtype.itemsize, np.full(found.size, lane),
                                machine.memory.view(dtype)[found] != content[inside])
        machine.memory.view(dtype)[found] = content[inside]
        pending.append(Store(lane, int(committed[lane]), places, content))


@instruction("cp.async.bulk.commit_group")
def commit_group(machine, ins):
    _stores(machine)[0][machine.mask] += 1


@instruction("cp.async.bulk.wait_group", "cp.async.bulk.wait_group.read")
def wait_group(machine, ins):
    """All but the last groups of stores of the executing threads have read their tiles."""
    committed, pending = _stores(machine)
    limit = np.where(machine.mask, committed - int(ins.operands[0].value), -1)
    for one in pending:
        if one.group < limit[one.lane]:
            now = machine.shared.reshape(-1).view(one.content.dtype)[one.places]
            if (now != one.content).any():
                raise machine.fault("a tile was overwritten before its store by TMA had read it", one.lane)
    pending[:] = [one for one in pending if one.group >= limit[one.lane]]
