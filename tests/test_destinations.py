"""out= where PyTorch has it: results, several of them, empty tensors that take the shape, and what dtype a destination has."""
import numpy as np
import pytest
from oracle import agree, draw

import tritorch

X, V, I = draw(3, 4), draw(9), np.array([[3, 1, 3, 0], [1, 1, 0, 2]])
ONE = {
    "max": (lambda lib, x, **kw: lib.max(x, **kw), X), "min": (lambda lib, x, **kw: lib.min(x, **kw), X),
    "max of two": (lambda lib, x, **kw: lib.max(x, x.flip(0), **kw), X),
    "min of two": (lambda lib, x, **kw: lib.min(x, x.flip(0), **kw), X),
    "diag": (lambda lib, x, **kw: lib.diag(x, 1, **kw), X), "diag of a vector": (lambda lib, x, **kw: lib.diag(x, -1, **kw), V),
    "diff": (lambda lib, x, **kw: lib.diff(x, 2, 1, **kw), X), "no diff": (lambda lib, x, **kw: lib.diff(x, 0, **kw), X),
    "nonzero": (lambda lib, x, **kw: lib.nonzero(x, **kw), I), "nonzero of one": (lambda lib, x, **kw: lib.nonzero(x, **kw), np.array(2)),
    "norm": (lambda lib, x, **kw: lib.norm(x, **kw), X), "norm 1": (lambda lib, x, **kw: lib.norm(x, 1, 1, True, **kw), X),
    "sum": (lambda lib, x, **kw: lib.sum(x, 1, **kw), X), "prod": (lambda lib, x, **kw: lib.prod(x, 0, **kw), X),
    "std": (lambda lib, x, **kw: lib.std(x, **kw), X), "std 1": (lambda lib, x, **kw: lib.std(x, 1, False, True, **kw), X),
    "var": (lambda lib, x, **kw: lib.var(x, **kw), X), "var 1": (lambda lib, x, **kw: lib.var(x, 1, correction=0, **kw), X),
    "neg": (lambda lib, x, **kw: lib.neg(x, **kw), X), "round": (lambda lib, x, **kw: lib.round(x, decimals=1, **kw), X),
    "signbit": (lambda lib, x, **kw: lib.signbit(x, **kw), X), "nan_to_num": (lambda lib, x, **kw: lib.nan_to_num(x, **kw), X),
    "dot": (lambda lib, x, **kw: lib.dot(x, x, **kw), V), "mv": (lambda lib, x, **kw: lib.mv(x, x[0], **kw), X),
    "cross": (lambda lib, x, **kw: lib.cross(x, x * x, **kw), X),
    "take": (lambda lib, x, **kw: lib.take(x, (x[0, :2] > 9).long(), **kw), X),
    "quantile": (lambda lib, x, **kw: lib.quantile(x, 0.3, 1, **kw), X),
    "view_copy": (lambda lib, x, **kw: lib.view_copy(x, [12], **kw), X),
    "masked_select": (lambda lib, x, **kw: lib.masked_select(x, x > 0, **kw), X),
    "float_power": (lambda lib, x, **kw: lib.float_power(x, 2, **kw), X),
    "isin": (lambda lib, x, **kw: lib.isin(x, x[0], **kw), I),
    "isin a number": (lambda lib, x, **kw: lib.isin(x, 3, **kw), I),
    "a number isin": (lambda lib, x, **kw: lib.isin(2, x, invert=True, **kw), I),
    "median": (lambda lib, x, **kw: lib.median(x, **kw), V), "nanmedian": (lambda lib, x, **kw: lib.nanmedian(x, **kw), V)}
SEVERAL = {
    "max": (lambda lib, x, **kw: lib.max(x, 1, **kw), X), "min": (lambda lib, x, **kw: lib.min(x, 0, True, **kw), X),
    "cummax": (lambda lib, x, **kw: lib.cummax(x, 1, **kw), X), "cummin": (lambda lib, x, **kw: lib.cummin(x, 0, **kw), X),
    "aminmax": (lambda lib, x, **kw: lib.aminmax(x, **kw), X),
    "aminmax 1": (lambda lib, x, **kw: lib.aminmax(x, dim=1, keepdim=True, **kw), X),
    "histogram": (lambda lib, x, **kw: lib.histogram(x, 4, **kw), V), "sort": (lambda lib, x, **kw: lib.sort(x, 1, **kw), X),
    "edges": (lambda lib, x, **kw: lib.histogram(x, lib.tensor([-1.0, 0.0, 1.0]), density=True, **kw), V),
    "median": (lambda lib, x, **kw: lib.median(x, 1, **kw), X), "mode": (lambda lib, x, **kw: lib.mode(x, **kw), draw()),
    "topk": (lambda lib, x, **kw: lib.topk(x, 2, **kw), X), "kthvalue": (lambda lib, x, **kw: lib.kthvalue(x, 2, **kw), X)}


