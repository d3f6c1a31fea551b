"""The folder on disk where what took time is kept for the next process."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def cache_folder() -> Path:
    """TRITORCH_CACHE_DIR, else ~/.cache/tritorch."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TRITORCH_CACHE_DIR") or Path(home) / "tritorch")


def write_atomically(path: Path, data: bytes) -> None:
    """Other processes see the old file or the whole new one."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
