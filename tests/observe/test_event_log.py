# SPDX-License-Identifier: Apache-2.0
"""The trace holds every event once, in order, whatever the threads and the crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.observe import EventLog, read_events
from penstock.testing import Running, VirtualClock


def test_events_come_back_as_written(tmp_path: Path) -> None:
    """Number, time, job and details survive; what JSON does not know becomes text."""
    clock = VirtualClock(5.0)
    with EventLog(tmp_path / "deep" / "trace", "j1", clock) as log:
        log.append("started", {"vertices": 2, "name": "zähler"})
        clock.advance(1.5)
        log.append("failed", {"cause": ValueError("no")})
    assert list(read_events(tmp_path / "deep" / "trace")) == [
        {"seq": 0, "at": 5.0, "job": "j1", "event": "started", "vertices": 2, "name": "zähler"},
        {"seq": 1, "at": 6.5, "job": "j1", "event": "failed", "cause": "no"},
    ]


def test_threads_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    """Lines of several threads are whole and numbered without a gap."""
    with EventLog(tmp_path / "trace", "j1") as log:

        def write(name: str) -> None:
            for n in range(100):
                log.append(name, {"n": n, "padding": "x" * 500})

        for task in [Running(lambda n=name: write(n)) for name in ("a", "b", "c")]:  # type: ignore[misc]
            task.join()
    events = list(read_events(tmp_path / "trace"))
    assert [event["seq"] for event in events] == list(range(300))
    for name in ("a", "b", "c"):
        assert [event["n"] for event in events if event["event"] == name] == list(range(100))


def test_a_torn_line_is_left_out_and_mended(tmp_path: Path) -> None:
    """A crash in mid-line costs that line only; the next writer continues the numbers."""
    path = tmp_path / "trace"
    with EventLog(path, "j1") as log:
        log.append("one")
    with path.open("ab") as file:
        file.write(b'{"seq":1,"at":')
    assert [event["event"] for event in read_events(path)] == ["one"]
    with EventLog(path, "j2") as log:
        log.append("two")
    assert [(event["seq"], event["event"]) for event in read_events(path)] == [(0, "one"), (1, "two")]
    assert [event["event"] for event in read_events(path, "j2")] == ["two"]


def test_a_closed_log_and_reserved_names_are_refused(tmp_path: Path) -> None:
    """Closing twice is fine, writing afterwards is not, and details cannot overwrite the frame."""
    log = EventLog(tmp_path / "trace", "j1")
    with pytest.raises(ValueError, match="seq"):
        log.append("x", {"seq": 9})
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.append("x")
    assert list(read_events(tmp_path / "trace")) == []
