"""The decorator that packages put on symbolic functions: here their arguments are numbers and terms as they come."""


def parse_args(*arg_descriptors):
    """A decorator that returns the function itself."""
    return lambda fn: fn
