# SPDX-License-Identifier: Apache-2.0
"""Jobs are shown where there is somewhere to show them, and a terminal is left as it was."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.observe.displays import NotebookDisplay, TerminalDisplay, display_here
from penstock.observe.progress import ProgressSnapshot, VertexProgress, plain_line, progress_table


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def snapshot(job: str, rows: int, seconds: float) -> ProgressSnapshot:
    """A job of two stages."""
    read = VertexProgress("read", 2, 2, rows, 0.25)
    return ProgressSnapshot(job, (read, VertexProgress("count", 1, 4, 0)), seconds)


def test_nothing_without_a_terminal() -> None:
    """A pipe or a file gets nothing, a terminal a display."""
    assert display_here(io.StringIO()) is None
    assert isinstance(display_here(Terminal()), TerminalDisplay)


def test_a_terminal_shows_all_jobs_and_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs with stages, shares and rates; at the end the cursor is back and the lines are erased."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    display = TerminalDisplay(stream)
    display.show([snapshot("first", 1_000, 1), snapshot("second", 0, 0.5)])
    display.show([snapshot("first", 3_000, 2)])
    shown = stream.getvalue()
    for words in ("first", "second", "read", "25%", "3.0k", "2.0k"):
        assert words in shown
    display.clear()
    display.clear()
    assert stream.getvalue().endswith("\x1b[2K")
    assert "\x1b[?25h" in stream.getvalue()
    display.show([snapshot("later", 1, 1)])
    assert "later" in stream.getvalue()
    display.clear()


def test_a_notebook_keeps_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block is updated in place; what stays is a line for each job, with its last figures."""
    blocks: list[str] = []

    class Handle:
        def update(self, block: object) -> None:
            blocks.append(block.data)  # type: ignore[attr-defined]

    def display(block: object, display_id: bool) -> Handle:
        assert display_id
        blocks.append(block.data)  # type: ignore[attr-defined]
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    shown = NotebookDisplay()
    shown.clear()
    assert blocks == []
    shown.show([snapshot("a<b", 1_000, 1)])
    shown.show([snapshot("a<b", 3_000, 2)])
    assert "a&lt;b" in blocks[1]
    assert "2.0k" in blocks[1]
    shown.clear()
    assert len(blocks) == 3
    assert blocks[2].count("\n") == 0
    assert "3.0k rows" in blocks[2]


def test_shares_are_shown_where_known() -> None:
    """A line and a table say how much is done of a stage, and nothing where nobody knows."""
    line = plain_line(snapshot("job", 1_000, 1))
    assert "read 2/2 25% 1.0k rows, count 1/4 0 rows" in line
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(progress_table(snapshot("job", 1_000, 1)))
    assert "25%" in console.export_text()
