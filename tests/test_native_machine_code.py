"""LLVM's text becomes machine code of the host in executable memory: `tritorch.cuda.native.llvm` and `elf`."""
import ctypes
import gc
import math
import mmap
import platform
import re
import struct
import sys
import threading

import numpy as np
import pytest

if sys.platform != "linux" or platform.machine() != "x86_64":
    pytest.skip("the code is made for Linux on x86-64", allow_module_level=True)

from tritorch.cuda.native import elf, llvm

HEAD = "define void @kernel(ptr %arguments, ptr %scratch, i64 %first, i64 %last) {\n"
CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def run(text, memory, first=0, last=0, known=None):
    """The kernel on some memory, which it is given as its arguments."""
    loaded = elf.load(llvm.assemble(text), known)
    CALL(loaded.address("entry"))(memory.ctypes.data, None, first, last)
    return loaded


def test_a_vector_constant_lies_where_the_code_finds_it():
    numbers = np.arange(1, 9, dtype=np.float32)
    run(HEAD + """
        %x = load <8 x float>, ptr %arguments, align 4
        %y = fmul <8 x float> %x, <float 1.0, float 2.0, float 3.0, float 5.0, float 7.0, float 11.0, float 13.0, float 0.5>
        store <8 x float> %y, ptr %arguments, align 4
        ret void }""", numbers)
    assert numbers.tolist() == [1, 4, 9, 20, 35, 66, 91, 4]


def test_functions_of_the_c_libraries_are_found():
    numbers = np.array([0.25, 0.0])
    run("declare double @erf(double)\n" + HEAD + """
        %x = load double, ptr %arguments
        %y = call double @erf(double %x)
        %at = getelementptr double, ptr %arguments, i64 1
        store double %y, ptr %at
        ret void }""", numbers)
    assert numbers[1] == math.erf(0.25)


def test_memory_is_set_and_moved():
    numbers = np.full(4096, 7, np.uint8)
    run("""declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
        declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
        """ + HEAD + """
        call void @llvm.memset.p0.i64(ptr %arguments, i8 3, i64 %first, i1 0)
        %end = getelementptr i8, ptr %arguments, i64 %last
        call void @llvm.memcpy.p0.p0.i64(ptr %end, ptr %arguments, i64 %first, i1 0)
        ret void }""", numbers, 100, 3000)
    assert (np.flatnonzero(numbers == 3) == [*range(100), *range(3000, 3100)]).all()


def test_a_switch_jumps_through_a_table():
    names = [f"tell{i % 3}" for i in range(12)]
    cases = " ".join(f"i64 {i}, label %case{i}" for i in range(12))
    blocks = "".join(f"case{i}:\n call void @{name}(ptr %arguments, i64 {i * i})\n br label %end\n" for i, name in enumerate(names))
    text = "".join(f"declare void @tell{i}(ptr, i64)\n" for i in range(3)) + HEAD + f"""
        switch i64 %first, label %end [ {cases} ]
        {blocks}end:
        ret void }}"""
    assert "jmpq\t*%r" in llvm.assembly(text)
    told = []
    functions = [CALL(lambda memory, number, *rest, name=name: told.append((name, number))) for name in names[:3]]
    known = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in zip(names, functions)}
    loaded = elf.load(llvm.assemble(text), known)
    for i in range(14):
        CALL(loaded.address("entry"))(None, None, i, 0)
    assert told == [(name, i * i or None) for i, name in enumerate(names)]


def test_variables_and_big_frames():
    text = """@total = internal global [1024 x i64] zeroinitializer, align 64
        @start = internal global i64 40
        """ + HEAD + """
        %frame = alloca [500000 x i8], align 64
        %end = getelementptr i8, ptr %frame, i64 %last
        store volatile i8 1, ptr %end
        %one = load volatile i8, ptr %end
        %wide = zext i8 %one to i64
        %at = getelementptr i64, ptr @total, i64 %first
        %before = load i64, ptr %at
        %begin = load i64, ptr @start
        %sum = add i64 %before, %wide
        store i64 %sum, ptr %at
        store i64 %sum, ptr @start
        %all = add i64 %sum, %begin
        store i64 %all, ptr %arguments
        ret void }"""
    loaded = elf.load(llvm.assemble(text))
    numbers, seen = np.zeros(1, np.int64), []
    for _ in range(3):
        CALL(loaded.address("entry"))(numbers.ctypes.data, None, 1000, 499999)
        seen.append(int(numbers[0]))
    assert seen == [41, 3, 5]


