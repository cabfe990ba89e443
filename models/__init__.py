"""The attention family and the encoders built of it, in PyTorch.

Knows no ONNX and no HTTP; `config` and `families` know no torch either.

Axes, everywhere in code, graphs and docs:

    batch     rows of a call                seq       positions of a row, padding included
    heads     attention heads               head_dim  width of one head
    dim       model width                   ffn       width of the feed-forward layer
    vocab     rows of the word table        query_seq, key_seq  the two lengths of cross-attention

Masks: True or 1 = attend. A fully masked row gives zeros, in outputs and in weights.
"""
