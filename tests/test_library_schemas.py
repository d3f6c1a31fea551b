"""torch.library as PyTorch has it: operators declared by schemas, dispatch keys, overloads, tritorch.ops, as_torch."""
import gc
import math
import subprocess
import sys

import pytest

import tritorch as torch
from tritorch import Tensor
from tritorch.library import Library, _scoped_library, custom_op, opcheck
from tritorch.library.declared import parse_schema


@pytest.fixture
def lib():
    with _scoped_library("told", "FRAGMENT") as made:
        yield made


def leaf():
    return torch.arange(4.0).reshape(2, 2).requires_grad_()


def test_schemas_are_read_as_they_are_written():
    text = ('ns::f.over(Tensor(a!) x, Tensor?[] ys, int[2] size=[1, 2], *, str mode="a, (b)", float? s=None, bool flag=False) '
            "-> (Tensor(a!), Tensor[])")
    schema = parse_schema(text)
    assert str(schema) == text.replace("int[2]", "int[]") and (schema.name, schema.overload_name) == ("ns::f", "over")
    assert [a.default_value for a in schema.arguments] == [None, None, [1, 2], "a, (b)", None, False] and schema.is_mutable
    assert schema.arguments[2].taken(3) == [3, 3] and not schema.arguments[0].has_default_value() and schema.arguments[3].kwarg_only
    for odd in ("f(Tensor x -> Tensor", "f(Tensor x)", "(Tensor x) -> Tensor", "f(Table x) -> Tensor", "f(Tensor) -> Tensor",
                "f(int n=oops) -> Tensor"):
        with pytest.raises(RuntimeError, match="schema: expected"):
            parse_schema(odd)


def test_an_operator_in_pieces(lib):
    assert lib.define("scaled(Tensor x, float s=2.0) -> Tensor") == "scaled"
    op, x = torch.ops.told.scaled, leaf()
    with pytest.raises(NotImplementedError, match="told::scaled: expected a kernel for cpu"):
        op(x)
    lib.impl("scaled", lambda x, s: x * s, "CompositeExplicitAutograd")
    lib.impl("scaled", lambda x, s: x.new_empty(x.shape), "Meta")
    assert op(x, 3).tolist() == [[0, 3], [6, 9]] and repr(op) == "<OpOverloadPacket(op='told.scaled')>"
    assert op.default.name() == "told::scaled" and str(op.default) == "told.scaled.default" and op.overloads() == ["default"]
    op(x).sum().backward()                                               # through what it is made of
    assert x.grad.tolist() == [[2, 2], [2, 2]]
    torch.library.register_autograd("told::scaled", lambda ctx, g: (g * 7, None))
    op(x).sum().backward()
    assert x.grad.tolist() == [[9, 9], [9, 9]]
    assert set(opcheck(op.default, (x,), test_utils=("test_schema", "test_faketensor")).values()) == {"SUCCESS"}
    for wrong in ((), (3,), (x, "a"), (x, 1.0, 2)):
        with pytest.raises(RuntimeError, match="told::scaled: expected"):
            op(*wrong)
    with pytest.raises(AttributeError, match="no overload name 'other'"):
        op.other  # noqa: B018


def test_what_has_no_gradient_says_so(lib):
    lib.define("hidden(Tensor x) -> Tensor")
    lib.impl("hidden", lambda x: x.detach() * 2, "CPU")
    y = torch.ops.told.hidden(leaf())
    with pytest.raises(RuntimeError, match="told::hidden: expected a formula for its gradients, got none"):
        y.sum().backward()


def test_an_autograd_function_around_a_kernel(lib):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            with torch._C._AutoDispatchBelowAutograd():
                return torch.ops.told.cube(x)

        @staticmethod
        def backward(ctx, g):
            return g * 3 * ctx.saved_tensors[0] ** 2

    lib.define("cube(Tensor x) -> Tensor")
    lib.impl("cube", lambda x: x ** 3, "CPU")
    lib.impl("cube", Cube.apply, "Autograd")
    x = leaf()
    torch.ops.told.cube(x).sum().backward()
    assert x.grad.tolist() == [[0, 3], [12, 27]]


def test_written_arguments_lists_and_overloads(lib):
    lib.define("add_one_(Tensor(a!) x) -> Tensor(a!)")
    lib.impl("add_one_", lambda x: x.add_(1), "CPU")
    x = torch.zeros(2)
    assert torch.ops.told.add_one_(x) is x and x.tolist() == [1, 1] and x._version == 1
    lib.define("both(Tensor[] xs, int dim=0) -> (Tensor, Tensor)")
    lib.impl("both", lambda xs, dim=0: (torch.cat(xs, dim), torch.stack(xs, dim)))
    a, b = torch.ops.told.both([x, x])
    assert a.shape == (4,) and b.shape == (2, 2)
    lib.define("times.Tensor(Tensor x, Tensor by) -> Tensor")
    lib.define("times.float(Tensor x, float by) -> Tensor")
    lib.impl("times.Tensor", lambda x, by: x * by)
    lib.impl("times.float", lambda x, by: x * by + 1)
    times = torch.ops.told.times
    assert times(x, x).tolist() == [1, 1] and times(x, 2.0).tolist() == [3, 3] and times.overloads() == ["Tensor", "float"]
    assert times.float(x, 1).tolist() == [2, 2]


