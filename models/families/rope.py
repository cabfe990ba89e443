"""What a config.json says of rotary positions: an object of parameters, as transformers writes it.

Only plain rotations are computed: a `rope_type` that stretches or scales them is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.families.family import ConfigFault

_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_NEEDED: Mapping[str, Any] = {"rope_type": "default", "type": "default", "partial_rotary_factor": 1}
_MAX_BASE = 1e12


def rope_faults(said: Any, base: Any, key: str) -> Iterator[ConfigFault]:
    """All that is not right in one object of parameters.

    said: the object, None = there is none. base: that of the frequencies, from there or from where else it is said.
    key: where the object stands in config.json.
    """
    if said is not None and not isinstance(said, dict):
        yield ConfigFault(key, said, f"an object of {', '.join(_KEYS)} is needed")
        return
    for name, value in (said or {}).items():
        if name not in _KEYS:
            yield ConfigFault(f"{key}.{name}", value, f"only {', '.join(_KEYS)} are known")
        elif name in _NEEDED and value not in (None, _NEEDED[name]):
            yield ConfigFault(f"{key}.{name}", value, f"{_NEEDED[name]} is needed")
    if type(base) not in (int, float) or not 0 < base <= _MAX_BASE:
        yield ConfigFault(f"{key}.rope_theta", base, "a number above 0 is needed")


def head_faults(config: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[ConfigFault]:
    """Heads that cannot be turned: of an odd width, or of another one than their share of the model's.

    values: by field, dim and num_heads as config.json has them.
    """
    dim, heads = values.get("dim"), values.get("num_heads")
    if type(dim) is not int or type(heads) is not int or heads < 1 or dim % heads:
        return  # told by who reads them
    if dim // heads % 2:
        yield ConfigFault("num_attention_heads", heads, f"heads of an even width are needed, of hidden_size {dim}")
    if config.get("head_dim") not in (None, dim // heads):
        yield ConfigFault("head_dim", config["head_dim"], f"the {dim // heads} of each of {heads} heads is needed")
