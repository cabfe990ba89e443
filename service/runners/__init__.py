"""What computes a batch: ONNX Runtime for serving, PyTorch for parity, a fake for tests."""
