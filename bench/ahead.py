"""Kernels compiled before anything is measured: cases run on a dry device, what they launch is compiled by all cores."""
import importlib
import importlib.util
import time

from tqdm import tqdm

from bench import anchors, rows
from bench.sides import Sides


def compile_all(families, only="", arch=None, candidates=False, minutes=10.0):
    """Compile what the families launch, into the cache; with `candidates` every configuration that the tuner could choose. A family
    "tests" is those of a GPU.

    For this machine's GPU, or for `arch` without one. Returns [(specialisation, Compiled or CompileError)].
    """
    from bench import gpu_tests
    from tritorch.cuda import compiler, driver, tuner
    from tritorch.cuda.dry import DryDriver

    start, deadline = time.perf_counter(), time.monotonic() + 60 * minutes
    device = DryDriver(arch) if arch else DryDriver(properties=driver.current().device_properties(0))
    arch = 10 * device.properties.major + device.properties.minor
    with driver.using(device), compiler.recording() as record:
        if candidates:
            with tuner.trying_all():
                run(families, only)
        else:
            run(families, only)
    if "tests" in families:
        for spec in gpu_tests.kernels(only, arch, deadline):
            record.setdefault(spec.key(0), spec)
    specs = list(record.values())
    print(f"{len(specs)} kernels met in {time.perf_counter() - start:.1f} s", flush=True)
    compiled = []
    with tqdm(total=len(specs), desc=f"compiling for sm_{arch}", mininterval=2) as bar:
        for found in compiler.compile_each(specs, [arch], deadline=deadline):
            bar.update()
            compiled.append(found)
    failed = [c for c in compiled if isinstance(c, compiler.CompileError)]
    print(f"{len(compiled) - len(failed)} of {len(specs)} compiled in {time.perf_counter() - start:.1f} s", flush=True)
    for error in failed:
        print(f"  {str(error)[:300]}")
    return list(zip(specs, compiled))


def run(families, only=""):
    """Every case once, which on a dry device costs the host's time; the sentences of those that failed."""
    failed = []
    for family, name, program in programs(families, Sides(alone=True)):
        if rows.asked(only, name):
            try:
                program()
            except Exception as error:
                failed.append(f"{family}: {name}: {type(error).__name__}: {str(error)[:300]}")
                print(f"  {failed[-1]}", flush=True)
    return failed


def programs(families, sides, size=anchors.real):
    """(family, name, function) of all that the families launch. A family beyond those of bench.anchors names its own;
    of these GPT-2 alone can be rehearsed."""
    import tritorch

    for family in families:
        if family == "tests":                                    # which no process has all of
            continue
        if family in anchors.FAMILIES:
            for _, case in anchors.cases([family], size):
                def program(case=case):
                    with anchors.precision(tritorch, case.precision):
                        case.build(tritorch, *sides.inputs(case)[0])()

                yield family, case.name, program
        elif importlib.util.find_spec(f"bench.gpu_{family}"):
            make = importlib.import_module(f"bench.gpu_{family}").programs
            for program in make(sides) if size is anchors.real else make(sides, rehearse=True):
                yield family, getattr(program, "__name__", family), program
