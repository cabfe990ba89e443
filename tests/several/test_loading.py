"""Models that come and go while others answer: the repository's routes, for who has the admin key."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.api.oip_schema import OipEntry
from service.manifest import TOKENIZER
from tests.http.test_bodies import check_error
from tests.http.test_oip import oip_error
from tests.several.conftest import ADMIN, KEY, Fakes, OpenServed, Served, until, write_bundle
from tests.several.test_choosing import held, waiting

PATHS = ("index", "models/b/load", "models/a/unload")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    return path


@pytest.fixture
async def served(open_served: OpenServed, repository: Path) -> Served:
    """A server of the model `a`, beside a repository that is empty at first."""
    return await open_served("a", admin_key=KEY, repository=str(repository))


async def dims(served: Served) -> dict[str, int]:
    models = (await served.client.get("/v1/models")).json()["data"]
    return {model["id"]: model["embedding"]["dim"] for model in models}


async def test_without_a_key_there_are_no_such_routes(open_served: OpenServed, repository: Path) -> None:
    served = await open_served("a", repository=str(repository))
    nowhere = oip_error(await served.client.post("/v2/nowhere"), 404)
    for path in PATHS:
        for headers in ({}, ADMIN):
            answer = await served.client.post(f"/v2/repository/{path}", headers=headers)
            assert oip_error(answer, 404) == nowhere
    assert "repository" not in (await served.client.get("/openapi.json")).text
    assert (await served.client.get("/v2")).json()["extensions"] == ["binary_tensor_data"]


@pytest.mark.parametrize("path", PATHS)
async def test_without_the_right_key_nothing_is_told_and_nothing_changes(
    served: Served, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    for sent in ("", KEY, "Bearer", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", "Bearer \xe9"):
        for headers in ({b"authorization": sent.encode("latin-1")}, {}):
            with caplog.at_level(logging.DEBUG):
                answer = await served.client.post(f"/v2/repository/{path}", headers=headers, content=b"no JSON")
            message = oip_error(answer, 401)
            assert message == "this path needs the admin key, as `Authorization: Bearer KEY`"
            assert answer.headers["www-authenticate"] == "Bearer"
    assert KEY[:-1] not in caplog.text
    assert (await served.encode("a")).status_code == 200


async def test_the_right_key_opens_them_whatever_the_case_of_the_scheme(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for scheme in ("Bearer", "bearer", "BEARER "):
            answer = await served.client.post("/v2/repository/index", headers={"authorization": f"{scheme} {KEY}"})
            assert answer.status_code == 200
    assert [OipEntry.model_validate(entry).name for entry in answer.json()] == ["a"]
    assert KEY not in caplog.text
    assert KEY not in (await served.client.get("/metrics")).text
    assert KEY not in (await served.client.get("/openapi.json")).text
    assert KEY not in repr(served.service.settings)
    assert (await served.client.get("/v2")).json()["extensions"] == ["binary_tensor_data", "model_repository"]


async def test_the_schema_has_them_where_there_is_a_key(served: Served) -> None:
    schema = (await served.client.get("/openapi.json")).json()
    paths = {path: found for path, found in schema["paths"].items() if "repository" in path}
    assert set(paths) == {"/v2/repository/index", *(f"/v2/repository/models/{{model}}/{w}" for w in ("load", "unload"))}
    for found in paths.values():
        assert found["post"]["security"] == [{"admin": []}]
        assert not found["post"]["requestBody"]["required"]
        assert "401" in found["post"]["responses"]
    assert schema["components"]["securitySchemes"] == {"admin": {"type": "http", "scheme": "bearer"}}
    assert {"IndexBody", "LoadBody", "OipEntry"} <= set(schema["components"]["schemas"])


async def test_a_bundle_is_found_loaded_and_unloaded(served: Served, repository: Path, fakes: Fakes) -> None:
    assert await served.index() == {"a": ("READY", "")}
    write_bundle(repository / "folder-of-b", "b")
    assert await served.index() == {"a": ("READY", ""), "b": ("UNAVAILABLE", "")}
    check_error(await served.encode("b"), 404, code="model_not_found")
    answer = await served.admin("models/b/load", json={})
    assert answer.json() == {"name": "b", "version": "1", "state": "READY", "reason": ""}
    assert (await served.encode("b")).json()["model"] == "b"
    check_error(await served.encode(), 400, code="missing_field")
    assert await served.index() == {"a": ("READY", ""), "b": ("READY", "")}
    ready = await served.admin("index", json={"ready": True})
    assert [entry["name"] for entry in ready.json()] == ["a", "b"]
    answer = await served.admin("models/b/unload")
    assert answer.json() == {"name": "b", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    check_error(await served.encode("b"), 404, code="model_not_found")
    assert (await served.encode()).json()["model"] == "a"
    assert await served.index() == {"a": ("READY", ""), "b": ("UNAVAILABLE", "unloaded")}
    ready = await served.admin("index", json={"ready": True})
    assert [entry["name"] for entry in ready.json()] == ["a"]
    metrics = (await served.client.get("/metrics")).text
    assert 'qkv_model_ready{model="b"}' not in metrics
    assert 'qkv_items_total{model="b",route="/v1/encode"} 1.0' in metrics
    # The name of its folder does as well, and gives the model under its own.
    assert (await served.admin("models/folder-of-b/load")).json()["name"] == "b"
    assert (await served.admin("models/folder-of-b/unload")).json()["name"] == "b"
    await until(lambda: all(not runner.loaded for runner in fakes.runners[1:]))
    assert fakes.runners[0].loaded


async def test_a_request_finishes_on_the_version_that_it_began_with(
    served: Served, repository: Path, fakes: Fakes
) -> None:
    may_run = threading.Event()
    write_bundle(repository / "b", "b")
    fakes.on_call["b"] = held(may_run)
    await served.admin("models/b/load")
    old = [asyncio.create_task(served.encode("b")) for _ in range(3)]
    await until(lambda: waiting(served) == 12)
    first = served.service.models.get("b")
    assert first is not None
    del fakes.on_call["b"]
    shutil.rmtree(repository / "b")
    write_bundle(repository / "b", "b", dim=3)
    assert (await served.admin("models/b/load")).status_code == 200
    assert await dims(served) == {"a": 4, "b": 3}
    assert (await served.encode("b", dimensions=4)).status_code == 400, "the new version has 3 dimensions"
    assert all(not task.done() for task in old)
    assert fakes.runners[1].loaded, "the old version is closed before its requests are over"
    may_run.set()
    assert [(await task).status_code for task in old] == [200] * 3
    await until(lambda: not fakes.runners[1].loaded)
    assert fakes.runners[2].loaded
    assert (await served.encode("b")).status_code == 200
    # Nothing holds what was closed.
    held_by: list[weakref.ref[Any]] = [weakref.ref(fakes.runners.pop(1)), weakref.ref(first)]
    del first, old
    await until(lambda: gc.collect() >= 0 and [ref() for ref in held_by] == [None, None])


async def test_a_version_is_told_as_it_was_loaded_whatever_becomes_of_its_folder(
    served: Served, repository: Path
) -> None:
    write_bundle(repository / "b", "b")
    await served.admin("models/b/load")
    before = (await served.client.get("/v1/models/b")).json()
    assert before["parity"]["num_cases"] == 1
    shutil.rmtree(repository / "b")
    for _ in range(2):
        assert (await served.client.get("/v1/models/b")).json() == before
        assert (await served.encode("b")).status_code == 200
        if not (repository / "b").exists():
            write_bundle(repository / "other", "b", dim=3).rename(repository / "b")


async def test_a_request_whose_body_is_not_complete_begins_with_the_version_that_is_there_then(
    served: Served, repository: Path
) -> None:
    write_bundle(repository / "b", "b")
    await served.admin("models/b/load")
    may_go_on = asyncio.Event()

    async def slowly() -> Any:
        yield b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES",'
        await may_go_on.wait()
        yield b'"data":["a"]}]}'

    begun = asyncio.create_task(served.client.post("/v2/models/b/infer", content=slowly()))
    await asyncio.sleep(0.05)
    await served.admin("models/b/unload")
    may_go_on.set()
    oip_error(await begun, 404)


async def test_an_unload_lets_what_runs_and_what_waits_finish(served: Served, repository: Path, fakes: Fakes) -> None:
    may_run = threading.Event()
    write_bundle(repository / "b", "b")
    fakes.on_call["b"] = held(may_run)
    await served.admin("models/b/load")
    old = [asyncio.create_task(served.encode("b")) for _ in range(5)]
    await until(lambda: waiting(served) == 20)
    assert (await served.admin("models/b/unload")).status_code == 200
    check_error(await served.encode("b"), 404, code="model_not_found")
    assert (await served.index())["b"] == ("UNAVAILABLE", "unloaded, 5 requests are still answered")
    assert (await served.encode("a")).status_code == 200
    may_run.set()
    assert [(await task).status_code for task in old] == [200] * 5
    await until(lambda: not fakes.runners[1].loaded)
    assert (await served.index())["b"] == ("UNAVAILABLE", "unloaded")


async def test_a_version_that_cannot_be_loaded_leaves_the_old_one_serving(
    served: Served, repository: Path, fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    write_bundle(repository / "b", "b")
    await served.admin("models/b/load")
    (repository / "b" / TOKENIZER).write_text("{}")
    message = oip_error(await served.admin("models/b/load"), 400)
    for word in ("not loaded", TOKENIZER, "sha256"):
        assert word in message
        assert word in caplog.text
    assert len(fakes.opened) == 2, "content is verified before anything of it is opened"
    assert (await served.encode("b")).status_code == 200
    state, reason = (await served.index())["b"]
    assert state == "READY"
    assert reason.startswith("the last load failed: ")
    assert (await served.client.get("/health/ready")).status_code == 200
    metrics = (await served.client.get("/metrics")).text
    assert 'qkv_errors_total{code="load_failed",model=""} 1.0' in metrics
    # Mended, it loads, and the reason goes.
    shutil.rmtree(repository / "b")
    write_bundle(repository / "b", "b", dim=2)
    assert (await served.admin("models/b/load")).status_code == 200
    assert (await dims(served))["b"] == 2
    assert (await served.index())["b"] == ("READY", "")


async def test_one_that_was_never_loaded_has_its_fault_in_the_index(
    served: Served, repository: Path, fakes: Fakes
) -> None:
    write_bundle(repository / "b", "b")
    fakes.broken["b"] = "encode.onnx: not what the manifest says"
    message = oip_error(await served.admin("models/b/load"), 400)
    assert message == "model: not loaded: b: encode.onnx: not what the manifest says"
    assert (await served.index())["b"] == ("UNAVAILABLE", "b: encode.onnx: not what the manifest says")
    check_error(await served.encode("b"), 404, code="model_not_found")
    (repository / "c").mkdir()
    (repository / "c" / "manifest.json").write_text("{}")
    state, reason = (await served.index())["c"]
    assert (state, "schema_version" in reason) == ("UNAVAILABLE", True)
    assert "schema_version" in oip_error(await served.admin("models/c/load"), 400)


async def test_a_bug_while_loading_is_a_500_and_the_old_one_serves(
    served: Served, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(path: Path) -> None:
        raise KeyError("a detail of ours")

    monkeypatch.setattr("service.loader.open_bundle", explode)
    assert "detail" not in oip_error(await served.admin("models/a/load"), 500)
    assert (await served.encode("a")).status_code == 200
    assert (await served.index())["a"] == ("READY", "the last load failed: KeyError")


async def test_loads_take_turns_and_others_are_answered_meanwhile(
    served: Served, repository: Path, fakes: Fakes
) -> None:
    for name in ("b", "c"):
        write_bundle(repository / name, name)
        fakes.hold[name] = threading.Event()
    loads = [asyncio.create_task(served.admin(f"models/{name}/load")) for name in ("b", "c", "b")]
    await until(lambda: fakes.num_opening == 1)
    for _ in range(20):
        assert (await served.encode("a")).status_code == 200
    assert (await served.index())["b"] == ("LOADING", "")
    assert (await served.client.get("/health/ready")).status_code == 200
    answer = await served.encode("b")
    check_error(answer, 503, code="not_ready")
    assert fakes.num_opening == 1, "the second load did not wait for the first"
    fakes.hold["b"].set()
    await until(lambda: fakes.opened[-1].name == "c")
    assert (await served.encode("b")).status_code == 200
    fakes.hold["c"].set()
    assert [(await load).status_code for load in loads] == [200] * 3
    assert fakes.most_opening == 1
    assert [path.name for path in fakes.opened] == ["a", "b", "c", "b"]
    await until(lambda: [bool(runner.loaded) for runner in fakes.runners] == [True, False, True, True])


async def test_while_it_is_loaded_again_the_old_one_answers(served: Served, fakes: Fakes) -> None:
    fakes.hold["a"] = threading.Event()
    load = asyncio.create_task(served.admin("models/a/load"))
    await until(lambda: fakes.num_opening == 1)
    assert (await served.encode("a")).status_code == 200
    assert (await served.index())["a"] == ("READY", "")
    fakes.hold["a"].set()
    assert (await load).status_code == 200


async def test_an_unload_waits_for_the_load_before_it(served: Served, repository: Path, fakes: Fakes) -> None:
    write_bundle(repository / "b", "b")
    fakes.hold["b"] = threading.Event()
    load = asyncio.create_task(served.admin("models/b/load"))
    await until(lambda: fakes.num_opening == 1)
    unload = asyncio.create_task(served.admin("models/b/unload"))
    await asyncio.sleep(0.05)
    assert not unload.done()
    fakes.hold["b"].set()
    assert [(await load).status_code, (await unload).status_code] == [200, 200]
    assert (await served.index())["b"] == ("UNAVAILABLE", "unloaded")


async def test_load_is_kept_up_under_traffic(served: Served, repository: Path, fakes: Fakes) -> None:
    """Every request gets an answer while versions change under it as fast as they can."""
    write_bundle(repository / "b", "b")
    await served.admin("models/b/load")
    is_over = False

    async def ask() -> list[int]:
        found = []
        while not is_over:
            found.append((await served.encode("b", "the cat " * 5)).status_code)
        return found

    askers = [asyncio.create_task(ask()) for _ in range(8)]
    for _ in range(6):
        assert (await served.admin("models/b/load")).status_code == 200
    is_over = True
    statuses = [status for asker in askers for status in await asker]
    assert set(statuses) == {200}
    assert len(statuses) > 20
    await until(lambda: [bool(runner.loaded) for runner in fakes.runners] == [True] + [False] * 6 + [True])


async def test_the_last_model_may_go_and_the_server_is_then_not_ready(served: Served) -> None:
    assert (await served.admin("models/a/unload")).status_code == 200
    message = check_error(await served.client.get("/health/ready"), 503, code="not_ready")
    assert message == "no model is loaded"
    for answer in (await served.encode("a"), await served.encode(), await served.client.get("/v1/models/a")):
        assert check_error(answer, 503, code="not_ready") == "no model is loaded"
        assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert (await served.client.get("/v1/models")).json()["data"] == []
    assert (await served.client.get("/health/live")).status_code == 200
    assert (await served.client.get("/health")).json()["models"] == []
    # What was served at start is found again by its name, though it lies outside the repository.
    assert (await served.admin("models/a/load")).status_code == 200
    assert (await served.client.get("/health/ready")).status_code == 200
    assert (await served.encode()).status_code == 200


PATHS_AND_ADDRESSES = [
    *("..", "../secret", "..%2Fsecret", "%2e%2e%2fsecret", "%2Fetc", "/etc", "http:%2F%2Fx%2Fy", "b%2F..%2Fb", ".%2Fb"),
    *("b%00", "~", "*", "b%0a", "b%20", "B", ""),
]


async def test_only_names_are_taken(served: Served, repository: Path, fakes: Fakes) -> None:
    write_bundle(repository / "b", "b")
    write_bundle(repository.parent / "secret", "secret")
    before = list(fakes.opened)
    for name in PATHS_AND_ADDRESSES:
        for verb in ("load", "unload"):
            url = httpx2.URL("http://test", raw_path=f"/v2/repository/models/{name}/{verb}".encode())
            oip_error(await served.client.post(url, headers=ADMIN), 404)
    assert fakes.opened == before
    assert set(await served.index()) == {"a", "b"}


async def test_a_bundle_is_loaded_as_it_is(served: Served, repository: Path) -> None:
    write_bundle(repository / "b", "b")
    refused: list[tuple[Any, str]] = [
        ({"parameters": {"config": "{}"}}, "parameters.config"),
        ({"parameters": {"file:1/model.onnx": "AAAA"}}, "parameters.file"),
        (
            {"parameters": {"unload_dependents": False, "unknown": 1, "config": "{}"}},
            "parameters.config, parameters.unknown",
        ),
        ({"parameters": {"un known": 1}}, "parameters"),
        ({"parameters": 5}, "parameters"),
        ([], "body"),
    ]
    for body, word in refused:
        assert oip_error(await served.admin("models/b/load", json=body), 400).startswith(f"{word}: ")
    check_error(await served.encode("b"), 404, code="model_not_found")
    for body in ({"parameters": {"unload_dependents": False}, "another": 1}, {"parameters": None}):
        assert (await served.admin("models/b/load", json=body)).status_code == 200


async def test_bodies_and_methods(served: Served) -> None:
    for body in (b"", b"{}", b'{"ready": false}'):
        assert (await served.admin("index", content=body)).status_code == 200
    assert "ready: true or false" in oip_error(await served.admin("index", json={"ready": "yes"}), 400)
    oip_error(await served.admin("index", content=b"{"), 400)
    oip_error(await served.admin("index", content=b"x" * (16 * 2**20 + 1)), 413)
    answer = await served.client.get("/v2/repository/index", headers=ADMIN)
    assert (oip_error(answer, 405), answer.headers["allow"]) == ("this path takes POST", "POST")


async def test_a_load_that_was_begun_is_finished_for_nobody_too(
    open_served: OpenServed, repository: Path, fakes: Fakes
) -> None:
    served = await open_served("a", admin_key=KEY, repository=str(repository), request_timeout_s=0.3)
    write_bundle(repository / "b", "b")
    fakes.hold["b"] = threading.Event()
    assert "0.3 s allowed" in oip_error(await served.admin("models/b/load"), 504)
    assert (await served.index())["b"] == ("LOADING", "")
    fakes.hold["b"].set()
    await until(lambda: served.service.models.get("b") is not None)
    assert (await served.encode("b")).status_code == 200


async def test_a_drain_does_not_wait_for_a_load(served: Served, repository: Path, fakes: Fakes) -> None:
    write_bundle(repository / "b", "b")
    fakes.hold["b"] = threading.Event()
    load = asyncio.create_task(served.admin("models/b/load"))
    await until(lambda: fakes.num_opening == 1)
    assert served.service.num_in_flight == 0
    served.service.is_draining = True
    check_error(await served.encode("a"), 503, code="draining")
    assert "shutting down" in oip_error(await served.admin("models/a/unload"), 503)
    fakes.hold["b"].set()
    await load


async def test_two_bundles_of_one_model_are_told_apart_by_their_folders(
    served: Served, repository: Path, fakes: Fakes
) -> None:
    """An upgrade, and back: each version has a folder of its own."""
    for folder, dim in (("b-1", 4), ("b-2", 3)):
        write_bundle(repository / folder, "b", dim=dim)
    assert set(await served.index()) == {"a", "b-1", "b-2"}
    message = oip_error(await served.admin("models/b/load"), 400)
    assert "b-1" in message
    assert "b-2" in message
    for folder, dim in (("b-1", 4), ("b-2", 3), ("b-1", 4)):
        answer = await served.admin(f"models/{folder}/load")
        assert answer.json()["name"] == "b"
        assert (await dims(served))["b"] == dim
        index = await served.index()
        assert index["b"] == ("READY", "")
        assert set(index) == {"a", "b", "b-2" if folder == "b-1" else "b-1"}
    assert json.loads((await served.admin("models/b/unload")).content)["state"] == "UNAVAILABLE"
