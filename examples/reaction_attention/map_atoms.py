"""`python -m examples.reaction_attention.map_atoms REACTION`: the atom mapping of a reaction, from a served model.

A client: it knows the server by HTTP alone.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import typer

from examples.reaction_attention.mapping import Array, Pair, confidence, map_atoms
from examples.reaction_attention.package import find_package, read_pattern, read_vocabulary
from examples.reaction_attention.reactions import Reaction, read_reaction, to_ids

# The layer and the head that carry the mapping, both counted from 0: the defaults of rxnmapper's core.py.
LAYER, HEAD = 10, 5
PATH = "/v1/encode"
TIMEOUT_S = 60


def make_body(ids: Sequence[int]) -> dict[str, Any]:
    """The request for the weights of that head, and for nothing else."""
    return {
        "tensors": {"input_ids": [list(ids)]},
        "include": ["attention"],
        "attention": {"layers": [LAYER], "heads": [HEAD]},
        "encoding_format": "base64",
    }


def read_weights(answer: Mapping[str, Any]) -> Array:
    """The weights in an answer: [tokens, tokens], rows attend to columns."""
    (layer,) = answer["data"][0]["attention"]
    weights = np.frombuffer(b64decode(layer["weights"]), "<f4").reshape(layer["shape"])
    one: Array = weights[0].astype(np.float64)
    return one


def ask(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The server's answer. Raises HTTPError, URLError."""
    request = Request(url.rstrip("/") + PATH, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=TIMEOUT_S) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def describe(reaction: Reaction, pairs: Sequence[Pair]) -> list[str]:
    """A line for each atom of the product, and one for the whole."""
    names = {pair.product: pair for pair in pairs}
    lines = ["product  reactant  attention  confidence"]
    for number, atom in enumerate(reaction.products):
        name = f"{atom.element}{number}"
        if (pair := names.get(number)) is None:
            lines.append(f"{name:7}  -")
            continue
        reactant = f"{reaction.reactants[pair.reactant].element}{pair.reactant}"
        lines.append(f"{name:7}  {reactant:8}  {pair.weight:9.4f}  {pair.confidence:10.4f}")
    return [*lines, f"confidence of the mapping: {confidence(pairs):.4f}"]


def main(
    smiles: Annotated[str, typer.Argument(metavar="REACTION", help="reactants>>products, as SMILES.")],
    url: Annotated[str, typer.Option(help="Where qkv serves the model.")] = "http://127.0.0.1:8000",
    figure: Annotated[Path | None, typer.Option(help="Draw the weights into this PNG.")] = None,
    package: Annotated[Path | None, typer.Option(help="Where rxnmapper was installed.")] = None,
) -> None:
    """Print, for each atom of the product, the reactants' atom that it was."""
    try:
        files = find_package(package)
        reaction = read_reaction(smiles, read_pattern(files))
        weights = read_weights(ask(url, make_body(to_ids(reaction.tokens, read_vocabulary(files)))))
    except HTTPError as error:
        sys.exit(f"{url}: {error.code} {error.read().decode(errors='replace')}")
    except URLError as error:
        sys.exit(f"{url}: {error.reason}")
    except (FileNotFoundError, ValueError) as error:
        sys.exit(str(error))
    pairs = map_atoms(reaction, weights)
    typer.echo("\n".join(describe(reaction, pairs)))
    if figure is not None:
        from examples.reaction_attention.figure import draw  # slow to import

        draw(reaction, weights, pairs, figure)


if __name__ == "__main__":
    typer.run(main)
