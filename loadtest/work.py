"""What the users send and how a reply is judged: bodies made and answers learnt before the load begins.

Knows no Locust: `users` gives it status and bytes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from loadtest import checks
from loadtest.answers import KnownAnswers, check_distinct, compare_attention, compare_vectors
from loadtest.bounds import KNOWN_SHARE
from loadtest.errors import BadReply, LoadTestError, judging
from loadtest.exchanges import Answer, least_norm, num_words_beside, read_reply, write_request
from loadtest.target import Target
from loadtest.texts import KINDS, make_texts, max_words

NUM_KNOWN = 8  # texts of each kind with known answers; a list needs as many as it is long
# A user waits this many times the mean wait, evenly spread: users with one wait would move in step.
WAIT_SPREAD = (0.5, 1.5)
NUM_BODIES = 64  # different requests of each kind, sent in a random order


@dataclass(frozen=True, slots=True)
class Options:
    """How requests are made. longest: words in a text, None = as the model allows; known_share: of all requests.

    max_delta: largest difference to a known answer, in units of its norm. Raises LoadTestError for another share.
    """

    kinds: tuple[str, ...]
    known_share: float = 0.05
    max_delta: float = 1e-5
    longest: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.known_share not in KNOWN_SHARE:
            raise LoadTestError(f"the known share must be {KNOWN_SHARE}, got {self.known_share:g}")


@dataclass(frozen=True, slots=True)
class Job:
    """One request. rows: for each of its texts, the number of the known answer; None = not compared."""

    kind: str
    path: str
    body: bytes
    num_texts: int
    rows: tuple[int, ...] | None = None


@dataclass(slots=True)
class Work:
    """Requests without end, and their judge: `read` each reply, then `compare` it."""

    target: Target
    options: Options
    known: dict[str, KnownAnswers] = field(default_factory=dict)
    _first: dict[bytes, KnownAnswers] = field(default_factory=dict)  # by the body of the request
    _jobs: dict[str, list[Job]] = field(default_factory=dict)
    _turns: dict[str, count[int]] = field(default_factory=dict)
    _rng: random.Random = field(default_factory=random.Random)

    def prepare(self) -> None:
        """Make the requests and learn the known answers, one text at a time.

        Raises LoadTestError when an answer is not right even then, or when different texts have the same one.
        """
        self._rng.seed(self.options.seed)
        for name in self.options.kinds:
            kind = KINDS[name]
            longest = self.options.longest or max(1, max_words(self.target.max_input_tokens) - num_words_beside(kind))
            texts = make_texts(kind, NUM_BODIES * kind.num_texts, longest=longest, seed=f"{name} {self.options.seed}")
            groups = [texts[start : start + kind.num_texts] for start in range(0, len(texts), kind.num_texts)]
            self._jobs[name] = [self._job(name, group) for group in groups]
            self.known[name] = self._learn(name, texts[: max(NUM_KNOWN, kind.num_texts)])
            self._turns[name] = count()

    def next_job(self, name: str) -> Job:
        """The next request of a kind; every so many it is one of texts with known answers."""
        every = max(1, int(1 / self.options.known_share))
        if next(self._turns[name]) % every:
            return self._rng.choice(self._jobs[name])
        known = self.known[name]
        rows = self._rng.sample(range(len(known.texts)), KINDS[name].num_texts)
        return self._job(name, [known.texts[row] for row in rows], tuple(rows))

    @judging()
    def read(self, job: Job, status: int, body: bytes) -> Answer:
        """The reply to that request. Raises BadReply, and nothing else, unless it is well-formed."""
        answer = _read(job, status, body)
        known = self.known[job.kind]
        checks.check_vectors(answer.vectors, dim=known.dim, is_unit=known.is_unit)
        return answer

    @judging()
    def compare(self, job: Job, answer: Answer) -> None:
        """Raise BadReply, and nothing else, unless it is the known answer; where none is known, the first one to it."""
        if job.rows is None:
            known, rows = self._first.setdefault(job.body, _as_first(job.kind, answer)), tuple(range(job.num_texts))
        else:
            known, rows = self.known[job.kind], job.rows
        compare_vectors(answer.vectors, rows, known, max_delta=self.options.max_delta)
        if answer.attention is not None:
            compare_attention(answer.attention, rows[0], known)

    def _learn(self, name: str, texts: Sequence[str]) -> KnownAnswers:
        try:
            answers = [self._ask(self._job(name, [text])) for text in texts]
            attention = tuple(answer.attention for answer in answers if answer.attention is not None)
            vectors = checks.stack([answer.vectors[0] for answer in answers])
            known = KnownAnswers(tuple(texts), vectors, attention or None, least_norm=least_norm(KINDS[name]))
            check_distinct(known, self.options.max_delta)
        except BadReply as fault:
            raise LoadTestError(f"{name}: single requests before the load were not answered right: {fault}") from None
        return known

    def _ask(self, job: Job) -> Answer:
        return _read(job, 200, self.target.post(job.path, job.body))

    def _job(self, name: str, texts: Sequence[str], rows: tuple[int, ...] | None = None) -> Job:
        kind = KINDS[name]
        return Job(name, kind.path, write_request(kind, texts, self.target.model), len(texts), rows)


@judging()
def _read(job: Job, status: int, body: bytes) -> Answer:
    checks.check_status(status, body)
    return read_reply(KINDS[job.kind], body, job.num_texts)


def _as_first(kind: str, answer: Answer) -> KnownAnswers:
    attention = None if answer.attention is None else (answer.attention,)
    origin = "the first answer to the same request"
    return KnownAnswers((), answer.vectors, attention, origin, least_norm(KINDS[kind]))


def choose_kinds(wanted: Sequence[str], target: Target, *, is_openai_only: bool) -> tuple[str, ...]:
    """The kinds to send: those wanted, or all that the server has. Raises LoadTestError naming what cannot be."""
    if unknown := [name for name in wanted if name not in KINDS]:
        raise LoadTestError(f"no kind named {', '.join(unknown)}; there are {', '.join(KINDS)}")
    possible = [name for name, kind in KINDS.items() if kind.path in target.routes]
    if impossible := [name for name in wanted if name not in possible]:
        why = "--openai-only leaves it out" if is_openai_only else f"{target.model} does not offer it"
        raise LoadTestError(f"{', '.join(impossible)}: {why}")
    if not possible:
        raise LoadTestError(f"{target.model} offers none of {', '.join(KINDS)}")
    return tuple(dict.fromkeys(wanted or possible))
