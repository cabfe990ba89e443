"""Probes: what is stored comes back, and whatever does not match is a failed gate with a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from service.errors import StartupError
from service.graph_spec import Role
from service.parity.probes import Probe, Probes, check_probes, load_probes, make_probes, save_probes
from service.parity.report import ParityReport
from service.runners.base import Array
from tests.fixtures.toy_encoder import Fault, ToyRunner, toy_manifest

ATTEND: tuple[Role, ...] = ("encode", "attend")


@pytest.fixture
def probes() -> Probes:
    return Probes("toy", make_probes(toy_manifest(), ToyRunner()), {"reference": "toy"})


def failures(report: ParityReport) -> dict[str, str]:
    return {gate.name: gate.case for gate in report.failures}


def scaled(name: str, factor: float) -> Fault:
    return lambda role, inputs, outputs: outputs | {name: outputs[name] * np.float32(factor)}


def over_width(role: str, inputs: Mapping[str, Array], outputs: dict[str, Array]) -> dict[str, Array]:
    return outputs | {"pooled": outputs["pooled"] / np.float32(inputs["input_ids"].shape[1])}


def change(probes: Probes, index: int, **changes: Mapping[str, Array]) -> Probes:
    cases = list(probes.cases)
    cases[index] = replace(cases[index], **changes)
    return replace(probes, cases=tuple(cases))


def test_three_small_ones_with_every_output(probes: Probes) -> None:
    assert len(probes.cases) == 3
    for probe in probes.cases:
        assert set(probe.outputs) == {"token_embeddings", "pooled", "attention.0", "attention.1"}
        assert probe.inputs["input_ids"].shape[1] <= toy_manifest().text.max_tokens
    assert any((probe.inputs["pooling_mask"] != probe.inputs["attention_mask"]).any() for probe in probes.cases)
    assert any(not probe.inputs["attention_mask"].all() for probe in probes.cases)


def test_what_is_saved_is_loaded(probes: Probes, tmp_path: Path) -> None:
    file = tmp_path / "probes.safetensors"
    save_probes(file, probes.cases, probes.reference)
    loaded = load_probes(file)
    assert loaded.reference == "toy"
    for one, other in zip(probes.cases, loaded.cases, strict=True):
        for ours, theirs in ((one.inputs, other.inputs), (one.outputs, other.outputs)):
            assert set(ours) == set(theirs)
            for name, values in ours.items():
                np.testing.assert_array_equal(values, theirs[name])
    again = tmp_path / "again.safetensors"
    save_probes(again, probes.cases, probes.reference)
    assert file.read_bytes() == again.read_bytes()
    assert file.stat().st_mode & 0o044


@pytest.mark.parametrize("roles", [("encode",), ATTEND])
def test_the_same_runner_passes(probes: Probes, roles: tuple[Role, ...]) -> None:
    report = check_probes(toy_manifest(), ToyRunner(), probes, roles=roles)
    assert report.passed, report.failures
    assert (report.form, report.reference, report.num_cases) == ("probes", "toy", 3)
    assert ("attention" in {gate.name for gate in report.gates}) == ("attend" in roles)


@pytest.mark.parametrize(
    ("fault", "gate"),
    [
        (scaled("token_embeddings", 1.001), "token_embeddings"),
        (scaled("pooled", -1), "cosine"),
        (scaled("pooled", 2), "pooled_raw"),
        (over_width, "pooled_raw"),
        (scaled("attention.1", 1.01), "attention"),
        (scaled("pooled", float("nan")), "finite"),
    ],
    ids=["token embeddings", "vectors", "twice as long", "over the width", "attention", "not a number"],
)
def test_another_model_fails(probes: Probes, fault: Fault, gate: str) -> None:
    found = failures(check_probes(toy_manifest(), ToyRunner(fault), probes, roles=ATTEND))
    assert found[gate].startswith("probe ")


def test_attention_is_not_run_unless_asked(probes: Probes) -> None:
    roles_seen = []

    def spy(role: str, inputs: Mapping[str, Array], outputs: dict[str, Array]) -> dict[str, Array]:
        roles_seen.append(role)
        return outputs

    assert check_probes(toy_manifest(), ToyRunner(spy), probes).passed
    assert roles_seen == ["encode"] * 3


def test_names_that_do_not_match_are_named(probes: Probes) -> None:
    inputs, outputs = dict(probes.cases[1].inputs), dict(probes.cases[1].outputs)
    renamed = {("tokens" if name == "input_ids" else name): values for name, values in inputs.items()}
    unknown = outputs | {"logits": outputs["pooled"]}
    without = {name: values for name, values in outputs.items() if name != "pooled"}
    short = outputs | {"pooled": outputs["pooled"][:, :3]}
    for changes, words in [
        ({"inputs": renamed}, "tokens"),
        ({"outputs": unknown}, "the manifest has no outputs ['logits']"),
        ({"outputs": without}, "the probe has no outputs ['pooled']"),
        ({"outputs": short}, "pooled: shape [3, 3] expected, got [3, 4]"),
    ]:
        found = failures(check_probes(toy_manifest(), ToyRunner(), change(probes, 1, **changes)))
        assert found["shapes"].startswith("probe 1, encode: ")
        assert words in found["shapes"]


def test_a_runner_that_raises_fails(probes: Probes) -> None:
    def fault(role: str, inputs: Mapping[str, Array], outputs: dict[str, Array]) -> dict[str, Array]:
        raise ValueError("Invalid Feed Input Name")

    assert "Invalid Feed Input Name" in failures(check_probes(toy_manifest(), ToyRunner(fault), probes))["ran"]


def test_no_probes_prove_nothing() -> None:
    report = check_probes(toy_manifest(), ToyRunner(), Probes("toy", (), {}))
    assert not report.passed
    assert set(failures(report).values()) == {"never measured"}


def test_attention_that_no_probe_holds_proves_nothing(probes: Probes) -> None:
    bare = [
        Probe(probe.inputs, {name: probe.outputs[name] for name in ("token_embeddings", "pooled")})
        for probe in probes.cases
    ]
    report = check_probes(toy_manifest(), ToyRunner(), replace(probes, cases=tuple(bare)), roles=ATTEND)
    assert failures(report)["attention"] == "never measured"


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"0.input.a": np.zeros(1)}, None, "metadata has no reference"),
        ({"pooled": np.zeros(1)}, {"reference": "x"}, "tensor 'pooled' is not named"),
        ({"0.weird.a": np.zeros(1)}, {"reference": "x"}, "tensor '0.weird.a' is not named"),
        ({"1.input.a": np.zeros(1)}, {"reference": "x"}, "cases must count from 0, got"),
        ({}, {"reference": "x"}, "cases must count from 0, got"),
    ],
)
def test_a_malformed_file_is_refused(
    tensors: dict[str, Array], metadata: dict[str, str] | None, message: str, tmp_path: Path
) -> None:
    save_file(tensors, tmp_path / "p.safetensors", metadata=metadata)
    with pytest.raises(StartupError, match=r"p\.safetensors: ") as caught:
        load_probes(tmp_path / "p.safetensors")
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all"])
def test_a_file_that_cannot_be_read_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "p.safetensors").write_bytes(content)
    with pytest.raises(StartupError, match=r"p\.safetensors: not a probes file"):
        load_probes(tmp_path / "p.safetensors")
