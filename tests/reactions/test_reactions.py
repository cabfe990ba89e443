"""A reaction as text: its tokens, atoms and bonds."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.reaction_attention.package import find_package
from tests.reactions.conftest import Read, Tokens


def test_tokens_are_framed_and_known(read: Read, ids_of: Tokens) -> None:
    reaction = read("CCBr.[OH-]~[Na+]>>CCO")
    assert reaction.tokens == ("[CLS]", "C", "C", "Br", ".", "[OH-]", "~", "[Na+]", ">>", "C", "C", "O", "[SEP]")
    ids = ids_of(reaction)
    assert (ids[0], ids[-1], ids[1]) == (12, 13, 16)  # lines of vocab.txt, from 0
    assert ids_of.vocabulary["[UNK]"] not in ids


def test_an_atom_never_seen_is_unknown(read: Read, ids_of: Tokens) -> None:
    assert ids_of(read("[Og]>>C"))[1] == ids_of.vocabulary["[UNK]"]


def test_elements_are_read_whatever_their_brackets_hold(read: Read) -> None:
    reaction = read("[13CH3][nH].[C@@H](Cl)Br.[Na+].[se].*.[1*]>>c")
    assert [atom.element for atom in reaction.reactants] == ["C", "N", "C", "Cl", "Br", "Na", "Se", "*", "*"]
    assert [atom.element for atom in reaction.products] == ["C"]


def test_atoms_know_their_tokens(read: Read) -> None:
    reaction = read("C(=O)N.O>>OC")
    for atom in (*reaction.reactants, *reaction.products):
        assert reaction.tokens[atom.position] == atom.element


@pytest.mark.parametrize(
    ("smiles", "bonds"),
    [
        ("CCO", {(0, 1), (1, 2)}),
        ("CC(=O)(N)O", {(0, 1), (1, 2), (1, 3), (1, 4)}),
        ("C1CC1", {(0, 1), (1, 2), (0, 2)}),
        ("c1ccc2ccccc2c1", {*((i, i + 1) for i in range(9)), (0, 9), (3, 8)}),
        ("C%12CC%12", {(0, 1), (1, 2), (0, 2)}),
        ("C1CC1C1CC1", {(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (3, 5)}),
        ("C.C", set()),
        ("[O-]~[Na+]", {(0, 1)}),
        ("[O-]->[K+]", {(0, 1)}),
    ],
)
def test_bonds(read: Read, smiles: str, bonds: set[tuple[int, int]]) -> None:
    reaction = read(f"{smiles}>>C")
    assert {(min(pair), max(pair)) for pair in reaction.reactant_bonds} == bonds
    assert reaction.product_bonds == frozenset()


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("CCO", "reactants>>products"),
        ("C>>C>>C", "reactants>>products"),
        ("C>O>C", "reactants>>products"),
        (">>C", "both sides"),
        ("C>>", "both sides"),
        ("CQ>>C", "only 'C >> C' was read"),
        ("C C>>C", "only 'C C >> C' was read"),
        ("C(C>>C", "1 branches"),
        ("C)C>>C", "a branch ends"),
        ("C1C>>C", "1 rings"),
        ("1C>>C", "ring 1"),
    ],
)
def test_what_is_no_reaction_is_refused(read: Read, smiles: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(smiles)


def test_a_missing_package_is_told_with_the_command_for_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"pip install --no-deps --target {tmp_path} rxnmapper"):
        find_package(tmp_path)
