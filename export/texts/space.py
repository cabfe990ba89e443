"""The space of vectors: what decides them, as one number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def fingerprint(parts: Mapping[str, Any]) -> str:
    """SHA-256 over all that decides the vectors: two bundles with the same one can share an index."""
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
