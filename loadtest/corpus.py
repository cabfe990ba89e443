"""Real English that every machine has: the docstrings of the standard library. Knows no model and no tokenizer."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

# Without the modules that gevent replaces (os, socket, subprocess, threading …): the text is the same under Locust.
_MODULES = (
    "argparse ast asyncio base64 bisect calendar collections configparser contextlib copy csv datetime decimal difflib "
    "email.message fractions functools heapq html.parser http.client imaplib inspect ipaddress itertools json locale "
    "logging mailbox optparse pathlib pdb pickle pprint random re sched shlex shutil smtplib "
    "statistics string tarfile tempfile textwrap timeit tokenize traceback types "
    "unittest unittest.mock urllib.parse urllib.request uuid weakref zipfile"
).split()


def read_corpus() -> str:
    """One docstring a line, in the same order every time: some hundred thousand characters."""
    return "\n".join(" ".join(doc.split()) for name in _MODULES for doc in _docs(importlib.import_module(name)))


def _docs(module: ModuleType) -> Iterator[str]:
    for owner in (module, *(c for _, c in sorted(vars(module).items()) if inspect.isclass(c))):
        for name, value in sorted(vars(owner).items()):
            doc = getattr(value, "__doc__", None)
            # Its own members only: other packages put theirs into the standard library's modules.
            is_own = (getattr(value, "__module__", None) or "").split(".")[0] == module.__name__.split(".")[0]
            if is_own and callable(value) and not name.startswith("_") and isinstance(doc, str) and len(doc) > 80:
                yield doc
