"""The admin key: from where it comes, and that nothing tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import StartupError
from service.settings import Settings, load_settings
from tests.several.conftest import KEY


def test_it_is_given_itself_or_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load_settings()[0].read_admin_key() is None
    monkeypatch.setenv("QKV_ADMIN_KEY", "")
    assert load_settings()[0].read_admin_key() is None
    monkeypatch.setenv("QKV_ADMIN_KEY", KEY)
    assert load_settings()[0].read_admin_key() == KEY
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    monkeypatch.setenv("QKV_ADMIN_KEY_FILE", str(file))
    with pytest.raises(StartupError, match=r"QKV_ADMIN_KEY_FILE: the key itself is given too"):
        load_settings()
    monkeypatch.delenv("QKV_ADMIN_KEY")
    assert load_settings()[0].read_admin_key() == KEY


@pytest.mark.parametrize("key", ["k" * 15, "a key with spaces in it", "\x7f" * 20, "ключключключключключ", "k" * 257])
def test_one_that_is_none_is_refused_and_not_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str) -> None:
    file = tmp_path / "key"
    file.write_text(key)
    for variable, value in (("QKV_ADMIN_KEY", key), ("QKV_ADMIN_KEY_FILE", str(file))):
        monkeypatch.setenv(variable, value)
        with pytest.raises(StartupError, match=f"{variable}: a key has 16 to 256 visible ASCII characters") as error:
            load_settings()
        assert key not in str(error.value)
        monkeypatch.delenv(variable)


def test_a_file_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        monkeypatch.setenv("QKV_ADMIN_KEY_FILE", str(path))
        with pytest.raises(StartupError, match=r"QKV_ADMIN_KEY_FILE: cannot be read: .*none|cannot be read: Is a dir"):
            load_settings()


def test_other_faults_do_not_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_ADMIN_KEY", KEY)
    monkeypatch.setenv("QKV_ADMIN_KEYS", KEY)
    monkeypatch.setenv("QKV_PORT", "banana")
    with pytest.raises(StartupError) as error:
        load_settings()
    assert "QKV_ADMIN_KEYS is unknown" in str(error.value)
    assert KEY not in str(error.value)
    monkeypatch.delenv("QKV_PORT")
    for shown in (repr, str):
        assert KEY not in shown(Settings(admin_key=KEY))
    assert KEY not in Settings(admin_key=KEY).model_dump_json()


def test_the_repository_is_directories_that_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("QKV_REPOSITORY", f"{tmp_path}/one:{tmp_path}/other:")
    assert load_settings()[0].repository_dirs == (tmp_path / "one", tmp_path / "other")
    monkeypatch.setenv("QKV_REPOSITORY", f"{tmp_path}/one:{tmp_path}/none")
    with pytest.raises(StartupError, match=rf"QKV_REPOSITORY: {tmp_path}/none is no directory"):
        load_settings()
