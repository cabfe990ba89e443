"""Models of the Hugging Face Hub: `ORG/NAME[@revision]` becomes a snapshot of the files that are needed.

Through `huggingface_hub`, whose cache, token, endpoint and offline mode hold here as everywhere: HF_HOME, HF_TOKEN,
HF_ENDPOINT, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import (
    ResolvedRevision,
    constants,
    errors,
    get_cached_repo_tree,
    resolve_revision,
    snapshot_download,
)
from huggingface_hub.utils.tqdm import tqdm

from export.errors import ExportError
from export.onnx_file import files_beside
from export.progress import Progress
from export.texts.ready.choose import ENDING, NO_CHOICE, Choice, choose_name

_MODULES = "modules.json"
_ID = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\w[\w.+-]*(?:/[\w.+-]+)*))?", re.ASCII)
# What is read of a model, in its own folder and in those of its modules.
_SETTINGS = (
    "config.json", _MODULES, "config_sentence_transformers.json", "sentence_*_config.json", "artifact.metadata",
    "adapter_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.*", "merges.txt", "*.model",
)  # fmt: skip
# The first of these that a folder has, with its shards, is all that is needed of its weights.
_WEIGHTS = (
    ("model.safetensors",),
    ("model.safetensors.index.json", "model-*.safetensors"),
    ("pytorch_model.bin",),
    ("pytorch_model.bin.index.json", "pytorch_model-*.bin"),
)
_MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class HubId:
    """repo: `ORG/NAME`. revision: a branch, a tag or a commit; None = the newest of the main branch."""

    repo: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """path: the directory in the hub's cache. commit: what the revision means. is_known: the hub told its files."""

    path: Path
    commit: str
    is_known: bool


def read_hub_id(source: str) -> HubId | None:
    """The model that a source names; None when it has not the form of one."""
    match = _ID.fullmatch(source)
    return None if match is None else HubId(match["repo"], match["revision"])


def fetch(hub_id: HubId, tell: Progress, choice: Choice = NO_CHOICE) -> Snapshot:
    """Download what is needed and not in the cache yet. Raises ExportError in one line.

    tell: called with (what is done, bytes, bytes in all; 0 = not known).
    """
    title = f"fetching {hub_id.repo} from {constants.ENDPOINT}"
    tell(title, 0, 0)
    try:
        revision = resolve_revision(hub_id.repo, revision=hub_id.revision)
        first = Path(snapshot_download(hub_id.repo, revision=revision, allow_patterns=[_MODULES], tqdm_class=_Silent))
        try:
            tree = get_cached_repo_tree(hub_id.repo, revision=revision)
        except errors.CachedRepoTreeNotFoundError:  # no network, and a cache that another client filled
            return Snapshot(first, revision.resolved, is_known=False)
        files, folders = [entry.path for entry in tree], read_folders(first / _MODULES)
        ready = ready_file(hub_id.repo, files, folders, choice.file)
        names = needed_files(files, folders, has_weights=ready is None or choice.is_compared)
        get = partial(_get, hub_id.repo, revision, lambda done, total: tell(title, done, total))
        path = get([*names, *([ready] if ready else [])])
        if ready is not None and (beside := numbers_beside(path, ready, files)):
            get(beside)
    except ExportError:
        raise
    except Exception as error:  # the client's own errors, those of its HTTP library, and those of the disk
        raise ExportError(_explain(error, hub_id)) from None
    return Snapshot(path, revision.resolved, is_known=True)


def _get(repo: str, revision: ResolvedRevision, tell: Callable[[int, int], None], names: Iterable[str]) -> Path:
    """Download files by their very names. -> where they lie"""
    patterns = [glob.escape(name) for name in names]
    return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, tqdm_class=_bar(tell)))


