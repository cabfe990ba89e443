"""The HTTP service: a verified bundle in, embeddings, token outputs and attention out.

Knows no torch (but for the optional `runners.torch`), no onnx package, no transformers.
"""
