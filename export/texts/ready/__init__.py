"""Ready ONNX files of model directories: chosen, looked at, given the bundle's inputs and outputs, and proved."""
