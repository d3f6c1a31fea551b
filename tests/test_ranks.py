"""Operands whose dims cannot be merged, compiled: the simulated device runs code that the compiler refuses, as it did with three dims."""
import pytest

pytest.importorskip("triton")
import tritorch as torch  # noqa: E402
from tritorch.cuda import compiler  # noqa: E402


def scattered(*shape):
    """A tensor none of whose neighbouring dims can be merged."""
    whole = torch.randn(*[n + 1 for n in shape], device="cuda")
    return whole[tuple([slice(0, n) for n in shape])]


CALLS = {
    "sum": lambda: scattered(2, 3, 4, 5, 6).sum((1, 3)),
    "softmax": lambda: scattered(2, 3, 4, 5).softmax(2),
    "layer_norm": lambda: torch.nn.functional.layer_norm(scattered(2, 3, 4, 5), (5,)),
    "cross_entropy": lambda: torch.nn.functional.cross_entropy(scattered(2, 3, 4, 5), torch.zeros(2, 4, 5, device="cuda").long()),
    "batch_norm": lambda: torch.nn.functional.batch_norm(scattered(2, 3, 4, 5, 6), None, None, training=True),
    "rotary_embedding": lambda: torch.nn.functional.rotary_embedding(scattered(2, 3, 4, 6), *torch.randn(2, 4, 3, device="cuda")),
    "matmul": lambda: scattered(2, 3, 4, 5, 6) @ scattered(2, 3, 4, 6, 5),
    "cumsum": lambda: scattered(2, 3, 4, 5).cumsum(1),
    "add": lambda: scattered(2, 3, 4, 5) + scattered(2, 3, 4, 5),
}


@pytest.mark.parametrize("name", CALLS)
def test_compiles_with_dims_that_do_not_merge(name):
    with torch.cuda.simulate(seed=0), compiler.recording() as record:
        CALLS[name]()
        torch.cuda.synchronize()
    assert record
    for spec in record.values():
        if spec.kernel.__module__.startswith("triton_kernels."):
            compiler.compile_kernel(spec.kernel, spec.signature, spec.constexprs, spec.attrs, spec.options, 90)
