"""Apple's GPUs are not supported."""


def is_available():
    """Always False."""
    return False


def is_built():
    """Always False."""
    return False
