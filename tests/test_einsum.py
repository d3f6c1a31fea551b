"""einsum and tensordot: the whole grammar against PyTorch and numpy, the errors, gradients, and what a contraction costs."""
import numpy as np
import pytest

import tritorch as T
from tritorch.ops.einsum import einsum, tensordot
from tritorch.tensor import from_array


def draw(*shape, seed=0):
    return np.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape))


EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)), ("ba", (2, 3)), ("bA", (2, 3)), ("ij->ji", (2, 3)), ("ij->", (2, 3)),
    ("ij->j", (2, 3)), ("ii", (3, 3)), ("ii->i", (3, 3)), ("iij->j", (3, 3, 2)), ("iji->ji", (3, 2, 3)), ("iii->i", (3, 3, 3)),
    ("i,i", (3,), (3,)), ("i,j->ij", (3,), (4,)), ("i,i->i", (3,), (3,)), ("ij,ij->ij", (2, 3), (2, 3)), ("ij,j->ij", (2, 3), (3,)),
    ("ij,i->j", (2, 3), (2,)), ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)), ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)),
    ("bhqk,bkhd->bqhd", (2, 4, 3, 6), (2, 6, 4, 5)), ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("...ij,...jk->...ik", (2, 1, 2, 3), (4, 3, 4)), ("...a,...a->...", (2, 1, 3), (4, 3)), ("i...", (2, 3, 4)),
    ("...i->i...", (2, 3, 4)), ("...ij->ij", (5, 2, 3)), ("ij->...ij", (2, 3)), ("...", (3, 1)), ("...,...", (3, 1), (1, 4)),
    ("a...b,b->...a", (2, 3, 4), (4,)), ("", ()), ("->", ()), (",->", (), ()), (",i->i", (), (3,)),
    (" i j , j k -> i k ", (2, 3), (3, 4)), ("i,i->i", (3,), (1,)), ("ij,jk->ik", (2, 3), (1, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("ij,jk,kl,lm->im", (2, 3), (3, 4), (4, 5), (5, 2)),
    ("a,ab,abc->abc", (2,), (2, 3), (2, 3, 4)), ("ab,bc,ca->", (2, 3), (3, 4), (4, 2)), ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)),
    ("ijk,ilm,njm,nlk,abc->", (2, 3, 2), (2, 4, 3), (2, 3, 3), (2, 4, 2), (1, 2, 3)), ("ij,kl->ijkl", (2, 3), (4, 5)),
    ("ijk,jk->", (2, 3, 4), (3, 4)), ("ij,jk->ik", (2, 0), (0, 4)), ("ij,jk->ik", (0, 3), (3, 4)),
    ("abcd,abce->abde", (2, 3, 4, 2), (2, 3, 4, 5)), ("Ab,bA->A", (2, 3), (3, 2)), ("ij,ik->jk", (5, 2), (5, 3)),
    ("zij,zij->z", (3, 2, 4), (3, 2, 4)), ("nchw,nchw,c->nc", (2, 3, 2, 2), (2, 3, 2, 2), (3,)),
]


