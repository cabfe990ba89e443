"""Relative positions as buckets: near ones each have their own, far ones share, and both directions are told apart.

As T5 and MPNet have them, with the numbers that MPNet was trained with. Free of torch: the graphs hold the same table.
"""

from __future__ import annotations

NUM_BUCKETS = 32
_PER_DIRECTION = NUM_BUCKETS // 2
_NUM_NEAR = _PER_DIRECTION // 2


def bucket(distance: int) -> int:
    """The bucket of a distance, position of the key less that of the query. -> 0 … NUM_BUCKETS - 1

    Far ones grow by √2 each, so the last of them begins at 91: `8 + ⌊2 log₂(n / 8)⌋`, in whole numbers.
    """
    size = abs(distance)
    if size >= _NUM_NEAR:
        far = (size * size // _NUM_NEAR**2).bit_length() - 1
        size = min(_NUM_NEAR + far, _PER_DIRECTION - 1)
    return size + (_PER_DIRECTION if distance > 0 else 0)


def buckets_within(reach: int) -> list[int]:
    """The buckets of the distances from -reach to reach."""
    return [bucket(distance) for distance in range(-reach, reach + 1)]
