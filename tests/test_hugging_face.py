"""Models and programs on Hugging Face's packages, on tritorch under the name of torch, against what PyTorch computed from the same weights:
tests/records/hugging_face.json, which `python tests/hugging_face.py record` writes. They run where `pip install 'tritorch[packages]'` put
transformers, and accelerate and peft beside it; nothing is downloaded.
"""
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from hugging_face import PACKAGES, RECORD, unnamed

RECORDED = json.loads(RECORD.read_text())
VERSIONS = {name: ".".join(version.split(".")[:2]) for name, version in RECORDED.pop("versions").items()}
ROOT = Path(__file__).parents[1]


def has(name):
    """Whether a package is installed, in the version that the record is of."""
    try:
        return metadata.version(name).startswith(VERSIONS[name] + ".")
    except metadata.PackageNotFoundError:
        return False


LACKING = [f"{name} {VERSIONS[name]}" for name in PACKAGES if not has(name)]
packages = pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)}")
ON_GPU = ["GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM", "training_in_parts", "files"]
EXACT, ROUNDED = 3e-5, 3e-2                                                  # float32, whose sums differ in order, and bfloat16


def run(request, device):
    """{name: what tritorch computes}, of the names that tests of this run ask for, in a process of its own, whose torch is tritorch."""
    names = [item.callspec.params["name"] for item in request.session.items
             if item.path == request.path and device in item.name.partition("[")[0]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "tests/hugging_face.py", "compute", device, *names], cwd=ROOT, env=environment, text=True,
                          capture_output=True)
    assert not done.returncode, done.stderr[-5000:]
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def by_cpu(request):
    return run(request, "cpu")


@pytest.fixture(scope="module")
def by_cuda(request):
    return run(request, "cuda")


def compare(found, wanted, tolerance, where=""):
    """Numbers of a list are held to the largest of it."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict) and found.keys() == wanted.keys(), f"{where}: {str(found)[:300]}, PyTorch has {str(wanted)[:300]}"
        for key in wanted:
            compare(found[key], wanted[key], tolerance, f"{where}/{key}")
    elif isinstance(wanted, list):
        assert isinstance(found, list) and len(found) == len(wanted), f"{where}: {str(found)[:300]}, PyTorch has {str(wanted)[:300]}"
        largest = max((abs(x) for x in wanted if isinstance(x, float)), default=1.0)
        for i, (one, other) in enumerate(zip(found, wanted)):
            if isinstance(other, float):
                assert abs(one - other) <= tolerance * largest, f"{where}/{i}: {found}, PyTorch has {wanted}"
            else:
                compare(one, other, tolerance, f"{where}/{i}")
    else:
        assert found == (pytest.approx(wanted, tolerance) if isinstance(wanted, float) else wanted), where


def compare_gradients(found, wanted):
    """Each by its norm and a sum; what cancels, as a key's bias does, is held to the largest of them."""
    (names, *found_list), (wanted_names, *wanted) = unnamed(found), wanted
    assert names == wanted_names and len(found_list) == len(wanted), list(found)
    largest = max(one[0] for one in wanted if one)
    for key, one, other in zip(found, found_list, wanted):
        assert (one is None) == (other is None), f"{key}: {one}, PyTorch has {other}"
        if one is not None:
            allowed = EXACT * max(other[0], 0.01 * largest)
            assert max(abs(x - y) for x, y in zip(one, other)) <= allowed, f"{key}: {one}, PyTorch has {other}"


def test_versions_agree():
    """The record, what `pip install -e '.[packages]'` brings, and what CI puts beside it."""
    for name, path in zip(PACKAGES, ("pyproject.toml", ".ci/run", ".ci/run")):
        assert re.findall(rf"\b{name}==([\d.*]+)", (ROOT / path).read_text(encoding="utf-8")) == [f"{VERSIONS[name]}.*"], name


@packages
@pytest.mark.timeout(600)                                                    # the first one waits for all
@pytest.mark.parametrize("name", RECORDED)
def test_on_cpu(name, by_cpu):
    check(by_cpu[name], name)


@packages
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ON_GPU)
def test_on_cuda(name, by_cuda):
    check(by_cuda[name], name)


def check(found, name):
    assert not isinstance(found, str), found
    wanted = dict(RECORDED[name]) if isinstance(RECORDED[name], dict) else RECORDED[name]
    if "gradients" in wanted:
        compare_gradients(found.pop("gradients"), wanted.pop("gradients"))
    compare(found, wanted, ROUNDED if name in ("training_in_bfloat16", "half_precision", "offloaded") else EXACT)
