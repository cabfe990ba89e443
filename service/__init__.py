"""The HTTP service: a verified bundle in, embeddings, token outputs and attention out.

Knows no torch (but for the optional `runners.torch`), no onnx package, no transformers.
"""

import os

# ONNX Runtime sends usage events and keeps a device id, from its import on, unless this is set before.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
