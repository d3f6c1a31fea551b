"""A small linker: an object file for x86-64 becomes memory that this process may execute.

Code, constants, the table of far addresses and the jumps through it lie in one piece of memory, which is first written and then made
executable, never both. Data that changes lies behind it, if there is any.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

_NOBITS, _INIT_ARRAY, _FINI_ARRAY, _PREINIT_ARRAY, _UNWIND = 8, 14, 15, 16, 0x70000001      # types of sections
_WRITE, _ALLOC, _TLS = 1, 2, 0x400                                                          # flags of sections
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1                                                           # in the place of a symbol's section
_NAMES = {1: "64", 2: "PC32", 4: "PLT32", 9: "GOTPCREL", 10: "32", 11: "32S", 24: "PC64", 41: "GOTPCRELX", 42: "REX_GOTPCRELX"}
_BY_TABLE = ("GOTPCREL", "GOTPCRELX", "REX_GOTPCRELX")
_JUMP = b"\xff\x25"                 # jmp *displacement(%rip)
_LIBRARIES = "libm.so.6", "libc.so.6", "libgcc_s.so.1"


class LinkError(RuntimeError):
    """An object file that cannot be made executable; the message names the symbol, the relocation or the section."""


class Section(NamedTuple):
    """One line of the table of sections."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class Symbol(NamedTuple):
    """One line of the table of symbols; `section` is a number, or one of the special ones."""

    name: str
    section: int
    value: int
    exported: bool


class Loaded:
    """Code in memory. The memory is given back with the object."""

    def __init__(self, memory: mmap.mmap, start: int, symbols: dict[str, int]):
        self._memory, self.start, self.symbols = memory, start, symbols

    def address(self, name: str) -> int:
        """Where a function that the object file exports begins."""
        if name not in self.symbols:
            raise LinkError(f"expected one of the symbols {', '.join(sorted(self.symbols))}, got {name}")
        return self.symbols[name]


def load(data: bytes, known: Mapping[str, int] | None = None) -> Loaded:
    """Place an object file in executable memory. What it does not define is taken from `known` ({name: address}), then from libm and
    libc. Raises LinkError."""
    return _Linking(data, known or {}).load()


@functools.cache
def outside(name: str) -> int | None:
    """The address of a function of the C libraries, None where they have none of this name."""
    for library in _LIBRARIES:
        try:
            return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


