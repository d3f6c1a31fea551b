"""Every method of PyTorch's tensors that ours have: what it gives, here or in the family's own tests, and what attributes do."""
import re
from pathlib import Path

import numpy as np
import pytest
from oracle import agree, draw

import tritorch

torch = pytest.importorskip("torch")
X = draw(3, 3, dtype="float64", low=0.2, high=0.9)
CALLS = """
x.abs() x.abs_() x.absolute() x.absolute_() x.acos() x.acos_() x.arccos() x.arccos_() (x+1).acosh() (x+1).acosh_() (x+1).arccosh()
(x+1).arccosh_() x.add(2) x.add_(2) x.add(y,alpha=2) x.addmm(y,z) x.addmm_(y,z) x.addmv(y[0],z[0]) y[0].addmv_(x,z[0]) x.addr(y[0],z[0])
x.addr_(y[0],z[0]) x.addcdiv(y,z) x.addcdiv_(y,z) x.addcmul(y,z) x.addcmul_(y,z) x.adjoint() x.all() (x>0.5).all() x.allclose(y) x.amax()
x.amax(0) x.amin(1) x.aminmax() x.aminmax(dim=0) x.any() x.any(1) x.arcsin() x.arcsin_() x.arcsinh() x.arcsinh_() x.arctan() x.arctan_()
x.arctan2(y) x.arctan2_(y) x.arctanh() x.arctanh_() x.argmax() x.argmax(0) x.argmin(1,True) x.argsort() x.argsort(0,True) x.argwhere()
x.as_strided((2,),(1,)) x.asin() x.asin_() x.asinh() x.asinh_() x.atan() x.atan_() x.atan2(y) x.atan2_(y) x.atanh() x.atanh_()
x.view(1,3,3).baddbmm(y.view(1,3,3),z.view(1,3,3)) x.view(1,3,3).baddbmm_(y.view(1,3,3),z.view(1,3,3))
x.addbmm(y.view(1,3,3),z.view(1,3,3)) x.addbmm_(y.view(1,3,3),z.view(1,3,3)) x.bmm(y) x.view(1,3,3).bmm(y.view(1,3,3)) i.bitwise_and(3)
i.bitwise_and_(3) i.bitwise_not() i.bitwise_not_() i.bitwise_or(4) i.bitwise_or_(4) i.bitwise_xor(5) i.bitwise_xor_(5)
i.bitwise_left_shift(1) i.bitwise_left_shift_(1) i.bitwise_right_shift(1) i.bitwise_right_shift_(1) i.bincount() x.bool() x.byte()
x.broadcast_to((2,3,3)) x.ceil() x.ceil_() x.char() x.chunk(2) x.chunk(2,1) x.clamp(0.3,0.6) x.clamp_(0.3,0.6) x.clamp_max(0.5)
x.clamp_max_(0.5) x.clamp_min(0.5) x.clamp_min_(0.5) x.clip(0.3,0.6) x.clip_(0.3,0.6) x.clone() x.contiguous() x.copy_(y) x.copysign(-1)
x.copysign_(-1) x.corrcoef() x.cos() x.cos_() x.cosh() x.cosh_() x.count_nonzero() x.count_nonzero(0) x.cov() x.cpu() x.cross(y,0)
x.cummax(0) x.cummin(1) x.cumprod(0) x.cumprod_(0) x.cumsum(1) x.cumsum_(1) x.conj() x.data x.deg2rad() x.deg2rad_() x.detach() x.diag()
x.diag_embed() x.diagflat() x.diagonal() x.diagonal_scatter(y[0]) x.diff() x.digamma() x.digamma_() x.dim() x.dist(y) x.dist(y,1) x.div(2)
x.div_(2) x.div(2,rounding_mode="floor") x.divide(2) x.divide_(2) x[0].dot(y[0]) x.double() x.view(3,3,1).dsplit(1) x.hsplit(3)
x.hsplit([1]) x.vsplit(3) x.vsplit(2) x[0].hsplit([1]) x.element_size() x.eq(y) x.eq_(y) x.equal(y) x.equal(x) x.erf() x.erf_() x.erfc()
x.erfc_() x.erfinv() x.erfinv_() x.exp() x.exp_() x.exp2() x.exp2_() x[:1].expand(3,3) x[:1].expand_as(y) x.expm1() x.expm1_() x.fill_(3)
x.fill_diagonal_(7) x.expand(3,3).clone().fill_diagonal_(7,True) x.fix() x.fix_() x.flatten() x.flip(0) x.fliplr() x.flipud() x.float()
x.float_power(2) x.float_power_(2) x.floor() x.floor_() x.floor_divide(0.3) x.floor_divide_(0.3) x.fmax(y) x.fmin(y) x.fmod(0.3)
x.fmod_(0.3) x.frac() x.frac_() x.gather(0,i) i.gcd(i+6) i.gcd_(i+6) i.lcm(i+6) i.lcm_(i+6) x.ge(y) x.ge_(y) x.ger(y) x[0].ger(y[0])
x.get_device() x.greater(y) x.greater_(y) x.greater_equal(y) x.greater_equal_(y) x.gt(y) x.gt_(y) x.half() x.hardshrink(0.5)
x.heaviside(y) x.heaviside_(y) x.float().histc(4) x.hypot(y) x.hypot_(y) x.index_add(0,i[0],y) x.index_add_(0,i[0],y)
x.index_copy(0,i[0],y) x.index_copy_(0,i[0],y) x.index_fill(0,i[0],2) x.index_fill_(0,i[0],2) x.index_put((i[0],),y)
x.index_put_((i[0],),y) x.index_select(0,i[0]) x.inner(y) x.int() x.is_contiguous() x.t().is_contiguous() x.is_floating_point()
x.is_complex() x.is_inference() x[:1,:1].is_nonzero() x.is_pinned() x.is_same_size(y) x.is_set_to(x) x.is_set_to(y) x.is_signed()
x.isclose(y) x.isfinite() x.isinf() x.isnan() x.isneginf() x.isposinf() x.isreal() x[0,0].item() x.kthvalue(2) x.ldexp(i) x.ldexp_(i)
x.le(y) x.le_(y) x.lerp(y,0.3) x.lerp_(y,0.3) x.less(y) x.less_(y) x.less_equal(y) x.less_equal_(y) x.lgamma() x.lgamma_() x.log()
x.log_() x.log10() x.log10_() x.log1p() x.log1p_() x.log2() x.log2_() x.log_softmax(0) x.logaddexp(y) x.logaddexp2(y) x.logcumsumexp(0)
x.logical_and(y) x.logical_and_(y) x.logical_not() x.logical_not_() x.logical_or(y) x.logical_or_(y) x.logical_xor(y) x.logical_xor_(y)
x.logit() x.logit_() x.logit(0.3) x.logsumexp(1) x.long() x.lt(y) x.lt_(y) x.masked_fill(x>0.5,0) x.masked_fill_(x>0.5,0)
x.masked_scatter(x>0.5,y) x.masked_scatter_(x>0.5,y) x.masked_select(x>0.5) x.matmul(y) x.matrix_power(3) x.max() x.max(1) x.max(y)
x.maximum(y) x.mean() x.mean(0) x.median() x.median(0) x.min() x.min(1) x.min(y) x.minimum(y) x.mm(y) i.mode() x.moveaxis(0,1)
x.movedim(0,1) x.msort() x.mul(2) x.mul_(2) x.multiply(y) x.multiply_(y) x.mv(y[0]) x.nan_to_num() x.nan_to_num_() x.nanmean()
x.nanmedian() x.nanquantile(0.5) x.nansum() x.narrow(0,1,2) x.ndimension() x.ne(y) x.ne_(y) x.neg() x.neg_() x.negative() x.negative_()
x.nelement() x.new_empty(2).shape x.new_empty_strided((2,),(1,)).shape x.new_full((2,),3) x.new_ones(2) x.new_tensor([1]) x.new_zeros(2)
x.nextafter(y) x.nextafter_(y) x.nonzero() x.norm() x.norm(1,0) x.not_equal(y) x.not_equal_(y) x.numel() x.numpy().sum() x[0].outer(y[0])
x.permute(1,0) x.positive() x.pow(2) x.pow_(2) x.prelu(y[0,:1]) x.prod() x.prod(0) x.put_(i[0],y[0]) x.put_(i[0],y[0],True)
x.quantile(0.3) x.rad2deg() x.rad2deg_() x.ravel() x.t().ravel() x.real x.reciprocal() x.reciprocal_() x.relu() x.relu_() x.remainder(0.3)
x.remainder_(0.3) x.repeat(2,1) x.repeat_interleave(2) x.requires_grad_().requires_grad x.reshape(9) x.reshape_as(y.view(9))
x.resolve_conj() x.resolve_neg() x.roll(1) x.rot90() x.round() x.round_() x.round(decimals=1) x.rsqrt() x.rsqrt_() x.scatter(0,i,y)
x.scatter_(0,i,y) x.scatter_add(0,i,y) x.scatter_add_(0,i,y) x.scatter_reduce(0,i,y,"sum") x.scatter_reduce_(0,i,y,"amax") x.select(0,1)
x.select_scatter(y[0],0,1) x.sgn() x.sgn_() x.short() x.sigmoid() x.sigmoid_() x.sign() x.sign_() x.signbit() x.sin() x.sin_() x.sinc()
x.sinc_() x.sinh() x.sinh_() x.size() x.size(0) x.slice_scatter(y[:1],0,1,2) x.softmax(0) x.sort() x.split(2) x.split_with_sizes([1,2])
x.sqrt() x.sqrt_() x.square() x.square_() x[:1].squeeze() x[:1].squeeze(0) x.std() x.std(0) x.storage_offset() x.stride() x.stride(0)
x.sub(2) x.sub_(2) x.subtract(y) x.subtract_(y) x.sum() x.sum(0) x.sum_to_size(1,3) x.swapaxes(0,1) x.swapdims(0,1) x.t() x.take(i)
x.take_along_dim(i,0) x.tan() x.tan_() x.tanh() x.tanh_() x.tensor_split(2) x.tile(2) x.to(y) x.tolist() x.topk(2) x.trace()
x.transpose(0,1) x.tril() x.tril_() x.triu() x.triu_() x.true_divide(2) x.true_divide_(2) x.trunc() x.trunc_() x.type_as(i) x.unbind()
x.unflatten(0,(3,1)) x.unfold(0,2,1) i.unique() i.unique_consecutive() x.unsqueeze(0) x.var() x.var(0) x[0].vdot(y[0]) x.view(9)
x.view_as(y.view(9)) x.where(x>0.5,y) x.xlogy(y) x.xlogy_(y) x.zero_() x.T x.mT x.H x.mH x.ndim x.shape x.dtype x.itemsize x.nbytes
x.is_leaf x.grad x.grad_fn x.requires_grad x.is_cuda x.is_cpu x.is_sparse x.is_quantized x.is_meta x.is_nested x.is_xpu
x.is_mps x.is_xla x.bfloat16()
x.conj_physical() x.chalf() len(x) list(reversed(i)) x.__rpow__(2) x.__rsub__(2) x.__rdiv__(2) x.__and__(y) i.__and__(3) i.__rand__(3)
i.__ror__(3) i.__rxor__(3) i.__lshift__(1) i.__rshift__(1) i.__ilshift__(1) i.__irshift__(1) i.__iand__(3) i.__ior__(3) i.__ixor__(3)
x.__iadd__(1) x.__isub__(1) x.__imul__(2) x.__itruediv__(2) x.__ipow__(2) x.__ifloordiv__(2) x.__imod__(2) x.__rtruediv__(2)
x.__rfloordiv__(2) x.__rmod__(2) x.__rmatmul__(y) x.__matmul__(y) x.__invert__() i.__invert__() x.__neg__() x.__pos__() x.__abs__()
x.__bool__() x[0,0].__float__() i[0,0].__int__() i[0,0].__index__() x.__len__() x.__contains__(0.5) x.__eq__(y) x.__ne__(y) x.__lt__(y)
x.__le__(y) x.__gt__(y) x.__ge__(y) x.__floordiv__(2) x.__mod__(2) x.__truediv__(2) x.__or__(y) x.__xor__(y) x.__getitem__(0)
x.__setitem__(0,1) x.__pow__(2) x.__radd__(1) x.__rmul__(2) x.__add__(1) x.__sub__(1) x.__mul__(2) x.requires_grad_() x.retains_grad
x.output_nr x.volatile x.detach_() x.data_ptr()==x.data_ptr() x.addcdiv(y,z,value=2) x.as_strided_scatter(y[0],(3,),(1,))
x.untyped_storage().device.type x.dim_order() x.logdet() x.is_shared() x.layout==None x.ldexp(y)
""".split()
LACKING = {"x.chalf()", "x.__rdiv__(2)", "x.output_nr", "x.volatile", "x.dim_order()", "x.logdet()", "x.is_shared()"}