def test_a_library_undoes_what_it_did():
    declares = Library("passing", "FRAGMENT")
    declares.define("f(Tensor x) -> Tensor")
    early = Library("passing", "IMPL")
    early.impl("g", lambda x: x + 2, "CPU")                              # before it is declared
    declares.define("g(Tensor x) -> Tensor")
    x = torch.zeros(1)
    assert torch.ops.passing.g(x).item() == 2
    late = Library("passing", "IMPL")
    late.impl("g", lambda x: x + 3, "CPU")
    assert torch.ops.passing.g(x).item() == 3
    del late
    gc.collect()
    assert torch.ops.passing.g(x).item() == 2
    declares._destroy()
    assert not hasattr(torch.ops.passing, "f") and not hasattr(torch.ops.passing, "g")


def test_what_a_library_refuses(lib):
    lib.define("f(Tensor x) -> Tensor")
    with _scoped_library("owned", "DEF"), pytest.raises(RuntimeError, match="one library that declares the namespace owned"):
        Library("owned", "DEF")
    for wrong, error in ((lambda: Library("told", "X"), ValueError), (lambda: lib.define("f(Tensor x) -> Tensor"), RuntimeError),
                         (lambda: Library("told", "IMPL").define("g(Tensor x) -> Tensor"), RuntimeError),
                         (lambda: lib.impl("f", 3, "CPU"), TypeError), (lambda: lib.impl("f", abs, "Foo"), RuntimeError),
                         (lambda: lib.impl("f", abs, "Functionalize"), NotImplementedError),
                         (lambda: torch.library.define("told::h", "Tensor x -> Tensor"), ValueError),
                         (lambda: torch.library.define("h", "(Tensor x) -> Tensor"), ValueError),
                         (torch.library.fallthrough_kernel, NotImplementedError),
                         (lambda: custom_op("told::s", abs, mutates_args=("x",), schema="(Tensor x) -> Tensor"), ValueError)):
        with pytest.raises(error):
            wrong()
    with pytest.raises(NotImplementedError, match=r"use tritorch.dispatch.registry\['mul'\].impl"):
        Library("aten", "IMPL").impl("mul.Tensor", lambda x, y: x, "CUDA")


def test_sizes_that_depend_on_values():
    @custom_op("told::places", mutates_args=())
    def places(x: Tensor) -> Tensor:
        return torch.nonzero(x)

    @places.register_fake
    def _(x):
        return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.ndim, dtype=torch.int64)

    assert opcheck(places, (torch.tensor([1.0, 0.0, 2.0]),), test_utils="test_faketensor") == {"test_faketensor": "SUCCESS"}
    places.register_fake(lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.ndim + 1, dtype=torch.int64))
    with pytest.raises(torch.library.OpCheckError, match="of result 0"):
        opcheck(places, (torch.tensor([1.0, 0.0, 2.0]),), test_utils="test_faketensor")
    assert torch.library.get_ctx() is None


def test_kernels_can_be_switched_off_and_classes_have_their_own():
    @custom_op("told::kind", mutates_args=())
    def kind(x: Tensor) -> Tensor:
        return x + 1

    class Named(Tensor):
        pass

    kind.register_kernel("cpu", lambda x: x + 2)
    x = torch.zeros(1)
    assert kind(x).item() == 2
    with kind.set_kernel_enabled("cpu", False):
        assert kind(x).item() == 1
    assert kind(x).item() == 2
    kind.register_torch_dispatch(Named, lambda op, types, args, kwargs: args[0].as_subclass(Tensor) + len(types) + 4)
    assert kind(x.as_subclass(Named)).item() == 5
    assert torch.vmap(kind)(torch.zeros(2, 3)).tolist() == [[2, 2, 2]] * 2


