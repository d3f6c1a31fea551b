"""Checkpoints from the web: downloaded once, kept in a folder of the user's, held against the hash in their name; and models of
repositories (see `tritorch/hub_repositories.py`)."""
import hashlib
import os
import re
import sys
import uuid
from pathlib import Path
from urllib.parse import unquote, urlparse
from urllib.request import Request, urlopen

from tritorch import serialization
from tritorch.hub_repositories import help, list, load

__all__ = ["download_url_to_file", "get_dir", "help", "list", "load", "load_state_dict_from_url", "set_dir"]

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")                               # the eight digits in resnet18-f37072fd.pth
CHUNK = 1 << 17
chosen = None                                                            # what set_dir was told


class tqdm:
    """A progress bar of few words on stderr, for programs that take it from here; the package of this name can do more.

    >>> with tqdm(total=2, disable=True) as bar:
    ...     bar.update(1)
    >>> [x for x in tqdm([1, 2], disable=True)]
    [1, 2]
    """

    def __init__(self, iterable=None, total=None, disable=False, unit="it", *args, **kwargs):
        self.iterable, self.disable, self.unit, self.n = iterable, disable, unit, 0
        self.total = len(iterable) if total is None and hasattr(iterable, "__len__") else total

    def update(self, n=1):
        """Count n more."""
        self.n += n
        if not self.disable:
            sys.stderr.write(f"\r{self.n} of {'?' if self.total is None else self.total} {self.unit}")
            sys.stderr.flush()

    def close(self):
        """End the line."""
        if not self.disable:
            self.disable = True
            sys.stderr.write("\n")

    def set_description(self, desc=None, refresh=True):
        """Nothing: there is no room for a description."""

    def __iter__(self):
        for x in self.iterable:
            yield x
            self.update()
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def get_dir():
    """The folder of the hub: what `set_dir` was told, else $TORCH_HOME/hub, $XDG_CACHE_HOME/torch/hub or ~/.cache/torch/hub."""
    return os.path.join(_get_torch_home(), "hub") if chosen is None else chosen


def set_dir(d):
    """Make `d` the folder of the hub."""
    global chosen
    chosen = os.path.expanduser(d)


def _get_torch_home():
    return os.path.expanduser(os.getenv("TORCH_HOME") or os.path.join(os.getenv("XDG_CACHE_HOME") or "~/.cache", "torch"))


def download_url_to_file(url, dst, hash_prefix=None, progress=True):
    """Write what lies at `url` to the file `dst`, which is there only when it is whole.

    hash_prefix: how the SHA-256 of the content has to begin, else RuntimeError. progress: count the bytes on stderr.
    """
    dst = Path(dst).expanduser()
    digest, count = hashlib.sha256(), 0
    part = dst.with_name(f"{dst.name}.{uuid.uuid4().hex}.partial")
    try:
        with open(part, "xb") as file, urlopen(Request(url, headers={"User-Agent": "torch.hub"})) as source:
            size = source.headers.get("Content-Length", "?")
            while chunk := source.read(CHUNK):
                file.write(chunk)
                digest.update(chunk)
                count += len(chunk)
                if progress:
                    sys.stderr.write(f"\r{dst.name}: {count} of {size} bytes")
        if progress:
            sys.stderr.write("\n")
        if hash_prefix is not None and not digest.hexdigest().startswith(hash_prefix):
            got = digest.hexdigest()
            raise RuntimeError(f"download_url_to_file: expected a SHA-256 that begins with {hash_prefix!r}, got {got!r} from {url}")
        part.replace(dst)
    finally:
        part.unlink(missing_ok=True)


def load_state_dict_from_url(url, model_dir=None, map_location=None, progress=True, check_hash=False, file_name=None, weights_only=True):
    """`tritorch.load` of the checkpoint at `url`, which is downloaded to `model_dir` unless it is there.

    model_dir: `get_dir()`/checkpoints unless given. file_name: the last part of the URL unless given. check_hash: the name holds
    digits of the content's SHA-256 (`resnet18-f37072fd.pth`), and the content has to match. What it holds is read by `load`.
    """
    folder = Path(get_dir(), "checkpoints") if model_dir is None else Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name or unquote(os.path.basename(urlparse(url).path))
    path = folder / name
    if not path.exists():
        sys.stderr.write(f'Downloading: "{url}" to {path}\n')
        digits = HASH_REGEX.search(name) if check_hash else None
        download_url_to_file(url, path, digits.group(1) if digits else None, progress)
    return serialization.load(path, map_location, weights_only=weights_only)
