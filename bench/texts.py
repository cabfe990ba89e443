"""Real text of a wanted length: seeded slices of the standard library's docstrings, measured in the model's tokens."""

from __future__ import annotations

import importlib
import inspect
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from tokenizers import Tokenizer

NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]
_MODULES = (
    "argparse ast asyncio base64 bisect calendar collections configparser contextlib copy csv datetime decimal difflib "
    "email.message fractions functools heapq html.parser http.client imaplib inspect ipaddress itertools json locale "
    "logging mailbox optparse os pathlib pdb pickle pprint random re sched shlex shutil smtplib socket "
    "statistics string subprocess tarfile tempfile textwrap threading timeit tokenize traceback types "
    "unittest unittest.mock urllib.parse urllib.request uuid weakref zipfile"
).split()


def _lognormal(rng: random.Random) -> int:
    return round(rng.lognormvariate(math.log(40), 0.85))


LENGTHS: dict[str, Callable[[random.Random], int]] = {
    "passage": lambda rng: rng.randint(100, 200),
    "short": lambda rng: rng.randint(8, 14),
    "mixed": lambda rng: min(max(_lognormal(rng), 5), 256),
}


def make_texts(kind: str, count: int, tokenizer_file: Path, *, seed: int = 0) -> list[str]:
    """`count` texts of the lengths of that kind, special tokens included; the same seed gives the same texts.

    kind: `passage` 100 to 200 tokens, `short` 8 to 14, `mixed` lognormal around 40, from 5 to 256.
    """
    tokenizer = open_tokenizer(tokenizer_file)
    rng = random.Random(f"{kind} {seed}")
    corpus = _corpus()
    offsets = tokenizer.encode(corpus, add_special_tokens=False).offsets
    starts = [i for i in range(len(offsets) - 400) if offsets[i][0] != offsets[i - 1][1]]
    texts = []
    for _ in range(count):
        first = rng.choice(starts)
        last = first + LENGTHS[kind](rng) - NUM_SPECIAL_TOKENS - 1
        texts.append(corpus[offsets[first][0] : offsets[last][1]])
    return texts


def open_tokenizer(file: Path) -> Tokenizer:
    """The bundle's tokenizer without the truncation and padding that its file may hold."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _corpus() -> str:
    return "\n".join(" ".join(doc.split()) for name in _MODULES for doc in _docs(importlib.import_module(name)))


def _docs(module: ModuleType) -> Iterator[str]:
    for owner in (module, *(c for _, c in sorted(vars(module).items()) if inspect.isclass(c))):
        for name, value in sorted(vars(owner).items()):
            doc = getattr(value, "__doc__", None)
            if callable(value) and not name.startswith("_") and isinstance(doc, str) and len(doc) > 80:
                yield doc
