"""A model of the hub: what is fetched, what is asked of whom, and what is said when it cannot be had."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.errors import ExportError
from export.texts.read.hub import HubId, needed_files, read_folders, read_hub_id
from export.texts.read.model import read_model
from export.texts.read.source import SourceDirectory
from service.bundle import read_text_manifest, sha256_file
from service.manifest import Task
from tests.exporting.bundles import edited
from tests.fixtures.command import ROOT, run_qkv
from tests.fixtures.hub import COMMIT, TOKEN, Hub, Repo, hub_of, link_snapshot, repo_of

# What a repository holds beside what a bundle is made from.
OTHERS = (
    "README.md", ".gitattributes", "model.onnx", "onnx/model.onnx", "onnx/config.json", "openvino/openvino_model.bin",
    "tf_model.h5", "flax_model.msgpack", "rust_model.ot", "pytorch_model.bin", "model.fp16.safetensors",
    "modeling_own.py", "data_config.json", "training_args.bin", "1_Pooling/README.md", "2_Normalize/notes.txt",
)  # fmt: skip
_CODE = """
import json, sys
from export.errors import ExportError
from export.texts.read.locate import locate
for source in sys.argv[1:]:
    told = []
    try:
        found = locate(source, lambda *stage: told.append(stage))
        answer = {"path": str(found.path), "recorded": found.recorded, "warnings": found.warnings, "told": told}
    except ExportError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
"""


def located(*sources: str, cache: Path, **env: str) -> list[dict[str, Any]]:
    """What each source is, or why it is nothing, in one process."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *sources],
        env={name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        | {"HF_HOME": str(cache), "PYTHONPATH": str(ROOT), "HOME": str(cache)}
        | env,
        cwd=cache,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def hub(tiny_models: Path) -> Iterator[Hub]:
    """One plain model, one of every kind that cannot be had without more."""
    model = repo_of(tiny_models / "bert_mean", dict.fromkeys(OTHERS, b"of no use"))
    repos = {
        "org/tiny": model,
        "org/tagged": Repo(model.files, {"main": "f" * 40, "v1.0": COMMIT, "refs/pr/1": COMMIT}),
        "org/private": Repo(model.files, needs_token=True),
        "org/gated": Repo(model.files, is_gated=True),
    }
    with hub_of(repos) as found:
        yield found


def test_only_what_is_needed_is_fetched_and_once(hub: Hub, tiny_models: Path, tmp_path: Path) -> None:
    found, *again = located("org/tiny", "org/tiny", f"org/tiny@{COMMIT}", cache=tmp_path, HF_ENDPOINT=hub.url)
    assert len(hub.fetched) == len(set(hub.fetched))
    assert [answer["path"] for answer in again] == [found["path"]] * 2
    needed = {
        "config.json",
        "modules.json",
        "1_Pooling/config.json",
        "model.safetensors",
        "tokenizer.json",
        "vocab.txt",
    }
    assert set(hub.fetched) >= needed
    assert set(hub.fetched).isdisjoint(OTHERS)
    for file in needed:
        assert (Path(found["path"]) / file).read_bytes() == (tiny_models / "bert_mean" / file).read_bytes()
    assert (found["recorded"], found["warnings"]) == ({"hub:org/tiny": COMMIT}, [])
    first, *_, last = found["told"]
    assert first == [f"fetching org/tiny from {hub.url}", 0, 0]
    assert last[1] == last[2] >= (tiny_models / "bert_mean/model.safetensors").stat().st_size


def test_a_model_of_the_hub_becomes_a_bundle_by_its_name(hub: Hub, tiny_models: Path, tmp_path: Path) -> None:
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")}
    done = run_qkv("export", "org/tiny@main", "--unproved", cwd=tmp_path, blocked=("torch", "transformers"), **env)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"fetching org/tiny from {hub.url}") == 1
    manifest = read_text_manifest(tmp_path / "bundles" / "tiny")
    assert manifest.name == "tiny"
    source = tiny_models / "bert_mean"
    files = {file: sha for file, sha in manifest.source.items() if not file.startswith("hub:")}
    assert files == {file: sha256_file(source / file) for file in files}
    assert {"model.safetensors", "config.json", "modules.json", "tokenizer.json"} <= files.keys()
    assert manifest.source.keys() - files.keys() == {"hub:org/tiny"}
    assert manifest.source["hub:org/tiny"] == COMMIT


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: Hub, tmp_path: Path) -> None:
    sources = ("org/tagged", "org/tagged@v1.0", "org/tagged@refs/pr/1", f"org/tagged@{COMMIT}")
    found = located(*sources, cache=tmp_path, HF_ENDPOINT=hub.url)
    commits = [answer["recorded"] for answer in found]
    assert commits == [{"hub:org/tagged": commit} for commit in ("f" * 40, COMMIT, COMMIT, COMMIT)]


