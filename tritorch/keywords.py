"""What parameters are called besides: keywords of numpy's and of PyTorch's signatures that mean a parameter of another name."""
import functools

NUMPY = {"axis": "dim", "keepdims": "keepdim"}
OPERANDS = {**NUMPY, "x": "input", "a": "input", "x1": "input", "x2": "other"}
OWN = {"pow": {"exponent": "other"}, "heaviside": {"values": "other"}, "transpose": {"axis0": "dim0", "axis1": "dim1"}}


def meant(op, keyword):
    """The parameter of the operator of that name which a keyword means that is none of its parameters' names.

    >>> meant("pow", "exponent"), meant("sum", "axis"), meant("sum", "exponent")
    ('other', 'dim', 'exponent')
    """
    if keyword == "n" and "_polynomial_" in op:
        return "other"
    return OWN.get(op, OPERANDS).get(keyword) or OPERANDS.get(keyword, keyword)


def also(**second):
    """A function that takes second names of its parameters as well: `also(second="first")`.

    >>> also(times="count")(lambda text, count: text * count)("ab", times=2)
    'abab'
    """
    def renamed(f):
        @functools.wraps(f)
        def function(*args, **kw):
            return f(*args, **{second.get(name, name): value for name, value in kw.items()})

        return function

    return renamed
