"""Models of other people's repositories: a `hubconf.py` has functions that make them. Its code runs, so a repository has to be trusted."""
import contextlib
import importlib.util
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tritorch.errors import check, sentence

TRUSTED = "facebookresearch", "facebookincubator", "pytorch", "fairinternal"      # owners that PyTorch trusts


def archive_url(owner, name, ref):
    """Where GitHub has the files of a repository as a zip file."""
    return f"https://github.com/{owner}/{name}/zipball/{ref}"


def list(github, force_reload=False, skip_validation=False, trust_repo="check", verbose=True):
    """The names of the functions that the hubconf.py of a repository, "owner/name" or "owner/name:branch", offers."""
    module = _hubconf(_repository("list", github, force_reload, skip_validation, trust_repo, verbose))
    return [name for name in dir(module) if callable(getattr(module, name)) and not name.startswith("_")]


def help(github, model, force_reload=False, skip_validation=False, trust_repo="check"):
    """The docstring of one of those functions."""
    return _entry("help", _hubconf(_repository("help", github, force_reload, skip_validation, trust_repo, True)), model).__doc__


def load(repo_or_dir, model, *args, source="github", trust_repo="check", force_reload=False, verbose=True, skip_validation=False, **kwargs):
    """What the function `model` of a repository's hubconf.py returns for these arguments.

    repo_or_dir: a folder with source="local", else "owner/name" or "owner/name:branch" on GitHub, which is downloaded once to a folder of
    `get_dir()`. trust_repo: True says that its code may run, "check" and False ask on the terminal, "check" only for owners and
    repositories that are new. A hubconf.py that imports torch needs `tritorch.as_torch()` before.
    Errors: ValueError for another source, or a branch that the repository does not have; RuntimeError for packages that it needs, and for
    a name that it does not offer.

    >>> import pathlib, tempfile, tritorch as torch
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "hubconf.py").write_text("import tritorch\\ndef net(width): return tritorch.nn.Linear(width, 1)")
    >>> torch.hub.load(folder, "net", 3, source="local")
    Linear(in_features=3, out_features=1, bias=True)
    """
    check(source in ("github", "local"), "load", "source as 'github' or 'local'", repr(source), error=ValueError)
    folder = Path(repo_or_dir)
    if source == "github":
        folder = _repository("load", repo_or_dir, force_reload, skip_validation, trust_repo, verbose)
    with _on_path(folder):
        return _entry("load", _hubconf(folder), model)(*args, **kwargs)


# ------------------------------------------------------------------ hubconf.py
@contextlib.contextmanager
def _on_path(folder):
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _hubconf(folder):
    spec = importlib.util.spec_from_file_location("hubconf.py", Path(folder, "hubconf.py"))
    module = importlib.util.module_from_spec(spec)
    with _on_path(folder):
        spec.loader.exec_module(module)
    return module


def _entry(name, module, model):
    check(isinstance(model, str), name, "the name of a function as model", type(model).__name__, error=ValueError)
    missing = [package for package in getattr(module, "dependencies", ()) if importlib.util.find_spec(package) is None]
    check(not missing, name, f"the packages {', '.join(module.dependencies)}" if missing else "", f"no {', '.join(missing)}")
    found = getattr(module, model, None)
    check(callable(found), name, "a name that hubconf.py offers", repr(model))
    return found


# ------------------------------------------------------------------ GitHub
def _repository(name, github, force_reload, skip_validation, trust_repo, verbose):
    """The folder of a repository, downloaded unless it is there."""
    from tritorch.hub import download_url_to_file, get_dir

    repository, _, ref = github.partition(":")
    check(repository.count("/") == 1, name, "owner/name or owner/name:branch", repr(github), error=ValueError)
    owner, project = repository.split("/")
    home = Path(get_dir())
    home.mkdir(parents=True, exist_ok=True)
    ref = ref or _branch(name, home, owner, project)
    folder = home / f"{owner}_{project}_{ref.replace('/', '_')}"
    _ask(home, owner, project, folder, trust_repo)
    if folder.exists() and not force_reload:
        if verbose:
            sys.stderr.write(f"Using cache found in {folder}\n")
        return folder
    if not skip_validation:
        _validate(name, owner, project, ref)
    archive, unpacked = folder.with_suffix(".zip"), folder.with_suffix(".partial")
    url = archive_url(owner, project, ref)
    sys.stderr.write(f'Downloading: "{url}" to {archive}\n')
    try:
        download_url_to_file(url, archive, progress=False)
        with zipfile.ZipFile(archive) as files:
            files.extractall(unpacked)                                   # leaves out what would lie outside
        (inner,) = unpacked.iterdir()
        shutil.rmtree(folder, ignore_errors=True)
        inner.rename(folder)
    finally:
        archive.unlink(missing_ok=True)
        shutil.rmtree(unpacked, ignore_errors=True)
    return folder


def _branch(name, home, owner, project):
    """The branch of a repository that is named without one: main, where there is such a one."""
    try:
        with urlopen(f"https://github.com/{owner}/{project}/tree/main/"):
            return "main"
    except HTTPError as error:
        if error.code == 404:
            return "master"
        raise
    except URLError as error:
        there = [ref for ref in ("main", "master") if (home / f"{owner}_{project}_{ref}").exists()]
        if there:
            return there[0]
        raise RuntimeError(sentence(name, f"GitHub, or {owner}/{project} in {home}", error.reason)) from error


def _ask(home, owner, project, folder, trust_repo):
    """Go on only with a repository that is trusted; what is trusted from now on is noted in the file `trusted_list`."""
    listed, word = home / "trusted_list", f"{owner}_{project}"
    known = listed.read_text().split("\n") if listed.exists() else []
    trusted = word in known or folder.exists() or owner in TRUSTED
    if trust_repo is False or trust_repo == "check" and not trusted:
        answer = input(f"The repository {word} does not belong to the list of trusted repositories and as such cannot be downloaded. "
                       "Do you trust this repository and wish to add it to the trusted list of repositories (y/N)?").lower()
        check(answer in ("y", "yes", "n", "no", ""), "load", "y or n", repr(answer), error=ValueError)
        if answer not in ("y", "yes"):
            raise Exception("Untrusted repository.")                     # the type that PyTorch raises
    if not trusted:
        with open(listed, "a") as file:
            file.write(word + "\n")


def _validate(name, owner, project, ref):
    """ValueError where a ref is none of the repository's own branches and tags: GitHub answers for those of forks, too."""
    token = os.environ.get("GITHUB_TOKEN")
    headers = {"Accept": "application/vnd.github.v3+json", **({"Authorization": f"token {token}"} if token else {})}
    for kind in ("branches", "tags"):
        page, answer = 1, True
        while answer:
            url = f"https://api.github.com/repos/{owner}/{project}/{kind}?per_page=100&page={page}"
            with urlopen(Request(url, headers=headers)) as file:
                answer = json.load(file)
            if any(entry["name"] == ref or entry["commit"]["sha"].startswith(ref) for entry in answer):
                return
            page += 1
    check(False, name, f"a branch or tag of {owner}/{project}", repr(ref), error=ValueError)
