# SPDX-License-Identifier: Apache-2.0
"""The displays of jobs' progress: in place on a terminal, below the cell of a notebook, or nowhere.

A display is given the jobs that run, again and again, then told that there are none. On a terminal it leaves nothing
behind, like Spark's own bar; in a notebook one line stays, as the cell's output does. Fed by one thread at a time.
"""

from __future__ import annotations

import html
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from penstock.observe.progress import ProgressSnapshot, plain_line, progress_table

if TYPE_CHECKING:  # as in `progress`: imported by who draws
    from rich.live import Live


class JobDisplay(Protocol):
    """Shows the jobs that run."""

    def show(self, jobs: Sequence[ProgressSnapshot]) -> None:
        """These run now."""

    def clear(self) -> None:
        """None runs any more."""


def display_here(stream: TextIO | None = None) -> JobDisplay | None:
    """The display that suits this process: a notebook's cell, a terminal on standard error, or none."""
    shell = _ipython()
    if shell is not None and hasattr(shell, "kernel"):
        return NotebookDisplay()
    stream = sys.stderr if stream is None else stream
    return TerminalDisplay(stream) if stream is not None and stream.isatty() else None


class _Rates:
    """Each job's last snapshot but one, for the rows per second."""

    def __init__(self) -> None:
        self._last: dict[str, ProgressSnapshot] = {}

    def paired(self, jobs: Sequence[ProgressSnapshot]) -> list[tuple[ProgressSnapshot, ProgressSnapshot | None]]:
        pairs = [(job, self._last.get(job.job)) for job in jobs]
        self._last = {job.job: job for job in jobs}
        return pairs


class TerminalDisplay:
    """A table for each job, drawn in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rates = _Rates()
        self._live: Live | None = None

    def show(self, jobs: Sequence[ProgressSnapshot]) -> None:
        """Draw these in place of the last ones."""
        from rich.console import Console, Group
        from rich.live import Live

        tables = Group(*(progress_table(job, last) for job, last in self._rates.paired(jobs)))
        if self._live is None:
            self._live = Live(
                console=Console(file=self._stream),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(tables, refresh=True)

    def clear(self) -> None:
        """Leave the terminal as it was."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()


class NotebookDisplay:
    """A preformatted block in the output of the cell that runs, updated in place."""

    def __init__(self) -> None:
        self._rates = _Rates()
        self._handle: Any = None
        self._last: Sequence[ProgressSnapshot] = ()

    def show(self, jobs: Sequence[ProgressSnapshot]) -> None:
        """Put these in place of the last ones."""
        self._last = jobs
        self._put("\n".join(_text(job, last) for job, last in self._rates.paired(jobs)))

    def clear(self) -> None:
        """Leave one line for each job that was shown last."""
        if self._handle is not None:
            self._put("\n".join(plain_line(job) for job in self._last))
        self._handle, self._last = None, ()

    def _put(self, text: str) -> None:
        from IPython.display import HTML, display

        block = HTML(f"<pre>{html.escape(text)}</pre>")
        if self._handle is None:
            self._handle = display(block, display_id=True)
        else:
            self._handle.update(block)


def _text(job: ProgressSnapshot, last: ProgressSnapshot | None) -> str:
    from rich.console import Console

    console = Console(width=100, record=True, file=io.StringIO())
    console.print(progress_table(job, last))
    return console.export_text().rstrip()


def _ipython() -> Any:
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()