def inputs():
    return X, draw(3, 3, dtype="float64", seed=1, low=0.2, high=0.9), draw(3, 3, dtype="float64",
        seed=2), np.array([[0, 1, 2], [2, 0, 1], [1, 2, 0]])


@pytest.mark.parametrize("call", [c for c in CALLS if c not in LACKING])
def test_call(call):
    code = compile(call, call, "eval")

    def program(lib, x, y, z, i):
        x = x * 1                                                        # history, so that calls in place are recorded too
        out = eval(code, {"lib": lib, "x": x, "y": y, "z": z, "i": i.clone(), "len": len, "list": list, "reversed": reversed})
        return out, x

    differentiable = not any(word in call for word in ("scatter_reduce_", "put_(", "nextafter", "heaviside", "floor", "cosh_", "arcsinh_",
                                                       "asinh_", "atanh_", "arctanh_", "__rmod__", "as_strided_scatter", ".detach_",
                                                       "requires_grad", "numpy", "is_", "grad"))
    differentiable = differentiable and not re.match(r"x\.(eq|ne|[lg][te]|not_equal|less\w*|greater\w*|logical_\w+)_\(", call)
    agree(program if differentiable else lambda lib, *a: eval(code, {"lib": lib, **dict(zip("xyzi", a)), "len": len, "list": list}),
          *inputs(),
          grad=(0, 1) if differentiable else False, what=call, rtol=1e-9, atol=1e-10, signs=False)


