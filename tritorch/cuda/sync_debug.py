"""Who waits for a GPU: `set_sync_debug_mode` has calls that bring values to the host, and waits for streams, warn or raise."""
import warnings

from tritorch.errors import check

mode = [0]                                                               # 0: nothing, 1: a warning, 2: an error
LEVELS = {"default": 0, "warn": 1, "error": 2}


def told(what: str) -> None:
    """Called before the host waits, where the mode is not 0."""
    sentence = f"{what}: a synchronizing CUDA operation was called, and set_sync_debug_mode asks to be told"
    if mode[0] == 2:
        raise RuntimeError(sentence)
    warnings.warn(sentence, stacklevel=3)


def set_sync_debug_mode(debug_mode) -> None:
    """Tell of copies to the host and waits for a stream by a warning (1, "warn") or an error (2, "error"), or not (0, "default").
    `torch.cuda.synchronize` and waits for events are meant to wait, and are not told of."""
    wanted = "one of 0, 1, 2, 'default', 'warn', 'error'"
    level = LEVELS.get(debug_mode) if isinstance(debug_mode, str) else debug_mode
    check(level in (0, 1, 2), "set_sync_debug_mode", wanted, repr(debug_mode))
    mode[0] = int(level)


def get_sync_debug_mode() -> int:
    """The number of the mode that `set_sync_debug_mode` describes."""
    return mode[0]
