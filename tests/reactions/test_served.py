"""The example as its documentation has it: converted, exported, served, asked, drawn."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch

from examples.reaction_attention.map_atoms import HEAD, LAYER, PATH, main, make_body, read_weights
from service.app import create_app
from service.bundle import open_bundle
from service.manifest import PARITY
from service.parity.report import ParityReport
from service.settings import Settings
from tests.fixtures.command import ROOT
from tests.fixtures.live import serving
from tests.http.conftest import wait_ready
from tests.reactions.conftest import Read, Tokens
from tests.reactions.reference import Albert
from tests.reactions.short import MAX_TOKENS
from tests.reactions.test_mapping import HYDROLYSIS, PUBLISHED

DOCUMENT = ROOT / "docs" / "attention.md"
MODULE, SHORT = "examples/reaction_attention/albert.py:ReactionAlbert", "tests/reactions/short.py:ShortAlbert"
NUMBER = re.compile(r"\d+\.\d+")
PNG = b"\x89PNG\r\n\x1a\n"
pytestmark = pytest.mark.slow


def commands() -> list[str]:
    """Those of the document, in their order; a command goes on after a backslash."""
    text = DOCUMENT.read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if "reaction" in line]


def output() -> str:
    """What the document says that the client prints."""
    found = re.search(r"^```\n(product .*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def run(command: str, out: Path, package: Path, **replaced: str) -> str:
    """Run a command of the document; what it builds goes to `out`, and the package is where the tests have it."""
    places = {
        ".venv-dev/bin/python": shlex.quote(sys.executable),
        ".venv-dev/bin/qkv": f"{shlex.quote(sys.executable)} -m qkv",
        "build/reaction": str(out),
        "bundles/": f"{out}/",
        "docs/figures/": f"{out}/",
    }
    for word, place in (places | replaced).items():
        command = command.replace(word, place)
    if "examples.reaction_attention" in command:
        command += f" --package {shlex.quote(str(package))}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "dumb"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def out(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first two commands built: the weights, and the bundle of `ShortAlbert` with them."""
    out = tmp_path_factory.mktemp("reaction")
    convert, export, serve, ask = commands()
    assert MODULE in export
    assert " serve bundles/reaction-albert" in serve
    assert "map_atoms" in ask
    told = run(convert, out, package)
    assert "unused: albert.pooler.weight" in told
    assert "predictions.decoder.weight" in told
    run(export, out, package, **{MODULE: SHORT})
    return out


@pytest.fixture
async def client(out: Path) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(Settings(), lambda: open_bundle(out / "reaction-albert"))
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client,
    ):
        await wait_ready(client)
        yield client


def test_the_bundle_is_proved_for_every_mask(out: Path) -> None:
    bundle = open_bundle(out / "reaction-albert")
    report = ParityReport.model_validate_json(bundle.file(PARITY).read_bytes())
    assert (bundle.manifest.proof.kind, report.passed, bundle.manifest.batching) == ("pytorch", True, "padded")
    assert bundle.manifest.attention is not None
    assert (bundle.manifest.attention.layers, bundle.manifest.attention.heads) == (12, 8)


async def test_attention_over_http_is_that_of_transformers(
    client: httpx2.AsyncClient, published: Albert, read: Read, ids_of: Tokens
) -> None:
    for case in PUBLISHED.values():
        ids = ids_of(read(case.smiles))
        answer = await client.post(PATH, json=make_body(ids))
        assert answer.status_code == 200, answer.text
        _, *attentions = published(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
        expected = attentions[LAYER][0, HEAD].numpy()
        found = read_weights(answer.json())
        assert found.shape == expected.shape == (len(ids), len(ids))
        assert np.abs(found - expected).max() <= 1e-5


async def test_a_padded_batch_gives_every_layer_and_head(
    client: httpx2.AsyncClient, published: Albert, read: Read, ids_of: Tokens
) -> None:
    rows = [ids_of(read(smiles)) for smiles in (HYDROLYSIS, "CC>>CC")]
    seq = max(map(len, rows))
    ids = [row + [0] * (seq - len(row)) for row in rows]
    mask = [[True] * len(row) + [False] * (seq - len(row)) for row in rows]
    body = {"tensors": {"input_ids": ids, "mask": mask}, "include": ["attention"], "attention": {"layers": "all"}}
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    _, *attentions = published(torch.tensor(ids), torch.tensor(mask))
    for index, row in enumerate(rows):
        layers = answer.json()["data"][index]["attention"]
        assert [layer["layer"] for layer in layers] == list(range(12))
        for layer, expected in zip(layers, attentions, strict=True):
            found = np.array(layer["weights"])
            assert np.abs(found - expected[index].numpy())[:, : len(row)].max() <= 1e-5
            assert not found[:, :, len(row) :].any()


def test_the_client_prints_and_draws_what_the_document_shows(out: Path, package: Path, tmp_path: Path) -> None:
    ask = commands()[-1]
    with serving(tmp_path / "server.log", str(out / "reaction-albert")) as server:
        printed = run(ask, out, package, **{"http://127.0.0.1:8001": server.url})
        with pytest.raises(SystemExit, match=f"1 to {MAX_TOKENS} allowed, got 204"):
            main("C" * 200 + ">>C", url=server.url, package=package)
    assert NUMBER.sub("", printed).split() == NUMBER.sub("", output()).split()
    shown, expected = (list(map(float, NUMBER.findall(text))) for text in (printed, output()))
    assert shown == pytest.approx(expected, abs=2e-4)
    (picture,) = out.glob("*.png")
    assert picture.read_bytes().startswith(PNG)
