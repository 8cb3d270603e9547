# SPDX-License-Identifier: Apache-2.0
"""Listeners of queries: PySpark's own objects and events, told in order, and no query waits for one."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming import StreamingQueryListener

from penstock.api.streaming.listeners import IDLE, PROGRESS, STARTED, TERMINATED
from penstock.api.streaming.progress import ProgressReports, timestamp
from penstock.api.streaming.queries import StreamingQueries
from penstock.testing import DEADLINE, wait_until
from query_reports import look, planned

ID, RUN = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
NAMES = {"id": ID, "runId": RUN, "name": "n"}
SAID: dict[str, dict[str, Any]] = {
    STARTED: {**NAMES, "timestamp": timestamp(), "jobTags": []},
    IDLE: {**NAMES, "timestamp": timestamp()},
    TERMINATED: {**NAMES, "exception": "no more", "errorClassOnException": None},
}


class Ears(StreamingQueryListener):
    """Keeps what it hears."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.heard: list[Any] = []
        self.then = then

    def _hear(self, event: Any) -> None:
        self.heard.append(event)
        self.then()

    onQueryStarted = onQueryProgress = onQueryIdle = onQueryTerminated = _hear

    @property
    def kinds(self) -> list[str]:
        """The events' types."""
        return [type(event).__name__ for event in self.heard]


def report() -> dict[str, Any]:
    """A report of a query."""
    return ProgressReports(planned(), NAMES).report(look(planned(), *[{"rows_in": 10.0, "seconds": 1.0}] * 3))


def test_listeners_get_pysparks_events() -> None:
    """In order, with the fields that PySpark's have; progress has our report too, as its JSON."""
    queries, ears = StreamingQueries(), Ears()
    queries.addListener(ears)
    queries.addListener(ears)
    for word in (STARTED, PROGRESS, IDLE, TERMINATED):
        queries.tell(word, SAID.get(word) or report())
    wait_until(lambda: len(ears.heard) == 4, "all events")
    assert ears.kinds == ["QueryStartedEvent", "QueryProgressEvent", "QueryIdleEvent", "QueryTerminatedEvent"]
    started, progress, idle, terminated = ears.heard
    assert {str(each.id) for each in (started, progress.progress, idle, terminated)} == {ID}
    assert (started.name, terminated.exception) == ("n", "no more")
    assert progress.progress.numInputRows == 10
    assert progress.progress.sources[0].numInputRows == 10
    assert progress.progress.sink.description == "noop"
    assert '"heldBackBy"' in progress.progress.json
    queries.removeListener(ears)
    queries.tell(STARTED, SAID[STARTED])
    assert len(ears.heard) == 4


def test_a_listener_that_hangs_or_exits_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    """The teller does not wait; progress beyond a hundred events is left out, ends are not; the others hear all."""
    goes_on = threading.Event()
    slow, other = Ears(lambda: goes_on.wait(DEADLINE)), Ears(sys.exit)
    queries, said = StreamingQueries(), report()
    queries.addListener(slow)
    queries.addListener(other)
    queries.tell(STARTED, SAID[STARTED])
    wait_until(lambda: len(slow.heard) == 1, "the first event")
    for _ in range(500):
        queries.tell(PROGRESS, said)
    queries.tell(TERMINATED, SAID[TERMINATED])
    with caplog.at_level(logging.WARNING):
        goes_on.set()
        wait_until(lambda: other.kinds[-1:] == ["QueryTerminatedEvent"], "the end")
        wait_until(lambda: "penstock-query-listeners" not in [each.name for each in threading.enumerate()], "its end")
    assert len(other.heard) == len(slow.heard) == 102
    assert "onQueryTerminated of a query's listener failed" in caplog.text


@pytest.mark.parametrize("wrong", [Ears, print, "n"])
def test_what_is_no_listener_is_refused(wrong: object) -> None:
    """A class is not, nor what has no methods."""
    with pytest.raises(TypeError, match="addListener takes an object of a class derived from"):
        StreamingQueries().addListener(wrong)