def test_packages_that_have_a_triton_op_of_their_own():
    from tritorch._library import triton
    from tritorch._subclasses import functional_tensor

    def fn(x):
        assert not triton.is_wrap_triton_enabled()
        return x * 2

    def run(x):
        with triton.set_wrap_triton_enabled(False):
            return fn(x)

    op = custom_op("told::own", run, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_torch_dispatch(functional_tensor.FunctionalTensorMode, lambda mode, op, types, args, kwargs: None)
    assert op(torch.ones(2)).tolist() == [2, 2] and triton.is_wrap_triton_enabled()
    assert torch._disable_dynamo is torch.compiler.disable


def test_placements_are_values():
    from tritorch.distributed.tensor import Partial, Placement, Replicate, Shard
    from tritorch.distributed.tensor.parallel import ParallelStyle

    assert repr([Shard(1), Replicate(), Partial()]) == "[Shard(dim=1), Replicate(), Partial(sum)]" and str(Shard(2)) == "S(2)"
    assert Shard(1) == Shard(1) != Shard(0) and Shard(1).is_shard(1) and not Shard(1).is_shard(0) and Partial("avg").is_partial("avg")
    assert len({Shard(1), Shard(1), Replicate(), Partial(), Partial("sum")}) == 3 and isinstance(Partial(), Placement)
    with pytest.raises(TypeError):
        ParallelStyle()


def test_our_operators_under_pytorchs_names():
    aten, x = torch.ops.aten, torch.tensor([[-1.0, 2.0], [0.5, 3.0]])
    assert aten.add.Tensor is aten.add.Tensor and aten.add.Tensor.overloadpacket is aten.add
    assert aten.add.Tensor.name() == "aten::add.Tensor"
    assert isinstance(aten.add.out, torch._ops.OpOverload) and isinstance(aten.add, torch._ops.OpOverloadPacket)
    for name, overload, args, expected in (
            ("add", "Scalar", (x, 1), x + 1), ("sum", "dim_IntList", (x, [0], True), x.sum(0, True)),
            ("view", "default", (x, [4]), x.view(4)),
            ("_softmax", "default", (x, 1, False), x.softmax(1)), ("silu", "default", (x,), torch.nn.functional.silu(x)),
            ("mul_", "Tensor", (x.clone(), 2), x * 2), ("linalg_vector_norm", "default", (x,), torch.linalg.vector_norm(x)),
            ("slice", "Tensor", (x, 1, 1), x[:, 1:]), ("slice", "Tensor", (x, -2, None, -1, 2), x[:-1:2]), ("slice", "Tensor", (x,), x),
            ("_softmax_backward_data", "default", (x, x.softmax(1), 1, x.dtype),
             x.softmax(1) * (x - (x * x.softmax(1)).sum(1, True))),
            ("_safe_softmax", "default", (torch.tensor([[-math.inf, 2.0]]), 1), torch.tensor([[0.0, 1.0]])),
            ("_safe_softmax", "default", (x - math.inf, 1), x * 0),
            ("native_dropout_backward", "default", (x, x > 1, 2.0), x * (x > 1) * 2),
                        ("alias", "default", (x,), x), ("slice", "Tensor", (x, -1, 1, None), x[..., 1:]),
            ("index", "Tensor", (x, [None, torch.tensor(0)]), x[:, 0]), ("_sparse_addmm", "default", (x, x, x), x + x @ x),
            ("threshold_backward", "default", (x, x, 1), x * (x > 1)), ("_to_copy", "default", (x,), x)):
        assert torch.allclose(getattr(getattr(aten, name), overload)(*args), expected, 1e-6)
    for wrong in (lambda: aten.no_such_name, lambda: aten.add.no_such_overload, lambda: torch.ops.create.no_such_name):
        with pytest.raises(AttributeError):
            wrong()
    assert not hasattr(torch.ops.nobodys_space, "f") and torch.ops.matmul.__name__ == "tritorch.ops.matmul"


def test_attention_under_pytorchs_names(cuda):
    for device in ("cpu", cuda):
        q, k = torch.rand(2, 3, 4, 8, device=device), torch.rand(2, 3, 5, 8, device=device)
        scores, shut = q @ k.mT / 4, torch.ones(4, 5, dtype=torch.bool, device=device).tril()
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, False, attn_mask=shut, scale=0.25)
        torch.testing.assert_close(out, scores.masked_fill(~shut, -math.inf).softmax(-1) @ k)
        torch.testing.assert_close(lse, scores.masked_fill(~shut, -math.inf).logsumexp(-1))
        out, lse, *rest = torch.ops.aten._scaled_dot_product_flash_attention.default(q, k[:, :, :4], k[:, :, :4], is_causal=True)
        torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k[:, :, :4], k[:, :, :4], is_causal=True))
        assert lse.shape == (2, 3, 4) and rest[:4] == [None, None, 4, 4] and len(rest) == 7
    with pytest.raises(RuntimeError, match="expected no dropout"):
        torch.ops.aten._scaled_dot_product_flash_attention(q, k, k, 0.5)


