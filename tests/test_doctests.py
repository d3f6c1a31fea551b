"""The examples in the operators' manuals run: families make operators far from the modules whose docstrings test_docs runs."""
import doctest
import linecache

import pytest

import tritorch
import tritorch.ops.stft  # noqa: F401
import tritorch.special  # noqa: F401  which loads operators of its own

EXAMPLES = {name: op.__doc__ for name, op in tritorch.dispatch.registry.items() if op.__doc__ and ">>>" in op.__doc__}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_operator(name, monkeypatch):
    monkeypatch.setattr(linecache, "checkcache", lambda filename=None: None)    # doctest looks at all files before each docstring
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {name: tritorch.dispatch.registry[name]}, name, None, 0)
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(test).failed == 0
