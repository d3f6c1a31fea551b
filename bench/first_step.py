"""A new process up to the end of its first GPT-2 step, on a dry device: `python -m bench.first_step` prints the seconds of each part.

Kernels come from the disk cache as for a GPU, except that no module is loaded; those that are missing are compiled, one after the other.
"""
import json
import sys
import time

START = time.perf_counter()


def seconds(fused):
    """{part: seconds}, all of this process but Python's own start."""
    import tritorch as torch
    from bench import gpt2
    from bench.models import twin
    from tritorch.cuda import compiler, driver
    from tritorch.cuda.dry import DryDriver, DryFunction

    marks = [("import", time.perf_counter())]
    device, spent, missing = DryDriver(90), [], []

    def load(*specialisation):
        missing.append(not compiler.is_cached(compiler.Specialisation(*specialisation), 90))
        begin = time.perf_counter()
        compiler.compile_kernel(*specialisation, 90)
        spent.append(time.perf_counter() - begin)
        return DryFunction()

    device.load = load
    with driver.using(device):
        program = twin.load(gpt2.MODEL)
        model = program.GPT2(program.Config(fused=fused)).to("cuda")
        optimizer = program.optimizer_of(model, fused=True, capturable=True)
        tokens = torch.zeros(gpt2.BATCH, model.config.context, dtype=torch.int64, device="cuda")
        marks.append(("model", time.perf_counter()))
        program.train_step(model, optimizer, tokens, tokens, "cuda", None)
        torch.cuda.synchronize()
        marks.append(("step", time.perf_counter()))
    found = {name: end - begin for (name, end), begin in zip(marks, [START, *[end for _, end in marks]])}
    return {**found, "kernels": len(spent), "reading or compiling": sum(spent), "compiled": sum(missing), "all": marks[-1][1] - START}


if __name__ == "__main__":
    print(json.dumps(seconds(sys.argv[1:] == ["fused"])))
