"""Every reply is held to something: to a known answer, or to the first one to the same request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from loadtest.errors import BadReply, LoadTestError
from loadtest.target import Address, find_target
from loadtest.work import NUM_BODIES, Job, Options, Work
from tests.loadtest.stub import Json, Stub, serving

KINDS = ("short", "list32", "attention", "classify", "rerank")
ROUTES = ("/v1/embeddings", "/v1/encode", "/v1/classify", "/v1/rerank")


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    stub = Stub(has_attention=True, routes=ROUTES)
    with serving(stub):
        yield stub


@pytest.fixture
def work(stub: Stub) -> Work:
    """Work that has learnt its known answers, and nothing else yet."""
    work = Work(find_target(Address(stub.url, timeout_s=5), None, is_openai_only=False), Options(KINDS))
    work.prepare()
    return work


def job_of(work: Work, kind: str, *, is_known: bool) -> Job:
    return next(job for job in iter(lambda: work.next_job(kind), None) if (job.rows is not None) == is_known)


def take(work: Work, stub: Stub, job: Job, change: Callable[[list[Json]], object] = lambda items: None) -> None:
    """Judge the right reply to a job, changed."""
    content = stub.answer(job.path, job.body).content
    change(content["results" if "results" in content else "data"])
    work.compare(job, work.read(job, 200, json.dumps(content).encode()))


def nudge(items: list[Json]) -> None:
    if "embedding" in items[-1]:
        items[-1]["embedding"][0] += 3e-5
    elif "scores" in items[-1]:
        items[-1]["scores"][-1]["score"] -= 5e-5
    else:
        items[-1]["relevance_score"] -= 3e-5


def swap(items: list[Json]) -> None:
    items[3]["embedding"], items[5]["embedding"] = items[5]["embedding"], items[3]["embedding"]


def attend_elsewhere(items: list[Json]) -> None:
    weights = items[0]["attention"][0]["weights"][0]
    weights[0][0], weights[0][1] = 0.0, weights[0][0] + weights[0][1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_request_twice_has_one_answer(work: Work, stub: Stub, kind: str) -> None:
    job = job_of(work, kind, is_known=False)
    take(work, stub, job)
    take(work, stub, job)
    with pytest.raises(BadReply, match="a vector differs from the first answer to the same request"):
        take(work, stub, job, nudge)
    take(work, stub, job)


def test_what_is_exchanged_or_attended_otherwise_the_second_time_is_found(work: Work, stub: Stub) -> None:
    jobs = {kind: job_of(work, kind, is_known=False) for kind in ("list32", "attention")}
    for job in jobs.values():
        take(work, stub, job)
    with pytest.raises(BadReply, match="a vector is that of another text: at position 3, it is that of position 5"):
        take(work, stub, jobs["list32"], swap)
    with pytest.raises(BadReply, match="attention differs from the first answer to the same request"):
        take(work, stub, jobs["attention"], attend_elsewhere)


def test_known_texts_are_held_to_what_was_learnt_the_first_time_already(work: Work, stub: Stub) -> None:
    with pytest.raises(BadReply, match="a vector differs from its known answer"):
        take(work, stub, job_of(work, "short", is_known=True), nudge)
    with pytest.raises(BadReply, match="attention differs from its known answer"):
        take(work, stub, job_of(work, "attention", is_known=True), attend_elsewhere)


def test_documents_that_change_places_are_found(work: Work, stub: Stub) -> None:
    def exchange(items: list[Json]) -> None:
        items[0]["index"], items[1]["index"] = items[1]["index"], items[0]["index"]

    known = job_of(work, "rerank", is_known=True)
    take(work, stub, known)
    with pytest.raises(BadReply, match="a vector is that of another text"):
        take(work, stub, known, exchange)
    with pytest.raises(BadReply, match="the best does not come first"):
        take(work, stub, known, lambda items: items.reverse())


def test_classes_that_change_places_are_found(work: Work, stub: Stub) -> None:
    def exchange(items: list[Json]) -> None:
        first, second, *_ = items[0]["scores"]
        first["label"], second["label"] = second["label"], first["label"]

    known = job_of(work, "classify", is_known=True)
    take(work, stub, known)
    with pytest.raises(BadReply, match="a vector differs from its known answer"):
        take(work, stub, known, exchange)


def test_a_reply_that_is_not_well_formed_is_nobodys_first(work: Work, stub: Stub) -> None:
    job = job_of(work, "short", is_known=False)
    with pytest.raises(BadReply, match="a vector's norm is not 1"):
        take(work, stub, job, lambda items: items[0].update(embedding=[2.0] + [0.0] * 15))
    take(work, stub, job)


def test_whatever_a_reply_does_to_its_checks_it_is_a_bad_one(
    work: Work, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(work, "short", is_known=False)
    body = json.dumps(stub.answer(job.path, job.body).content).encode()
    answer = work.read(job, 200, body)

    def fail(*_: object, **__: object) -> None:
        raise ArithmeticError("of a kind that nobody thought of")

    words = "the reply cannot be judged: ArithmeticError: of a kind that nobody thought of"
    monkeypatch.setattr("loadtest.work.compare_vectors", fail)
    with pytest.raises(BadReply, match=words):
        work.compare(job, answer)
    monkeypatch.setattr("loadtest.checks.read_items", fail)
    with pytest.raises(BadReply, match=words):
        work.read(job, 200, body)
    with pytest.raises(LoadTestError, match=f"single requests before the load were not answered right: {words}"):
        work.prepare()


def test_requests_come_back_so_that_there_is_something_to_compare(work: Work) -> None:
    assert len({work.next_job("short").body for _ in range(50 * NUM_BODIES)}) <= NUM_BODIES + 8
