"""Classes and modes that see calls: `__torch_function__`, Tensor's subclasses, and the functions and modes of tritorch.overrides."""
import copy
import inspect
import pickle
import threading

import numpy as np
import pytest

import tritorch as torch
from tritorch import nn, overrides, protocol
from tritorch.nn import functional as F
from tritorch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function, resolve_name

early_add, early_relu, early_sum = torch.add, F.relu, torch.Tensor.sum   # names from before the functions ask


class Plain(torch.Tensor):
    pass


class Logged(torch.Tensor):
    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(resolve_name(func))
        return super().__torch_function__(func, types, args, kwargs)


class Answers:
    """No tensor, but asked like one."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return "answer", func, types, args, kwargs or {}


class Refuses(Answers):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class Log(TorchFunctionMode):
    def __init__(self, found, tag=""):
        self.found, self.tag = found, tag

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.found.append(self.tag + func.__name__)
        return func(*args, **(kwargs or {}))


def asked(call):
    Logged.calls.clear()
    call()
    return [name.removeprefix("tritorch.") for name in Logged.calls]


def seen(call):
    found = []
    with Log(found):
        call()
    return found


X = torch.arange(6.0).reshape(2, 3)


# ------------------------------------------------------------------ subclasses that say nothing
@pytest.mark.smoke
def test_results_keep_the_class():
    x = Plain([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    y = X.as_subclass(Plain)
    results = [x + 1, 1 + x, 1 - x, 2 / x, x ** 2, 2 ** x, -x, x @ x.T, x > 2, ~(x > 2), x == x, x[0], x[:, 1:], x[x > 2], x[[0, 1]], x.T,
               x.mT, x.data, x.detach(), x.exp(), x.sum(), x.view(6), x.reshape(3, 2), x.clone(), x.double(), x.cpu(), x.to(torch.float64),
               x.new_zeros(2), torch.zeros_like(x), torch.rand_like(x), torch.stack([x, X]), torch.cat([X, x]), torch.where(x > 1, x, 0),
               torch.add(X, x), F.relu(x), F.softmax(x, -1), F.linear(X, x), torch.einsum("ij->i", x), torch.linalg.norm(x), x.real,
               torch.fft.fft(x), torch.special.expit(x), copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x)),
               x.requires_grad_(False), *x, *x.unbind(1), *torch.max(x, 0), *x.split(1), *x.aminmax(), nn.Linear(3, 2)(x),
               torch.as_tensor(x), y.contiguous()]
    assert {type(r) for r in results} == {Plain}
    assert type(torch.max(x, 0)) is type(torch.max(X, 0)) and type(torch.tensor(x)) is torch.Tensor
    assert type(x.shape) is torch.Size and type(x.tolist()) is list and repr(x[0]) == "Plain([1., 2., 3.])"
    x += 1
    x.mul_(2)
    x[0] = 7
    out = torch.empty(2, 3)
    assert type(x) is Plain and x.tolist() == [[7.0, 7.0, 7.0], [10.0, 12.0, 14.0]]
    assert type(torch.add(x, 1, out=out)) is Plain and type(out) is torch.Tensor and out[0, 0] == 8


def test_gradients_of_a_subclass():
    x = Plain([1.0, 2.0]).requires_grad_()
    y = (x ** 3).sum()
    g, = torch.autograd.grad(y, x, create_graph=True)
    assert x.is_leaf and type(g) is Plain and torch.autograd.grad(g.sum(), x)[0].tolist() == [6.0, 12.0]
    y.backward()
    assert type(x.grad) is torch.Tensor and x.grad.tolist() == [3.0, 12.0]                # what a tensor keeps stays what it is
    w = x * 1
    w.mul_(3)                                                            # its history is rewritten
    x.grad = None
    w.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_ways_to_make_one():
    leaf = torch.ones(2, requires_grad=True)
    assert [type(m) for m in (Plain(2, 3), Plain(), Plain((2, 3)), Plain(data=[1.0]), Plain(torch.Size([2])))] == [Plain] * 5
    assert Plain(torch.tensor([1])).dtype is torch.int64 and Plain(leaf).requires_grad and not Plain(leaf).is_leaf
    assert Plain(X.untyped_storage()).tolist() == [0, 1, 2, 3, 4, 5] and torch.Tensor(leaf).requires_grad
    made = torch.Tensor._make_subclass(Plain, leaf)
    assert type(made) is Plain and not made.requires_grad and made.data_ptr() == leaf.data_ptr() and made.is_leaf
    assert torch.Tensor._make_subclass(Plain, X, True).requires_grad and leaf.as_subclass(Plain).grad_fn is not None
    for error, call in [(TypeError, lambda: torch.Tensor._make_subclass(int, X)), (TypeError, lambda: X.as_subclass(int)),
                        (TypeError, lambda: torch.Tensor._make_subclass(Plain, 3)), (TypeError, lambda: Plain([1.0], unit="m")),
                        (RuntimeError, lambda: torch.Tensor._make_subclass(Plain, torch.tensor([1]), True)),
                        (TypeError, lambda: torch.Tensor._make_wrapper_subclass(Plain, (2,)))]:
        with pytest.raises(error):
            call()

    class Named(torch.Tensor):
        def __new__(cls, data, title):
            return super().__new__(cls, data)

        def __init__(self, data, title):
            super().__init__(data)
            self.title = title

    assert Named([1.0], title="a").title == "a" and pickle.loads(pickle.dumps(copy.copy(X.as_subclass(Plain)))).shape == X.shape

    class Dispatched(torch.Tensor):                                      # it can be written, as packages do when they are imported
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            pass

    for make in (lambda: Dispatched([1.0]), lambda: Dispatched(X), lambda: X.as_subclass(Dispatched), lambda: nn.Parameter(Dispatched(2)),
                 lambda: torch.Tensor._make_subclass(Dispatched, X), lambda: torch.Tensor._make_wrapper_subclass(Dispatched, (2,))):
        with pytest.raises(NotImplementedError, match="__torch_function__"):
            make()


def test_parameters_and_buffers():
    class Weight(nn.Parameter):
        pass

    weight = Weight(X)
    assert type(weight * 2) is torch.Tensor and type(weight.data) is torch.Tensor and type(nn.Buffer(X) + 1) is torch.Tensor
    assert repr(weight).startswith("Parameter containing:\nParameter(Weight([[0.")
    kept, buffer = nn.Parameter(Plain([1.0, 2.0])), nn.Buffer(Plain([1.0]))
    assert type(kept) is Plain and isinstance(kept, nn.Parameter) and kept.requires_grad and kept.is_leaf and kept._base is None
    assert type(buffer) is Plain and isinstance(buffer, nn.Buffer) and not isinstance(Plain([1.0]), (nn.Parameter, nn.Buffer))
    assert repr(kept) == "Parameter(Plain([1., 2.], requires_grad=True))" and isinstance(copy.deepcopy(kept), nn.Parameter)
    m = nn.Module()
    m.w, m.b = kept, buffer
    optimizer = torch.optim.SGD(m.parameters(), lr=0.5, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        loss = (m.w * m.b).sum()
        loss.backward()
        optimizer.step()
    assert type(loss) is type(m.w) is Plain and [*m.state_dict()] == ["w", "b"] and m.w.tolist() == pytest.approx([-0.45, 0.55])


# ------------------------------------------------------------------ classes with a say
@pytest.mark.parametrize("call, names", [
    (lambda x: x + 1, ["add"]), (lambda x: 1 - x, ["Tensor.__rsub__"]), (lambda x: x @ x.T, ["Tensor.T.__get__", "matmul"]),
    (lambda x: x[0], ["Tensor.__getitem__"]), (lambda x: x.shape, ["Tensor.shape.__get__"]), (lambda x: x.dtype, ["Tensor.dtype.__get__"]),
    (lambda x: setattr(x, "requires_grad", False), ["Tensor.requires_grad.__set__"]), (lambda x: x.grad, ["Tensor.grad.__get__"]),
    (lambda x: setattr(x, "data", X), ["Tensor.data.__set__"]), (lambda x: torch.add(X, x), ["add"]),
    (lambda x: x.add_(1), ["Tensor.add_"]),
    (lambda x: F.linear(X, x), ["nn.functional.linear"]), (lambda x: torch.cat([X, x]), ["cat"]), (len, ["Tensor.__len__"]),
    (lambda x: torch.where(X > 0, X, x), ["where"]), (lambda x: torch.sum(input=x), ["sum"]), (repr, ["Tensor.__repr__"]),
    (lambda x: float(x.sum()), ["sum", "Tensor.__float__"]), (lambda x: nn.init.normal_(x), ["nn.init.normal_"]), (torch.tensor, []),
    (lambda x: torch.linalg.norm(x), ["linalg.norm"]), (lambda x: torch.is_floating_point(x), ["is_floating_point"]), (hash, []),
    (lambda x: x.as_subclass(Plain), []), (lambda x: nn.LayerNorm(3)(x), ["nn.functional.layer_norm"]), (torch.is_tensor, []),
    (lambda x: X.__setitem__(0, x[0]), ["Tensor.__getitem__", "Tensor.__setitem__"]), (lambda x: early_add(x, 1), ["add"]),
    (lambda x: copy.deepcopy(x), ["Tensor.__deepcopy__"]), (lambda x: early_relu(x), ["nn.functional.relu"]), (early_sum, ["sum"]),
    (lambda x: (x.requires_grad_() * 2).sum().backward(), ["Tensor.requires_grad_", "mul", "sum", "Tensor.backward"])])
def test_what_a_class_is_asked(call, names):
    x = X.clone().as_subclass(Logged)
    assert asked(lambda: call(x)) == names


def test_every_function_asks():
    """Each of the table, with itself, the class and the arguments as they are."""
    for func, minus_one in overrides.get_testing_overrides().items():
        parameters = inspect.signature(minus_one).parameters.values()
        args = tuple([Answers() for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty])
        keywords = {p.name: 3 for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
        args = args or (Answers(),)
        if getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__"):
            continue                                                     # of Tensor's own properties
        assert func(*args, **keywords) == ("answer", func, (Answers,), args, keywords), resolve_name(func)
        assert minus_one(*args, **keywords) == -1 or len(args) == 1


@pytest.mark.smoke
def test_order_of_classes():
    class Sub(Refuses):
        pass

    class Last(Answers):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return [t.__name__ for t in types]

    class Other(Last):
        pass

    assert torch.add(Refuses(), Sub(), out=Last()) == ["Sub", "Refuses", "Last"]         # subclasses first, else from the left
    assert torch.stack([X, Last(), Other(), Last()]) == ["Other", "Last"]
    assert X + Last() == ["Last"] and X.add(Last()) == ["Last"] and X[Last()] == ["Last"] and torch.mul(X, other=Last()) == ["Last"]

    class Left(torch.Tensor):
        pass

    class Right(Left):
        pass

    assert type(Left([1.0]) + Right([1.0])) is type(Right([1.0]) + Left([1.0])) is type(nn.Parameter(X) + Right([1.0])) is Right
    for call in (lambda: Left([1.0]) + Plain([1.0]), lambda: torch.add(Refuses(), 1), lambda: F.linear(X, Refuses()),
                 lambda: X + Refuses()):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError, match="linear: expected an answer from one of Sub, Refuses, got NotImplemented"):
        F.linear(Refuses(), Sub())

    class Reflects(Refuses):
        def __radd__(self, other):
            return "radd"

    assert X + Reflects() == "radd"


def test_operators_with_what_is_no_tensor():
    class Reflects:
        __radd__ = __rmatmul__ = lambda self, other: "mine"

    x, array = Plain([1.0, 2.0]), np.ones(2, "float32")
    assert x + Reflects() == x @ Reflects() == "mine" and (x + array).tolist() == [2, 3] and type(x * array) is Plain
    assert (x == None) is False and (x != "a") is True                   # noqa: E711
    for call in (lambda: x + None, lambda: x + [1, 2], lambda: x - "a", lambda: array @ x):
        with pytest.raises(TypeError):
            call()


def test_functions_of_ones_own():
    def twice(x, k=2):
        return handle_torch_function(twice, (x,), x, k=k) if has_torch_function((x,)) else x * k

    foreign = Answers()
    wrapped = overrides.wrap_torch_function(lambda x: (x,))(lambda x: x * 2)
    assert twice(X).tolist() == (X * 2).tolist() and twice(foreign, 3) == ("answer", twice, (Answers,), (foreign,), {"k": 3})
    assert wrapped(foreign)[1] is wrapped and torch.equal(wrapped(X), X * 2) and type(twice(Plain([1.0]))) is Plain
    assert overrides.is_tensor_like(foreign) and overrides.is_tensor_like(X) and not overrides.is_tensor_like(3)
    assert overrides.has_torch_function_unary(foreign) and not overrides.has_torch_function_variadic(X, nn.Parameter(X), 3)
    assert overrides.has_torch_function_variadic(X, Plain([1.0]))


def test_operators_by_their_names():
    """Those of `tritorch.ops`, of one's own or not, are functions that ask."""
    from tritorch.library import custom_op

    @custom_op("overrides_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    space, found = torch.ops.overrides_tests, []
    for op in (torch.ops.aten.sigmoid, torch.ops.aten.sigmoid.default, space.twice, space.twice.default):
        assert op(Answers())[1] is op and type(op(Plain([1.0]))) is Plain and torch.equal(op(X), op(X.as_subclass(Plain)))
    assert twice(Answers())[1] is space.twice.default
    with Log(found):
        space.twice(X)
    assert found == ["twice"]


def test_tables_of_functions():
    found = overrides.get_overridable_functions()
    assert torch.add in found[torch] and F.gelu in found[F] and torch.Tensor.T.__get__ in found[torch.Tensor] and torch.linalg in found
    assert torch.add in found[torch.Tensor] and not {f for fs in found.values() for f in fs} & overrides.get_ignored_functions()
    assert overrides.is_tensor_method_or_property(torch.Tensor.add_) and overrides.is_tensor_method_or_property(torch.Tensor.shape.__get__)
    assert not overrides.is_tensor_method_or_property(F.linear) and {torch.is_tensor, torch.from_numpy} <= overrides.get_ignored_functions()
    names = {resolve_name(f): f for f in (torch.Tensor.T.__get__, torch.gt, F.linear, torch.nn.init.normal_, torch.Tensor.shape.__get__)}
    assert [*names] == [f"tritorch.{n}" for n in ("Tensor.T.__get__", "gt", "nn.functional.linear", "nn.init.normal_",
                                                  "Tensor.shape.__get__")]
    assert resolve_name(len) is resolve_name([]) is None and overrides.get_default_nowrap_functions() >= {torch.Tensor.grad.__get__}
    assert str(inspect.signature(F.linear)) == "(input, weight, bias=None)" and torch.Tensor.cpu.__name__ == "cpu"
    assert str(inspect.signature(overrides.get_testing_overrides()[F.linear])).startswith("(input, weight, bias=")


# ------------------------------------------------------------------ modes
def test_modes():
    found = []
    with Log(found, "a."), Log(found, "b."):
        torch.ones(2) + torch.tensor(1)
    assert found == ["b.ones", "a.ones", "b.tensor", "a.tensor", "b.add", "a.add"]
    assert seen(lambda: F.gelu(nn.Linear(3, 2)(X)))[-2:] == ["linear", "gelu"] and seen(lambda: torch.manual_seed(0)) == []
    assert seen(lambda: (nn.Parameter(X) * 2).sum().backward()) == ["mul", "sum", "backward"]        # nothing of what goes on inside
    assert seen(lambda: Plain([1.0]) + 1) == ["add"] and seen(lambda: X.T) == ["__get__"]

    class Zeros(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return torch.zeros(*args) if func is torch.rand else NotImplemented if func is torch.exp else func(*args, **(kwargs or {}))

    with Zeros():
        assert torch.rand(2).tolist() == [0, 0] and torch.exp(Answers())[0] == "answer"
        with pytest.raises(TypeError):
            torch.exp(X)
        assert isinstance(overrides._get_current_function_mode(), Zeros) and len(overrides._get_current_function_mode_stack()) == 1
        with overrides._pop_mode_temporarily():
            assert overrides._get_current_function_mode() is None
        others = []
        thread = threading.Thread(target=lambda: others.append(torch.rand(2).sum().item()))
        thread.start()
        thread.join()
        assert others[0] > 0
    with pytest.raises(NotImplementedError), TorchFunctionMode():
        torch.ones(2)
    with overrides.BaseTorchFunctionMode.push():
        assert (X + 1).shape == X.shape
    with pytest.raises(RuntimeError), overrides.enable_reentrant_dispatch():
        pass
    assert protocol.state.modes == ()


def test_contexts_without():
    x, found = Plain([1.0]), []
    with torch._C.DisableTorchFunctionSubclass(), Log(found):
        assert type(x + 1) is torch.Tensor and not torch._C._is_torch_function_enabled()
    with Log(found), torch._C.DisableTorchFunction():
        assert type(x * 1) is torch.Tensor and torch._C._is_torch_function_all_disabled() and not has_torch_function((x,))
    assert found == ["add"] and type(x + 1) is Plain and torch._C._is_torch_function_enabled()

    class Silent(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

    assert type(Silent([1.0]) + 1) is torch.Tensor


def test_backward_passes_are_not_seen():
    """Gradient rules are ours, while what a Function of the user's does is his."""
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.factor = x.detach() * 0 + 2
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor

    x = X.clone().as_subclass(Logged).requires_grad_()
    y = (torch.exp(x) * x).sum()
    assert asked(lambda: y.backward()) == ["Tensor.backward"]
    z = Doubled.apply(x)
    assert asked(lambda: torch.autograd.backward(z.as_subclass(torch.Tensor).sum())).count("mul") == 1
    assert asked(lambda: torch.autograd.grad((x * x).sum(), x)) == ["mul", "sum", "autograd.grad"]
    assert protocol.state.off == 0 and protocol.state.outside is None
