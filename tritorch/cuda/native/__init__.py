"""A GPU in host memory that is fast: Triton's kernels are compiled for the host's processor by the LLVM inside Triton's library.

`tritorch.cuda.simulate(native=True)`, or TRITORCH_CUDA=native for a whole program; Linux on x86-64. What becomes of a kernel:

    compiler.py     Triton's frontend makes TTIR of it: a program of a grid, in operators on whole tensors
    ttir.py         that text as objects
    lower.py        LLVM IR of it, written by emit.py. Each operator has its rule:
      waiting.py      elementwise ones wait and become loops over vectors (loops.py, merging.py), loads and stores keep their order
      points.py       what a value is at a place of such a loop: which is how one loop does the work of many operators
      layouts.py      in which order a tensor's dims lie in memory
      accesses.py     loads, stores, masks, atomics: wide where addresses follow each other
      control.py      loops, branches, early returns
      elementwise.py  arithmetic; conversions.py, mathematics*.py, vectors.py and libm.py: numbers of 8 and 16 bits, libdevice
      reductions.py, shapes.py, products.py: sums and scans, transpositions and their like, tl.dot
    llvm.py, elf.py machine code of that, in executable memory
    driver.py       the driver protocol; function.py launches, threads.py shares a grid among threads

`lower.lower(text).llvm`, `llvm.optimized` and `llvm.assembly` are to be read; `llvm.complaint` is LLVM's verifier. A rule that is missing
raises `Untranslatable` with the operator and the line of the kernel: then the kernel runs in the interpreter of the simulated device.
"""
