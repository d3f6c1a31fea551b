"""Kernels in Gluon compile with each version of Triton that we support, of which the later ones have other names for some of it."""
import importlib

import pytest

pytest.importorskip("triton")

import tritorch as torch  # noqa: E402
from tritorch.cuda import compiler, compiler_names, driver  # noqa: E402
from tritorch.cuda.dry import DryDriver  # noqa: E402

F = torch.nn.functional


def launched():
    """Attention with its gradients, small products and the gradient of a long norm, where nothing runs."""
    def draw(*shape, dtype=torch.bfloat16):
        return torch.empty(*shape, dtype=dtype, device="cuda", requires_grad=True)

    out = F.scaled_dot_product_attention(*[draw(4, 16, 4096, 128) for _ in range(3)], is_causal=True)
    out.backward(draw(*out.shape))
    for dtype in (torch.bfloat16, torch.float32):
        draw(512, 512, dtype=dtype) @ draw(512, 512, dtype=dtype)
    draw(4096, 4096) @ draw(4096, 4096)
    out = F.layer_norm(draw(8192, 16384), (16384,), draw(16384), draw(16384))
    out.backward(draw(*out.shape))


@pytest.mark.smoke
def test_kernels_in_gluon_compile():
    with driver.using(DryDriver(90)), compiler.recording() as record:
        launched()
    specs = {spec.kernel.__name__: spec for spec in record.values() if spec.kernel.__module__.endswith("_gluon")}
    assert len(specs) >= 6, list(specs)
    for spec in specs.values():
        assert compiler.compile_here(spec, 90).cubin


def test_gluon_is_as_it_was_after_a_compilation():
    def found():
        homes = [(importlib.import_module(module), part) for module, part, _, _ in compiler_names.NAMES]
        return [vars(getattr(home, part) if part else home).get(old) for (home, part), (_, _, old, _) in zip(homes, compiler_names.NAMES)]

    before = found()
    with compiler_names.older():
        assert None not in found()
    assert found() == before


def test_older_names_mean_the_newer_ones(monkeypatch):
    """As with a Triton that knows the newer name and says of the older one that it is gone."""
    tma = importlib.import_module(f"{compiler_names.GLUON}.nvidia.hopper.tma")
    monkeypatch.setattr(tma, "async_load", "load", raising=False)
    before = tma.async_copy_global_to_shared
    with compiler_names.older():
        assert tma.async_copy_global_to_shared == "load"
    assert tma.async_copy_global_to_shared is before
