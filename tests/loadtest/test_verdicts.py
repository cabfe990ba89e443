"""Each limit that is missed is a sentence with what was measured and the limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.capacity import Capacity, Step
from loadtest.samples import Sample, Samples, figures, longest_gap_s
from loadtest.shapes import soak, steady
from loadtest.thresholds import read_thresholds
from loadtest.verdicts import Run, judge, judge_capacity

LIMITS = read_thresholds()
DURATION_S = 100.0
EIGHT = Capacity(8, 512, (Step(8, 60, 70, 10.0, {"short": 10.0}, (), 1.0, None),))


def make_run(samples: Iterable[Sample], **fields: object) -> Run:
    recorded = Samples()
    for one in samples:
        recorded.record(one, f"{one.fault}: in detail")
    run = Run("steady", steady(8, DURATION_S), ("short",), recorded, lateness_ms=1.0)
    return replace(run, **fields)  # type: ignore[arg-type]


def good(per_s: int = 10, ms: float = 10.0) -> list[Sample]:
    return [Sample("short", index / per_s, ms, index % 20 == 0) for index in range(int(DURATION_S * per_s))]


def test_a_good_run_has_no_fault() -> None:
    assert judge(make_run(good()), LIMITS).faults == ()


def test_one_failure_is_too_many() -> None:
    samples = good()
    samples[500] = replace(samples[500], fault="a vector is that of another text")
    (fault,) = judge(make_run(samples), LIMITS).faults
    assert fault == (
        "1 of 1000 replies failed (0.10%); 0.00% are allowed (max_failure_ratio). "
        "Most often: short: a vector is that of another text: in detail (1 times)."
    )
    assert judge(make_run(samples), LIMITS.model_copy(update={"max_failure_ratio": 0.01})).faults == ()


def test_failures_count_even_while_the_load_settles() -> None:
    samples = good()
    samples[0] = replace(samples[0], fault="status 500")
    assert len(judge(make_run(samples), LIMITS).faults) == 1


def test_late_replies_are_told_with_kind_value_and_limit() -> None:
    limit = LIMITS.p95_ms.short
    faults = judge(make_run(good(ms=limit + 1)), LIMITS).faults
    assert faults == (
        f"short, steady: the 95th percentile was {limit + 1:.0f} ms; at most {limit:g} ms are allowed (p95_ms.short).",
    )
    assert judge(make_run(good(ms=limit)), LIMITS).faults == ()


def test_the_99th_percentile_has_a_limit_of_its_own() -> None:
    samples = good()
    samples[::50] = [replace(one, ms=LIMITS.p99_ms.short + 1) for one in samples[::50]]
    (fault,) = judge(make_run(samples), LIMITS).faults
    assert "the 99th percentile" in fault
    assert "(p99_ms.short)" in fault


def test_no_reply_at_all_is_a_fault() -> None:
    verdict = judge(make_run([]), LIMITS)
    assert "There was no reply at all." in verdict.faults
    assert verdict.notes == ("short, steady: no request was sent, so nothing is judged.",)


def test_a_kind_of_which_no_reply_is_right_is_a_fault_and_one_that_was_not_sent_is_told() -> None:
    failed = [Sample("attention", second, 10, fault="status 500") for second in range(0, 100, 10)]
    verdict = judge(
        make_run([*good(), *failed], kinds=("short", "attention", "list32")),
        LIMITS.model_copy(update={"max_failure_ratio": 0.1}),
    )
    assert verdict.faults == ("attention, steady: none of 8 replies was right.",)
    assert verdict.notes == ("list32, steady: no request was sent, so nothing is judged.",)


def test_the_slowest_reply_has_a_limit_of_its_own() -> None:
    limit = LIMITS.max_ms.short
    samples = good()
    samples[500] = replace(samples[500], ms=limit + 1)
    assert judge(make_run(samples), LIMITS).faults == (
        f"short, steady: the slowest reply was {limit + 1:.0f} ms; at most {limit:g} ms are allowed (max_ms.short).",
    )


def stalled(length_s: float, *, fault: str | None = None) -> list[Sample]:
    """Four users of whom nobody gets a right reply for so long from 40 s on. fault: of replies in that time."""
    without = [one for one in good() if not 40 <= one.start_s < 40 + length_s]
    if fault is None:
        return [*without, *(Sample("short", 40, 1000 * length_s) for _ in range(4))]
    return [*without, *(Sample("short", 40 + tenth / 10, 5, fault=fault) for tenth in range(int(10 * length_s)))]


def test_a_server_that_stands_still_for_once_is_found() -> None:
    limit = LIMITS.max_gap_s
    assert judge(make_run(stalled(limit - 0.5)), LIMITS).faults == ()
    gap, slowest = judge(make_run(stalled(limit + 1)), LIMITS).faults
    assert gap == (
        f"steady: for {limit + 1:.1f} s requests waited and no right reply came; "
        f"at most {limit:g} s are allowed (max_gap_s)."
    )
    assert "the slowest reply was" in slowest


def test_a_server_that_refuses_everything_for_once_is_found_whatever_share_may_fail() -> None:
    limits = LIMITS.model_copy(update={"max_failure_ratio": 0.5})
    (fault,) = judge(make_run(stalled(LIMITS.max_gap_s + 2, fault="status 429")), limits).faults
    assert "no right reply came" in fault


def test_too_few_replies_by_second_and_too_few_comparisons_are_faults() -> None:
    limits = LIMITS.model_copy(update={"min_per_s": 20.0, "min_compared_share": 0.06})
    assert judge(make_run(good()), limits).faults == (
        "5.00% of the well-formed replies were compared with a known answer; 6.00% are needed (min_compared_share).",
        "10.00 right replies came by second; 20 are needed (min_per_s).",
    )


def test_a_late_load_generator_is_a_fault() -> None:
    (fault,) = judge(make_run(good(), lateness_ms=51.0), LIMITS).faults
    assert fault.startswith("The load generator was 51 ms late; above 50 ms (max_lateness_ms)")


def soak_run(samples: list[Sample], memory_mib: tuple[tuple[float, float], ...] | None) -> Run:
    return make_run(samples, shape="soak", stages=soak(8, DURATION_S), memory_mib=memory_mib)


def memory(last_mib: float) -> tuple[tuple[float, float], ...]:
    """Much while it settles, then 200 MiB, then something else in the last third."""
    return tuple((float(second), 500.0 if second < 20 else 200.0 if second < 70 else last_mib) for second in range(100))


def test_memory_that_grows_is_a_fault_and_flat_memory_is_not() -> None:
    # Ten replies by second; the middles of the thirds are a third of eighty seconds apart.
    num_replies = 266
    allowed = LIMITS.soak.memory_slack_mib + num_replies * LIMITS.soak.max_growth_bytes_per_reply / 2**20
    assert judge(soak_run(good(), memory(199.9 + allowed)), LIMITS).faults == ()
    (fault,) = judge(soak_run(good(), memory(200.1 + allowed)), LIMITS).faults
    assert fault.startswith(f"The server's memory grew from 200.0 MiB in the second third to {200.1 + allowed:.1f} MiB")
    assert f"with {num_replies} replies between; " in fault


@pytest.mark.parametrize(("leak_bytes", "num_faults"), [(800, 0), (10_000, 1)])
def test_a_leak_of_some_kilobytes_for_each_reply_is_found(leak_bytes: int, num_faults: int) -> None:
    """Ten minutes of ten replies by second, as of the default model on two cores."""
    stages, samples = soak(7, 600), [Sample("short", index / 10, 10, index % 20 == 0) for index in range(6000)]
    leaking = tuple((float(second), 450 + leak_bytes * 10 * second / 2**20) for second in range(600))
    run = make_run(samples, shape="soak", stages=stages, memory_mib=leaking)
    assert len(judge(run, LIMITS).faults) == num_faults


def test_memory_of_a_foreign_server_is_not_judged_and_that_is_told() -> None:
    verdict = judge(soak_run(good(), None), LIMITS)
    assert verdict.faults == ()
    assert verdict.notes == ("Memory is not judged: the server is not a process that this run started.",)


def test_memory_that_was_hardly_read_is_a_fault() -> None:
    (fault,) = judge(soak_run(good(), memory(200)[:30]), LIMITS).faults
    assert fault.startswith("Memory was read too seldom")


def test_a_99th_percentile_that_rises_is_a_fault() -> None:
    slow_ms = 10 * LIMITS.soak.max_p99_ratio + LIMITS.soak.p99_slack_ms + 1
    samples = [replace(one, ms=slow_ms) if one.start_s >= 80 else one for one in good()]
    one, together = judge(soak_run(samples, memory(200)), LIMITS).faults
    assert one.startswith(f"short: the 99th percentile rose from 10 ms in the first third to {slow_ms:.0f} ms")
    assert together.startswith("all kinds: the 99th percentile rose")
    assert judge(make_run(samples), LIMITS).faults == ()


@pytest.mark.parametrize(("start_s", "num_faults"), [(90, 0), (75, 2)])
def test_one_stall_in_the_last_third_is_no_drift_but_most_of_it_is(start_s: float, num_faults: int) -> None:
    """Slow for 4 s, which is less than a slice of that third, and slow for nearly all of it."""
    end_s = start_s + (4 if num_faults == 0 else 20)
    samples = [replace(one, ms=1_000) if start_s <= one.start_s < end_s else one for one in good()]
    lax = LIMITS.model_copy(update={"p95_ms": LIMITS.max_ms, "p99_ms": LIMITS.max_ms})
    faults = judge(soak_run(samples, memory(200)), lax).faults
    assert [fault.split(" from ")[0] for fault in faults] == [
        f"{name}: the 99th percentile rose" for name in ("short", "all kinds")[:num_faults]
    ]


def test_a_drift_that_few_replies_show_is_not_judged_and_that_is_told() -> None:
    verdict = judge(soak_run(good(per_s=2), memory(200)), LIMITS)
    assert verdict.faults == ()
    assert [note.split(" by 5")[0] for note in verdict.notes] == [
        f"{name}: the drift of the 99th percentile is not judged" for name in ("short", "all kinds")
    ]


def test_a_capacity_search_forgives_overload_but_no_wrong_reply() -> None:
    late = [replace(one, fault="status 429", is_overload=True) for one in good()[:50]]
    assert judge_capacity(make_run([*good(), *late]), EIGHT, LIMITS).faults == ()
    wrong = [replace(one, fault="wrong dimension") for one in good()[:2]]
    (fault,) = judge_capacity(make_run([*good(), *wrong]), EIGHT, LIMITS).faults
    assert fault.startswith("2 replies were wrong, not late: short: wrong dimension")
    assert judge_capacity(make_run(good()), Capacity(0, 512, ()), LIMITS).faults[-1].startswith("Not even one user")


def test_a_capacity_search_forgives_nothing_in_a_step_that_was_within_the_targets() -> None:
    late = Sample("short", 65, 30_000, fault="no answer in time", is_overload=True)
    assert judge_capacity(make_run([*good(), replace(late, start_s=59)]), EIGHT, LIMITS).faults == ()
    (fault,) = judge_capacity(make_run([*good(), late]), EIGHT, LIMITS).faults
    assert fault == (
        "8 users were within the targets, but 1 of their requests failed afterwards: short: no answer in time."
    )


def test_a_kind_that_never_gets_a_right_reply_has_no_capacity() -> None:
    late = Sample("attention", 5, 3_000, fault="no answer in time", is_overload=True)
    run = make_run([*good(), late], kinds=("short", "attention", "list32"))
    verdict = judge_capacity(run, EIGHT, LIMITS)
    assert verdict.faults == ("attention: none of 1 replies was right.",)
    assert verdict.notes == ("list32: no request was sent, so nothing is judged.",)


def test_figures_are_of_right_replies() -> None:
    samples = [Sample("short", 0, ms) for ms in (10, 20, 30)] + [Sample("short", 0, 0.1, fault="status 500")]
    found = figures(samples, 2)
    assert (found.num_replies, found.num_faults, found.num_wrong, found.per_s) == (4, 1, 1, 1.5)
    assert (found.mean_ms, found.p50_ms, found.max_ms) == pytest.approx((20, 20, 30))


def test_a_late_reply_belongs_to_the_time_when_it_was_asked_for() -> None:
    samples = Samples()
    samples.record(Sample("short", 9.9, 5_000))
    assert len(samples.between(0, 10)) == 1
    assert samples.between(10, 20) == []
    assert samples.between(0, 10, "mixed") == []


def test_a_gap_is_a_time_in_which_somebody_waited() -> None:
    right = [Sample("short", 0, 1000), Sample("short", 10, 1000), Sample("short", 20, 4000), Sample("short", 21, 1000)]
    # Nobody asked from 1 s to 10 s; at 22 s there is a reply, the next is at 24 s.
    assert longest_gap_s(right, 0, 30) == pytest.approx(2)
    assert longest_gap_s(right, 20.5, 21.5) == pytest.approx(1)
    assert longest_gap_s(right, 30, 40) == 0
    assert longest_gap_s([], 0, 40) == 0
    # Wrong replies end no gap, and the last one need not be a right one.
    wrong = [Sample("short", 25 + second, 500, fault="status 500") for second in range(6)]
    assert longest_gap_s([*wrong, *right], 0, 40) == pytest.approx(5.5)
    assert longest_gap_s([*wrong, *right, Sample("short", 26, 20_000)], 0, 40) == pytest.approx(15)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 5)), min_size=1, max_size=20))
def test_the_gap_of_one_user_is_the_longest_wait(turns: list[tuple[float, float]]) -> None:
    samples, time_s = [], 0.0
    for pause_s, wait_s in turns:
        samples.append(Sample("short", time_s + pause_s, 1000 * wait_s))
        time_s += pause_s + wait_s
    assert longest_gap_s(samples, 0, time_s + 1) == pytest.approx(max(wait_s for _, wait_s in turns))


def test_a_reply_that_failed_before_any_comparison_is_not_in_the_share() -> None:
    samples = Samples()
    for number in range(8):
        samples.record(Sample("short", number, 10, is_compared=number < 2))
        samples.record(Sample("short", number, 10, fault="status 429"))
    assert samples.compared_share == 2 / 8
    samples.record(Sample("short", 9, 10, is_compared=True, fault="a vector is that of another text"))
    assert samples.compared_share == 3 / 9
