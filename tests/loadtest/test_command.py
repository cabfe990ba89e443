"""The command refuses what it cannot do, in a line, before any load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.errors import LoadTestError
from loadtest.target import Address, Target, find_target
from loadtest.texts import KINDS
from loadtest.work import NUM_KNOWN, Options, Work, choose_kinds
from tests.fixtures.answering import answering
from tests.fixtures.live import free_port
from tests.loadtest.command import finish, loadtest, start, start_loadtest
from tests.loadtest.stub import Reply, Stub, serving


@contextmanager
def stub_address(**fields: object) -> Iterator[tuple[Stub, Address]]:
    stub = Stub(**fields)  # type: ignore[arg-type]
    with serving(stub) as url:
        yield stub, Address(url, timeout_s=5)


def test_the_only_model_is_found_and_the_url_may_end_in_v1() -> None:
    with stub_address() as (_, address):
        target = find_target(Address(address.url + "/v1/"), None, is_openai_only=False)
    assert (target.url, target.model, target.max_input_tokens, target.routes) == (
        address.url,
        "stub",
        None,
        frozenset({"/v1/embeddings"}),
    )


@pytest.mark.parametrize(
    ("listed", "has_attention", "routes"),
    [
        (None, True, {"/v1/embeddings", "/v1/encode"}),
        (("/v1/embeddings", "/v1/encode"), True, {"/v1/embeddings", "/v1/encode"}),
        (("/v1/embeddings", "/v1/encode"), False, {"/v1/embeddings"}),
        (("/v1/classify", "/v1/rerank", "/v1/encode", "/v1/any"), True, {"/v1/classify", "/v1/rerank"}),
        (("/v1/encode",), True, set()),
    ],
)
def test_routes_are_those_that_the_model_lists(
    listed: tuple[str, ...] | None, has_attention: bool, routes: set[str]
) -> None:
    with stub_address(routes=listed, has_attention=has_attention) as (_, address):
        assert find_target(address, None, is_openai_only=False).routes == routes
        assert find_target(address, None, is_openai_only=True).routes == {"/v1/embeddings"}


def test_several_models_are_a_choice_of_the_user() -> None:
    with stub_address(models=("one", "two")) as (_, address):
        with pytest.raises(LoadTestError, match=r"name a model with --model: http\S+ has one, two"):
            find_target(address, None, is_openai_only=False)
        with pytest.raises(LoadTestError, match="has no model three; it has one, two"):
            find_target(address, "three", is_openai_only=False)
        assert find_target(address, "two", is_openai_only=False).model == "two"


def test_a_server_without_a_list_of_models_needs_the_name() -> None:
    class Unlisted(Stub):
        def answer(self, path: str, body: bytes) -> Reply:
            return Reply({"detail": "Not Found"}, status=404) if path == "/v1/models" else super().answer(path, body)

    with serving(Unlisted()) as url:
        with pytest.raises(LoadTestError, match=r"/v1/models: status 404: .*; name a model with --model"):
            find_target(Address(url), None, is_openai_only=True)
        assert find_target(Address(url), "any", is_openai_only=True).model == "any"


def test_nobody_there_is_told() -> None:
    with pytest.raises(LoadTestError, match="is the server running"):
        find_target(Address(f"http://127.0.0.1:{free_port()}"), None, is_openai_only=False)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "http://",
            "http:///v1",
            "http://[::1",
            "http://host:abc",
            "http://host:99999",
            "http://a b",
            "http://a/\n",
        ),
        *("ftp://host", "file:///etc/hostname", "http://host/v1?x=1", "http://host/#x"),
    ],
)
def test_what_is_no_url_of_a_server_is_told(url: str) -> None:
    with pytest.raises(LoadTestError, match=r"is no URL of a server: http://HOST:PORT is"):
        find_target(Address(url), None, is_openai_only=False)


@pytest.mark.parametrize("url", ["http://user:secret@host:1/v1", "http://user:secret@[::1", "http://secret@host"])
def test_a_password_in_the_url_is_refused_and_not_told(url: str) -> None:
    with pytest.raises(LoadTestError, match=r"//…@") as caught:
        find_target(Address(url), None, is_openai_only=False)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["se\ncret", "secret ", "ключ"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_told(key: str) -> None:
    with pytest.raises(LoadTestError, match="--api-key: has characters that no key can have") as caught:
        find_target(Address("http://127.0.0.1:1", key), None, is_openai_only=False)
    assert key not in str(caught.value)


LISTED = b'{"data": [{"id": "m"}]}'


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"nonsense\r\n\r\n", "no whole answer: nonsense"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", "no whole answer: got more than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + LISTED, r"no whole answer: IncompleteRead"),
        (b"HTTP/1.1 500 Any\r\nContent-Length: 500\r\n\r\n{", r"no whole answer: IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no whole answer: IncompleteRead"),
        (b"HTTP/1.1 302 Any\r\nLocation: /v1/models\r\nContent-Length: 0\r\n\r\n", "status 302"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "not a list of models"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": null}]}', "not a list of models"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": []}]}', "not a list of models"),
    ],
)
def test_an_answer_that_is_not_whole_is_told_and_not_a_traceback(answer: bytes, told: str) -> None:
    with answering(answer) as url, pytest.raises(LoadTestError, match=told) as caught:
        find_target(Address(url, timeout_s=5), None, is_openai_only=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("limit", "taken"), [("512", 512), ("0", None), ("-5", None), ("true", None), ("1.5", None)])
def test_a_limit_of_tokens_that_is_none_is_not_taken_for_one(limit: str, taken: int | None) -> None:
    body = f'{{"data": [{{"id": "m", "max_input_tokens": {limit}}}]}}'
    with answering(f"HTTP/1.1 200 OK\r\n\r\n{body}".encode()) as url:
        assert find_target(Address(url), None, is_openai_only=False).max_input_tokens == taken


def test_kinds_are_those_that_the_server_offers() -> None:
    plain = Target("http://any", "m", {}, 5)
    full = Target("http://any", "m", {}, 5, routes=frozenset({"/v1/embeddings", "/v1/encode"}))
    scorer = Target("http://any", "m", {}, 5, routes=frozenset({"/v1/classify", "/v1/rerank"}))
    assert choose_kinds((), scorer, is_openai_only=False) == ("classify", "rerank")
    with pytest.raises(LoadTestError, match="short: m does not offer it"):
        choose_kinds(("classify", "short"), scorer, is_openai_only=False)
    with pytest.raises(LoadTestError, match="m offers none of short, passage"):
        choose_kinds((), Target("http://any", "m", {}, 5, routes=frozenset()), is_openai_only=False)
    assert choose_kinds((), plain, is_openai_only=False) == ("short", "passage", "mixed", "list32")
    assert choose_kinds((), full, is_openai_only=False) == ("short", "passage", "mixed", "list32", "attention")
    assert choose_kinds(("mixed", "short"), plain, is_openai_only=False) == ("mixed", "short")
    with pytest.raises(LoadTestError, match="no kind named shrot; there are short, passage"):
        choose_kinds(("shrot",), full, is_openai_only=False)
    with pytest.raises(LoadTestError, match="attention: m does not offer it"):
        choose_kinds(("attention",), plain, is_openai_only=False)
    with pytest.raises(LoadTestError, match="attention: --openai-only leaves it out"):
        choose_kinds(("attention",), plain, is_openai_only=True)


def test_openai_only_sends_nothing_else() -> None:
    with stub_address(has_attention=True) as (stub, address):
        target = find_target(address, None, is_openai_only=True)
        work = Work(target, Options(choose_kinds((), target, is_openai_only=True)))
        work.prepare()
    assert set(stub.paths) == {"/v1/embeddings"}
    assert all(set(body) == {"input", "model"} for body in stub.bodies)


def test_known_answers_come_in_their_share() -> None:
    with stub_address() as (_, address):
        target = find_target(address, None, is_openai_only=False)
        work = Work(target, Options(("short", "list32"), known_share=0.03))
        work.prepare()
    for kind, num_texts in (("short", 1), ("list32", 32)):
        jobs = [work.next_job(kind) for _ in range(1000)]
        compared = [job.rows for job in jobs if job.rows is not None]
        assert 0.03 <= len(compared) / len(jobs) <= 0.035
        assert all(len(set(rows)) == num_texts for rows in compared)


@pytest.mark.parametrize("share", [0, 0.001, 1.1])
def test_another_share_is_refused(share: float) -> None:
    with pytest.raises(LoadTestError, match=r"the known share must be from 0\.01 to 1"):
        Options(("short",), known_share=share)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--bundle", "nowhere"), "loadtest: nowhere: no such directory"),
        (("--thresholds", "nowhere.toml"), "loadtest: nowhere.toml: No such file or directory\n"),
        (("--url", "http://127.0.0.1:1"), "is the server running?"),
        (("--url", "127.0.0.1:8000"), "loadtest: '127.0.0.1:8000' is no URL of a server: http://HOST:PORT is\n"),
        (("--url", "http://[::1"), "is no URL of a server"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = loadtest(tmp_path, *words)
    assert done.code == 1
    assert said in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--wait", "nan", "from 0 to 3600"),
        ("--wait", "-1", "from 0 to 3600"),
        ("--timeout", "inf", "from 0.1 to 3600"),
        ("--timeout", "0", "from 0.1 to 3600"),
        ("--known-share", "nan", "from 0.01 to 1"),
        ("--max-words", "2", None),
        ("--duration", "inf", "from 2 to 2.592e+06"),
        ("--step-s", "nan", "from 0.5 to 3600"),
        ("--target-ms", "nan", "from 1 to 3.6e+06"),
    ],
)
def test_numbers_out_of_bounds_are_refused(tmp_path: Path, option: str, value: str, allowed: str | None) -> None:
    done = loadtest(tmp_path, "--url", "http://127.0.0.1:1", option, value)
    assert (done.code, "Traceback" in done.output) == (2, False), done.output
    assert option in done.output
    assert allowed is None or f"{value} is not {allowed}" in done.output


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--wait", "nan", "nan is not from 0 to 3600"),
        ("--wait", "-1", "-1 is not from 0 to 3600"),
        ("--wait", "banana", "invalid float value: 'banana'"),
        ("--timeout", "inf", "inf is not from 0.1 to 3600"),
        ("--known-share", "0", "0 is not from 0.01 to 1"),
        ("--max-words", "2", "2 is not at least 3"),
        ("--max-words", "7.5", "invalid int value: '7.5'"),
    ],
)
def test_the_locustfile_refuses_numbers_out_of_bounds(tmp_path: Path, option: str, value: str, told: str) -> None:
    words = ("-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--host", "http://127.0.0.1:1")
    done = finish(start(*words, f"{option}={value}"), tmp_path)
    assert (done.code, "Traceback" in done.output) == (2, False), done.output
    assert f"argument {option}: {told}" in done.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--exclude-tags", *KINDS), f"loadtest: --exclude-tags {' '.join(KINDS)} leaves no kind"),
        (("--tags", "short", "--exclude-tags", "short"), "loadtest: --exclude-tags short leaves no kind"),
        (("--exclude-tags", "shrot"), "loadtest: no kind named shrot"),
        # A server without attention has no part in it.
        (("--exclude-tags", "list32"), "requests: short 36%, passage 27%, mixed 36%"),
    ],
)
def test_excluded_kinds_are_those_that_are_not_sent(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    with stub_address() as (_, address):
        command = ("-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--host", address.url, "-t", "1s")
        done = finish(start(*command, *words), tmp_path)
    assert told in done.output


def test_a_process_without_any_encoding_writes_utf_8_and_says_what_it_can(tmp_path: Path) -> None:
    class French(Stub):
        def answer(self, path: str, body: bytes) -> Reply:
            reply = super().answer(path, body)
            is_over = len(self.bodies) > NUM_KNOWN
            return replace(reply, status=500, spoil=lambda _: "défaut".encode()) if is_over else reply

    no_encoding = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    with serving(French()) as url:
        words = ("--url", url, "--kinds", "short", "--users", "1", "--duration", "2", "--out", str(tmp_path))
        done = finish(start("-m", "loadtest", *words, **no_encoding), tmp_path)
    assert (done.code, "Traceback" in done.output) == (1, False), done.output
    assert r"Most often: short: status 500: d\xe9faut" in done.output
    assert done.result is not None
    assert any("défaut" in fault for fault in done.result["faults"])


@pytest.mark.parametrize("kinds", ["", " , "])
def test_no_kind_at_all_is_refused(tmp_path: Path, kinds: str) -> None:
    done = loadtest(tmp_path, "--url", "http://127.0.0.1:1", "--kinds", kinds)
    assert done.code == 2
    assert "name at least one of short, passage, mixed, list32, attention" in " ".join(done.output.split())


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with stub_address() as (stub, address):
        done = finish(start_loadtest(tmp_path / "file" / "out", "--url", address.url), tmp_path)
    assert (done.code, len(done.output.splitlines())) == (1, 1), done.output
    assert f"loadtest: --out {tmp_path / 'file' / 'out'}: nothing can be written there: Not a directory" in done.output
    assert stub.paths == []


def test_the_verdict_is_told_even_if_the_results_cannot_be_written(tmp_path: Path) -> None:
    """As when the disk has filled up since the start."""
    code = """
import sys, locust
from loadtest import session
from loadtest.cli import app
def full(parent):
    raise OSError(28, "No space left on device", str(parent))
session.make_folder = full
app(sys.argv[1:])
"""
    with stub_address() as (_, address):
        words = ("--url", address.url, "--kinds", "short", "--users", "1", "--duration", "2", "--out", str(tmp_path))
        done = finish(start("-c", code, *words), tmp_path)
    assert done.code == 1
    verdict, fault = done.output.strip().splitlines()[-2:]
    assert verdict.startswith(("✔", "✘", "–"))
    assert fault == f"loadtest: {tmp_path}: not written: No space left on device"


def test_the_locustfile_needs_a_host(tmp_path: Path) -> None:
    done = finish(start("-m", "locust", "-f", "loadtest/locustfile.py", "--headless"), tmp_path)
    assert done.code == 1
    assert "loadtest: name the server with --host" in done.output


def test_without_locust_the_command_says_so(tmp_path: Path) -> None:
    code = "import sys, runpy; sys.modules['locust'] = None; runpy.run_module('loadtest', run_name='__main__')"
    done = finish(start("-c", code), tmp_path)
    assert done.code == 1
    assert "Locust is not installed" in done.output
