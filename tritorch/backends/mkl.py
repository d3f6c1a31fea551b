"""Intel's MKL; numpy brings its own BLAS."""


def is_available():
    """Always False."""
    return False
