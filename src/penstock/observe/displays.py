# SPDX-License-Identifier: Apache-2.0
"""The displays of jobs' progress: in place on a terminal, below the cell of a notebook, or nowhere.

A display is given the jobs that run, again and again, each job that has ended once, and told when there are none. On
a terminal a job leaves one line, and what held it back; in a notebook the same, with its stages to unfold. Fed by one
thread at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from penstock.observe.frames import frame_html, frame_lines, last_html, last_lines
from penstock.observe.progress import ProgressSnapshot, Rates

if TYPE_CHECKING:  # the library that draws is imported by who draws: no first job waits for it
    from rich.console import Console
    from rich.live import Live

_PLAIN_WIDTH = 100
"""Columns of a frame for those who take no HTML."""


class JobDisplay(Protocol):
    """Shows the jobs that run."""

    def show(self, jobs: Sequence[ProgressSnapshot]) -> None:
        """Draw the jobs that run now."""

    def end(self, job: ProgressSnapshot) -> None:
        """Draw the last frame of a job that was shown and has ended."""

    def clear(self) -> None:
        """Remove the frames, as no job runs any more."""


def display_here(stream: TextIO | None = None) -> JobDisplay | None:
    """The display that suits this process: a notebook's cell, a terminal on standard error, or none."""
    shell = _ipython()
    if shell is not None and hasattr(shell, "kernel"):
        return NotebookDisplay()
    stream = sys.stderr if stream is None else stream
    return TerminalDisplay(stream) if stream is not None and stream.isatty() else None


class TerminalDisplay:
    """A table for each job that runs, drawn in place; above them the lines of those that have ended."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rates = Rates()
        self._live: Live | None = None

    def show(self, jobs: Sequence[ProgressSnapshot]) -> None:
        """Draw these in place of the last ones."""
        from rich.live import Live

        rates = self._rates.of(jobs)
        if self._live is None:
            self._live = Live(
                console=self._console(),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        width = self._live.console.width
        lines = [line for job in jobs for line in frame_lines(job, rates[job.key], width)]
        self._live.update(_text(lines), refresh=True)

    def end(self, job: ProgressSnapshot) -> None:
        """Leave its last frame above what is drawn."""
        console = self._console() if self._live is None else self._live.console
        console.print(_text(last_lines(job, console.width)), soft_wrap=True)

    def clear(self) -> None:
        """Erase what is drawn in place."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=self._stream, highlight=False)


def _text(lines: Sequence[str]) -> Any:
    from rich.text import Text

    return Text("\n".join(lines), no_wrap=True, overflow="crop")


class NotebookDisplay:
    """A block in the output of the cell that runs, updated in place; the last frames stay in it."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._handle: Any = None
        self._ended: list[ProgressSnapshot] = []

    def show(self, jobs: Sequence[ProgressSnapshot]) -> None:
        """Put these in place of the last ones, below those that have ended."""
        rates = self._rates.of(jobs)
        frames = [frame_html(job, rates[job.key]) for job in jobs]
        lines = [line for job in jobs for line in frame_lines(job, rates[job.key], _PLAIN_WIDTH)]
        self._put(frames, lines)

    def end(self, job: ProgressSnapshot) -> None:
        """Keep its last frame."""
        self._ended.append(job)

    def clear(self) -> None:
        """Leave the last frames of those that have ended."""
        if self._handle is not None:
            self._put([], [])
        self._handle = None
        self._ended.clear()

    def _put(self, frames: Sequence[str], lines: Sequence[str]) -> None:
        from IPython.display import display

        block = NotebookBlock(
            "".join([*map(last_html, self._ended), *frames]),
            "\n".join([*(line for job in self._ended for line in last_lines(job, _PLAIN_WIDTH)), *lines]),
        )
        if self._handle is None:
            self._handle = display(block, display_id=True)
        else:
            self._handle.update(block)


class NotebookBlock:
    """The same as HTML and as text: a front end takes what it can show."""

    def __init__(self, page: str, text: str) -> None:
        self._page = page
        self._text = text

    def _repr_html_(self) -> str:
        """For a notebook."""
        return self._page

    def __repr__(self) -> str:
        """For a console."""
        return self._text


def _ipython() -> Any:
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()
