"""`qkv encode` as a user runs it: the same vectors as over HTTP, in every form, whatever comes between."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from qkv.cli import app
from tests.fixtures.command import ROOT, Run
from tests.fixtures.live import LiveServer, serving

TEXTS = [
    "A cat is on the river bank.",
    "",
    "hello\u2028world",
    "ALL WORDS ARE LOWER\tCASE",
    "ein Mädchen",
    "the dog " * 10,
    "boom",
    *(f"good music {number} " + "on a train " * (number % 6) for number in range(60)),
]
ROWS = [{"id": number, "body": text, "tag": None if number % 2 else "x"} for number, text in enumerate(TEXTS)]

Encode = Callable[..., Result]


@pytest.fixture(scope="module")
def server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A live server over the same bundle."""
    with serving(tmp_path_factory.mktemp("logs") / "server.log", str(tiny_bundle)) as live:
        yield live


@pytest.fixture(scope="module")
def expected(server: LiveServer) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What the server answers."""
    return over_http(server, TEXTS)


def over_http(server: LiveServer, texts: Sequence[str], **options: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    answer = server.post("/v1/encode", {"input": list(texts), **options})
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], dtype=np.float32)


@pytest.fixture
def encode(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Encode:
    """`encode("in.txt", "out.npy", …)`, in a folder of its own; the command, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(texts: str, out: str, *words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(app, ["encode", str(tiny_bundle), texts, out, "--num-threads", "1", *words])
        assert done.exit_code == code, done.output
        return done

    return run


def write(path: Path, rows: Sequence[dict[str, Any]] = ROWS) -> None:
    """The rows in the form that the suffix says."""
    if path.suffix == ".txt":
        path.write_text("".join(row["body"] + "\n" for row in rows), newline="")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["id", "body", "tag"])
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(list(rows)), path)


