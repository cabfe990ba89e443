"""The published weights map reactions as their authors' own code does, and as chemistry has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from examples.reaction_attention.albert import ReactionAlbert
from examples.reaction_attention.map_atoms import HEAD, LAYER
from examples.reaction_attention.mapping import Pair, confidence, map_atoms
from tests.reactions.conftest import Read, Tokens, weights_of


@dataclass(frozen=True, slots=True)
class Published:
    """A reaction, its mapping and the confidence in it: what the authors' code gives without canonicalization."""

    smiles: str
    mapped: str
    confidence: float


# Of the package rxnmapper 0.4.3: the second of its README, the others of its tests/test_mapper.py.
PUBLISHED = {
    "ether": Published(
        "C(C)O.BrC(C)>>CCOCC",
        "[CH2:2]([CH3:1])[OH:3].Br[CH2:4][CH3:5]>>[CH3:1][CH2:2][O:3][CH2:4][CH3:5]",
        0.9754605679009868,
    ),
    "ester to acid": Published(
        "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
        "C1COCCO1.CC(C)(C)[O:3][C:2](=[O:1])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9][CH2:10][c:11]1[cH:12][cH:13][cH:14]"
        "[c:15]2[cH:16][cH:17][cH:18][cH:19][c:20]12.Cl>>[O:1]=[C:2]([OH:3])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9]"
        "[CH2:10][c:11]1[cH:12][cH:13][cH:14][c:15]2[cH:16][cH:17][cH:18][cH:19][c:20]12",
        0.9704424331552834,
    ),
    "impossible valence": Published(
        "CCO.BrCFC>>CCOCFC",
        "[CH3:1][CH2:2][OH:3].Br[CH2:4][F:5][CH3:6]>>[CH3:1][CH2:2][O:3][CH2:4][F:5][CH3:6]",
        0.9730222157275086,
    ),
    "dative bond": Published(
        "COC(=O)CCBr.O=C[O-]->[K+]>>COC(=O)CCOC(=O)C",
        "[CH3:1][O:2][C:3](=[O:4])[CH2:5][CH2:6]Br.[O:9]=[CH:8][O-:7]->[K+]"
        ">>[CH3:1][O:2][C:3](=[O:4])[CH2:5][CH2:6][O:7][C:8](=[O:9])[CH3:10]",
        0.9322116305783666,
    ),
    "any atom": Published(
        "[1*]C=C.O>>*CCO",
        "[1*:1][CH:2]=[CH2:3].[OH2:4]>>[*:1][CH2:2][CH2:3][OH:4]",
        0.9988284870307568,
    ),
}
# Hydrolysis of ethyl acetate in water labelled with oxygen-18 puts the label into the acid: the bond that breaks is the
# acyl one (Polanyi and Szabo, 1934). So the acid's new oxygen is water's, and ethanol keeps its own.
HYDROLYSIS = "CCOC(C)=O.O>>CC(=O)O.CCO"
HYDROLYSED = {0: 4, 1: 3, 2: 5, 3: 6, 4: 0, 5: 1, 6: 2}


def mapped(smiles: str, model: ReactionAlbert, read: Read, ids_of: Tokens) -> list[Pair]:
    reaction = read(smiles)
    return map_atoms(reaction, weights_of(model, ids_of(reaction), LAYER, HEAD))


def pairs_of(found: list[Pair]) -> dict[int, int]:
    return {pair.product: pair.reactant for pair in found}


def numbered(mapped_smiles: str, read: Read) -> dict[int, int]:
    """The pairs that equal numbers make: atom of the product → atom of the reactants, both counted from 0."""
    reaction = read(mapped_smiles)
    sides = (
        [reaction.tokens[atom.position].rpartition(":")[2].rstrip("]") for atom in side]
        for side in (reaction.products, reaction.reactants)
    )
    products, reactants = sides
    return {place: reactants.index(number) for place, number in enumerate(products) if number in reactants}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_reaction(name: str, model: ReactionAlbert, read: Read, ids_of: Tokens) -> None:
    case = PUBLISHED[name]
    found = mapped(case.smiles, model, read, ids_of)
    assert pairs_of(found) == numbered(case.mapped, read)
    assert confidence(found) == pytest.approx(case.confidence, rel=1e-4)


def test_the_acid_of_a_hydrolysed_ester_has_the_oxygen_of_water(
    model: ReactionAlbert, read: Read, ids_of: Tokens
) -> None:
    found = mapped(HYDROLYSIS, model, read, ids_of)
    assert pairs_of(found) == HYDROLYSED
    assert confidence(found) > 0.9


def test_pairs_have_one_element_and_are_made_once(read: Read) -> None:
    reaction = read("CO.N>>NCO")
    size = len(reaction.tokens)
    found = map_atoms(reaction, np.full((size, size), 1 / size))
    assert pairs_of(found) == {0: 2, 1: 0, 2: 1}
    assert pairs_of(map_atoms(read("C>>CC"), np.full((7, 7), 0.1))) == {0: 0}


def test_weights_count_in_both_directions(read: Read) -> None:
    reaction = read("C.C>>C")
    weights = np.zeros((7, 7))
    weights[5, 1], weights[3, 5] = 0.2, 0.3  # the product attends to the first, the second attends to the product
    (pair,) = map_atoms(reaction, weights)
    assert (pair.reactant, pair.weight) == (1, 0)
    assert pair.confidence == pytest.approx(0.6)


def test_a_pair_makes_its_neighbours_likelier(read: Read) -> None:
    reaction = read("CO.C>>CO")
    weights = np.zeros((9, 9))
    product = {atom.element: atom.position for atom in reaction.products}
    (bound, oxygen, alone) = (atom.position for atom in reaction.reactants)
    weights[product["O"], oxygen] = 0.5
    weights[product["C"], [bound, alone]] = 0.1, 0.3
    assert pairs_of(map_atoms(reaction, weights)) == {0: 0, 1: 1}
