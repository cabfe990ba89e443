"""The signature of a module: what its inputs and outputs are called, their axes and what they mean.

A module that is to be exported says it by a method `signature() -> Declaration`, plain data with no import from here;
a TOML file of the same form says it for a module that has no such method. Needs no torch.

    {"inputs":  {"hidden": {"axes": ["batch", "seq", 512]},
                 "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"}},
     "outputs": {"output": {"axes": ["batch", "seq", 64]},
                 "weights": {"axes": ["batch", "seq", "seq"], "meaning": "attention"}}}

`forward` takes the inputs by these names and returns its tensors in this order.

axes: words are sizes that may change from call to call, numbers are fixed; the first is always `batch`.
dtype: `float32` (the default), `float16`, `int64`, `int32` or `bool`.
meaning of an input: `features` (the default; with `range`, the least and the most that they may be, where the module
does not take every number), `mask` (True = attend; ones when a caller sends none), `token_ids` (with
`below`, the number of ids) or `index` (positions on the axis `of`, each once, -1 = none;
none when a caller sends none).
meaning of an output: `features` (the default) or `attention`, `[batch, query axis, key axis]` or `[batch, heads, query
axis, key axis]`; `layer` tells several of them apart, `layout` says which key column c of row i stands for:

    dense (the default)                    key = c
    band, offset: o                        key = i + o + c
    strided, stride: s                     key = i % s + c · s
    block, block: b                        key = (i // b) · b + c
    summary, block: b, tail: t             key = (c // t) · b + b - t + c % t
    global_keys, index: the input g        key = g[c], -1 = none
    global_queries, index: the input g     row r is the whole row of query g[r]

Two tables may be left out. `max_sizes` has the largest size of an axis that the module takes (2048 where it is not
said); `rows` says what no one can find out by running it, or asks for less:

    "max_sizes": {"seq": 512},
    "rows": {"batching": "alone", "masks": "right"}

batching: `padded` = rows of any sizes share a call by padding and masks, `equal_shapes` = rows of the same sizes do,
`alone` = none do; not said, it is found out, and a module whose mask does not hide padding is refused.
masks: `any` (the default), or `right` for a module that knows padding on the right only.

Parts of one layer are disjoint: a key counts in one of them and is 0 in the others, as is a key beyond the sequence.
"""

from __future__ import annotations

from typing import Any

Declaration = dict[str, dict[str, Any]]
