"""oneDNN is not used."""


def is_available():
    """Always False."""
    return False
