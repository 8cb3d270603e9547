# SPDX-License-Identifier: Apache-2.0
"""Shows a running job: one line per vertex on a terminal, a plain line every few seconds elsewhere.

Rules: it is fed with snapshots and draws nothing on its own, so it needs no thread. It writes to standard error
only. On a terminal it draws in place, and only where Spark's own console bar is off
(`spark.ui.showConsoleProgress`), because two bars would overwrite each other; otherwise it writes plain lines.
Limits: rows per second are over the time since the last drawn snapshot. Non-goals: logging, colours that mean.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:  # the library that draws is imported by who draws: no first job waits for it
    from rich.live import Live
    from rich.table import Table

PLAIN_SECONDS = 5.0
DRAW_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class VertexProgress:
    """One job vertex: its subtasks that run, of how many, the rows it has read, and the share done where known."""

    name: str
    running: int
    total: int
    rows: int
    share: float | None = None


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """A job at one moment, `seconds` after its start."""

    job: str
    vertices: tuple[VertexProgress, ...]
    seconds: float


class Progress:
    """Shows snapshots until it is closed. `console_bar` says whether Spark draws a bar of its own."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        console_bar: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._live: Live | None = None
        self._in_place = self._stream.isatty() and not console_bar
        self._every = DRAW_SECONDS if self._in_place else PLAIN_SECONDS
        self._drawn_at: float | None = None
        self._last: ProgressSnapshot | None = None
        self._pending: ProgressSnapshot | None = None
        self._closed = False

    def update(self, snapshot: ProgressSnapshot) -> None:
        """Show a snapshot, or keep it for the next time where the last one was drawn just now."""
        if self._closed:
            return
        self._pending = snapshot
        now = self._clock()
        if self._drawn_at is None or now - self._drawn_at >= self._every:
            self._drawn_at = now
            self._draw()

    def close(self) -> None:
        """Show the last snapshot and leave the terminal as it was; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._pending is not None:
            self._draw()
        if self._live is not None:
            self._live.stop()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self) -> None:
        snapshot, self._pending = self._pending, None
        if snapshot is None:
            return
        if self._in_place:
            self._draw_in_place(snapshot)
        else:
            self._stream.write(plain_line(snapshot, self._last) + "\n")
            self._stream.flush()
        self._last = snapshot

    def _draw_in_place(self, snapshot: ProgressSnapshot) -> None:
        table = progress_table(snapshot, self._last)
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            self._live = Live(
                table, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(table, refresh=True)


def plain_line(snapshot: ProgressSnapshot, last: ProgressSnapshot | None = None) -> str:
    """A snapshot as one line of text."""
    parts = (
        f"{item.name} {item.running}/{item.total}{_share(item)} {short_count(item.rows)} rows"
        f"{_rate(item, snapshot, last)}"
        for item in snapshot.vertices
    )
    return f"penstock {snapshot.job} {snapshot.seconds:.0f}s: {', '.join(parts)}"


def progress_table(snapshot: ProgressSnapshot, last: ProgressSnapshot | None = None) -> Table:
    """A snapshot as a table, one row per vertex."""
    from rich.table import Table

    table = Table(title=f"{snapshot.job}  {snapshot.seconds:.1f} s", title_justify="left", box=None, pad_edge=False)
    table.add_column("stage", no_wrap=True)
    for heading in ("running", "done", "rows", "rows/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for vertex in snapshot.vertices:
        rate = _rate(vertex, snapshot, last).strip(" ()/s")
        share = "" if vertex.share is None else f"{vertex.share:.0%}"
        table.add_row(vertex.name, f"{vertex.running}/{vertex.total}", share, short_count(vertex.rows), rate)
    return table


def short_count(count: float) -> str:
    """A number in three or four characters and a unit: 999, 1.2k, 34M."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000 or unit == "T":
            break
        count /= 1000
    return f"{count:.0f}{unit}" if unit == "" or count >= 10 else f"{count:.1f}{unit}"


def _share(vertex: VertexProgress) -> str:
    return "" if vertex.share is None else f" {vertex.share:.0%}"


def _rate(vertex: VertexProgress, snapshot: ProgressSnapshot, last: ProgressSnapshot | None) -> str:
    before = [old.rows for old in last.vertices if old.name == vertex.name] if last is not None else []
    if not before or last is None or snapshot.seconds <= last.seconds:
        return ""
    return f" ({short_count(max(0, vertex.rows - before[0]) / (snapshot.seconds - last.seconds))}/s)"