def test_what_is_in_the_cache_needs_no_network(hub: Hub, tmp_path: Path) -> None:
    (found,) = located("org/tiny", cache=tmp_path, HF_ENDPOINT=hub.url)
    for env in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": f"http://127.0.0.1:{closed_port()}"}):
        (again,) = located("org/tiny", cache=tmp_path, **env)
        assert again | {"told": []} == found | {"told": []}
    # What is not whole is refused: without its modules.json a model would have another pooling.
    (Path(found["path"]) / "modules.json").unlink()
    (answer,) = located("org/tiny", cache=tmp_path, HF_HUB_OFFLINE="1")
    assert "not whole in the cache" in answer["error"]


def test_a_cache_of_another_client_is_used_as_it_is(tiny_models: Path, tmp_path: Path) -> None:
    """One that holds no list of what the hub has; what may be missing from it is told."""
    source = tiny_models / "bert_mean"
    tiny, bare = (link_snapshot(source, tmp_path / "hub" / f"models--org--{name}") for name in ("tiny", "bare"))
    (bare / "modules.json").unlink()
    sources = ("org/tiny", f"org/tiny@{COMMIT}", "org/bare")
    found = located(*sources, cache=tmp_path, HF_HUB_OFFLINE="1")
    assert [answer["path"] for answer in found] == [str(tiny), str(tiny), str(bare)]
    assert [answer["recorded"] for answer in found[1:]] == [{"hub:org/tiny": COMMIT}, {"hub:org/bare": COMMIT}]
    told = "org/bare: no network, and no modules.json in the cache: whether the hub has one is not known"
    assert [answer["warnings"] for answer in found] == [[], [], [told]]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_what_cannot_be_had_is_told_in_one_line(hub: Hub, tmp_path: Path) -> None:
    expected = {
        "org/none": ("org/none: no such directory", "has no such model, or it is private", "HF_TOKEN"),
        "org/private": ("org/private: no such directory", "has no such model, or it is private", "HF_TOKEN"),
        "org/gated": (f"org/gated: ask for access at {hub.url}/org/gated", "HF_TOKEN"),
        "org/tiny@v9": (f"org/tiny: {hub.url} has no revision 'v9' of it",),
        f"org/tiny@{'e' * 40}": (f"org/tiny: {hub.url} has no revision '{'e' * 40}' of it",),
        "broken/hub": ("broken/hub: ", "503"),
        "org/na--me": ("org/na--me: no such directory", "not a name that a model of the hub can have"),
        "org/name.git": ("not a name that a model of the hub can have",),
    }
    answers = located(*expected, cache=tmp_path, HF_ENDPOINT=hub.url)
    for (source, parts), answer in zip(expected.items(), answers, strict=True):
        assert "\n" not in answer["error"], source
        for part in parts:
            assert part in answer["error"], answer["error"]


def test_a_token_opens_what_is_private_or_gated_and_is_never_told(hub: Hub, tmp_path: Path) -> None:
    sources = ("org/private", "org/gated", "org/none")
    *found, refused = located(*sources, cache=tmp_path, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)
    assert [answer["recorded"] for answer in found] == [{f"hub:{source}": COMMIT} for source in sources[:2]]
    assert hub.tokens == {TOKEN}
    assert TOKEN not in json.dumps([found, refused])


