"""The key of who may change what is loaded."""

from __future__ import annotations

import hashlib
import hmac

from service.errors import AuthError
from service.exchange import Exchange

_SCHEME = b"bearer"


class AdminKey:
    """Kept as its digest alone: nothing here can tell it."""

    def __init__(self, key: str) -> None:
        self._digest = _digest(key.encode())

    def check(self, exchange: Exchange) -> None:
        """Raises AuthError for a request without this key as its `Authorization: Bearer`.

        A wrong one takes as long as a right one.
        """
        scheme, _, sent = exchange.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != _SCHEME or not hmac.compare_digest(_digest(sent.strip()), self._digest):
            raise AuthError("this path needs the admin key, as `Authorization: Bearer KEY`")


def _digest(key: bytes) -> bytes:
    # Of one length, whatever was sent: not even the key's own length can be measured.
    return hashlib.sha256(key).digest()
