from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine import attention
from service.engine.batch import Row, RowResult, split
from service.engine.request import AttentionChoice, LayerAttention
from service.errors import RequestError
from service.graph_spec import GraphSpec, TensorSpec
from service.manifest import AttentionSpec
from tests.fixtures.fakes import fake_manifest

SPEC = AttentionSpec(layers=3, heads=4, head_dim=8)

layer_choices = st.sampled_from(["last", "all"]) | st.permutations(range(3)).flatmap(
    lambda order: st.integers(1, 3).map(lambda size: tuple(order[:size]))
)
head_choices = st.sampled_from(["mean", "all"]) | st.permutations(range(4)).flatmap(
    lambda order: st.integers(1, 4).map(lambda size: tuple(order[:size]))
)


def make_graph() -> GraphSpec:
    axes = ("batch", 4, "seq", "seq")
    outputs = [TensorSpec(name=f"attention.{n}", dtype="float32", axes=axes, meaning="attention") for n in range(3)]
    return fake_manifest().graph("attend").model_copy(update={"outputs": tuple(outputs)})


GRAPH = make_graph()


def weights(length: int, seed: int = 0) -> RowResult:
    rng = np.random.default_rng(seed)
    return {f"attention.{n}": rng.random((4, length, length), dtype=np.float32) for n in range(3)}


def layers_of(result: RowResult, choice: AttentionChoice, *, padding: int = 2) -> tuple[LayerAttention, ...]:
    """What a row with these weights is answered, when a longer neighbour shared its call."""
    length = len(result["attention.0"][0])
    names = tuple(f"attention.{layer}" for layer in attention.select_layers(choice, SPEC))
    rows = [
        Row({}, {"seq": length}, "attend", names, choice.heads),
        Row({}, {"seq": length + padding}, "attend", names),
    ]
    around = ((0, 0), (0, padding), (0, padding))
    arrays = {name: np.stack([np.pad(result[name], around), np.ones((4, *[length + padding] * 2))]) for name in names}
    first, _ = split(GRAPH, rows, arrays)
    assert all(values.base is None for values in first.values()), "a row must not keep its whole batch alive"
    return attention.name_layers(first, choice, SPEC)


@pytest.mark.parametrize(("layers", "expected"), [("last", (2,)), ("all", (0, 1, 2)), ((1,), (1,)), ((2, 0), (2, 0))])
def test_select_layers(layers: Any, expected: tuple[int, ...]) -> None:
    choice = AttentionChoice(layers=layers)
    assert attention.select_layers(choice, SPEC) == expected


@pytest.mark.parametrize("field", ["layers", "heads"])
@pytest.mark.parametrize(
    ("numbers", "shown"),
    [((), "empty"), ((9,), "9"), ((0, -1), "-1"), ((1, 0, 1), "1 more than once"), ((10**30,), "1000")],
)
def test_bad_choice_names_field_range_and_value(field: str, numbers: tuple[int, ...], shown: str) -> None:
    choice = AttentionChoice(**{field: numbers})
    with pytest.raises(RequestError) as caught:
        attention.num_values(choice, [3], SPEC)
    assert caught.value.param == f"attention.{field}"
    assert shown in caught.value.message
    if shown != "1 more than once":
        assert f"0…{2 if field == 'layers' else 3}" in caught.value.message


def test_all_heads_are_passed_through() -> None:
    result = weights(5)
    (last,) = layers_of(result, AttentionChoice())
    assert (last.layer, last.heads) == (2, (0, 1, 2, 3))
    assert np.array_equal(last.weights, result["attention.2"])


def test_chosen_heads_come_in_the_order_asked() -> None:
    result = weights(5)
    layers = layers_of(result, AttentionChoice(layers=(2, 0), heads=(3, 1)))
    assert [layer.layer for layer in layers] == [2, 0]
    for layer in layers:
        assert layer.heads == (3, 1)
        assert np.array_equal(layer.weights, result[f"attention.{layer.layer}"][[3, 1]])


def test_mean_is_one_averaged_matrix() -> None:
    result = weights(5)
    (layer,) = layers_of(result, AttentionChoice(heads="mean"))
    assert layer.heads == "mean"
    assert layer.weights.shape == (1, 5, 5)
    assert layer.weights.dtype == np.float32
    np.testing.assert_allclose(layer.weights[0], result["attention.2"].mean(axis=0), atol=1e-7)


@given(layer_choices, head_choices, st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_num_values_is_what_is_answered(layers: Any, heads: Any, lengths: list[int]) -> None:
    choice = AttentionChoice(layers=layers, heads=heads)
    given_values = sum(layer.weights.size for length in lengths for layer in layers_of(weights(length), choice))
    assert attention.num_values(choice, lengths, SPEC) == given_values


def test_response_size_is_refused_with_what_would_shrink_it() -> None:
    attention.check_response_size(100, 12.0, 1200)
    with pytest.raises(RequestError) as caught:
        attention.check_response_size(101, 12.0, 1200, has_attention=True)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "output_too_large", "include")
    for part in ("1200 bytes allowed", "1212", "application/vnd.safetensors", "layers", '"mean"', "fewer"):
        assert part in caught.value.message


def test_fewer_heads_are_not_advised_to_who_asks_for_none() -> None:
    with pytest.raises(RequestError, match="send fewer or shorter texts") as caught:
        attention.check_response_size(101, 12.0, 1200)
    assert "heads" not in caught.value.message


def test_safetensors_is_not_advised_to_who_asks_for_it() -> None:
    with pytest.raises(RequestError) as caught:
        attention.check_response_size(301, 4.0, 1200)
    assert "safetensors" not in caught.value.message


def test_tokens_count_as_well_and_alone_they_are_the_fault_of_the_input() -> None:
    attention.check_response_size(100, 4.0, 1200, num_tokens=11)
    with pytest.raises(RequestError) as caught:
        attention.check_response_size(100, 4.0, 1200, num_tokens=12)
    assert caught.value.param == "include"
    with pytest.raises(RequestError, match="send fewer or shorter texts") as caught:
        attention.check_response_size(0, 12.5, 1200, num_tokens=20)
    assert (caught.value.param, caught.value.code) == ("input", "output_too_large")
    assert "layers" not in caught.value.message
