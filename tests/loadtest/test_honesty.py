"""A server that answers wrong, late or in another order fails the run, with the reason; a right one passes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.loadtest.command import Done, loadtest, write_limits
from tests.loadtest.stub import Reply, Stub, serving, vector

pytestmark = pytest.mark.alone

NUM_KNOWN = 8  # requests before the load, of every kind but lists
NUM_KNOWN_OF_LIST = 32
NUM_AT_ONCE = 6
# Of all cases, unless one says otherwise: other work may share the machine.
LIMITS = {"latency_ms": 10_000.0, "max_lateness_ms": 1_000.0, "max_gap_s": 30.0}


def one_vector(reply: Reply, stub: Stub) -> Reply:
    return replace(reply, content={"data": reply.content["data"][:1]})


def not_a_number(reply: Reply, stub: Stub) -> Reply:
    return reply.replaced(embedding=lambda item: [float("nan"), *item["embedding"][1:]])


def swapped(reply: Reply, stub: Stub) -> Reply:
    """The first two vectors in each other's place, under the right indices."""
    first, second, *others = (item["embedding"] for item in reply.content["data"])
    vectors = [second, first, *others]
    return reply.replaced(embedding=lambda item: vectors[item["index"]])


def crossed(reply: Reply, stub: Stub) -> Reply:
    """The vector of the request before."""
    return reply.replaced(embedding=lambda item: vector(stub.bodies[-2]["input"]))


def fickle(reply: Reply, stub: Stub) -> Reply:
    """Right for the texts that were learnt; others are answered as another text when they are asked for again."""
    text = stub.bodies[-1]["input"]
    learnt = [body["input"] for body in stub.bodies[:NUM_KNOWN]]
    is_again = text not in learnt and stub.bodies.count(stub.bodies[-1]) > 1
    return reply.replaced(embedding=lambda item: vector(f"{text} again")) if is_again else reply


def refusing_known(reply: Reply, stub: Stub) -> Reply:
    """The texts that were learnt are never answered again."""
    learnt = [body["input"] for body in stub.bodies[:NUM_KNOWN]]
    return Reply({"error": {"message": "no"}}, status=429) if stub.bodies[-1]["input"] in learnt else reply


def leaking(reply: Reply, stub: Stub) -> Reply:
    """Attention to the padding: the rows of the real tokens no longer sum to 1."""
    layers = [layer | {"weights": scaled(layer["weights"], 0.99)} for layer in reply.content["data"][0]["attention"]]
    return reply.replaced(attention=lambda item: layers)


def scaled(values: Any, factor: float) -> Any:
    return [scaled(value, factor) for value in values] if isinstance(values, list) else factor * values


class Freezes:
    """Nothing is answered from `after_s` to `until_s` after the first request that it is asked about."""

    def __init__(self, after_s: float, until_s: float) -> None:
        self._after_s, self._until_s = after_s, until_s
        self._first_s: float | None = None

    def __call__(self, reply: Reply, stub: Stub) -> Reply:
        now_s = time.monotonic()
        self._first_s = now_s if self._first_s is None else self._first_s
        age_s = now_s - self._first_s
        return replace(reply, late_s=self._until_s - age_s) if self._after_s <= age_s < self._until_s else reply


@dataclass(frozen=True)
class Case:
    """A stub, the load, and the words that must be in the output; None = the run must pass.

    limits: other ones than those of all cases.
    """

    fault: Any
    words: str | None
    kind: str = "list32"
    has_results: bool = True
    num_right: int | None = None
    shape: str = "steady"
    duration_s: float = 3
    limits: dict[str, float] = field(default_factory=dict)

    def make_stub(self) -> Stub:
        learnt = NUM_KNOWN_OF_LIST if self.kind == "list32" else NUM_KNOWN
        num_right = learnt if self.num_right is None else self.num_right
        routes = (f"/v1/{self.kind}",) if self.kind in ("classify", "rerank") else None
        return Stub(fault=self.fault, num_right=num_right, has_attention=self.kind == "attention", routes=routes)