def test_programs_that_import_torch_get_tritorch():
    program = """
import tritorch
tritorch.as_torch()
import torch, torch.nn.functional as F
from torch.nn import Module
from torch.utils.data import Dataset
assert torch is tritorch and F is tritorch.nn.functional and Module is tritorch.nn.Module and F.__name__ == "tritorch.nn.functional"
assert tritorch.nn.functional.__spec__.name == "tritorch.nn.functional"
from torch.autograd.gradcheck import GradcheckError
import torch.autograd.gradcheck
assert callable(torch.autograd.gradcheck) and torch.autograd.gradcheck is tritorch.autograd.gradcheck
from importlib import metadata, util
assert metadata.version("torch") == tritorch.__version__ and util.find_spec("torch") is tritorch.__spec__
assert metadata.distribution("torch").metadata["Name"] == "torch" and "torch" in metadata.packages_distributions()
import sys
assert sys.modules["torch.nn.init"] is tritorch.nn.init and sys.modules["torch.nn.linear"] is sys.modules["tritorch.nn.linear"]
assert type(torch.ones(2, 3, 4).shape[1:]) is torch.Size and torch.Size([2, 3])[:-1].numel() == 2 and torch.Size([2, 3])[-1] == 3
assert torch.__name__ == "torch" and torch.torch.nn is torch.nn and torch.__spec__.name == "tritorch"
try:
    import torch.no_such_module
except ModuleNotFoundError as error:
    assert error.name == "torch.no_such_module"
else:
    raise AssertionError
import sys, types
sys.modules["torch"] = types.ModuleType("torch")
try:
    tritorch.as_torch()
except ImportError as error:
    assert "got PyTorch imported already" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_packages_read_names_of_torch():
    """As accelerate does of what it keeps on disk."""
    program = """
import tritorch
handle = tritorch.as_torch()
import torch
from torch import fx
x = torch.ones(2, dtype=torch.bfloat16)
assert [str(x.dtype), str(x.shape), str(x.layout)] == ["torch.bfloat16", "torch.Size([2])", "torch.strided"]
assert [str(torch.channels_last), str(torch.per_tensor_affine)] == ["torch.channels_last", "torch.per_tensor_affine"]
assert x.type() == "torch.BFloat16Tensor" and torch.typename(x.dtype) == "torch.dtype" and "tritorch" not in repr(x)
def wide(x):
    return torch.ones_like(x, dtype=torch.float64, memory_format=torch.contiguous_format, device=x.device).to(torch.device("cpu"))
assert torch.equal(fx.symbolic_trace(wide)(x), wide(x))
handle.remove()
assert str(x.dtype) == "tritorch.bfloat16" and x.type() == "tritorch.BFloat16Tensor"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_torch_is_gone_with_the_handle():
    program = """
import tritorch
tritorch.as_torch().remove()
assert tritorch.__name__ == "tritorch" and type(tritorch.ones(2, 3).shape[1:]) is tuple and not hasattr(tritorch, "torch")
from tritorch import hub, nn
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_fake_may_come_before_its_operator():
    @torch.library.register_fake("early::pairs")
    def pairs(x):
        return x.new_empty(x.shape[0] // 2)

    torch.library.define("early::pairs", "(Tensor x) -> Tensor")
    torch.library.impl("early::pairs", "cpu", lambda x: x.reshape(-1, 2).sum(1))
    assert torch.ops.early.pairs(torch.ones(4)).tolist() == [2, 2] and torch.ops.early.pairs(torch.ones(4, device="meta")).shape == (2,)


def test_dtypes_and_reductions_as_packages_ask_for_them():
    from tritorch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
    from tritorch._prims_common import elementwise_dtypes
    from tritorch.nn import _reduction

    half, whole, flags = torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.bool)
    for args, kind, expected in (((half, 2.5), KIND.DEFAULT, (torch.float32, torch.float16)),
                                 ((half,), KIND.NO_OPMATH, (torch.float16,) * 2), ((flags,), KIND.BOOL_TO_LONG, (torch.int64,) * 2),
                                 ((whole, None), KIND.INT_TO_FLOAT, (torch.float32,) * 2),
                                 ((whole, half), KIND.ALWAYS_BOOL, (torch.float32, torch.bool)),
                                 ((half + 1j,), KIND.COMPLEX_TO_FLOAT, (torch.complex64, torch.float32))):
        assert elementwise_dtypes(*args, type_promotion_kind=kind) == expected
    for wrong, error in ((("a",), TypeError), ((None,), ValueError)):
        with pytest.raises(error):
            elementwise_dtypes(*wrong, type_promotion_kind=KIND.DEFAULT)
    assert _reduction.legacy_get_enum(False, None) == 2 and _reduction.legacy_get_string(None, False) == "none"
    with pytest.raises(ValueError, match="none, mean or sum"):
        _reduction.get_enum("median")