def far_memory():
    """Memory more than 2 GiB away from where the system puts new memory, to write code to."""
    place, size = 0x10_0000_0000, mmap.PAGESIZE
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64
    found = system.mmap(place, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert found == place
    return found


def test_calls_of_what_is_far_away_go_through_a_jump():
    place = far_memory()
    code = bytes.fromhex("48c7072a000000c3")                             # movq $42, (%rdi); ret
    ctypes.memmove(place, code, len(code))
    elf._protect(place, mmap.PAGESIZE)
    numbers = np.zeros(2, np.int64)
    loaded = run("declare void @far(ptr)\n" + HEAD + """
        call void @far(ptr %arguments)
        %at = getelementptr i64, ptr %arguments, i64 1
        store ptr @far, ptr %at
        ret void }""", numbers, known={"far": place})
    assert abs(loaded.start - place) > 1 << 31 and numbers.tolist() == [42, place]


def test_code_is_never_writable():
    loaded = run(HEAD + "ret void }", np.zeros(1))
    with open("/proc/self/maps") as file:
        found = [line.split()[1] for line in file
                 if int(line.split("-")[0], 16) <= loaded.start < int(re.split("[- ]", line)[1], 16)]
    assert found == ["r-xp"]


def test_memory_of_code_is_given_back():
    data = llvm.assemble(HEAD + "store i64 %first, ptr %arguments\n ret void }")
    start = elf.load(data).start
    gc.disable()
    try:
        for _ in range(50):
            elf.load(data)
    finally:
        gc.enable()
    with open("/proc/self/maps") as file:
        assert not [line for line in file if " r-xp 00000000 00:00 0" in line and int(line.split("-")[0], 16) == start]


def test_what_cannot_be_linked_is_named():
    with pytest.raises(elf.LinkError, match="got no_such_function"):
        elf.load(llvm.assemble("declare void @no_such_function()\n" + HEAD + "call void @no_such_function()\n ret void }"))
    with pytest.raises(elf.LinkError, match="relocatable object file"):
        elf.load(b"\x7fELF\x01\x01" + bytes(100))
    loaded = elf.load(llvm.assemble(HEAD + "ret void }"))
    with pytest.raises(elf.LinkError, match="one of the symbols entry, got exit"):
        loaded.address("exit")
    local = llvm.assemble("@cell = internal thread_local global i64 0\n" + HEAD + """
        %before = load i64, ptr @cell
        store i64 %first, ptr @cell
        store i64 %before, ptr %arguments
        ret void }""")
    with pytest.raises(elf.LinkError):
        elf.load(local)


def absolute(kind):
    """An object file whose code holds the address of its own function in a relocation of another kind than LLVM's."""
    data = bytearray(llvm.assemble("declare void @far(ptr)\n" + HEAD + "call void @far(ptr %arguments)\n ret void }"))
    linking = elf._Linking(bytes(data), {})
    section = next(s for s in linking.sections if s.type == 4 and s.info in linking.placed)
    symbol = linking.relocations[0][3]
    struct.pack_into("<QIIq", data, section.offset, linking.relocations[0][1], kind, symbol, 0)
    return bytes(data)


@pytest.mark.parametrize("kind, fits", [(10, 0xFFFF0000), (11, 0x7FFF0000)])
def test_addresses_of_32_bits_fit_or_are_refused(kind, fits):
    loaded = elf.load(absolute(kind), {"far": fits})
    assert fits.to_bytes(4, "little") in ctypes.string_at(loaded.address("entry"), 64)
    with pytest.raises(elf.LinkError, match="fits in 32 bits, got 0x1ffff0000 of far"):
        elf.load(absolute(kind), {"far": 0x1FFFF0000})
    with pytest.raises(elf.LinkError, match="got number 5 for far"):
        elf.load(absolute(5), {"far": fits})


def test_texts_that_are_not_llvm_say_why():
    with pytest.raises(llvm.AssemblyError, match=r"line 2: expected instruction opcode: %x = unknown i32 1"):
        llvm.assemble(HEAD + "%x = unknown i32 1\n ret void }")
    with pytest.raises(llvm.AssemblyError, match="defines void @kernel"):
        llvm.assemble("define void @other() {\n ret void }")
    assert llvm.complaint(HEAD + "ret void }") is None
    said = llvm.complaint(HEAD + """
        br i1 0, label %a, label %b
        a: %x = add i64 %first, 1
        br label %b
        b: store i64 %x, ptr %scratch
        ret void }""")
    assert said.startswith("Instruction does not dominate all uses!")


def test_fusion_rounds_once_where_it_is_asked_for():
    text = HEAD + """
        %b = getelementptr float, ptr %arguments, i64 1
        %x = load float, ptr %arguments
        %y = load float, ptr %b
        %square = fmul float %x, %x
        %sum = fadd float %square, %y
        store float %sum, ptr %b
        ret void }"""
    x = np.float32(1 + 2**-12)
    for fused, expected in ((False, 0.0), (True, 2.0**-24)):
        numbers = np.array([x, -(x * x)], np.float32)
        loaded = elf.load(llvm.assemble(text, fused))
        CALL(loaded.address("entry"))(numbers.ctypes.data, None, 0, 0)
        assert numbers[1] == expected or llvm.processor()[0] in ("x86-64", "x86-64-v2")


def test_several_threads_assemble_at_once():
    texts = [HEAD + f"store i64 {i}, ptr %arguments\n ret void }}" for i in range(12)]
    alone, found = [llvm.assemble(text) for text in texts], {}

    def work(i):
        found[i] = llvm.assemble(texts[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(12)] == alone