CASES = {
    "right": Case(None, None),
    "right attention": Case(None, None, "attention"),
    "right ranks": Case(None, None, "rerank"),
    "ranks from the end": Case(
        lambda reply, _: replace(reply, content={"results": reply.content["results"][::-1]}),
        "the best does not come first",
        "rerank",
    ),
    "spike": Case(None, None, "short", shape="spike"),
    "one vector": Case(one_vector, "wrong number of vectors: 1 for 32 inputs"),
    "NaN": Case(not_a_number, "embedding: holds numbers that are not finite"),
    "swapped": Case(swapped, "a vector is that of another text: at position 0, it is that of position 1"),
    "crossed": Case(crossed, "a vector is that of another text", "short"),
    "fickle": Case(fickle, "a vector differs from the first answer to the same request", "short"),
    "never compared": Case(
        refusing_known, "0.00% of the well-formed replies were compared with a known answer", "short"
    ),
    "status": Case(
        lambda reply, _: Reply({"error": {"message": "out of luck"}}, status=500), "status 500: out of luck", "short"
    ),
    "cut JSON": Case(lambda reply, _: replace(reply, spoil=lambda body: body[:-9]), "the reply is not JSON", "short"),
    "too large": Case(
        lambda reply, _: reply.replaced(embedding=lambda item: [10**400, *item["embedding"][1:]]),
        "embedding: holds numbers that no float64 holds",
        "short",
    ),
    "too deep": Case(
        lambda reply, _: replace(reply, spoil=lambda body: b"[" * 200_000), "the reply is not JSON", "short"
    ),
    "redirected": Case(
        lambda reply, _: replace(reply, status=307, headers={"Location": "http://[nowhere"}),
        "the reply cannot be judged: ValueError",
        "short",
    ),
    "cut body": Case(lambda reply, _: replace(reply, num_missing=50), "no whole answer: status 200, then", "short"),
    "closed": Case(lambda reply, _: replace(reply, num_missing=None), "no whole answer", "short"),
    "late": Case(
        lambda reply, _: replace(reply, late_s=1.6),
        "short, steady: the 95th percentile was",
        "short",
        limits={"latency_ms": 1_200},
    ),
    "freezes": Case(
        # The percentiles allow for it, as they would of any length in a run that is long enough.
        Freezes(2, 4),
        "s requests waited and no right reply came; at most 1 s are allowed (max_gap_s)",
        "short",
        duration_s=6,
        limits={"max_gap_s": 1},
    ),
    "never": Case(lambda reply, _: replace(reply, late_s=60), "no answer in time", "short"),
    "trickles": Case(
        lambda reply, stub: replace(reply, trickle_s=1) if len(stub.bodies) > 40 else reply,
        "no answer in time",
        "short",
    ),
    "rows": Case(leaking, "rows of attention are not probabilities: a sum is off by 0.01", "attention"),
    "one for all": Case(
        lambda reply, _: reply.replaced(embedding=lambda item: vector("any")),
        "short: single requests before the load were not answered right: different texts have the same vector",
        "short",
        has_results=False,
        num_right=0,
    ),
}


@pytest.fixture(scope="module")
def stubs() -> dict[str, Stub]:
    """One for each case."""
    return {name: case.make_stub() for name, case in CASES.items()}


@pytest.fixture(scope="module")
def runs(stubs: dict[str, Stub], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """Several cases at the same time: what they wait for is mostly the clock. The limits allow for that."""
    out = tmp_path_factory.mktemp("results")

    def run(name: str) -> Done:
        case, folder = CASES[name], out / name
        folder.mkdir()
        limits = write_limits(folder / "limits.toml", **(LIMITS | case.limits))
        load = ["--users", "4", "--wait", "0.2", "--duration", str(case.duration_s), "--timeout", "3"]
        words = ["--kinds", case.kind, *load, "--known-share", "0.2", "--shape", case.shape]
        with serving(stubs[name]) as url:
            return loadtest(folder, "--url", url, "--thresholds", str(limits), *words)

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        return dict(zip(CASES, pool.map(run, CASES), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_server_fails_the_run_with_the_reason(runs: dict[str, Done], name: str) -> None:
    case, done = CASES[name], runs[name]
    if case.words is None:
        assert done.code == 0, done.output
        assert done.result is not None
        assert done.result["num_failed"] == 0
        assert done.result["num_replies"] > 10
    else:
        assert done.code == 1, done.output
        assert case.words in done.output
        assert "Traceback" not in done.output
        assert (done.result is not None) == case.has_results


@pytest.mark.slow
def test_at_least_the_wanted_share_stood_beside_known_answers(runs: dict[str, Done]) -> None:
    result = runs["right"].result
    assert result is not None
    assert 0.2 <= result["compared_share"] < 0.35


@pytest.mark.slow
def test_users_who_leave_close_their_connections(runs: dict[str, Done], stubs: dict[str, Stub]) -> None:
    num_open = stubs["spike"].num_open_then
    assert runs["spike"].code == 0
    assert max(num_open) == 4
    assert num_open[-1] == 1