class _Linking:
    """One object file on its way into memory."""

    def __init__(self, data, known):
        if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", data, 16) != (1, 62):
            raise LinkError("expected a relocatable object file for x86-64")
        self.data, self.known = data, known
        table, = struct.unpack_from("<Q", data, 40)
        count, names = struct.unpack_from("<HH", data, 60)
        self.sections = [Section(*struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i)) for i in range(count)]
        self.names = self.sections[names]
        self.symbols = self._symbols()
        self.placed = {i: s for i, s in enumerate(self.sections) if s.flags & _ALLOC and s.size and not self._ignored(s)}
        self.relocations = [item for s in self.sections if s.type == 4 and s.info in self.placed for item in self._relocations(s)]

    def load(self):
        place, far, code, size = self._layout()
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = _address_of(memory)
        for i, section in self.placed.items():
            if section.type != _NOBITS:
                memory[place[i]:place[i] + section.size] = self.data[section.offset:section.offset + section.size]
        addresses = [self._address(symbol, start, place) for symbol in self.symbols]
        for symbol, slot in far.items():                         # its address, then a jump to it
            struct.pack_into("<Q2sixx", memory, slot, addresses[symbol], _JUMP, -14)
        for relocation in self.relocations:
            self._relocate(memory, start, place, far, addresses, *relocation)
        _protect(start, code)
        return Loaded(memory, start, {s.name: a for s, a in zip(self.symbols, addresses) if s.section in place and s.exported})

    # reading

    def _string(self, table, offset):
        begin = table.offset + offset
        return self.data[begin:self.data.index(b"\0", begin)].decode()

    def _symbols(self):
        found = []
        for table in self.sections:
            if table.type == 2:
                names = self.sections[table.link]
                for at in range(table.offset, table.offset + table.size, 24):
                    name, binding, _, section, value, _ = struct.unpack_from("<IBBHQQ", self.data, at)
                    found.append(Symbol(self._string(names, name), section, value, binding >> 4 == 1))
        return found

    def _ignored(self, section):
        """Tables to walk up the stack are not placed, nor notes; what would have to run first, or once in every thread, is refused."""
        if section.flags & _TLS or section.type in (_INIT_ARRAY, _FINI_ARRAY, _PREINIT_ARRAY):
            raise LinkError(f"expected code, constants and data, got the section {self._string(self.names, section.name)}")
        return section.type in (7, _UNWIND) or self._string(self.names, section.name) == ".eh_frame"

    def _relocations(self, section):
        """(section, offset, kind, symbol, addend) of each."""
        for offset, kind, symbol, addend in struct.iter_unpack("<QIIq", self.data[section.offset:section.offset + section.size]):
            name = _NAMES.get(kind)
            if name is None:
                raise LinkError(f"expected relocations among {', '.join(_NAMES.values())}, got number {kind} for "
                                f"{self.symbols[symbol].name or 'a section'}")
            yield section.info, offset, name, symbol, addend

    # placing

    def _layout(self):
        """Offsets of the sections, offsets of the slots of far symbols, bytes of code and constants, bytes of all."""
        place, far, end = {}, {}, 0
        for i, section in self.placed.items():
            if not section.flags & _WRITE:
                place[i] = end = -(-end // max(section.align, 1)) * max(section.align, 1)
                end += section.size
        end = -(-end // 16) * 16
        for _, _, kind, symbol, _ in self.relocations:
            if symbol not in far and (kind in _BY_TABLE or (kind == "PLT32" and self.symbols[symbol].section == _UNDEFINED)):
                far[symbol] = end
                end += 16
        end = code = max(-(-end // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        for i, section in self.placed.items():
            if section.flags & _WRITE:
                place[i] = end = -(-end // max(section.align, 1)) * max(section.align, 1)
                end += section.size
        return place, far, code, end

    def _address(self, symbol, start, place):
        """Of a symbol; None for those that nobody can use: of sections that are not placed."""
        if symbol.section == _ABSOLUTE:
            return symbol.value
        if symbol.section in place:
            return start + place[symbol.section] + symbol.value
        if symbol.section != _UNDEFINED or not symbol.name:
            return None
        found = self.known.get(symbol.name) or outside(symbol.name)
        if found is None:
            raise LinkError(f"expected symbols of {', '.join(_LIBRARIES)}, got {symbol.name}")
        return found

    def _relocate(self, memory, start, place, far, addresses, section, offset, kind, symbol, addend):
        at, target = place[section] + offset, addresses[symbol]
        if target is None:
            raise LinkError(f"R_X86_64_{kind}: expected a symbol of a section that is placed, got {self.symbols[symbol].name or 'another'}")
        if kind == "64":
            struct.pack_into("<Q", memory, at, target + addend & 0xFFFFFFFFFFFFFFFF)
            return
        if kind in _BY_TABLE:
            target = start + far[symbol]
        value = target + addend
        if kind not in ("32", "32S"):
            value -= start + at
            if kind == "PLT32" and symbol in far and not _fits(value):
                value = far[symbol] + 8 + addend - at
        if kind == "PC64":
            struct.pack_into("<q", memory, at, value)
        elif 0 <= value < 1 << 32 if kind == "32" else _fits(value):
            struct.pack_into("<I", memory, at, value & 0xFFFFFFFF)
        else:
            raise LinkError(f"R_X86_64_{kind}: expected an address that fits in 32 bits, got {value:#x} of "
                            f"{self.symbols[symbol].name or 'a section'}; the code must not depend on where it lies")


def _fits(value):
    return -1 << 31 <= value < 1 << 31


def _address_of(memory):
    """Where it begins. The array that tells it must be gone before the memory can be."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@functools.cache
def _mprotect() -> Any:
    found = ctypes.CDLL(None, use_errno=True).mprotect
    found.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return found


def _protect(start, size):
    """Read and execute, no longer write."""
    if _mprotect()(start, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise LinkError(f"mprotect: the system does not let this process execute memory of its own: errno {ctypes.get_errno()}")
