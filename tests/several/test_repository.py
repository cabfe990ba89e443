"""Bundles on disk, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import NotFoundError, RequestError
from service.repository import Repository, bundles_in
from tests.several.conftest import write_bundle


def names(repository: Repository, *others: Path) -> list[tuple[str, str]]:
    return sorted((name, found.path.name) for name, found in repository.scan(others))


def test_a_bundle_is_found_by_its_model_and_by_its_folder(tmp_path: Path) -> None:
    write_bundle(tmp_path / "folder", "org/model")
    repository = Repository((tmp_path,))
    assert names(repository) == [("org/model", "folder")]
    for name in ("org/model", "folder"):
        assert repository.find(name).path == tmp_path / "folder"
    for name in ("model", "org", "fold", "Folder", f"{tmp_path}/folder", "../folder", "folder/", ""):
        with pytest.raises(NotFoundError, match="no bundle of this name"):
            repository.find(name)


def test_a_model_comes_before_a_folder_of_the_same_name(tmp_path: Path) -> None:
    write_bundle(tmp_path / "x", "y")
    write_bundle(tmp_path / "y", "z")
    repository = Repository((tmp_path,))
    assert repository.find("y").path.name == "x"
    assert repository.find("z").path.name == "y"


def test_bundles_of_one_model_are_found_by_their_folders(tmp_path: Path) -> None:
    for directory, folder in (("one", "m-1"), ("one", "m"), ("other", "m-2")):
        write_bundle(tmp_path / directory / folder, "m")
    repository = Repository((tmp_path / "one", tmp_path / "other"))
    assert names(repository) == [("m", "m"), ("m-1", "m-1"), ("m-2", "m-2")]
    for folder in ("m", "m-1", "m-2"):
        assert repository.find(folder).path.name == folder
    write_bundle(tmp_path / "other" / "m", "m")
    with pytest.raises(RequestError, match=rf"{tmp_path}/one/m, {tmp_path}/other/m"):
        repository.find("m")


def test_a_link_is_no_further_bundle_and_what_begins_with_a_dot_is_none(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m-1", "m")
    write_bundle(tmp_path / ".m-2.tmp-1", "m")
    (tmp_path / "default").symlink_to("m-1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert bundles_in(tmp_path) == [tmp_path / "m-1"]
    assert names(Repository((tmp_path,)), tmp_path / "default") == [("m", "m-1")]
    assert Repository((tmp_path,)).find("m", [tmp_path / "default"]).path == tmp_path / "m-1"


def test_a_bundle_elsewhere_and_a_directory_that_has_gone(tmp_path: Path) -> None:
    other = write_bundle(tmp_path / "elsewhere" / "m-1", "m")
    repository = Repository((tmp_path / "gone",))
    assert names(repository) == []
    assert repository.find("m", [other]).path == other
    assert names(repository, other, tmp_path / "elsewhere" / "gone") == [("gone", "gone"), ("m", "m-1")]


def test_one_that_cannot_be_read_has_the_name_of_its_folder_and_its_fault(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "manifest.json").write_text("{")
    ((name, found),) = Repository((tmp_path,)).scan()
    assert (name, found.model) == ("m", None)
    assert "manifest.json: cannot be read" in found.fault
    assert Repository((tmp_path,)).find("m") == found