def needed_files(files: Iterable[str], folders: Sequence[str], *, has_weights: bool = True) -> list[str]:
    """Which files of a repository a bundle is made from, ready graphs aside.

    folders: of the modules, "" or "name/". has_weights: the weights are among them.
    """
    found: list[str] = []
    by_folder: dict[str, list[str]] = {}
    for file in files:
        folder, slash, name = file.rpartition("/")
        by_folder.setdefault(folder + slash, []).append(name)
    for folder in dict.fromkeys(["", *folders]):
        names = by_folder.get(folder, [])
        forms = _WEIGHTS if has_weights else ()
        wanted = (*_SETTINGS, *next((form for form in forms if form[0] in names), ()))
        found += [folder + name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)]
    return sorted(found)


def ready_file(repo: str, files: Collection[str], folders: Sequence[str], file: str | None) -> str | None:
    """The ready ONNX file that is served; None where the weights are.

    file: None = none was chosen. Raises ExportError as `choose_name` does.
    """
    model = next(iter(folders), "")
    present = [name for name in files if name.endswith(ENDING)]
    has_weights = any(model + form[0] in files for form in _WEIGHTS)
    return choose_name(repo, present, file, folder=model, has_weights=has_weights)


def numbers_beside(path: Path, ready: str, files: Collection[str]) -> list[str]:
    """The files of a repository that a fetched graph's numbers lie in, as the graph names them.

    Raises ExportError when it cannot be read. What the repository lacks is told when the graph is opened.
    """
    folder = PurePosixPath(ready).parent
    named = ((folder / name).as_posix() for name in files_beside(path / ready))
    return [name for name in named if name in files]


def read_folders(modules: Path) -> list[str]:
    """The folders that a modules.json names, as far as it can be read; what is wrong with it is told elsewhere."""
    try:
        entries = json.loads(modules.read_bytes())
        return [f"{entry['path']}/" if entry["path"] else "" for entry in entries]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


class _Silent(tqdm):
    """A bar that nobody sees."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"disable": True})  # type: ignore[no-untyped-call]


def _bar(tell: Callable[[int, int], None]) -> type[_Silent]:
    """What huggingface_hub counts with: tells of the bytes that are there, and of those in all."""

    class Told(_Silent):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.is_of_bytes = options.get("unit") == "B"

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            if self.is_of_bytes and self.total:
                tell(int(self.n), int(self.total))
            return None

    return Told


def _explain(error: Exception, hub_id: HubId) -> str:
    """What went wrong, and what helps, in one line."""
    repo, hub = hub_id.repo, constants.ENDPOINT
    cache = f"the cache ({constants.HF_HUB_CACHE})"
    text = str(error.__cause__ or error).strip().partition("\n")[0][:_MAX_SHOWN_CHARS]
    match error:
        case errors.HFValidationError():
            return f"{repo}: no such directory, and not a name that a model of the hub can have"
        case errors.GatedRepoError():
            return f"{repo}: ask for access at {hub}/{repo}, then give a token of that account: HF_TOKEN"
        case errors.RepositoryNotFoundError():
            return f"{repo}: no such directory, and {hub} has no such model, or it is private: HF_TOKEN gives a token"
        case errors.RevisionNotFoundError():
            return f"{repo}: {hub} has no revision {hub_id.revision!r} of it"
        case errors.RevisionResolutionError() | errors.LocalEntryNotFoundError() if constants.is_offline_mode():
            return f"{repo}: no such directory, and not whole in {cache}; HF_HUB_OFFLINE keeps the hub from being asked"
        case errors.RevisionResolutionError() | errors.LocalEntryNotFoundError():
            return f"{repo}: no such directory, not whole in {cache}, and {hub} cannot be reached: {text}"
        case errors.HfHubHTTPError():
            return f"{repo}: {hub} answered {error.response.status_code}"
        case OSError() if error.filename:
            return f"{error.filename}: {error.strerror}: HF_HOME names another place for downloads"
    return f"{repo}: {hub}: {type(error).__name__}: {text}"
