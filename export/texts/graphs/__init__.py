"""Encoders as ONNX graphs, from their shape and the offsets of their weights. Opens no file."""
