"""The picture of a mapping: how much each atom of the product attends to each atom of the reactants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from examples.reaction_attention.mapping import Array, Pair, cross_weights
from examples.reaction_attention.reactions import Atom, Reaction

DPI = 130
INCHES_PER_ATOM = 0.3


def draw(reaction: Reaction, weights: Array, pairs: Sequence[Pair], file: Path) -> None:
    """One heat map with a frame around each pair. weights: [tokens, tokens]."""
    shown = cross_weights(reaction, weights)  # [product atoms, reactant atoms]
    rows, columns = shown.shape
    figure = Figure(figsize=(columns * INCHES_PER_ATOM + 2, rows * INCHES_PER_ATOM + 1), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shown, cmap="viridis", vmin=0)
    figure.colorbar(image, ax=axes, shrink=0.85, label="weight")
    for pair in pairs:
        corner = pair.reactant - 0.5, pair.product - 0.5
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=1.8))
    axes.set_xticks(range(columns), _labels(reaction.reactants), fontsize=8)
    axes.set_yticks(range(rows), _labels(reaction.products), fontsize=8)
    axes.set(xlabel="atom of the reactants", ylabel="atom of the product")
    # As it was asked: the special tokens at both ends are the model's.
    axes.set_title("".join(reaction.tokens[1:-1]), fontsize=9, parse_math=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=DPI, metadata={"Software": None})


def _labels(atoms: Sequence[Atom]) -> list[str]:
    return [f"{atom.element}{number}" for number, atom in enumerate(atoms)]
