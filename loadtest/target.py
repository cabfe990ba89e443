"""The server under test, and the single requests that come before the load. Standard library only, so no Locust."""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from loadtest.checks import check_status
from loadtest.errors import BadReply, LoadTestError

EMBEDDINGS = "/v1/embeddings"
ENCODE = "/v1/encode"
CLASSIFY = "/v1/classify"
RERANK = "/v1/rerank"
MODELS = "/v1/models"
READY = "/health/ready"

# No proxy: the load does not pass through one either.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True, slots=True)
class Target:
    """A server and a model of it. max_input_tokens: None = it does not say.

    routes: those that a request of some kind may go to; `/v1/encode` where it gives vectors with their attention.
    """

    url: str
    model: str
    headers: Mapping[str, str]
    timeout_s: float
    max_input_tokens: int | None = None
    routes: frozenset[str] = frozenset({EMBEDDINGS})

    def post(self, path: str, body: bytes) -> bytes:
        """The body of a 200. Raises BadReply."""
        headers = {"Content-Type": "application/json", **self.headers}
        return _send(urllib.request.Request(self.url + path, body, headers), self.timeout_s)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is said to be. url: with or without the `/v1` that OpenAI's clients want."""

    url: str
    api_key: str | None = None
    timeout_s: float = 30.0

    @property
    def root(self) -> str:
        """The URL before `/v1`."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def find_target(address: Address, model: str | None, *, is_openai_only: bool) -> Target:
    """Ask the server for its models and take that one, or the only one.

    is_openai_only: nothing but `/v1/embeddings` with its standard fields is to be used.
    Raises LoadTestError: no URL, no answer, no such model, or a choice that the user has to make.
    """
    _check(address)
    try:
        listed = _listed_models(address)
    except BadReply as fault:
        if model is None:
            hint = "name a model with --model" if fault.reason.startswith("status") else "is the server running?"
            raise LoadTestError(f"{address.root}{MODELS}: {fault}; {hint}") from None
        listed = {model: {}}
    if model is None and len(listed) != 1:
        raise LoadTestError(f"name a model with --model: {address.root} has {', '.join(listed) or 'none'}")
    name = model or next(iter(listed))
    if name not in listed:
        raise LoadTestError(f"{address.root} has no model {name}; it has {', '.join(listed) or 'none'}")
    entry = listed[name]
    limit: object = entry.get("max_input_tokens")
    return Target(
        address.root,
        name,
        address.headers,
        address.timeout_s,
        limit if type(limit) is int and limit > 0 else None,
        frozenset({EMBEDDINGS}) if is_openai_only else _routes(entry),
    )


def _routes(entry: Mapping[str, Any]) -> frozenset[str]:
    """What a model can be asked; of a server that does not say, vectors."""
    listed = entry.get("routes")
    found = {CLASSIFY, EMBEDDINGS, RERANK}.intersection(listed) if isinstance(listed, list) else {EMBEDDINGS}
    return frozenset(found | ({ENCODE} if entry.get("attention") and EMBEDDINGS in found else set()))


def _check(address: Address) -> None:
    """Raise LoadTestError for what is no URL of a server, without its password, and for a key that is no header."""
    # The password is cut off by hand: what cannot be parsed must not be told whole either.
    url = re.sub(r"//[^/?#]*@", "//…@", address.url)
    try:
        parts = urlsplit(address.url)
        is_url = bool(parts.hostname) and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        is_url = False
    if not is_url or not re.fullmatch(r"https?://\S+", address.url):
        raise LoadTestError(f"{url!r} is no URL of a server: http://HOST:PORT is")
    if url != address.url:
        raise LoadTestError(f"{url}: no name or password is sent, but a key, --api-key")
    if not re.fullmatch(r"[!-~]*", address.api_key or ""):
        raise LoadTestError("--api-key: has characters that no key can have")


def is_ready(url: str, timeout_s: float = 2.0) -> bool:
    """True when qkv's readiness route says 200."""
    try:
        _send(urllib.request.Request(url + READY), timeout_s)
    except BadReply:
        return False
    return True


def _listed_models(address: Address) -> dict[str, dict[str, Any]]:
    body = _send(urllib.request.Request(address.root + MODELS, headers=address.headers), address.timeout_s)
    try:
        listed: dict[str, dict[str, Any]] = {entry["id"]: entry for entry in orjson.loads(body)["data"]}
        if all(isinstance(name, str) for name in listed):
            return listed
    except (ValueError, KeyError, TypeError):
        pass
    raise BadReply("status 200", "but not a list of models in OpenAI's form")


def _send(request: urllib.request.Request, timeout_s: float) -> bytes:
    started_s = time.monotonic()
    try:
        status, body = _exchange(request, timeout_s)
    except (ValueError, http.client.InvalidURL) as error:
        raise LoadTestError(f"{request.full_url}: {error}") from None
    except http.client.HTTPException as error:
        raise BadReply("no whole answer", " ".join(str(error).split()) or type(error).__name__) from None
    except OSError as error:
        if time.monotonic() - started_s >= timeout_s:
            raise BadReply("no answer in time", f"{timeout_s:g} s", is_overload=True) from None
        raise BadReply("no answer", str(getattr(error, "reason", error))) from None
    check_status(status, body)
    return body


def _exchange(request: urllib.request.Request, timeout_s: float) -> tuple[int, bytes]:
    """-> status, body"""
    try:
        answer = _open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return int(answer.status), bytes(answer.read())
