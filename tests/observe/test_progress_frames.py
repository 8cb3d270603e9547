# SPDX-License-Identifier: Apache-2.0
"""Frames keep their figures whole, whatever the width and the names; nothing in a name is obeyed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from penstock.observe.frames import frame_html, frame_lines, last_html, last_lines
from penstock.observe.progress import Note, ProgressSnapshot, ShownVertex

LONG = f"hash(user) + mapInArrow({'f' * 75})"
STAGES = (
    ShownVertex(LONG, 512, 512, 1_234_567_890, 0.5, 98_765_432_100, 0.98),
    ShownVertex("日本" * 30, 1, 4, 20, None, 7_000, None),
)
FIGURES = (["512/512", "50%", "1.2G", "123k", "99", "GB", "98%"], ["1/4", "20", "7.0", "kB"])
REASON = f"subtask 0 of 2 is busy 98% of its time, most of it in mapInArrow({'f' * 88})"
JOB = ProgressSnapshot(LONG, STAGES, 3723.4, "j1", 42_000_000, 99_000_000_000, (Note("held back by", LONG, REASON),))
RATES = (123_456.0, None)


@pytest.mark.parametrize("width", [80, 110, 200])
def test_names_are_cut_before_figures(width: int) -> None:
    """With names of a hundred characters: no line is too wide, and all figures are whole."""
    assert len(LONG) == 100
    lines = frame_lines(JOB, RATES, width)
    assert max(map(cell_len, lines)) <= width
    assert lines[0].endswith("  1 h 2 min")
    for line, figures in zip(lines[-2:], FIGURES, strict=True):
        assert line.split()[-len(figures) :] == figures
    note = " ".join(" ".join(lines[1:-3]).split())
    assert note.startswith("held back by hash(user) + mapInArrow(")
    assert "subtask 0 of 2 is busy 98% of its time, most of it in mapInArrow(f" in note
    last = last_lines(replace(JOB, state="finished"), width)
    assert max(map(cell_len, last)) <= width
    assert last[0].endswith(": finished after 1 h 2 min, 42M rows read, 99 GB")


def test_a_narrow_terminal_has_fewer_figures_and_no_halves() -> None:
    """At forty columns some are left out, and the others are whole."""
    lines = frame_lines(JOB, RATES, 40)[-2:]
    assert max(map(cell_len, lines)) <= 40
    assert lines[0].split()[-3:] == ["512/512", "1.2G", "123k"]


def test_short_names_are_whole() -> None:
    """Nothing is cut if there is room, and a figure that nobody knows is left out."""
    job = ProgressSnapshot("count", (ShownVertex("read", 2, 2, 1_000), ShownVertex("sum", 1, 4, 0)), 1.0)
    assert frame_lines(job, (None, None), 80) == [
        "count  1.0 s",
        "stage  tasks  done  rows  rows/s  bytes  busy",
        "read     2/2        1.0k            0 B",
        "sum      1/4           0            0 B",
    ]


def test_names_move_no_cursor_and_are_no_markup() -> None:
    """Escapes, line ends and surrogates of a name are shown as question marks; HTML is escaped."""
    name = "a\x1b[2Jb\nc\udc80 [red]<b>&"
    job = ProgressSnapshot(name, (ShownVertex(name, 1, 1, 1),), 1.0, notes=(Note("held back by", name, name),))
    for lines in (frame_lines(job, (None,), 80), last_lines(job, 80)):
        text = "".join(lines)
        assert "a?[2Jb?c? [red]<b>&" in text
        assert text.isprintable()
    for page in (frame_html(job, (None,)), last_html(job)):
        assert "a?[2Jb?c? [red]&lt;b&gt;&amp;" in page
        assert "<b>&" not in page


def test_html_has_the_same_figures() -> None:
    """A row for each stage, the whole name for the pointer, the note in words; the last frame unfolds."""
    page = frame_html(JOB, RATES)
    for words in ("1 h 2 min", "512/512", "50%", "1.2G", "123k", "99 GB", "98%", LONG, REASON):
        assert words in page
    last = last_html(replace(JOB, state="finished"))
    assert "finished after 1 h 2 min, 42M rows read" in last.partition("</summary>")[0]
    assert "held back by" in last.partition("</details>")[2]
