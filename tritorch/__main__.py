"""python -m tritorch run | warmup | info | where: run a program written for PyTorch, compile a program's kernels ahead of time, say what is
installed, find an operator."""

import argparse
import importlib.metadata
import platform
import re
import sys
from pathlib import Path

from tritorch import alias, running
from tritorch.cuda.own_kernels import FOLDER


def main(words=None):
    parser = argparse.ArgumentParser(prog="python -m tritorch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run a program written for PyTorch: whatever imports torch gets tritorch",
                               description="Processes that the program starts have tritorch under that name, too.")
    runs.add_argument("-m", dest="module", action="store_true", help="the program is a module's name, as of python -m")
    runs.add_argument("program", help="a Python file, such as train.py")
    runs.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    warm = commands.add_parser("warmup", help="compile the kernels of a program, in parallel and without a GPU",
                               description="The program runs on a device that takes kernels and does nothing, at its real sizes; what it "
                               "launched is compiled into the cache (TRITORCH_CACHE_DIR). Values read from the device are zeros.")
    warm.add_argument("program", help="a Python file, module:function, or a list of kernels (.json) that --save wrote")
    warm.add_argument("arguments", nargs=argparse.REMAINDER, help="of the Python file")
    warm.add_argument("--arch", help="such as sm_90, or native for TRITORCH_CUDA=native; default: the device of this machine")
    warm.add_argument("--as-torch", action="store_true", help="the program imports torch, and gets tritorch")
    warm.add_argument("--save", metavar="LIST.json", type=Path, help="write which kernels the program needs, compile nothing")
    warm.add_argument("--workers", type=int, help="processes; default: one for every core")
    commands.add_parser("info", help="versions, device, cache")
    find = commands.add_parser("where", help="the file and line of an operator, and of its device code")
    find.add_argument("name", help="such as softmax, conv2d or Linear")
    args = parser.parse_args(words)
    chosen = {"run": lambda: running.run(args.program, args.arguments, args.module), "warmup": lambda: warmup(args), "info": info,
              "where": lambda: where(args.name)}
    return chosen[args.command]()


def warmup(args):
    """Find the kernels, then save or compile them; 1 where something failed."""
    from tritorch import warmup as ahead
    from tritorch.cuda import driver, kernel_list

    code = 0
    if args.arch is None and not driver.available():
        print("warmup: expected a GPU, or --arch sm_80, sm_90, sm_100 or native to compile for, got neither", file=sys.stderr)
        return 2
    arch = _arch_of(args.arch)
    if args.program.endswith(".json"):
        specs = kernel_list.load(Path(args.program))
    else:
        specs, error = found(ahead, args, arch)
        if error is not None:
            print(f"warmup: the program ended with {type(error).__name__}: {error}; going on with what it launched before", file=sys.stderr)
            code = 1
    if args.save:
        kernel_list.save(args.save, specs)
        print(f"{len(specs)} kernels listed in {args.save}")
        return code
    if arch is None:
        properties = driver.current().device_properties(0)
        arch = 10 * properties.major + properties.minor
    counts = ahead.warm_up(specs, arch, args.workers)
    print(f"{len(specs)} kernels for {ahead.target(arch)}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return code or int(counts["failed"] > 0)


def _arch_of(name):
    """90 of "sm_90"; None where there is no name, unless the device in use is the native one."""
    from tritorch.cuda import compiler, driver

    if name == "native" or name is None and driver.current().name == "native":
        return compiler.HOST
    return int(name.removeprefix("sm_")) if name else None


def found(ahead, args, arch):
    """The specialisations, and the error that ended the program or None."""
    error = None
    if args.as_torch:
        alias.as_torch()
    program = ahead.program_of(args.program, args.arguments)

    def guarded():
        nonlocal error
        try:
            program()
        except Exception as problem:
            error = problem

    return ahead.kernels_of(guarded, arch), error


def info():
    """Print what this installation sees."""
    import tritorch
    from tritorch.cuda import compiler, driver

    print(f"tritorch {tritorch.version.tritorch}, Python {platform.python_version()}, {platform.platform()}")
    for package in ("numpy", "ml_dtypes", "scipy", "triton", "cuda-bindings"):
        try:
            print(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{package} is not installed")
    if driver.available():
        for index in range(driver.count()):
            p = driver.current().device_properties(index)
            print(f"cuda:{index} {p.name}, {_kind_of(p)}")
    else:
        try:
            driver.current()
        except RuntimeError as error:
            print(error)
    kernels = [file for folder in ("kernels", "native") for file in (compiler.cache_folder() / folder).glob("*.z")]
    print(f"{compiler.cache_folder()}: {len(kernels)} kernels, {sum(k.stat().st_size for k in kernels) / 1e6:.1f} MB")
    return 0


def _kind_of(properties):
    from tritorch.cuda import driver

    memory, count = f"{properties.total_memory >> 30} GiB", properties.multi_processor_count
    if driver.current().name == "native":
        from tritorch.cuda.native.llvm import processor

        return f"kernels compiled for {' '.join(filter(None, processor()))}, {memory}, {count} threads"
    return f"sm_{properties.major}{properties.minor}, {memory}, {count} multiprocessors"


def where(name):
    """Print the definitions of a public name, then its kernels: those named after it, or else the files of its card's family."""
    root, name = FOLDER.parent, re.escape(name)
    files = [path for tree in (root / "tritorch", FOLDER) for path in sorted(tree.rglob("*.py"))]
    sources = {path: path.read_text(encoding="utf-8") for path in files if "simulated" not in path.parts}

    def places(tree, pattern):
        found = [(path, match) for path, text in sources.items() if path.is_relative_to(tree) for match in re.finditer(pattern, text, re.M)]
        for path, match in found:
            print(f"{path.relative_to(root)}:{match.string.count(chr(10), 0, match.start()) + 1}  {match.group()}")
        return [path for path, _ in found]

    cards = places(root / "tritorch", rf"^(?:(?:def|class) {name}\b|(?:\w[\w, =]*[ ,])?{name}(?:, \w+)* = ).*")
    if not cards:
        print(f"where: expected a public name of tritorch, got {name!r}", file=sys.stderr)
    if not places(FOLDER, rf"^def (?:{name}|{name}_\w*kernel)\("):
        for family in sorted({family for path in cards if path.parent.name == "ops"
                              for family in [path.stem, *re.findall(r'kernels\("(\w+)"\)', sources[path])]}):
            places(FOLDER / f"{family}.py", r"^def \w+_kernel")
    return int(not cards)


if __name__ == "__main__":
    sys.exit(main())