def vectors(path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vectors of an output, in its order."""
    if path.suffix == ".npy":
        found: np.ndarray[Any, np.dtype[np.float32]] = np.load(path)
        return found
    rows = lines(path) if path.suffix == ".jsonl" else pq.read_table(path).to_pylist()
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return np.array([row["embedding"] for row in rows], dtype=np.float32)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("texts", "out"), [("a.txt", "b.npy"), ("a.jsonl", "b.parquet"), ("a.csv", "b.jsonl"), ("a.parquet", "b.npy")]
)
def test_vectors_are_those_of_the_server(
    encode: Encode, tmp_path: Path, expected: np.ndarray[Any, Any], texts: str, out: str
) -> None:
    write(tmp_path / texts)
    field = [] if texts == "a.txt" else ["--field", "body"]
    done = encode(texts, out, *field)
    assert f"{out}: [{len(TEXTS)}, 32] float32 in space " in done.stdout
    found = vectors(tmp_path / out)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-6
    assert sorted(path.name for path in tmp_path.iterdir()) == [texts, out]


def test_options_are_those_of_the_server(encode: Encode, server: LiveServer, tmp_path: Path) -> None:
    write(tmp_path / "a.txt")
    long = "the dog " * 100
    (tmp_path / "a.txt").write_text(f"boom\n{long}\n")
    done = encode("a.txt", "b.npy", "--dimensions", "8", "--raw", "--truncate", "left")
    assert "; too long and cut to 64 tokens: 1" in done.stdout
    expected = over_http(server, ["boom", long], dimensions=8, normalize=False, truncate="left")
    assert np.abs(np.load(tmp_path / "b.npy") - expected).max() <= 1e-6
    space = server.post("/v1/encode", {"input": "a", "dimensions": 8, "normalize": False}).headers["embedding-space"]
    assert space in done.stdout


def test_fields_go_with_the_answer(encode: Encode, tmp_path: Path) -> None:
    words = ("--field", "body", "--keep", "id", "--keep", "tag")
    for texts in ("a.jsonl", "a.parquet", "a.csv"):
        write(tmp_path / texts)
        encode(texts, "b.jsonl", *words, "--force")
        encode(texts, "b.parquet", *words, "--force")
        kept = [(row["id"], row["tag"]) for row in lines(tmp_path / "b.jsonl")]
        table = pq.read_table(tmp_path / "b.parquet")
        assert table.column_names == ["index", "id", "tag", "embedding"]
        assert table.schema.field("embedding").type == pa.list_(pa.float32(), 32)
        if texts == "a.csv":
            assert kept == [(str(row["id"]), row["tag"] or "") for row in ROWS]
            assert list(zip(table["id"].to_pylist(), table["tag"].to_pylist(), strict=True)) == kept
        else:
            assert kept == [(row["id"], row["tag"]) for row in ROWS]
            number = table.schema.field("id").type
            assert number == (pa.int64() if texts == "a.parquet" else pa.string())
            assert [int(value) for value in table["id"].to_pylist()] == list(range(len(ROWS)))
            assert table["tag"].to_pylist() == [row["tag"] for row in ROWS]
    assert {b"embedding_space", b"model"} <= set(pq.read_schema(tmp_path / "b.parquet").metadata)


@pytest.mark.parametrize("out", ["b.npy", "b.jsonl", "b.parquet"])
def test_no_texts_are_no_answers(encode: Encode, tmp_path: Path, out: str) -> None:
    (tmp_path / "a.txt").touch()
    encode("a.txt", out)
    if out == "b.jsonl":
        assert (tmp_path / out).read_bytes() == b""
    else:
        found = np.load(tmp_path / out) if out == "b.npy" else pq.read_table(tmp_path / out)
        assert found.shape == ((0, 32) if out == "b.npy" else (0, 2))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("a.txt", "b.bin"), "b.bin: answers go to .npy, .jsonl, .parquet, got .bin"),
        (("a.txt", "b.npy", "--prompt-name", "query"), "prompt_name: prompts of this model: none; got another name"),
        (("a.txt", "b.npy", "--dimensions", "33"), "dimensions: 1 to 32 allowed, got 33; nothing was written"),
        (("a.txt", "b.npy", "--embedding-space", "0" * 64), "embedding_space: "),
        (("a.txt", "dir.npy", "--force"), "dir.npy: is a directory"),
        (("a.jsonl", "a.jsonl", "--field", "body", "--force"), "a.jsonl: is the input too"),
        (("a.txt", "a.txt.npy"), "a.txt.npy is there, and whole: --force replaces it"),
        (("a.jsonl", "b.npy", "--field", "body", "--keep", "id"), "--keep: .npy holds vectors alone"),
        (
            ("a.jsonl", "b.jsonl", "--field", "body", "--keep", "index"),
            "--keep: 'index' is what .jsonl calls something",
        ),
        (("a.jsonl", "b.npy"), "a.jsonl: line 1: no field 'text', it has 'id', 'body', 'tag'"),
        (("a.txt", "none/b.npy"), "none/b.npy.partial: No such file or directory"),
        (("bad.txt", "b.npy"), "bad.txt: line 3: not UTF-8"),
        (("long.txt", "b.npy"), "long.txt: line 2: 64 tokens allowed, got 102; --truncate says which side may be cut"),
    ],
)
def test_refusals(encode: Encode, tmp_path: Path, words: Sequence[str], told: str) -> None:
    write(tmp_path / "a.txt")
    write(tmp_path / "a.jsonl")
    (tmp_path / "a.txt.npy").write_text("whole")
    (tmp_path / "dir.npy").mkdir()
    (tmp_path / "bad.txt").write_bytes(b"a\nb\n\xff\n")
    (tmp_path / "long.txt").write_text("a\n" + "the dog " * 50)
    before = sorted(tmp_path.iterdir())
    texts, out, *rest = words
    done = encode(texts, out, *rest, code=1)
    assert told in done.stderr
    assert done.stderr.splitlines()[-1].startswith("qkv: ")
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "a.txt.npy").read_text() == "whole"


def test_without_pyarrow_parquet_is_refused_with_what_to_install(qkv: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.txt")
    words = ("encode", str(tiny_bundle), str(tmp_path / "a.txt"))
    done = qkv(*words, str(tmp_path / "b.parquet"), blocked=("pyarrow",))
    assert (done.returncode, done.stderr) == (1, "qkv: Parquet needs the package pyarrow: pip install 'qkv[parquet]'\n")
    assert qkv(*words, str(tmp_path / "b.npy"), blocked=("pyarrow",)).returncode == 0


NUM_MANY = 14_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of several chunks, of texts of many lengths."""
    path = tmp_path_factory.mktemp("many") / "many.txt"
    with path.open("w") as file:
        for number in range(NUM_MANY):
            words = TEXTS[0].split()[number % 4 : number % 4 + 1 + number * 7 % 5]
            file.write(f"{number % 100} {' '.join(words)}\n")
    return path


@pytest.fixture(scope="module")
def whole(qkv: Run, tiny_bundle: Path, many: Path) -> Path:
    """Its vectors, by a run that nothing came between."""
    out = many.with_name("whole.npy")
    done = qkv("encode", str(tiny_bundle), str(many), str(out))
    assert done.returncode == 0, done.stderr
    return out


def interrupt(bundle: Path, many: Path, out: Path, number: int) -> subprocess.CompletedProcess[str]:
    """Start a run, and send it a signal once a part is written."""
    command = [sys.executable, "-m", "qkv", "encode", str(bundle), str(many), str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    state = out.with_name(f"{out.name}.partial.json")
    # A shell starts what it runs in the background with SIGINT ignored, and so would the run be.
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, env=environment, preexec_fn=heed, **pipes) as run:
        while run.poll() is None:
            if state.exists() and json.loads(state.read_bytes())["done"]["texts"]:
                run.send_signal(number)
                break
            time.sleep(0.002)
        shown, told = run.communicate(timeout=60)
    return subprocess.CompletedProcess(command, run.returncode, shown, told)


@pytest.mark.parametrize("out", ["out.npy", "out.parquet"])
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(
    encode: Encode, tiny_bundle: Path, many: Path, whole: Path, tmp_path: Path, out: str
) -> None:
    assert interrupt(tiny_bundle, many, tmp_path / out, signal.SIGKILL).returncode == -signal.SIGKILL
    assert not (tmp_path / out).exists()
    done = encode(str(many), out)
    first = int(done.stderr.splitlines()[0].partition("texts, ")[2].split()[0].replace(",", ""))
    assert 0 < first < NUM_MANY
    if out == "out.npy":
        assert (tmp_path / out).read_bytes() == whole.read_bytes()
    else:
        found = pq.read_table(tmp_path / out)["embedding"].combine_chunks().flatten().to_numpy()
        np.testing.assert_array_equal(found, np.load(whole).reshape(-1))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_says_how_to_go_on(
    tiny_bundle: Path, many: Path, tmp_path: Path, number: int, code: int
) -> None:
    done = interrupt(tiny_bundle, many, tmp_path / "out.npy", number)
    assert done.returncode == code, done.stderr
    assert "qkv: stopped; " in done.stderr
    assert f" of {NUM_MANY:,} texts are in {tmp_path / 'out.npy.partial'}: the same command goes on" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_finds_the_disk_full_goes_on_once_there_is_room(
    encode: Encode, tiny_bundle: Path, many: Path, whole: Path, tmp_path: Path
) -> None:
    def fill() -> None:
        room = whole.stat().st_size * 2 // 3
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    command = [sys.executable, "-m", "qkv", "encode", str(tiny_bundle), str(many), str(tmp_path / "out.npy")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=fill)
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert told.startswith(f"qkv: {tmp_path / 'out.npy'}: File too large; 8,192 of {NUM_MANY:,} texts are in ")
    encode(str(many), "out.npy")
    assert (tmp_path / "out.npy").read_bytes() == whole.read_bytes()


def test_the_examples_of_the_guide_run_in_their_order(tiny_bundle: Path, tmp_path: Path) -> None:
    """With the tiny model in the place of the default one, whose width they do not name."""
    blocks = re.findall(
        r"^```(bash|python)\n(.*?)^```", (ROOT / "docs/encode.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) > 2
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "all-MiniLM-L6-v2").symlink_to(tiny_bundle)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for language, code in blocks:
        code = f'qkv() {{ {sys.executable} -m qkv "$@"; }}; set -e; {code}' if language == "bash" else code
        command = ["bash", "-c", code] if language == "bash" else [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "(3, 32) [7, 8, 9]\n"
