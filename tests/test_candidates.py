"""Every configuration that the tuner may choose compiles: each candidate of each family that the table of anchors meets, once."""
import collections
import json

import pytest

pytest.importorskip("triton")

from bench import ahead, anchors  # noqa: E402
from tritorch.cuda import compiler, driver, tuner  # noqa: E402
from tritorch.cuda.dry import DryDriver  # noqa: E402


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
    failed = [str(c) for c in compiler.compile_many(specs.values(), [90]) if isinstance(c, compiler.CompileError)]
    assert not failed, f"{len(failed)} of {len(specs)}:\n" + "\n".join(failed[:10])


@pytest.mark.parametrize("arch", [80, 100])
def test_other_architectures_have_candidates_for_the_same_families(arch):
    assert {family for family, _ in met(arch)} >= {"softmax", "pointwise"}
