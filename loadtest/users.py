"""The users: Locust's side of `work`. Importing this patches the process (gevent): never do so in a test's."""

from __future__ import annotations

import random
import time
from http import HTTPStatus
from typing import ClassVar

import gevent
from locust import FastHttpUser, tag, task
from locust.contrib.fasthttp import LocustBadStatusCode, ResponseContextManager

from loadtest.errors import BadReply, judging
from loadtest.recorder import Recorder
from loadtest.texts import KINDS
from loadtest.work import WAIT_SPREAD, Job, Work


class Caller(FastHttpUser):
    """Sends requests of every kind that its tags leave, by the weights of `KINDS`, and waits after each reply.

    One class for all kinds: a load of any number of users is then the same mixture.
    """

    work: ClassVar[Work]
    wait_s: ClassVar[float]
    recorder: ClassVar[Recorder]
    insecure = False
    max_retries = 0

    @classmethod
    def bind(cls, work: Work, wait_s: float, recorder: Recorder) -> None:
        """Give all users their work. wait_s: the mean wait after a reply; recorder: told of what is sent."""
        cls.work, cls.wait_s, cls.recorder = work, wait_s, recorder
        cls.host = work.target.url
        cls.network_timeout = cls.connection_timeout = work.target.timeout_s

    def on_start(self) -> None:
        """Begin at a random point of the wait: users that begin together would stay together."""
        gevent.sleep(random.uniform(0, self.wait_s))

    def on_stop(self) -> None:
        """Close the connection: else it would stay open long after its user."""
        self.client.client.close()

    def wait_time(self) -> float:
        """Seconds between a reply and this user's next request."""
        return random.uniform(*WAIT_SPREAD) * self.wait_s

    @tag("short")
    @task(KINDS["short"].weight)
    def short(self) -> None:
        """A query."""
        self._send("short")

    @tag("passage")
    @task(KINDS["passage"].weight)
    def passage(self) -> None:
        """A paragraph of a document."""
        self._send("passage")

    @tag("mixed")
    @task(KINDS["mixed"].weight)
    def mixed(self) -> None:
        """A text of any length, long ones being rare."""
        self._send("mixed")

    @tag("list32")
    @task(KINDS["list32"].weight)
    def list32(self) -> None:
        """Thirty-two texts of any length."""
        self._send("list32")

    @tag("attention")
    @task(KINDS["attention"].weight)
    def attention(self) -> None:
        """A text with its attention weights."""
        self._send("attention")

    @tag("classify")
    @task(KINDS["classify"].weight)
    def classify(self) -> None:
        """A text whose classes are wanted."""
        self._send("classify")

    @tag("rerank")
    @task(KINDS["rerank"].weight)
    def rerank(self) -> None:
        """A query with eight documents."""
        self._send("rerank")

    def _send(self, kind: str) -> None:
        job = self.work.next_job(kind)
        with self.recorder.sending(kind):
            start_s = time.time()
            try:
                with judging():
                    reply = self._post(job)
            except BadReply as fault:
                self._report(job, start_s, fault)
                return
            with reply:
                self._judge(job, reply)

    def _judge(self, job: Job, reply: ResponseContextManager) -> None:
        try:
            _check_transport(reply)
            answer = self.work.read(job, reply.status_code, reply.content or b"")
            # From here on it stands beside a known answer, if there is one, whatever comes of it.
            reply.request_meta["context"]["is_compared"] = job.rows is not None
            self.work.compare(job, answer)
        except BadReply as fault:
            reply.failure(fault)
        else:
            reply.success()

    def _report(self, job: Job, start_s: float, fault: BadReply) -> None:
        """What the client does for replies that it can make something of. start_s: since the epoch."""
        self.environment.events.request.fire(
            request_type="POST",
            name=job.kind,
            response_time=1000 * (time.time() - start_s),
            response_length=0,
            context={},
            exception=fault,
            start_time=start_s,
            url=self.work.target.url + job.path,
            response=None,
        )

    def _post(self, job: Job) -> ResponseContextManager:
        # The client's own limit is for each piece of a reply: one that trickles would never end.
        with gevent.Timeout(self.work.target.timeout_s):
            return self.client.post(
                job.path,
                data=job.body,  # type: ignore[arg-type]  # bytes are taken, too
                name=job.kind,
                headers={"Content-Type": "application/json", **self.work.target.headers},
                catch_response=True,
            )


def _check_transport(reply: ResponseContextManager) -> None:
    """Raise BadReply when there is no whole HTTP reply, of whatever status."""
    error = reply.request_meta["exception"]
    if error is None or isinstance(error, LocustBadStatusCode):
        return
    # The client wraps what the socket raised.
    if isinstance(getattr(error, "original", error), (TimeoutError, gevent.Timeout)):
        raise BadReply("no answer in time", is_overload=True)
    told = f"status {reply.status_code}, then " if reply.status_code >= HTTPStatus.OK else ""
    raise BadReply("no whole answer", f"{told}{error}")
