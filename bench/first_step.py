"""A new process up to the end of its first GPT-2 step: `python -m bench.first_step [gpu] [fused] [cold]` prints the seconds of each part.

Without "gpu" the device is a dry one: kernels come from the disk cache as for a GPU, except that no module is loaded; those that are
missing are compiled as for a GPU too, by all cores while the host runs ahead. "cold" begins with an empty cache, in a folder of its own.
"""
import argparse
import contextlib
import json
import os
import resource
import tempfile
import time

START = time.perf_counter()


def seconds(fused, gpu):
    """{part: seconds}, all of this process but Python's own start; kernels that are missing count as part of the step."""
    import tritorch as torch
    from bench import gpt2
    from bench.models import twin
    from tritorch.cuda import driver
    from tritorch.cuda.dry import DryDriver, DryFunction

    marks = [("import", time.perf_counter())]
    device, spent, missing = driver.current() if gpu else DryDriver(90), [], []
    properties, loaded = device.device_properties(0), device.load
    arch = 10 * properties.major + properties.minor

    def load(*specialisation):
        from tritorch.cuda import ahead, compiler  # not before a program would

        spec = compiler.Specialisation(*specialisation)
        missing.append(not compiler.path_of(spec, arch).exists())
        begin = time.perf_counter()
        function = loaded(*specialisation) if gpu else ahead.load(device, spec, arch, lambda compiled: DryFunction())
        spent.append(time.perf_counter() - begin)
        return function

    device.load = load
    with contextlib.nullcontext() if gpu else driver.using(device):
        program = twin.load(gpt2.MODEL)
        model = program.GPT2(program.Config(fused=fused)).to("cuda")
        optimizer = program.optimizer_of(model, fused=True, capturable=True)
        tokens = torch.zeros(gpt2.BATCH, model.config.context, dtype=torch.int64, device="cuda")
        marks.append(("model", time.perf_counter()))
        program.train_step(model, optimizer, tokens, tokens, "cuda", None)
        torch.cuda.synchronize()
        marks.append(("step", time.perf_counter()))
    from tritorch.cuda import compiler_pool

    found = {name: end - begin for (name, end), begin in zip(marks, [START, *[end for _, end in marks]])}
    return {**found, "kernels": len(spent), "loading": sum(spent), "compiled": sum(missing), "all": marks[-1][1] - START,
            "cores": compiler_pool.cores()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", nargs="*", choices=["gpu", "fused", "cold", []])
    how = parser.parse_args().how
    with tempfile.TemporaryDirectory() as folder:
        if "cold" in how:
            os.environ |= {"TRITORCH_CACHE_DIR": folder, "TRITON_CACHE_DIR": os.path.join(folder, "triton")}
        found = seconds("fused" in how, "gpu" in how)
        if "cold" in how:
            from tritorch.cuda import compiler_pool

            compiler_pool.shared().close()
            found["seconds of all cores"] = sum(
                sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