@pytest.mark.parametrize("equation, shapes", [(e, s) for e, *s in EQUATIONS])
def test_equations_and_gradients_are_pytorchs(equation, shapes):
    torch = pytest.importorskip("torch")
    arrays = [draw(*s, seed=k) for k, s in enumerate(shapes)]
    ours, theirs = [from_array(a.copy()).requires_grad_() for a in arrays], [torch.from_numpy(a.copy()).requires_grad_() for a in arrays]
    out, want = einsum(equation, *ours), torch.einsum(equation, *theirs)
    assert tuple(out.shape) == tuple(want.shape)
    np.testing.assert_allclose(out.detach().array, want.detach().numpy(), atol=1e-12)
    weights = draw(*want.shape, seed=9)
    (out * from_array(weights)).sum().backward()
    (want * torch.from_numpy(weights)).sum().backward()
    for mine, other in zip(ours, theirs):
        np.testing.assert_allclose(mine.grad.array, other.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("equation, shapes", [(e, s) for e, *s in EQUATIONS if "..." not in e and e.strip("->,")][::4])
def test_equations_on_the_device(equation, shapes, cuda):
    arrays = [draw(*s, seed=k) for k, s in enumerate(shapes)]
    out = einsum(equation, *[from_array(a).to(cuda) for a in arrays])
    np.testing.assert_allclose(out.cpu().array, einsum(equation, *map(from_array, arrays)).array, atol=1e-12)


def test_list_form():
    a, b = from_array(draw(2, 3)), from_array(draw(3, 4))
    want = a.array @ b.array
    np.testing.assert_allclose(einsum(a, [0, 1], b, [1, 2], [0, 2]).array, want)
    np.testing.assert_allclose(einsum(a, [0, 1], b, [1, 2]).array, want)
    np.testing.assert_allclose(einsum(a, [..., 1], b, [1, 51], [..., 51]).array, want)
    np.testing.assert_allclose(einsum(a, [30, 1]).array, einsum("eB", a).array)
    np.testing.assert_allclose(einsum("ij,jk", [a, b]).array, want)


ERRORS = [
    ("ij,jk->ik", ((2, 3), (4, 4)), "sizes of j that broadcast at operand 1, got 3 and 4"),
    ("ij->k", ((2, 3),), "names of operands in the result, got k"), ("ij", ((2, 3, 4),), "as many names as dims for operand 0"),
    ("ij,ij", ((2, 3),), "2 operands, as in the equation, got 1"), ("ij->ii", ((2, 3),), "every name once in the result"),
    ("i1", ((2, 3),), "names a-z and A-Z"), ("ii", ((3, 1),), "one size for the repeated name i"), ("..ij", ((2, 3),), "at most one"),
    ("ij-k", ((2, 3),), "names a-z"), ("i...j...", ((2, 3),), "at most one ..."), ("ijk...", ((2, 3),), "as many names as dims"),
]


@pytest.mark.parametrize("equation, shapes, sentence", ERRORS)
def test_errors(equation, shapes, sentence):
    with pytest.raises(RuntimeError, match=sentence.replace(".", r"\.")):
        einsum(equation, *[from_array(draw(*s)) for s in shapes])


def test_no_operands():
    with pytest.raises(ValueError, match="at least one operand"):
        einsum("ij")
    with pytest.raises(ValueError, match="an equation and operands"):
        einsum()


def calls(fn):
    """Operators that ran, with the shapes they gave."""
    seen = []

    class Log(T.dispatch.Interpreter):
        def __call__(self, op, args, out):
            result = self.proceed(op, args, out)
            seen.append((op.__name__, tuple(result.shape)))
            return result

    with Log(), T.no_grad():
        fn()
    return seen


def test_attention_scores_are_one_product_without_copies():
    q, k = from_array(draw(2, 3, 4, 5)), from_array(draw(2, 6, 4, 5))
    names = [name for name, _ in calls(lambda: einsum("bqhd,bkhd->bhqk", q, k))]
    assert names.count("matmul") == 1 and set(names) <= {"matmul", "permute_dims"}


@pytest.mark.parametrize("swapped", [False, True])
def test_where_one_operand_must_be_copied_it_is_the_smaller(swapped):
    """The two summed dims lie in another order in each: the order of the larger operand is taken, first or second."""
    small, large = from_array(draw(4, 3, 2)), from_array(draw(5, 6, 3, 4))
    terms = [("lkm", small), ("ijkl", large)][::-1 if swapped else 1]
    seen = calls(lambda: einsum(",".join(term for term, _ in terms) + "->mij", *[x for _, x in terms]))
    assert [sorted(shape) for name, shape in seen if name == "copy_to"] == [sorted(small.shape)]


def test_small_intermediates_first():
    """(a b) (b c) (c) from the right: no a × c matrix."""
    a, b, c = from_array(draw(50, 40)), from_array(draw(40, 60)), from_array(draw(60))
    assert (50, 60) not in [shape for _, shape in calls(lambda: einsum("ab,bc,c->a", a, b, c))]


TENSORDOTS = [((2, 3), (4, 5), 0), ((2, 3), (3, 5), 1), ((2, 3, 4), (3, 4, 5), 2), ((2, 3), (3, 5), ([-1], [0])), ((2, 3), (2, 3), 2),
              ((2, 3, 4), (4, 5, 2), ([0, 2], [2, 0])), ((2, 1), (3, 5), 1), ((2, 3), (3, 5), (1, 0)), ((0, 3), (3, 2), 1)]


@pytest.mark.parametrize("a, b, dims", TENSORDOTS)
def test_tensordot_is_pytorchs(a, b, dims):
    torch = pytest.importorskip("torch")
    x, y = draw(*a), draw(*b, seed=1)
    plain = [[d] if isinstance(d, int) else d for d in dims] if isinstance(dims, tuple) else dims
    want = torch.tensordot(torch.from_numpy(x), torch.from_numpy(y), dims=plain).numpy()
    np.testing.assert_allclose(tensordot(from_array(x), from_array(y), dims).array, want, atol=1e-12)
    out = from_array(np.full(want.shape, np.nan))
    assert tensordot(from_array(x), from_array(y), dims, out=out) is out
    np.testing.assert_allclose(out.array, want, atol=1e-12)


def test_tensordot_errors():
    x, y = from_array(draw(2, 3)), from_array(draw(4, 5))
    for dims, sentence in ((1, "of one size"), (3, "0 to 2 dims"), (-1, "0 to 2 dims"), (([0, 1], [0]), "as many dims")):
        with pytest.raises(RuntimeError, match=sentence):
            tensordot(x, y, dims)
