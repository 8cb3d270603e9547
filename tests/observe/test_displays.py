# SPDX-License-Identifier: Apache-2.0
"""Jobs are shown where there is somewhere to show them, and leave their last frame."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from penstock.observe.displays import NotebookDisplay, TerminalDisplay, display_here
from penstock.observe.progress import Note, ProgressSnapshot, ShownVertex


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def snapshot(job: str, rows: int, seconds: float) -> ProgressSnapshot:
    """A job of two stages."""
    read = ShownVertex("read", 2, 2, rows, 0.25, 10 * rows)
    notes = (Note("held back by", "read", "subtask 1 of 2 is busy 90% of its time, most of it reading"),)
    return ProgressSnapshot(job, (read, ShownVertex("count", 1, 4, 0)), seconds, job, rows, 10 * rows, notes)


def test_nothing_without_a_terminal() -> None:
    """A pipe or a file gets nothing, a terminal a display."""
    assert display_here(io.StringIO()) is None
    assert isinstance(display_here(Terminal()), TerminalDisplay)


@pytest.mark.parametrize("columns", [80, 110, 200])
def test_a_terminal_shows_all_jobs_and_keeps_their_last_frames(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Two jobs with stages, shares and rates; what is drawn in place goes, a line for each that has ended stays."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    display = TerminalDisplay(stream)
    display.show([snapshot("first", 1_000, 1), snapshot("second", 0, 0.5)])
    display.show([snapshot("first", 3_000, 2)])
    shown = stream.getvalue()
    for words in ("first", "second", "read", "25%", "3.0k", "2.0k", "held back by read: subtask 1 of 2 is busy 90%"):
        assert words in shown
    display.end(replace(snapshot("second", 5_000, 2.5), state="finished"))
    display.clear()
    display.clear()
    text = stream.getvalue()
    (line,) = re.findall(r"^.*penstock second: .*$", text, re.MULTILINE)
    assert line.endswith("penstock second: finished after 2.5 s, 5.0k rows read, 50 kB")
    assert "\x1b[?25h" in text
    assert text.endswith("\x1b[2K")
    display.show([snapshot("later", 1, 1)])
    assert "later" in stream.getvalue()
    display.clear()
    display.end(replace(snapshot("later", 1, 1), state="failed"))
    assert "penstock later: failed after 1.0 s, 1 rows read, 10 B\n" in stream.getvalue()


def test_a_notebook_keeps_last_frames_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block is updated in place: jobs that run below those that have ended, of which each has its last frame."""
    blocks: list[object] = []

    class Handle:
        def update(self, block: object) -> None:
            blocks.append(block)

    def display(block: object, display_id: bool) -> Handle:
        assert display_id
        blocks.append(block)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    shown = NotebookDisplay()
    shown.clear()
    assert blocks == []
    shown.show([snapshot("a<b", 1_000, 1)])
    shown.show([snapshot("a<b", 3_000, 2)])
    page = blocks[1]._repr_html_()  # type: ignore[attr-defined]
    assert "a&lt;b" in page
    assert "2.0k" in page
    assert "held back by read" in repr(blocks[1])
    shown.end(replace(snapshot("a<b", 9_000, 3), state="finished"))
    shown.show([snapshot("c", 10, 1)])
    assert "finished after 3.0 s, 9.0k rows read" in repr(blocks[2])
    shown.end(replace(snapshot("c", 20, 2), state="failed"))
    shown.clear()
    assert len(blocks) == 4
    last = blocks[3]._repr_html_()  # type: ignore[attr-defined]
    assert last.count("<details>") == 2
    assert "running" not in last
    assert "failed after 2.0 s, 20 rows read" in last
    shown.show([snapshot("d", 1, 1)])
    assert "a&lt;b" not in blocks[4]._repr_html_()  # type: ignore[attr-defined]
