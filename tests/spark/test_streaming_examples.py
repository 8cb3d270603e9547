# SPDX-License-Identifier: Apache-2.0
"""The examples of streaming queries, run to their ends as programs, on the Java of the other tests."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sessions import Sessions

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def printed(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run an example in a session of its own, on the Java there is; what it printed. It must end well."""
    sessions.stop()

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert ended.value.code == 0
        return capsys.readouterr().out

    return run


def test_words_of_files_that_arrive(printed: Callable[..., str]) -> None:
    """Five files of three lines; the word that is in each line is counted fifteen times."""
    assert printed("streaming_words.py").split()[:2] == ["the", "15"]


def test_a_day_of_orders(printed: Callable[..., str]) -> None:
    """Each run goes on where the one before it ended."""
    assert "60 orders of ch" in printed("streaming_day.py")


def test_sessions_are_closed_by_timers(printed: Callable[..., str]) -> None:
    """Each of fifty clicks, whichever they are."""
    assert "60 sessions, 60 of 50 clicks" in printed("click_sessions.py")


def test_rules_reach_all_tasks(printed: Callable[..., str]) -> None:
    """Also the one that comes while payments flow."""
    assert "0 reports are wrong" in printed("fraud_rules.py")


def test_orders_meet_their_payments_by_interval(printed: Callable[..., str]) -> None:
    """Those that are paid in time, and no others."""
    shown = printed("paid_orders.py")
    assert "3000 of 4000 orders are paid within 100 seconds, 0 of them later" in shown


def test_kill_in_the_middle_changes_nothing(printed: Callable[..., str]) -> None:
    """The process that ran a task is gone, and every number is there once."""
    shown = printed("streaming_kill.py", "--rows", "12000")
    assert "is killed" in shown
    assert "12,000 rows, 0 lost, 0 doubled" in shown


def test_a_task_begins_anew_alone(printed: Callable[..., str]) -> None:
    """With the log nothing is missing, and the files have what the report says."""
    shown = printed("streaming_alone.py", "--log")
    assert "1 task restarted alone" in shown
    assert "the files have:  0 missing" in shown
