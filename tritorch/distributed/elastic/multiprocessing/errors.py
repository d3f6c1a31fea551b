"""What a process that fails leaves for its launcher."""
import functools
import json
import os
import time
import traceback

__all__ = ["record"]


def record(fn, error_handler=None):
    """Decorator of a program's main function: an exception is written to the file that the launcher has named in TORCHELASTIC_ERROR_FILE,
    as JSON of its message, its traceback and the time in seconds since 1970, and goes on. `exit(0)` inside is a return.

    >>> from tritorch.distributed.elastic.multiprocessing.errors import record
    >>> @record
    ... def main():
    ...     return 3
    >>> main()
    3
    """
    @functools.wraps(fn)
    def recorded(*args, **kwargs):
        try:
            return fn(*args, **kwargs)
        except SystemExit as end:
            if end.code:
                raise
            return None
        except Exception as error:
            if error_handler is not None:
                error_handler.record_exception(error)
            else:
                _write(error)
            raise

    return recorded


def _write(error):
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        told = {"py_callstack": "".join(traceback.format_exception(error)), "timestamp": str(int(time.time()))}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": told}}, file)
