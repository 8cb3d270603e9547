# SPDX-License-Identifier: Apache-2.0
"""Keeps what users' functions print in a task, beside where Spark puts it: the executor's standard error.

Limits: text that goes through `sys.stdout` and `sys.stderr`. C libraries write past them, and so do handlers of
`logging` that were made before the task began; both reach Spark's log alone.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from penstock.errors import PenstockError
from penstock.link.kept_logs import FILE_BYTES, KeptFile, application_folder, kept_files, last_lines, make_room
from penstock.shuffle import AttemptId


class KeptStream:
    """A text stream that also keeps what is written to it."""

    def __init__(self, stream: TextIO, kept: KeptFile) -> None:
        self._stream = stream
        self._kept = kept

    def write(self, text: str) -> int:
        """Write, and keep."""
        self._kept.write(text)
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """As the stream's own."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's."""
        return getattr(self._stream, name)


@contextlib.contextmanager
def keeping_output(application: str, directory: str, attempt: AttemptId, title: str) -> Iterator[KeptFile | None]:
    """While this lasts, output is kept in a file of the attempt; None where no file can be had."""
    kept = _file_of(application, directory, attempt, title)
    if kept is None:
        yield None
        return
    before = sys.stdout, sys.stderr
    streams = KeptStream(sys.stdout, kept), KeptStream(sys.stderr, kept)
    sys.stdout, sys.stderr = streams
    try:
        yield kept
    finally:
        # A function that has put streams of its own there and not taken them away keeps them, as without us.
        if sys.stdout is streams[0]:
            sys.stdout = before[0]
        if sys.stderr is streams[1]:
            sys.stderr = before[1]
        is_made = kept.is_made
        kept.close()
        if is_made:
            make_room(application_folder(application, directory))


def kept_output(application: str, directory: str, job: str, lines: int) -> dict[str, str]:
    """The last lines of what is kept of a job's functions on this host, and of its environments, by file."""
    folder = application_folder(application, directory)
    files = [*kept_files(folder, job), *(path for path in kept_files(folder) if path.name.startswith("environment-"))]
    return {path.name: last_lines(path, lines) for path in files}


def _file_of(application: str, directory: str, attempt: AttemptId, title: str) -> KeptFile | None:
    try:
        folder = application_folder(application, directory)
    except (OSError, PenstockError):
        return None
    name = f"{attempt.job}-stage{attempt.vertex}-subtask{attempt.subtask}-attempt{attempt.attempt}.out"
    began = time.strftime("%Y-%m-%d %H:%M:%S")
    return KeptFile(folder / name, FILE_BYTES, f"# {title}, attempt {attempt.attempt}, {began}")
