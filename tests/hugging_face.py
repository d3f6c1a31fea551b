"""What models and programs on Hugging Face's packages compute, by PyTorch for the record and by tritorch for the comparison.

python tests/hugging_face.py record                       # where PyTorch is installed: writes tests/records/hugging_face.json
python tests/hugging_face.py compute cpu Name other_name  # tritorch under the name of torch: a line of JSON for each
"""
import json
import math
import os
import sys
import traceback
import warnings
import zlib
from importlib import metadata
from pathlib import Path

RECORD = Path(__file__).parent / "records" / "hugging_face.json"
PACKAGES = ("transformers", "accelerate", "peft")


def number(x):
    """Seven digits, more than the float32 numbers agree in."""
    if isinstance(x, float):
        return float(f"{x:.7g}") if math.isfinite(x) else str(x)
    if isinstance(x, dict):
        return {key: number(item) for key, item in x.items()}
    return [number(item) for item in x] if isinstance(x, (list, tuple)) else x


def result(name, device):
    """What a model or a program of this name computes, or, as text, why it does not."""
    from hugging_face_models import NAMES, computed
    from hugging_face_programs import PROGRAMS

    try:
        return number(computed(name, device) if name in NAMES else PROGRAMS[name]())
    except Exception:
        return traceback.format_exc()


def unnamed(gradients):
    """What is recorded of them: a number for all of their names, and what is known of each."""
    return [zlib.crc32("\n".join(gradients).encode()), *gradients.values()]


def quietly():
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def record():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"                                  # it compiles for minutes, to the same numbers
    import torch
    from hugging_face_models import NAMES
    from hugging_face_programs import PROGRAMS

    torch.set_num_threads(1)
    quietly()
    found = {name: result(name, "cpu") for name in [*NAMES, *PROGRAMS]}
    if failed := {name: said for name, said in found.items() if isinstance(said, str)}:
        sys.exit("\n".join(f"{name}: {said}" for name, said in failed.items()))
    versions = {name: metadata.version(name) for name in ("torch", *PACKAGES)}
    for one in found.values():
        if isinstance(one, dict) and "gradients" in one:                    # names are half of it
            one["gradients"] = unnamed(one["gradients"])
    lines = [f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in {"versions": versions, **found}.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def compute(device, *names):
    import tritorch

    tritorch.as_torch()
    import torch

    assert torch is tritorch
    quietly()
    if device == "cuda":
        tritorch.cuda.simulate(seed=0)
    out = sys.stdout
    sys.stdout = sys.stderr                                                  # Trainer prints its history
    for name in names:
        print(json.dumps([name, result(name, device)]), file=out, flush=True)


if __name__ == "__main__":
    {"record": record, "compute": compute}[sys.argv[1]](*sys.argv[2:])
