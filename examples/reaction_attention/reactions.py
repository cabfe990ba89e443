"""A reaction as SMILES → tokens, ids, atoms and bonds. Knows no model and no chemistry beyond the notation.

Agents stand among the reactants, before `>>`; `.` parts molecules, `~` joins the ions of one salt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

CLS, SEP, UNKNOWN, ARROW = "[CLS]", "[SEP]", "[UNK]", ">>"
_ELEMENT = re.compile(r"\[?\d*(\*|[A-Z][a-z]?|[a-z][a-z]?)")
_RING = re.compile(r"%?(\d+)")


@dataclass(frozen=True, slots=True)
class Atom:
    """position: of its token in the model's input. element: its symbol, `*` for any."""

    position: int
    element: str


@dataclass(frozen=True, slots=True)
class Reaction:
    """tokens: what the model reads, special ones included. bonds: pairs of atoms, each by its number on its side."""

    tokens: tuple[str, ...]
    reactants: tuple[Atom, ...]
    products: tuple[Atom, ...]
    reactant_bonds: frozenset[tuple[int, int]]
    product_bonds: frozenset[tuple[int, int]]


def read_reaction(smiles: str, pattern: re.Pattern[str]) -> Reaction:
    """Raises ValueError for what cannot be read as `reactants>>products`."""
    tokens = [found.group() for found in pattern.finditer(smiles)]
    if "".join(tokens) != smiles:
        raise ValueError(f"not SMILES: of {smiles!r} only {' '.join(tokens)!r} was read")
    if tokens.count(ARROW) != 1:
        raise ValueError(f"reactants{ARROW}products needed, got {smiles!r}")
    arrow = tokens.index(ARROW)
    sides = tokens[:arrow], tokens[arrow + 1 :]
    first = 1, arrow + 2  # the special token in front, and the arrow
    reactants, products = (tuple(_atoms(side, start)) for side, start in zip(sides, first, strict=True))
    if not (reactants and products):
        raise ValueError(f"atoms on both sides of {ARROW} needed, got {smiles!r}")
    return Reaction((CLS, *tokens, SEP), reactants, products, *map(_bonds, sides))


def to_ids(tokens: Iterable[str], vocabulary: Mapping[str, int]) -> list[int]:
    """An atom that the model never saw is the unknown token, as in its training."""
    return [vocabulary.get(token, vocabulary[UNKNOWN]) for token in tokens]


def _is_atom(token: str) -> bool:
    return token[0].isalpha() or token[0] in "[*"


def _atoms(tokens: Sequence[str], start: int) -> Iterable[Atom]:
    for position, token in enumerate(tokens, start):
        if _is_atom(token):
            element = _ELEMENT.match(token)
            if element is None:
                raise ValueError(f"not an atom: {token}")
            yield Atom(position, element[1].capitalize())


def _bonds(tokens: Iterable[str]) -> frozenset[tuple[int, int]]:
    """Each atom is bound to the one before it, where a branch began, and where its ring number stood before."""
    bonds: set[tuple[int, int]] = set()
    last: int | None = None
    num_atoms = 0
    branches: list[int | None] = []
    rings: dict[int, int] = {}
    for token in tokens:
        if _is_atom(token):
            bonds |= set() if last is None else {(last, num_atoms)}
            last, num_atoms = num_atoms, num_atoms + 1
        elif token == "(":
            branches.append(last)
        elif token == ")":
            last = _end_branch(branches)
        elif token == ".":
            last = None
        elif ring := _RING.fullmatch(token):
            bonds |= _meet(rings, int(ring[1]), last)
    if branches or rings:
        raise ValueError(f"not SMILES: {len(branches)} branches and {len(rings)} rings were not closed")
    return frozenset(bonds)


def _end_branch(branches: list[int | None]) -> int | None:
    if not branches:
        raise ValueError("not SMILES: a branch ends that did not begin")
    return branches.pop()


def _meet(rings: dict[int, int], number: int, atom: int | None) -> set[tuple[int, int]]:
    """Open a ring at an atom, or close it there."""
    if atom is None:
        raise ValueError(f"not SMILES: ring {number} has no atom before it")
    if number in rings:
        return {(rings.pop(number), atom)}
    rings[number] = atom
    return set()
