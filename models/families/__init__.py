"""Encoder families as tables, free of torch: a new one is a file here and a line in `known`."""
