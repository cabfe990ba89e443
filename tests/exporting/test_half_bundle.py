"""A float16 bundle as the service takes it: whole, or refused with the file and field at fault."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from export.bundle import export_model
from service.api.models import summary
from service.bundle import open_bundle, read_text_manifest, sha256_file
from service.engine.engine import Engine
from service.errors import StartupError
from service.manifest import DERIVED, MANIFEST, WEIGHTS, Manifest
from service.parity.report import gates_for
from service.settings import Settings
from tests.exporting.bundles import TEXTS, encode

GATES = gates_for("float16", "CPUExecutionProvider")


def changed(bundle: Path, target: Path, change: Callable[[Path, Manifest], Manifest]) -> Path:
    """A copy with another manifest, sealed again."""
    shutil.copytree(bundle, target)
    (target / MANIFEST).write_bytes(change(target, read_text_manifest(target)).sealed().to_bytes())
    return target


def _spoil(bundle: Path, manifest: Manifest) -> Manifest:
    content = bytearray((bundle / DERIVED).read_bytes())
    content[-1] ^= 64
    (bundle / DERIVED).write_bytes(content)
    return manifest


def _forget(bundle: Path, manifest: Manifest) -> Manifest:
    return manifest.model_copy(update={"files": {k: v for k, v in manifest.files.items() if k != DERIVED}})


def _move_out(bundle: Path, manifest: Manifest) -> Manifest:
    (bundle / DERIVED).rename(bundle.parent / DERIVED)
    files = {k: v for k, v in manifest.files.items() if k != DERIVED}
    return manifest.model_copy(update={"files": files | {f"../{DERIVED}": manifest.files[DERIVED]}})


def _link(bundle: Path, manifest: Manifest) -> Manifest:
    (bundle / DERIVED).rename(bundle.parent / DERIVED)
    (bundle / DERIVED).symlink_to(bundle.parent / DERIVED)
    return manifest


def _mix(bundle: Path, manifest: Manifest) -> Manifest:
    first, second = manifest.graphs
    return manifest.model_copy(update={"graphs": (first, second.model_copy(update={"precision": "float32"}))})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_spoil, rf"files\[{DERIVED}\] says sha256"),
        (_forget, f"files does not list {DERIVED}"),
        (_move_out, "files must lie inside the bundle"),
        (_link, f"{DERIVED}: missing, or not a plain file"),
        (_mix, "one bundle has one precision, got encode float16, attend float32"),
    ],
)
def test_a_damaged_bundle_is_refused(
    half: Path, tmp_path: Path, change: Callable[[Path, Manifest], Manifest], message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        open_bundle(changed(half, tmp_path / "bundle", change))


def test_derived_weights_that_are_not_the_published_ones_fail_the_probes(half: Path, tmp_path: Path) -> None:
    def replace_weights(bundle: Path, manifest: Manifest) -> Manifest:
        content = (bundle / DERIVED).read_bytes()
        values = load_file(bundle / DERIVED)["embeddings.word.weight"]
        assert content.count(values.tobytes()) == 1
        (bundle / DERIVED).write_bytes(content.replace(values.tobytes(), (values * np.float16(1.5)).tobytes()))
        return manifest.model_copy(update={"files": manifest.files | {DERIVED: sha256_file(bundle / DERIVED)}})

    bundle = open_bundle(changed(half, tmp_path / "bundle", replace_weights))
    with pytest.raises(StartupError, match="token_embeddings"):
        Engine.start(bundle, Settings(num_threads=1))


def test_the_service_serves_it_on_the_cpu_with_a_warning(
    half: Path, tiny_bundles: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engines = []
    for path, is_warned in ((half, True), (tiny_bundles / "bert_mean", False)):
        caplog.clear()
        engines.append(Engine.start(open_bundle(path), Settings(num_threads=1)))
        assert ("float16, which is for GPUs" in caplog.text) == is_warned
    assert [summary(engine)["precision"] for engine in engines] == ["float16", "float32"]
    found, expected = encode(half, TEXTS), encode(tiny_bundles / "bert_mean", TEXTS)
    np.testing.assert_allclose(found, expected, atol=GATES.embedding)
    assert np.abs(found - expected).max() > 1e-6, "it must not be float32 in secret"


@pytest.mark.slow
@pytest.mark.real_model
def test_the_real_model_is_proved_by_goldens_without_torch(minilm_dir: Path, tmp_path: Path, no_torch: None) -> None:
    exported = export_model(str(minilm_dir), tmp_path / "out", name="all-MiniLM-L6-v2", precision="float16")
    assert exported.manifest.proof.kind == "golden"
    worst = {gate.name: gate for gate in exported.report.gates}
    assert worst["goldens: token_embeddings"].limit == GATES.hidden
    assert worst["goldens: attention"].num_checks > 0
    assert (tmp_path / "out" / DERIVED).stat().st_size < 0.51 * (tmp_path / "out" / WEIGHTS).stat().st_size
