"""Attention between the two sides of a reaction → which atom of the reactants each atom of the product was.

The procedure of RXNMapper (Schwaller et al., Science Advances 7, 2021, "Attention-guided atom-mapping"): the surest
pair first, atoms of one element only, each atom once; neighbours of a pair are likely neighbours on the other side too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.reaction_attention.reactions import Atom, Reaction

Array = NDArray[np.float64]
NEIGHBOUR_FACTOR = 90.0


@dataclass(frozen=True, slots=True)
class Pair:
    """product, reactant: numbers of the atoms on their sides. weight: how much the product's atom attends to the other.

    confidence: the share of this reactant among all that the product's atom could still be.
    """

    product: int
    reactant: int
    weight: float
    confidence: float


def cross_weights(reaction: Reaction, weights: Array) -> Array:
    """How much atoms of the product attend to those of the reactants.

    weights: [tokens, tokens], rows attend to columns
    -> [product atoms, reactant atoms]
    """
    found: Array = weights[np.ix_(_positions(reaction.products), _positions(reaction.reactants))]
    return found


def map_atoms(reaction: Reaction, weights: Array) -> list[Pair]:
    """A reactant's atom for each of the product's, in the product's order; those without any are left out.

    weights: [tokens, tokens], rows attend to columns
    """
    forth = cross_weights(reaction, weights)  # [product atoms, reactant atoms]
    back = weights[np.ix_(_positions(reaction.reactants), _positions(reaction.products))]
    scores = (forth + back.T) * _same_element(reaction)
    beside_product = _adjacency(reaction.product_bonds, len(reaction.products))
    beside_reactant = _adjacency(reaction.reactant_bonds, len(reaction.reactants))
    pairs: dict[int, Pair] = {}
    for _ in reaction.products:
        totals = scores.sum(axis=1, keepdims=True)
        shares = np.divide(scores, totals, out=np.zeros_like(scores), where=totals > 0)
        product, reactant = (int(place) for place in np.unravel_index(shares.argmax(), shares.shape))
        if shares[product, reactant] == 0:
            break
        pairs[product] = Pair(product, reactant, float(forth[product, reactant]), float(shares[product, reactant]))
        scores[np.ix_(beside_product[product], beside_reactant[reactant])] *= NEIGHBOUR_FACTOR
        scores[product] = 0
        scores[:, reactant] = 0
    return [pairs[product] for product in sorted(pairs)]


def confidence(pairs: Iterable[Pair]) -> float:
    """Of the whole mapping: the product over its pairs."""
    return float(np.prod([pair.confidence for pair in pairs]))


def _positions(atoms: Iterable[Atom]) -> list[int]:
    return [atom.position for atom in atoms]


def _same_element(reaction: Reaction) -> Array:
    products, reactants = (
        np.array([atom.element for atom in side]) for side in (reaction.products, reaction.reactants)
    )
    same: Array = (products[:, None] == reactants).astype(np.float64)
    return same


def _adjacency(bonds: Iterable[tuple[int, int]], size: int) -> NDArray[np.bool_]:
    matrix = np.zeros((size, size), dtype=bool)
    for one, other in bonds:
        matrix[one, other] = matrix[other, one] = True
    return matrix
