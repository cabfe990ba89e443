"""The batching policy as a pure function of what waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.batch import Row
from service.engine.policy import MIN_CALL_TOKENS, MIN_WIDTH_SHARE, OLDEST_EVERY, CallQueue, Ticket, call_tokens
from service.graph_spec import Precision, Role
from service.settings import Settings
from tests.fixtures.fakes import fake_manifest

lengths = st.integers(min_value=1, max_value=300)


def row(length: int, role: Role = "encode") -> Row:
    return Row({}, {"seq": length}, role, ("pooled",))


def drain(queue: CallQueue, num_idle: int = 1) -> list[list[Ticket]]:
    calls = []
    while call := queue.take(num_idle):
        calls.append(call)
    return calls


@given(st.lists(st.tuples(lengths, st.sampled_from(["encode", "attend"])), max_size=60), st.integers(1, 3))
def test_every_row_runs_once_in_a_call_of_its_own_graph(rows: list[tuple[int, Role]], num_idle: int) -> None:
    queue = CallQueue(512)
    pushed = [ticket for length, role in rows for ticket in queue.push([row(length, role)])]
    calls = drain(queue, num_idle)
    assert sorted(map(id, pushed)) == sorted(id(ticket) for call in calls for ticket in call)
    assert all(len({ticket.row.role for ticket in call}) == 1 for call in calls)
    assert queue.num_tokens == 0


@given(st.lists(lengths, max_size=60), st.integers(1, 3), st.integers(1, 1024))
def test_no_call_exceeds_the_budget_or_pads_much(waiting: list[int], num_idle: int, budget: int) -> None:
    queue = CallQueue(budget)
    for length in waiting:
        queue.push([row(length)])
    for call in drain(queue, num_idle):
        sizes = [ticket.row.length for ticket in call]
        assert len(call) == 1 or len(call) * max(sizes) <= budget
        assert max(sizes) == sizes[0]
        for num_rows, size in enumerate(sizes):
            assert size >= MIN_WIDTH_SHARE * sizes[0] or num_rows * sizes[0] < MIN_CALL_TOKENS


@given(st.data(), st.lists(st.lists(lengths, min_size=1, max_size=5), max_size=6))
def test_a_row_waits_for_a_few_calls_for_each_row_before_it(data: st.DataObject, before: list[list[int]]) -> None:
    queue = CallQueue(128)
    for others in before:
        queue.push([row(length) for length in others])
    (victim,) = queue.push([row(1)])
    num_calls = 0
    while victim.is_waiting:
        for length in data.draw(st.lists(lengths, min_size=1, max_size=4)):
            queue.push([row(length)])
        queue.take()
        num_calls += 1
    assert num_calls <= OLDEST_EVERY * (1 + sum(map(len, before)))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 40))
def test_a_new_request_is_next_after_a_call_of_a_long_list(long: int, short: int, num_rows: int) -> None:
    queue = CallQueue(512)
    queue.push([row(long)] * num_rows)
    queue.take()
    (mine,) = queue.push([row(short)])
    assert mine in queue.take() + queue.take()  # one of the two may be the oldest row's turn


def test_two_long_lists_take_turns() -> None:
    queue = CallQueue(200)
    one, other = queue.push([row(100)] * 8), queue.push([row(200)] * 4)
    calls = drain(queue)
    assert len(calls) == 8
    halfway = [ticket for call in calls[:4] for ticket in call]
    for rows in (one, other):
        assert 200 <= sum(ticket.row.length for ticket in halfway if ticket in rows) <= 600


def test_rows_that_were_discarded_do_not_pile_up() -> None:
    queue = CallQueue(1024)
    queue.push([row(300)])
    for _ in range(10_000):
        (ticket,) = queue.push([row(5, "attend")])
        queue.discard(ticket)
    held = len(queue._arrivals) + len(queue._least_served) + sum(map(len, queue._by_length["attend", "any"].values()))
    assert held < 500
    assert [ticket.row.length for call in drain(queue) for ticket in call] == [300]


def test_longest_rows_run_first_and_a_much_shorter_one_starts_the_next_call() -> None:
    queue = CallQueue(1024)
    queue.push([row(length) for length in (20, 200, 190, 21, 160)])
    assert [[t.row.length for t in call] for call in drain(queue)] == [[200, 190, 160], [21, 20]]


def test_a_short_queue_is_shared_out_between_idle_workers() -> None:
    queue = CallQueue(1024)
    queue.push([row(150)] * 6)
    assert len(queue.take(num_idle=2)) == 3
    assert len(queue.take(num_idle=1)) == 3


@pytest.mark.parametrize(
    ("precision", "settings", "expected"),
    [
        ("float32", {}, 256),
        ("int8", {}, 192),
        ("float32", {"device": "cuda"}, 1024),
        ("int8", {"max_call_tokens": 2048}, 2048),
    ],
)
def test_a_call_holds_what_is_best_for_the_model_or_what_is_set(
    precision: Precision, settings: dict[str, Any], expected: int
) -> None:
    graphs = tuple(graph.model_copy(update={"precision": precision}) for graph in fake_manifest().graphs)
    manifest = fake_manifest().model_copy(update={"graphs": graphs})
    assert call_tokens(manifest, Settings(**settings)) == expected


def test_rows_of_equal_length_run_in_the_order_they_came() -> None:
    queue = CallQueue(128)
    pushed = [ticket for _ in range(6) for ticket in queue.push([row(64)])]
    assert [ticket for call in drain(queue) for ticket in call] == pushed


@given(st.lists(st.tuples(lengths, st.booleans()), max_size=40))
def test_discarded_rows_never_run_and_free_their_tokens(rows: list[tuple[int, bool]]) -> None:
    queue = CallQueue(256)
    pushed = [(ticket, keep) for length, keep in rows for ticket in queue.push([row(length)])]
    for ticket, keep in pushed:
        assert keep or queue.discard(ticket)
    assert queue.num_tokens == sum(ticket.row.length for ticket, keep in pushed if keep)
    ran = {id(ticket) for call in drain(queue) for ticket in call}
    assert ran == {id(ticket) for ticket, keep in pushed if keep}
    assert not any(queue.discard(ticket) for ticket, _ in pushed)