def test_every_method_is_exercised():
    """The methods that PyTorch has too occur in some test. Some are called without history: what PyTorch cannot
    differentiate in place, and as_strided_scatter, whose gradient it gives to the wrong elements."""
    text = " ".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    words = set(re.findall(r"\w+", text))
    ours = {name for name in dir(tritorch.Tensor) if hasattr(torch.Tensor, name) and hasattr(getattr(torch.Tensor, name), "__doc__")}
    assert not sorted(name for name in ours - words if not name.startswith("_"))


def test_attributes():
    def program(lib):
        x = lib.ones(3, requires_grad=True)
        (x * 2).sum().backward()
        first = x.grad.clone()
        x.grad = None
        (x * 3).sum().backward()
        x.grad.zero_()
        with lib.no_grad():
            x -= 0.5
            x.data = x.data * 2
            x.data[0] = 7
        x.custom = "kept"
        x.grad = lib.ones(3)
        return first, x.grad, x, x.custom, x.is_leaf, (x * 1).is_leaf, x.detach().requires_grad, x.requires_grad_(False).requires_grad

    agree(program)
    for f in (lambda x: setattr(x, "grad", 3), lambda x: setattr(x, "grad", x.new_ones(7)), lambda x: setattr(x, "requires_grad", True),
              lambda x: setattr(x, "data", 3),
              lambda x: setattr(x * 1.0, "grad", None), lambda x: x.requires_grad_(), lambda x: x.backward(), lambda x: x.unknown,
              lambda x: delattr(x, "grad")):
        agree(lambda lib, x, f=f: f(x), np.array([1, 2]), what=str(f.__code__.co_consts))


