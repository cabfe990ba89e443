"""ONNX Runtime, imported here and nowhere else.

From its import on it would send usage events and keep a device id in the user's cache, unless told before not to.
"""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["ort"]