def into_one(lib, x, f, shaped, dtype=None):
    """(whether the destination came back, what is in it) of a call into an empty destination, or one of the shape."""
    made = f(lib, x)
    out = made.new_empty(made.shape if shaped else 0, dtype=dtype and getattr(lib, dtype))
    return f(lib, x, out=out) is out, out


def into_several(lib, x, f, shaped, dtypes=(None, None), kind=tuple):
    outs = kind([m.new_empty(m.shape if shaped else 0, dtype=d and getattr(lib, d)) for m, d in zip(f(lib, x), dtypes)])
    got = f(lib, x, out=outs)
    return all(g is o for g, o in zip(got, outs)), *outs


@pytest.mark.parametrize("name", ONE)
def test_one_result(name, cuda):
    f, x = ONE[name]
    for shaped in (False, True):
        for device in ("cpu", cuda):
            agree(lambda lib, x, shaped=shaped: into_one(lib, x, f, shaped), x, device=device, what=name)
        for dtype in ("float64", "int64", "int32", "bool"):
            agree(lambda lib, x, shaped=shaped, dtype=dtype: into_one(lib, x, f, shaped, dtype), x, rtol=1e-6, what=f"{name} {dtype}")


@pytest.mark.parametrize("name", SEVERAL)
def test_several_results(name, cuda):
    f, x = SEVERAL[name]
    for shaped in (False, True):
        for device in ("cpu",) if name == "edges" else ("cpu", cuda):
            agree(lambda lib, x, shaped=shaped: into_several(lib, x, f, shaped), x, device=device, what=name)
        for dtypes in (("float64", None), (None, "int32"), ("int64", "int64")):
            agree(lambda lib, x, shaped=shaped, dtypes=dtypes: into_several(lib, x, f, shaped, dtypes), x, what=f"{name} {dtypes}")
    agree(lambda lib, x: into_several(lib, x, f, False, kind=list), x, what=name)
    with pytest.raises(TypeError, match="2 tensors as destinations"):
        f(tritorch, tritorch.tensor(x), out=tritorch.empty(0))


@pytest.mark.parametrize("name", ("cumsum", "cumprod", "sum", "prod"))
def test_sums_are_made_in_the_dtype_of_their_destination(name, cuda):
    for device in ("cpu", cuda):
        for dtype in ("float64", "int32", "int64"):
            agree(lambda lib, x, dtype=dtype: into_one(lib, x, lambda lib, x, **kw: getattr(lib, name)(x, 1, **kw), True, dtype)[1],
                  X * 3, rtol=1e-12, device=device, what=f"{name} {dtype}")
    agree(lambda lib, x: getattr(lib, name)(x, 1, dtype=lib.float64, out=x.sum(1) if name in ("sum", "prod") else x.clone()), X, what=name)
    if name not in ("sum", "prod"):
        agree(lambda lib, x: getattr(x, name + "_")(0, dtype=lib.float64), X, what=name)
        agree(lambda lib, x: getattr(x, name + "_")(0), X.astype("int8"), what=name)


def test_written_in_place_a_tensor_without_elements_keeps_its_shape():
    for name in ("ldexp_", "nextafter_", "float_power_", "add_"):
        for dtype in ("bfloat16", "float64"):
            for n in (1, 4):
                agree(lambda lib, x, name=name, n=n: getattr(x[:, :n].clone(), name)(x), (X[:0], dtype), what=f"{name} {n}")
    agree(lambda lib, x: x.float_power_(2), X)


def test_a_destination_that_is_the_input(cuda):
    def programs(torch):
        return (lambda x: torch.max(x, x.flip(0), out=x), lambda x: torch.diff(torch.cat([x[:, :1], x], 1), out=x),
                lambda x: torch.cummax(x, 1, out=(x, torch.empty(0, dtype=torch.int64, device=x.device)))[0])

    for device in ("cpu", cuda):
        for k in range(3):
            def run(lib, x, k=k):
                made = programs(lib)[k](x)
                return made is x, x

            agree(run, X, device=device)


def test_nonzero_as_a_tuple_has_no_destination():
    agree(lambda lib, x: lib.nonzero(x, as_tuple=True, out=lib.empty(0, dtype=lib.int64)), I)