def test_python_functions():
    agree(lambda lib, x: (x.apply_(lambda v: v * 2 + 1), x.map_(x.t().clone(), lambda a, b: a - b)), X)
    agree(lambda lib, x: x.apply_(lambda v: v + 1), np.array([1, 2]))
    agree(lambda lib, x: (x * 1).requires_grad_().apply_(lambda v: v), X)
    agree(lambda lib, x: (lib.trapezoid(x), lib.trapezoid(x, x[0]), lib.trapezoid(x, dx=2, dim=0), lib.cumulative_trapezoid(x)), X,
          grad=True)
    agree(lambda lib, x: (lib.linalg.norm(x), lib.linalg.norm(x, 1), lib.linalg.norm(x, float("inf")), lib.linalg.norm(x[0], 3),
                          lib.linalg.norm(x, dim=0), lib.linalg.vector_norm(x, 3, 1),
                          lib.linalg.matrix_norm(x), lib.linalg.matrix_norm(x, -1), lib.linalg.matrix_norm(x, float("inf"), keepdim=True),
                          lib.linalg.multi_dot([x, x, x]), lib.linalg.multi_dot([x[0], x, x, x[1]]), lib.linalg.multi_dot([x, x[0]]),
                          lib.linalg.vecdot(x, x), lib.linalg.diagonal(x), lib.linalg.norm(x, dim=(0, 1))), X, grad=True)
    agree(lambda lib, x: lib.linalg.matrix_norm(x[0]), X)


