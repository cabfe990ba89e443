"""No setting takes a number that no machine has."""

from __future__ import annotations

import pytest

from service.errors import StartupError
from service.settings import PREFIX, Settings, load_settings

NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_400_digits_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(PREFIX + name.upper(), "9" * 400)
    with pytest.raises(StartupError, match=PREFIX + name.upper()) as caught:
        load_settings()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("name", "value"), [("NUM_THREADS", "1000"), ("STUCK_AFTER_S", "0.001")])
def test_a_value_that_no_server_works_with_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(PREFIX + name, value)
    with pytest.raises(StartupError, match=f"{PREFIX}{name}: .* got '{value}'"):
        load_settings()


def test_a_prefix_alone_is_no_misspelt_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX, "1")
    with pytest.raises(StartupError, match=f"{PREFIX} is unknown, see "):
        load_settings()
