"""Every configuration that the tuner may choose compiles: each candidate of each family that the table of anchors meets, once."""
import collections
import json

import pytest

pytest.importorskip("triton")

import machine_code  # noqa: E402

import tritorch as torch  # noqa: E402
import tritorch.nn  # noqa: E402,F401
from bench import ahead, anchors  # noqa: E402
from tritorch.cuda import compiler, driver, tuner  # noqa: E402
from tritorch.cuda.dry import DryDriver  # noqa: E402

pytestmark = pytest.mark.records


def met(arch):
    """{(family, candidate as text): the specialisations that only it launches} for all anchors on a dry device."""
    found = collections.defaultdict(dict)

    def look(family, key, candidates, run, known):
        for candidate in candidates:
            name = family, json.dumps(tuner.plain(candidate), sort_keys=True)
            if name not in found:
                with compiler.recording() as record:
                    run(candidate)
                found[name] = record
        return None

    with driver.using(DryDriver(arch)), tuner.measuring(look):
        assert ahead.run(anchors.FAMILIES) == []
    return found


@pytest.mark.timeout(1200)
def test_all_candidates_compile():
    found = met(90)
    specs = {key: spec for record in found.values() for key, spec in record.items()}
    slow = [str(spec) for spec, code in zip(specs.values(), machine_code.used(specs.values(), 90)) if not code["ahead"]]
    assert not slow, "ptxas waits for single products:\n" + "\n".join(slow)


@pytest.mark.parametrize("arch", [80, 90])
def test_rows_that_are_loaded_ahead_fit_in_shared_memory(arch):
    with driver.using(DryDriver(arch)) as device, compiler.recording() as record, tuner.trying_all():
        for dtype, columns in ((torch.float32, 12000), (torch.float32, 33000), (torch.float64, 33000)):
            weight = torch.empty(columns, dtype=dtype, device="cuda")
            torch.nn.functional.layer_norm(torch.empty(200, columns, dtype=dtype, device="cuda"), weight.shape, weight, weight)
        most = device.properties.shared_memory_per_block_optin
    specs = [s for s in record.values() if s.constexprs[list(s.signature).index("STAGES"),] > 1]
    found = machine_code.used(specs, arch)
    assert found and all(code["shared"] <= most for code in found)


@pytest.mark.parametrize("arch", [80, 86])
def test_attention_of_the_largest_heads_fits_in_shared_memory(arch):
    with driver.using(DryDriver(arch)) as device, compiler.recording() as record, tuner.trying_all():
        for batch in (1, 64):                                            # few programs, whose keys are cut into pieces, and many
            query, key, value = (torch.empty(batch, 2, 512, 256, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(3))
            torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()
        most = device.properties.shared_memory_per_block_optin
    specs = [s for s in record.values() if "attention" in s.kernel.__name__]
    assert {s.kernel.__name__ for s in specs} == {f"attention_{k}" for k in (
        "kernel", "split_kernel", "join_kernel", "backward_q_kernel", "backward_kv_kernel")}
    assert all(code["shared"] <= most for code in machine_code.used(specs, arch))


@pytest.mark.parametrize("arch", [80, 100])
def test_other_architectures_have_candidates_for_the_same_families(arch):
    assert {family for family, _ in met(arch)} >= {"softmax", "pointwise"}
