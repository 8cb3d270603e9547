# SPDX-License-Identifier: Apache-2.0
"""Whose fault a task's failure is, and the traceback worth showing.

The exception itself is never replaced: it gets a note that names the operator, and `failure_text` leaves out the
frames of Penstock wherever frames of the user's code remain. Where memory ran out its first line says the limit too.
"""

from __future__ import annotations

import errno
import resource
import sysconfig
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.errors import FailureKind, PenstockError
from penstock.graph import Combine, Operator

PACKAGE = f"{Path(__file__).resolve().parent.parent}/"
"""The beginning of the names of our files, and of no file of a package whose name begins as ours does."""
_LIBRARIES = ("<frozen", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
_OF_HOST = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EROFS,
        errno.ESTALE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.EMFILE,
        errno.ENFILE,
    }
)
_RAISED, _OF = "raised in ", " of "
"""Around the operator's name in the note that an error gets."""


class Blame:
    """Remembers which part of a chain an exception came out of first."""

    __slots__ = ("_error",)

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def input(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """The chain's input: what it raises is no operator's fault."""
        try:
            yield from batches
        except GeneratorExit:
            raise
        except BaseException as error:
            self._error = error
            raise

    def operator(
        self, operator: Operator, batches: Iterator[pa.RecordBatch], place: str
    ) -> Generator[pa.RecordBatch, None, None]:
        """The operator applied; what it raises is noted."""
        return self._noted(lambda: operator.apply(batches), operator.name, place)

    def combine(
        self, combine: Combine, inputs: Sequence[Iterator[pa.RecordBatch]], place: str
    ) -> Generator[pa.RecordBatch, None, None]:
        """The same for what makes one stream of several."""
        return self._noted(lambda: combine.apply(inputs), combine.name, place)

    def _noted(
        self, start: Callable[[], Iterator[pa.RecordBatch]], name: str, place: str
    ) -> Generator[pa.RecordBatch, None, None]:
        try:
            yield from start()
        except GeneratorExit:
            raise
        except BaseException as error:
            self.note(error, name, place)
            raise

    def note(self, error: BaseException, name: str, place: str) -> None:
        """An exception came out of a part: one that was not seen before gets a note with its name and place."""
        if error is not self._error:
            self._error = error
            error.add_note(f"{_RAISED}{name}{_OF}{place}")


def failure_kind(error: BaseException) -> FailureKind:
    """The meaning of a task's failure with this error.

    Memory that ran out and disks that broke are the host's where they arose in Penstock, and the user's in his code.
    An error of another library is the user's too, whatever its name.
    """
    is_of_host = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _OF_HOST)
    if is_of_host and _arose_here(error):
        return FailureKind.HOST
    return error.failure if isinstance(error, PenstockError) else FailureKind.CAUSE


def _arose_here(error: BaseException) -> bool:
    """Tell whether Penstock's code called what failed: the innermost frame that is no library's is its own."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = (name for name in reversed(files) if name.startswith(PACKAGE) or not is_library(name))
    return next(own, "").startswith(PACKAGE)


def is_library(name: str) -> bool:
    """Tell whether this file is one of Python's own, or of an installed package."""
    return name.startswith(_LIBRARIES) or name.endswith((".pyx", ".pxi"))


def failure_text(error: BaseException) -> str:
    """The failure as the user should see it: one line that says it, then their frames, the message, the notes.

    An error of ours that no function of theirs raised has no frames to show: its message says it all, and the
    report names the task.
    """
    summary = traceback.TracebackException.from_exception(error)
    if _has_user_frames(summary):
        _keep_user_frames(summary)
    elif isinstance(error, PenstockError):
        text, where = f"{type(error).__name__}: {error}", _where(error)
        return text if where in text else f"{text} (in {where})"
    first = next(iter(summary.format_exception_only())).splitlines()[0]
    where = f" (in {_where(error)})" if _where(error) else ""
    return f"{first}{where}{_memory(error)}\n{''.join(summary.format())}"


def _where(error: BaseException) -> str:
    """The operator that an error was raised in."""
    notes = (note for note in getattr(error, "__notes__", ()) if note.startswith(_RAISED))
    return next(notes, "").removeprefix(_RAISED).partition(_OF)[0]


def _memory(error: BaseException) -> str:
    """The limit that was reached where memory ran out, and what to do."""
    if not isinstance(error, MemoryError):
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    named = "no more memory was to be had"
    if limit != resource.RLIM_INFINITY:
        named = f"this process may have {limit >> 20:,} MiB (from spark.executor.pyspark.memory)"
    return f": {named}. Give it more, or let the function take and hold fewer rows at a time"


def _has_user_frames(summary: traceback.TracebackException) -> bool:
    """Tell whether the user's code is in it or in the errors that led to it."""
    is_here = any(_is_kept(frame) and not is_library(frame.filename) for frame in summary.stack)
    return is_here or any(_has_user_frames(part) for part in _led_to(summary))


def _keep_user_frames(summary: traceback.TracebackException) -> None:
    """Leave our frames out, of it and of what led to it: Python's own word for what a function did has no others."""
    summary.stack = traceback.StackSummary.from_list([frame for frame in summary.stack if _is_kept(frame)])
    for part in _led_to(summary):
        _keep_user_frames(part)


def _led_to(summary: traceback.TracebackException) -> list[traceback.TracebackException]:
    return [part for part in (summary.__cause__, summary.__context__) if part is not None]


def _is_kept(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(PACKAGE)
