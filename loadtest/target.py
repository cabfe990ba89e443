"""The server under test, and the single requests that come before the load. Standard library only, so no Locust."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from loadtest.checks import check_status
from loadtest.errors import BadReply, LoadTestError

EMBEDDINGS = "/v1/embeddings"
ENCODE = "/v1/encode"
MODELS = "/v1/models"
READY = "/health/ready"

# No proxy: the load does not pass through one either.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True, slots=True)
class Target:
    """A server and a model of it. max_input_tokens: None = it does not say. has_attention: qkv's attention output."""

    url: str
    model: str
    headers: Mapping[str, str]
    timeout_s: float
    max_input_tokens: int | None = None
    has_attention: bool = False

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
    if not re.match(r"https?://[^/]", address.url):
        raise LoadTestError(f"{address.url!r} is no URL of a server: http://HOST:PORT is")
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
    limit = entry.get("max_input_tokens")
    return Target(
        address.root,
        name,
        address.headers,
        address.timeout_s,
        limit if isinstance(limit, int) else None,
        bool(entry.get("attention")) and not is_openai_only,
    )


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
        return {str(entry["id"]): entry for entry in orjson.loads(body)["data"]}
    except (ValueError, KeyError, TypeError):
        raise BadReply("status 200", "but not a list of models in OpenAI's form") from None


def _send(request: urllib.request.Request, timeout_s: float) -> bytes:
    started_s = time.monotonic()
    try:
        with _open(request, timeout=timeout_s) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, body = error.code, error.read()
    except ValueError as error:
        raise LoadTestError(f"{request.full_url}: {error}") from None
    except OSError as error:
        if time.monotonic() - started_s >= timeout_s:
            raise BadReply("no answer in time", f"{timeout_s:g} s", is_overload=True) from None
        raise BadReply("no answer", str(getattr(error, "reason", error))) from None
    check_status(status, body)
    return bytes(body)