def test_whole_sequences_of_lists():
    agree(lambda lib, x: [v.tolist() for v in x], X)
    agree(lambda lib, x: sum(x).tolist(), X)
    agree(lambda lib, x: [sorted(x[0].tolist()), max(x[0]).item(), min(x[1]).item()], X)


def test_what_is_no_tensor_is_not_equal():
    x = tritorch.ones(2)
    assert (x == None) is False and (x != None) is True and (x == "a") is False and (None == x) is False      # noqa: E711
    assert None not in [x] and (x == 1).all() and (x != tritorch.zeros(2)).all()
    for bad in (lambda: x == tritorch.ones(3), lambda: x == np.ones(2), lambda: x < None, lambda: x + np.ones(2)):
        with pytest.raises((RuntimeError, TypeError), match="broadcast|promote|expected"):
            bad()


def test_numbers_of_tensors_with_more_elements():
    for kind in (int, float):
        with pytest.raises(ValueError, match=f"{kind.__name__}: expected a tensor of 1 element, got 2 elements"):
            kind(tritorch.ones(2))
    assert float(tritorch.ones(1, 1)) == 1.0 and int(tritorch.tensor(2.5)) == 2
    assert tritorch.tensor([tritorch.ones(1), tritorch.zeros(1, 1)]).tolist() == [1.0, 0.0]


def test_storages_tell_their_size_by_calls(cuda):
    for device in ("cpu", cuda):
        x = tritorch.zeros(256, device=device)
        storage = x[128:].untyped_storage()
        assert storage.nbytes() == storage.size() == len(storage) == 1024
        assert tritorch.is_storage(storage) and storage.data_ptr() == x.data_ptr() and storage.device == x.device
