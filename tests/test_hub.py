"""torch.hub: checkpoints and repositories that are downloaded once, here from file: URLs."""
import hashlib
import io
import json
import re
import shutil
import sys
from pathlib import Path
from urllib.error import URLError

import pytest

import tritorch as torch
from tritorch import hub, hub_repositories


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "chosen", None)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "hub"


def published(folder, **tensors):
    """A checkpoint whose name holds the beginning of its hash, as the zoos of models have them; its URL."""
    torch.save(tensors, folder / "plain")
    digest = hashlib.sha256((folder / "plain").read_bytes()).hexdigest()
    return (folder / "plain").rename(folder / f"net one-{digest[:8]}.safetensors").as_uri()


def test_a_checkpoint_is_downloaded_once(home, tmp_path, capsys):
    url = published(tmp_path, weight=torch.arange(3))
    assert torch.hub.load_state_dict_from_url(url, check_hash=True, map_location="cpu")["weight"].tolist() == [0, 1, 2]
    name = hub.unquote(url.rsplit("/", 1)[1])
    assert [p.name for p in (home / "checkpoints").iterdir()] == [name] and "Downloading" in capsys.readouterr().err
    (tmp_path / name).unlink()
    assert torch.hub.load_state_dict_from_url(url, progress=False)["weight"].shape == (3,) and not capsys.readouterr().err
    other = tmp_path / "other"
    with pytest.raises(OSError):
        torch.hub.load_state_dict_from_url(url, other)
    assert not list(other.iterdir())                                     # nothing half done is left


def test_content_that_is_not_what_the_name_says(home, tmp_path):
    url = published(tmp_path, weight=torch.ones(2))
    with pytest.raises(RuntimeError, match="begins with 'abcd0123'"):
        torch.hub.load_state_dict_from_url(url, check_hash=True, progress=False, file_name="net-abcd0123.safetensors")
    assert not list((home / "checkpoints").iterdir())


def test_where_the_folder_is(home, tmp_path, monkeypatch):
    assert torch.hub.get_dir() == str(home)
    monkeypatch.delenv("TORCH_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert torch.hub.get_dir() == str(tmp_path / "torch" / "hub")
    torch.hub.set_dir(str(tmp_path))
    assert torch.hub.get_dir() == str(tmp_path)


# ------------------------------------------------------------------ repositories
HUBCONF = """
dependencies = ["math"]
import beside


def net(width, bias=True):
    "A layer."
    import tritorch
    return tritorch.nn.Linear(width, beside.OUT, bias)


def _hidden():
    pass
"""


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "owner-net-0123abc"
    folder.mkdir()
    (folder / "hubconf.py").write_text(HUBCONF)
    (folder / "beside.py").write_text("OUT = 5\n")
    return folder


def test_a_folder(repository):
    net = hub.load(str(repository), "net", 3, source="local", bias=False)
    assert net.weight.shape == (5, 3) and net.bias is None and str(repository) not in sys.path
    for wrong, error, told in ((lambda: hub.load(repository, "other", source="local"), RuntimeError, "a name that hubconf.py offers"),
                               (lambda: hub.load(repository, None, source="local"), ValueError, "the name of a function"),
                               (lambda: hub.load(repository, "net", source="gitlab"), ValueError, "got 'gitlab'"),
                               (lambda: hub.load("net", "net"), ValueError, "owner/name")):
        with pytest.raises(error, match=told):
            wrong()
    (repository / "hubconf.py").write_text(HUBCONF.replace("math", "no_such_package"))
    with pytest.raises(RuntimeError, match="got no no_such_package"):
        hub.load(repository, "net", 3, source="local")


def test_a_repository_is_downloaded_once_where_it_is_trusted(home, repository, monkeypatch, capsys):
    archive = shutil.make_archive(str(repository), "zip", repository.parent, repository.name)
    asked, answers = [], ["n", "perhaps", "y"]
    monkeypatch.setattr(hub_repositories, "archive_url", lambda *words: asked.append(words) or Path(archive).as_uri())
    monkeypatch.setattr("builtins.input", lambda text: answers.pop(0))
    options = dict(skip_validation=True)
    with pytest.raises(Exception, match="Untrusted repository"):
        hub.load("owner/net:v1", "net", 3, **options)
    with pytest.raises(ValueError, match="expected y or n, got 'perhaps'"):
        hub.load("owner/net:v1", "net", 3, **options)
    assert not asked and hub.load("owner/net:v1", "net", 3, **options).weight.shape == (5, 3)
    assert asked == [("owner", "net", "v1")] and not answers and (home / "trusted_list").read_text() == "owner_net\n"
    assert hub.list("owner/net:v1") == ["net"] and hub.help("owner/net:v1", "net") == "A layer."
    assert len(asked) == 1 and "Using cache found in" in capsys.readouterr().err
    assert hub.load("owner/net:v1", "net", 2, force_reload=True, **options).weight.shape == (5, 2) and len(asked) == 2
    assert sorted(p.name for p in home.iterdir()) == ["owner_net_v1", "trusted_list"]


def test_branches_are_the_repositorys_own(home, monkeypatch):
    pages = {kind: [[{"name": name, "commit": {"sha": sha * 20}}], []] for kind, name, sha in (("branches", "main", "0f"),
                                                                                               ("tags", "v1", "ab"))}

    def answer(request):
        kind, page = re.search(r"/(\w+)\?per_page=100&page=(\d)$", request.full_url).groups()
        return io.BytesIO(json.dumps(pages[kind][int(page) - 1]).encode())

    monkeypatch.setattr(hub_repositories, "urlopen", answer)
    for ref in ("main", "v1", "abab"):
        hub_repositories._validate("load", "owner", "net", ref)
    with pytest.raises(ValueError, match="a branch or tag of owner/net, got 'fork'"):
        hub_repositories._validate("load", "owner", "net", "fork")


def test_without_the_web_there_is_what_was_downloaded(home, monkeypatch):
    monkeypatch.setattr(hub_repositories, "urlopen", lambda url: (_ for _ in ()).throw(URLError("no route")))
    home.mkdir(parents=True)
    with pytest.raises(RuntimeError, match="GitHub, or owner/net in .*, got no route"):
        hub.load("owner/net", "net", trust_repo=True)
    (home / "owner_net_master").mkdir()
    (home / "owner_net_master" / "hubconf.py").write_text("def net(): return 3")
    assert hub.load("owner/net", "net", trust_repo=True) == 3
