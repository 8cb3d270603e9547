# SPDX-License-Identifier: Apache-2.0
"""Restart strategies: how many restarts, after which waits, and what makes them begin anew."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.job.core.recovery.restart_strategy import RestartStrategy
from penstock.settings import RestartSettings, Settings


def strategy(kind: str, **settings: Any) -> RestartStrategy:
    """A new strategy of this kind."""
    return RestartStrategy.of(RestartSettings(kind, **settings))


def test_none_gives_up_at_once() -> None:
    """The first failure is the last, and the description names the setting."""
    never = strategy("none", attempts=5)
    assert never.next_delay(0.0) is None
    assert "spark.penstock.restart.strategy" in never.describe()


@given(st.integers(0, 6), st.floats(0, 100), st.lists(st.floats(0, 1e6), max_size=12))
def test_fixed_counts_over_the_whole_job(attempts: int, delay: float, pauses: list[float]) -> None:
    """As many restarts as were set, each after the same wait, however long it was quiet between them."""
    fixed = strategy("fixed", attempts=attempts, delay=delay)
    now, found = 0.0, []
    for pause in pauses:
        now += pause
        found.append(fixed.next_delay(now))
    used = min(attempts, len(pauses))
    assert found == [delay] * used + [None] * (len(pauses) - used)
    assert f"{used} of {attempts} restarts used" in fixed.describe()


def test_the_default_is_three_restarts_at_once() -> None:
    """They are those of a job that says nothing; an exception of user code is not tried again."""
    standard = RestartStrategy.of(Settings().restart)
    assert [standard.next_delay(0.0) for _ in range(4)] == [0.0, 0.0, 0.0, None]
    assert Settings().restart.user_errors == 0


def test_exponential_doubles_to_its_bound() -> None:
    """The waits double and stay at the bound; the attempts of one bad time are counted."""
    growing = strategy("exponential", attempts=6, delay=1.0, max_delay=9.0, reset_after=100.0)
    assert [growing.next_delay(0.0) for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 9.0, 9.0, None, None]
    assert "double from 1 s to at most 9 s" in growing.describe()


def test_a_quiet_time_begins_anew() -> None:
    """Quiet counts from the restart; just less than it takes changes nothing; what was given up stays so."""
    growing = strategy("exponential", attempts=2, delay=8.0, reset_after=100.0)
    assert growing.next_delay(0.0) == 8.0
    assert growing.next_delay(107.9) == 16.0
    assert growing.next_delay(107.9 + 16.0 + 100.0) == 8.0
    assert growing.next_delay(224.0) == 16.0
    assert growing.next_delay(225.0) is None
    assert growing.next_delay(1e9) is None


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(1, 5))
def test_exponential_waits_stay_in_their_bounds(pauses: list[int], attempts: int) -> None:
    """Each wait is the first one or twice the one before it, never above the bound; None is final."""
    growing = strategy("exponential", attempts=attempts, delay=0.5, max_delay=20.0, reset_after=60.0)
    now, found = 0.0, []
    for pause in pauses:
        found.append(growing.next_delay(now))
        now += pause + (found[-1] or 0.0)
    allowed = [delay for delay in found if delay is not None]
    assert found == allowed + [None] * (len(found) - len(allowed))
    assert all(after in (0.5, min(2 * before, 20.0)) for before, after in pairwise(allowed))
    for index, pause in enumerate(pauses[: len(allowed) - 1]):
        assert (allowed[index + 1] == 0.5) == (pause >= 60.0)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"strategy": "often"}, "restart.strategy must be one of none, fixed, exponential"),
        ({"delay": "-1s"}, "restart.delay must not be negative"),
        ({"strategy": "exponential"}, "restart.delay must be positive with the exponential strategy"),
        ({"strategy": "exponential", "delay": "2min"}, "restart.maxDelay must not be below"),
        ({"resetAfter": "0s"}, "restart.resetAfter must be positive"),
        ({"attempts": "-1"}, "attempts='-1' is not valid"),
        ({"userErrors": "x"}, "userErrors='x' is not valid"),
    ],
)
def test_wrong_settings_are_refused(conf: dict[str, str], message: str) -> None:
    """Each by its name, with what it takes."""
    with pytest.raises(SettingError, match=message):
        Settings.from_conf({f"spark.penstock.restart.{key}": value for key, value in conf.items()})


def test_settings_come_from_the_conf() -> None:
    """Times and counts are read as in Spark, and written back."""
    conf = {"strategy": "exponential", "delay": "100ms", "maxDelay": "2min", "attempts": "7", "userErrors": "1"}
    settings = Settings.from_conf({f"spark.penstock.restart.{key}": value for key, value in conf.items()})
    assert settings.restart == RestartSettings("exponential", 7, 0.1, 120.0, 600.0, 1)
    assert Settings.from_conf(settings.to_conf()) == settings
