"""Everything that can go wrong, drawn before it was written.

    ServiceError                 code, status, type, public message, param
    ├ RequestError          400  invalid value, too long, too many, bad id, unsupported task
    │ ├ AuthError           401  without the key that the path needs
    │ ├ NotFoundError       404  unknown model or path
    │ ├ MethodError         405
    │ ├ SpaceMismatchError  412  the index was built in another vector space
    │ ├ BodySizeError       413  body bytes over the limit
    │ └ MediaTypeError      415  wrong content type or content encoding
    ├ CapacityError              with Retry-After 1…120
    │ ├ QueueFullError      429
    │ └ NotReadyError       503  loading, draining, stuck
    ├ DeadlineError         504
    └ BackendError          500  inference failed, non-finite output: details go to the log
    StartupError                 bad settings, bad bundle, provider missing: the process exits non-zero

`code` is what a client may branch on and the label of the error metric. Stages raise, `middleware` translates once.
Messages name the field, the limit and the value, and never repeat the caller's text. How they are written depends on
the path: under `/v2` as the Open Inference Protocol says, everywhere else as OpenAI's clients read them.
"""

from __future__ import annotations

import orjson

MAX_RETRY_AFTER_S = 120
_MAX_MESSAGE_CHARS = 2_000
_OIP = "/v2"


class ServiceError(Exception):
    """Base of every error that has an HTTP answer."""

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    @property
    def headers(self) -> dict[str, str]:
        """Response headers that belong to this error."""
        return {}

    def body(self) -> dict[str, dict[str, str | None]]:
        """The error object of every native and OpenAI route."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class RequestError(ServiceError):
    """The request can never succeed as it is: clients must not retry it."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class AuthError(RequestError):
    """No key, or a wrong one: which of the two is not told."""

    status = 401
    type = "authentication_error"
    code = "unauthorized"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class NotFoundError(RequestError):
    """Unknown model or path."""

    status = 404
    type = "not_found_error"
    code = "not_found"


class MethodError(RequestError):
    """The path exists, the method does not."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    @property
    def headers(self) -> dict[str, str]:
        return {"Allow": self.allow}


class SpaceMismatchError(RequestError):
    """The caller's index was built in another vector space."""

    status = 412
    code = "embedding_space_mismatch"


class BodySizeError(RequestError):
    """More body bytes than allowed."""

    status = 413
    code = "body_too_large"


class MediaTypeError(RequestError):
    """A content type or content encoding that no route takes."""

    status = 415
    code = "unsupported_media_type"


class CapacityError(ServiceError):
    """Nothing is wrong with the request: ask again later."""

    status = 503
    code = "not_ready"

    def __init__(self, message: str, *, retry_after_s: float, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = min(max(1, round(retry_after_s)), MAX_RETRY_AFTER_S)

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class QueueFullError(CapacityError):
    """The queue holds as many tokens as it may."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class NotReadyError(CapacityError):
    """Loading, draining or stuck."""


class DeadlineError(ServiceError):
    """The request took longer than the server allows."""

    status = 504
    code = "deadline_exceeded"


class BackendError(ServiceError):
    """The model failed on this input; the log has the details."""

    code = "inference_failed"


class StartupError(Exception):
    """The process must not start: settings, bundle or provider are not what they must be."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """A text that no terminal takes for a command: what it would not print is told by its number."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def error_body(error: ServiceError, path: str = "") -> bytes:
    """The error object as bytes, bounded in size, in the shape that clients of this path read."""
    message = error.message
    if len(message) > _MAX_MESSAGE_CHARS:
        message = message[:_MAX_MESSAGE_CHARS] + "…"
    if path == _OIP or path.startswith(f"{_OIP}/"):
        return orjson.dumps({"error": message})
    body = error.body()
    body["error"]["message"] = message
    return orjson.dumps(body)