def test_no_network_and_nothing_in_the_cache(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    (answer,) = located("org/tiny", cache=tmp_path, HF_ENDPOINT=url)
    unreachable = f"org/tiny: no such directory, not whole in the cache ({tmp_path}/hub), and {url} cannot be reached: "
    assert answer["error"].startswith(unreachable)
    assert "refused" in answer["error"]
    (answer,) = located("org/tiny", cache=tmp_path, HF_HUB_OFFLINE="1")
    offline = f"not whole in the cache ({tmp_path}/hub); HF_HUB_OFFLINE keeps the hub from being asked"
    assert offline in answer["error"]


def test_a_cache_that_cannot_be_written_says_where_else(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (answer,) = located("org/tiny", cache=tmp_path, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "file"))
    assert answer["error"].startswith(f"{tmp_path}/file")
    assert "HF_HOME names another place for downloads" in answer["error"]


def test_a_pinned_model_of_this_machine_is_taken_before_the_hubs(minilm_dir: Path, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    sources = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
    found = located(*sources, cache=tmp_path, HF_ENDPOINT=url)
    assert [(answer["path"], answer["recorded"]) for answer in found] == [(str(minilm_dir), {})] * 2
    # A revision is the hub's own.
    (answer,) = located("sentence-transformers/all-MiniLM-L6-v2@main", cache=tmp_path, HF_ENDPOINT=url)
    assert "cannot be reached" in answer["error"]


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
VOCABULARIES = ["merges.txt", "sentencepiece.bpe.model", "spiece.model", "vocab.json", "vocab.txt"]


@pytest.mark.parametrize(
    ("needed", "others"),
    [
        (["model.safetensors"], ["pytorch_model.bin", *SHARDS]),
        (SHARDS, ["pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin"]),
        (["pytorch_model.bin"], ["tf_model.h5", "onnx/model.onnx", "pytorch_model-00001-of-00002.bin"]),
        (["2_Dense/config.json", "2_Dense/pytorch_model.bin", "model.safetensors"], ["other/model.safetensors"]),
        (["1_Pooling/config.json", "sentence_xlnet_config.json"], ["0/config.json"]),
        (VOCABULARIES, ["LICENSE", "run.py", "eval.txt", "trainer_state.json", "optimizer.pt"]),
    ],
)
def test_what_of_a_repository_is_needed(needed: list[str], others: list[str]) -> None:
    assert needed_files([*others, *needed], ["", "1_Pooling/", "2_Dense/", "3_Normalize/"]) == needed


def test_every_file_that_is_read_is_one_that_is_fetched(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = edited(tiny_models / "bert_mean", tmp_path / "old", {"config.json": {"architectures": ["HF_ColBERT"]}})
    for file in ("modules.json", "tokenizer.json"):
        (old / file).unlink()
    asked: set[str] = set()
    find = SourceDirectory.find

    def note(source: SourceDirectory, name: str, **options: Any) -> Path | None:
        asked.add(name)
        return find(source, name, **options)

    monkeypatch.setattr(SourceDirectory, "find", note)
    folders = [old, *(tiny_models / name for name in ("bert_mean", "bert_cls_new", "roberta", "cls3"))]
    for folder, task in product(folders, get_args(Task)):
        with suppress(ExportError):  # what it is not for still reads what would say so
            read_model(folder, task)
    assert {"config.json", "1_Pooling/config.json", "vocab.txt", "model.safetensors", "artifact.metadata"} <= asked
    assert asked - set(needed_files(asked, ["1_Pooling/", "2_Normalize/"])) == set()


@given(content=st.binary(max_size=50) | st.sampled_from([b"[1]", b"[{}]", b'[{"path": 1}]', b"{}", b"[[]]", b"null"]))
def test_folders_of_a_broken_modules_json_are_none(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("modules") / "modules.json"
    file.write_bytes(content)
    assert all(isinstance(folder, str) for folder in read_folders(file))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("org/name@main", HubId("org/name", "main")),
        ("Org-1/Name_2.v3@refs/pr/12", HubId("Org-1/Name_2.v3", "refs/pr/12")),
        ("name", None),
        ("a/b/c", None),
        ("./name", None),
        ("../name", None),
        ("org/name@", None),
        ("org/name@../x", None),
        ("org/name@a/../b", HubId("org/name", "a/../b")),
        ("org/name ", None),
        ("org/naïve", None),
    ],
)
def test_the_form_of_a_hub_id(source: str, expected: HubId | None) -> None:
    assert read_hub_id(source) == expected
