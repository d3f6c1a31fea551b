"""Which Python function executes an opcode."""

_handlers = {}
_control = set()


def instruction(*prefixes, control=False):
    """Register a function of (machine, instruction) for opcodes that begin with one of `prefixes`, whole words; the longest one wins.
    `control`: it may send lanes elsewhere, make them wait or end them."""
    def register(function):
        for prefix in prefixes:
            assert prefix not in _handlers, prefix
            _handlers[prefix] = function
        if control:
            _control.add(function)
        return function

    return register


def find(opcode):
    """(function, whether it is control flow); (None, False) where nothing is registered."""
    prefix = opcode
    while prefix:
        if prefix in _handlers:
            function = _handlers[prefix]
            return function, function in _control
        prefix = prefix.rpartition(".")[0]
    return None, False
