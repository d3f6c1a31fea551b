"""What a report of a problem should say of the machine: `python -m tritorch.utils.collect_env`, the same as `python -m tritorch info`."""
import contextlib
import io

from tritorch.__main__ import info


def get_pretty_env_info():
    """Versions, devices and the cache of kernels, as text.

    >>> get_pretty_env_info().startswith("tritorch ")
    True
    """
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        info()
    return text.getvalue()


def main():
    """Print it."""
    print(get_pretty_env_info(), end="")


if __name__ == "__main__":
    main()
