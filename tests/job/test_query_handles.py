# SPDX-License-Identifier: Apache-2.0
"""The handle of a query while the JobMaster's loop stands still: only the query's own end ends it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_fakes import DEADLINE, fresh_service
from penstock.api.streaming.query import QueryHooks, StartedQuery, StreamingQuery
from penstock.errors import ControlError
from penstock.job.shell import master as shell
from penstock.testing import wait_until
from query_driver import Driver, query


class Rig:
    """A query, its handle, and a loop that a test stops."""

    def __init__(self, location: Path) -> None:
        fresh_service()
        self.driver = Driver(query(location))
        self.removed = threading.Event()
        handle = self.driver.start()
        hooks = QueryHooks(ended=self.removed.set)
        graph = self.driver.tasks.graph
        self.query = StreamingQuery(StartedQuery("q", "r", "n", graph, 4, handle, self.driver.master, hooks))

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """The JobMaster's loop does nothing."""
        over, begun = threading.Event(), threading.Event()

        def stand() -> None:
            begun.set()
            over.wait(DEADLINE)

        self.driver.master._loop.call_soon_threadsafe(stand)
        assert begun.wait(DEADLINE)
        try:
            yield
        finally:
            over.set()

    def close(self) -> None:
        """End it."""
        self.driver.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A query that reports, of a JobMaster whose callers lose their patience after half a second."""
    monkeypatch.setattr(shell, "ANSWER_WAITS", 1)
    rig = Rig(tmp_path)
    wait_until(lambda: rig.query.lastProgress is not None, "the first report")
    yield rig
    rig.close()
    wait_until(lambda: not rig.query.isActive, "the handle's end")


def test_a_silent_driver_does_not_end_the_query(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Reports are late: that is said once, the query's state stays, and it goes on after the silence."""
    with caplog.at_level(logging.WARNING), rig.silence():
        wait_until(lambda: "as far as is known" in rig.query.status["message"], "a report that did not come")
        seen = len(rig.query.recentProgress)
        with pytest.raises(ControlError):
            rig.driver.master.job_progress("j1")
        assert rig.query.recentCheckpoints
    wait_until(lambda: len(rig.query.recentProgress) > seen + 1, "more reports")
    assert rig.query.isActive
    assert not rig.removed.is_set()
    assert "as far as is known" not in rig.query.status["message"]
    assert sum("it is asked again" in record.message for record in caplog.records) == 1
    rig.query.stop(DEADLINE)
    assert rig.query.exception() is None
    assert rig.removed.is_set()


def test_stop_waits_for_a_driver_that_is_silent(rig: Rig) -> None:
    """It is asked again until it has heard it, and `stop` returns when the query has ended."""
    stopping = threading.Thread(target=lambda: rig.query.stop(DEADLINE))
    with rig.silence():
        stopping.start()
        wait_until(lambda: "as far as is known" in rig.query.status["message"], "a report that did not come")
        assert stopping.is_alive()
        assert rig.query.isActive
    stopping.join(DEADLINE)
    assert not stopping.is_alive()
    assert not rig.query.isActive
    assert rig.query.exception() is None


def test_a_driver_that_closes_is_no_silence(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """The session is stopped while the query runs: it is over soon, and nothing is said of reports."""
    with caplog.at_level(logging.WARNING), rig.silence():
        rig.driver.master.close_nowait()
        rig.query._if_possible(rig.query._look)
    wait_until(lambda: not rig.query.isActive, "the handle's end")
    rig.query.stop(DEADLINE)
    assert "it is asked again" not in caplog.text


def test_a_report_that_fails_does_not_end_the_query(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the making of reports is one line in the log."""
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise ZeroDivisionError

    monkeypatch.setattr(rig.query._progress, "report", fail)
    assert failed.wait(DEADLINE)
    assert rig.query.isActive
    monkeypatch.undo()
    seen = len(rig.query.recentProgress)
    wait_until(lambda: len(rig.query.recentProgress) > seen, "more reports")
    rig.query.stop(DEADLINE)
    assert rig.query.exception() is None


def test_what_was_asked_in_vain_is_not_done_later(rig: Rig) -> None:
    """A job whose submission was answered with an error does not run."""
    done = threading.Event()
    with rig.silence(), pytest.raises(ControlError, match="did not answer"):
        rig.driver.master._call(done.set)
    wait_until(lambda: rig.driver.master.job_progress("j1") is not None, "an answer")
    assert not done.is_set()


def test_what_has_begun_is_waited_for(rig: Rig) -> None:
    """It takes longer than callers wait for a loop that does nothing, and is answered."""
    slow = threading.Event()
    assert rig.driver.master._call(lambda: slow.wait(1.2)) is False
