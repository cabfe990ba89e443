"""The memory that answers share."""

from __future__ import annotations

import pytest

from service.engine.answers import AnswerBudget
from service.errors import QueueFullError, RequestError


def test_an_answer_is_admitted_when_it_fits_beside_the_others() -> None:
    budget = AnswerBudget(100)
    budget.take(60)
    with pytest.raises(QueueFullError, match="100 bytes of memory allowed for all answers, 60 are taken") as full:
        budget.take(41)
    assert (full.value.status, full.value.headers["Retry-After"]) == (429, "2")
    budget.take(40)
    budget.give_back(60)
    budget.take(60)
    assert budget.num_bytes == 100


def test_an_answer_that_can_never_fit_is_refused_for_good() -> None:
    budget = AnswerBudget(100)
    with pytest.raises(
        RequestError, match="100 bytes of memory allowed for all answers, this one would take about 101"
    ):
        budget.take(101)
    assert budget.num_bytes == 0
