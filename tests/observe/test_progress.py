# SPDX-License-Identifier: Apache-2.0
"""Progress draws in place on a terminal, in plain lines elsewhere, and never beside Spark's own bar."""

from __future__ import annotations

import io

import pytest

from penstock.observe import Progress, ProgressSnapshot, VertexProgress
from penstock.observe.progress import plain_line, short_count
from penstock.testing import VirtualClock


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def _snapshot(rows: int, seconds: float) -> ProgressSnapshot:
    return ProgressSnapshot("j1", (VertexProgress("read", 2, 2, rows), VertexProgress("count", 1, 4, 0)), seconds)


def test_plain_lines_come_every_few_seconds() -> None:
    """Without a terminal there is one line at once, then one per five seconds, and the last at the close."""
    clock, stream = VirtualClock(), io.StringIO()
    with Progress(stream, clock=clock) as progress:
        for eighth in range(97):
            progress.update(_snapshot(eighth * 1_000, eighth / 8))
            clock.advance(0.125)
    lines = stream.getvalue().splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "penstock j1 0s",
        "penstock j1 5s",
        "penstock j1 10s",
        "penstock j1 12s",
    ]
    assert "\x1b" not in stream.getvalue()
    assert "read 2/2 40k rows (8.0k/s), count 1/4 0 rows (0/s)" in lines[1]


def test_a_terminal_is_drawn_in_place_and_left_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the vertices are lines that are redrawn; the cursor comes back at the close."""
    monkeypatch.setenv("TERM", "xterm")
    clock, stream = VirtualClock(), Terminal()
    progress = Progress(stream, clock=clock)
    progress.update(_snapshot(1_000, 1))
    clock.advance(1)
    progress.update(_snapshot(3_000, 2))
    progress.close()
    progress.close()
    progress.update(_snapshot(9_000, 9))
    text = stream.getvalue()
    assert "read" in text
    assert "2.0k" in text
    assert "\x1b[?25h" in text
    assert "9.0k" not in text


def test_spark_bar_and_ours_never_share_a_terminal() -> None:
    """If Spark draws its console bar, plain lines are written even on a terminal."""
    stream = Terminal()
    with Progress(stream, console_bar=True) as progress:
        progress.update(_snapshot(1, 1))
    assert stream.getvalue() == plain_line(_snapshot(1, 1)) + "\n"


def test_nothing_is_written_without_a_snapshot() -> None:
    """A job that ends before its first snapshot leaves no line."""
    stream = io.StringIO()
    Progress(stream).close()
    assert stream.getvalue() == ""


def test_counts_stay_short() -> None:
    """Three significant places are enough to watch."""
    assert [short_count(n) for n in (0, 999, 1_000, 1_250, 12_500, 3_400_000, 5e15)] == [
        "0",
        "999",
        "1.0k",
        "1.2k",
        "12k",
        "3.4M",
        "5000T",
    ]
