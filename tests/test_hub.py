"""torch.hub: checkpoints that are downloaded once, here from file: URLs."""
import hashlib

import pytest

import tritorch as torch
from tritorch import hub


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
