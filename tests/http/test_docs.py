"""The documentation works offline, and says what the wire says.

After a wanted change: `python -m tests.http.test_docs` writes the new `openapi.json`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.api.ops import UI
from service.app import HOT_ROUTES, create_app
from service.bundle import Bundle
from service.manifest import Manifest
from service.settings import Settings

SNAPSHOT = Path(__file__).parent / "openapi.json"


def _never() -> Bundle[Manifest]:
    raise AssertionError("the schema needs no bundle")


def render() -> str:
    """The schema as it is kept in the repository."""
    return json.dumps(create_app(Settings(), _never).openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def references(schema: Any) -> set[str]:
    """Every `$ref` in a schema."""
    return set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(schema)))


def test_the_schema_is_the_one_that_was_agreed() -> None:
    assert render() == SNAPSHOT.read_text(encoding="utf8"), "a wanted change? run: python -m tests.http.test_docs"


def test_the_schema_is_whole() -> None:
    schema = json.loads(render())
    assert references(schema) <= set(schema["components"]["schemas"])
    assert "422" not in render()
    assert "HTTPValidationError" not in schema["components"]["schemas"]
    for path in HOT_ROUTES:
        operation = schema["paths"][path]["post"]
        assert operation["requestBody"]["required"]
        assert operation["summary"]
    assert "application/vnd.safetensors" in schema["paths"]["/v1/encode"]["post"]["responses"]["200"]["content"]


async def test_the_page_needs_no_network(client: httpx2.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(links) == 4
    for link in links:
        assert "//" not in link
        asset = await client.get(f"/{link}")
        assert asset.status_code == 200, link
        assert asset.content
    assert "//" not in re.sub(r"^//.*", "", (UI / "docs.js").read_text(), flags=re.MULTILINE)
    assert (await client.get("/openapi.json")).json() == json.loads(render())
    assert (await client.get("/favicon.ico")).headers["content-type"] == "image/png"


@pytest.mark.parametrize("name", ["swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png", "LICENSE"])
def test_the_page_is_part_of_the_package(name: str) -> None:
    assert (UI / "swagger" / name).stat().st_size > 500


if __name__ == "__main__":
    SNAPSHOT.write_text(render(), encoding="utf8")
