"""The machine as a device of tritorch: the real NvidiaDriver, whose cuda.bindings is the stand-in."""
import contextlib
import importlib
import sys
import types

NAMES = ["nvidia_call", "nvidia_tensor_map", "nvidia_function", "nvidia"]


@contextlib.contextmanager
def simulate(arch, seed=0):
    """The device in use inside: an A100 (80) or H200 (90) made of PTX. Gives the stand-in, whose `launches` and `steps` count."""
    from tritorch.cuda import driver
    from tritorch.testing.ptx.bindings import Bindings

    fake, bindings, package = Bindings(arch, seed), types.ModuleType("cuda.bindings"), types.ModuleType("cuda")
    bindings.driver, package.bindings = fake, bindings
    modules = {"cuda": package, "cuda.bindings": bindings, "cuda.bindings.driver": fake}
    hidden = {name: sys.modules.pop(name) for name in [*modules, *(f"tritorch.cuda.{n}" for n in NAMES)] if name in sys.modules}
    sys.modules.update(modules)
    try:
        nvidia = importlib.import_module("tritorch.cuda.nvidia")
        load = nvidia.NvidiaFunction

        def remembered(device, properties, compiled, signature):
            fake.compiled[compiled.cubin] = compiled            # the machine runs the PTX, the driver is given the cubin
            return load(device, properties, compiled, signature)

        nvidia.NvidiaFunction = remembered

        class Driver(nvidia.NvidiaDriver):
            """Tells memory which bytes the allocator has handed out."""

            wants_annotations = True

            def annotate(self, ptr, nbytes, stream, live, label):
                fake.memory.annotate(ptr, nbytes, live)
                if stream in fake.captures:
                    fake.captures[stream].add(stream, lambda: fake.memory.annotate(ptr, nbytes, live), remark=True)

        with driver.using(Driver()):
            yield fake
    finally:
        for name in [*modules, *(f"tritorch.cuda.{n}" for n in NAMES)]:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
        for name in NAMES:
            vars(sys.modules["tritorch.cuda"]).pop(name, None)
            if f"tritorch.cuda.{name}" in hidden:
                setattr(sys.modules["tritorch.cuda"], name, hidden[f"tritorch.cuda.{name}"])
