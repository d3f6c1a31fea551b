"""`tritorch.__version__`: the version of PyTorch whose names and semantics these are, with our own behind the plus sign.

Programs ask `torch.__version__` which functions they can count on, so that is what it answers; `tritorch.version.tritorch` is the release.
"""
import re
from collections.abc import Iterable

__all__ = ["TorchVersion"]

_VERSION = r"""(?xi)v?(?P<release>\d+(?:\.\d+)*)
    (?:[-_.]?(?P<phase>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<number>\d*))?
    (?:(?:-|[-_.]?(?:post|rev|r)[-_.]?)(?P<post>\d+))?
    (?:[-_.]?(?P<dev>dev)[-_.]?(?P<day>\d*))?
    (?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?"""
_FINAL = "z"                                                             # after every letter of an unfinished release


def _order(version):
    """What versions are compared by, as PEP 440 orders them; None for what is no version."""
    found = re.fullmatch(_VERSION, version.strip())
    if found is None:
        return None
    release = tuple(map(int, found["release"].split(".")))
    while release and release[-1] == 0:
        release = release[:-1]
    phase = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}.get(found["phase"], found["phase"])
    alone = found["dev"] and not phase and not found["post"]             # 2.0.dev1 comes before 2.0a1
    unfinished = "" if alone else phase or _FINAL
    day = (0, int(found["day"] or 0)) if found["dev"] else (1, 0)
    local = [(1, int(part), "") if part.isdigit() else (0, 0, part.lower()) for part in re.split("[-_.]", found["local"] or "") if part]
    return release, unfinished, int(found["number"] or 0), int(found["post"] or -1), day, local


class TorchVersion(str):
    """A version as a text that is compared as versions are: with texts, with tuples of numbers, with `packaging.version.Version`.

    >>> import tritorch as torch
    >>> torch.__version__ >= (2, 0), torch.__version__ >= "2.9.1", torch.torch_version.TorchVersion("2.10.0") < "2.9"
    (True, True, False)
    >>> torch.__version__.split("+")[0]
    '2.13.0'
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def _compare(self, other, method):
        if not isinstance(other, Iterable) and not hasattr(other, "release"):
            return NotImplemented
        text = ".".join(map(str, other)) if isinstance(other, Iterable) and not isinstance(other, str) else str(other)
        ours, theirs = _order(self), _order(text)
        if ours is None or theirs is None:                               # one of them is just a text
            return getattr(str, method)(self, text)
        return getattr(ours, method)(theirs)

    def __lt__(self, other):
        return self._compare(other, "__lt__")

    def __le__(self, other):
        return self._compare(other, "__le__")

    def __gt__(self, other):
        return self._compare(other, "__gt__")

    def __ge__(self, other):
        return self._compare(other, "__ge__")

    def __eq__(self, other):
        return self._compare(other, "__eq__")

    def __ne__(self, other):
        return not self == other


release = "0.1.0"
__version__ = TorchVersion(f"2.13.0+tritorch.{release}")
