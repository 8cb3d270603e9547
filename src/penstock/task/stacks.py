# SPDX-License-Identifier: Apache-2.0
"""The stacks of users' functions in a sampled thread, and the seconds of each, in bounded memory.

Rules: a stack begins with the function that Penstock has called, so none of our frames are in it; it is empty while
we work ourselves. Of a library that the function calls the outermost frame stands for all: its insides are not the
user's to change. After the user's innermost function stands its line that runs. A function out of an installed
package is the user's as one of a script is, and so is the rest of its package. Stacks that took least become part of
the one above them where there are too many. Pure, but for the frames that are looked at.

Entries are `name (file:line)` and `line N`; joined by semicolons they are what flame graphs are made of everywhere
("folded stacks").
"""

from __future__ import annotations

import functools
import sysconfig
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from penstock.shuffle.metrics import PROFILE_GROUP
from penstock.task.failure import PACKAGE, is_library

MOST = 100
"""Stacks of one task that are told; four times as many are kept."""
DEPTH = 24
"""Entries of a stack at most: of a deeper one the middle is left out."""
OTHERS = ("others",)
_CALLERS = frozenset(
    f"{PACKAGE}{name}.py"
    for name in (
        "operators/functions",
        "operators/cogroup",
        "record/partitioners",
        "stream/state/calls",
        "stream/state/row_calls",
    )
)
"""What these call is a user's, wherever it lies; what others call may be a library for purposes of our own."""
_PACKAGES = tuple(dict.fromkeys(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib")))
_FOLDERS = (*_PACKAGES, f"{sysconfig.get_path('stdlib')}/")
"""Of packages, and after them of what else comes with Python, in which packages may lie."""
_MADE = "<string>"
"""The file of code that a library has made, as dataclasses do; of a user's too, who calls `python -c`."""
_NAME = 60
Stack = tuple[str, ...]


class Stacks:
    """The seconds of each stack. One thread adds, any may read."""

    def __init__(self) -> None:
        self._seconds: Counter[Stack] = Counter()

    def add(self, stack: Stack, seconds: float) -> None:
        """So many seconds more; none of an empty stack."""
        if stack:
            self._seconds[stack] += seconds  # type: ignore[assignment]
            if len(self._seconds) > 4 * MOST:
                self._seconds = folded(self._seconds, 2 * MOST)

    def figures(self) -> dict[str, float]:
        """The largest ones, for a report."""
        told = folded(self._seconds.copy(), MOST)
        return {PROFILE_GROUP + ";".join(stack): round(seconds, 3) for stack, seconds in told.items()}


def folded(seconds: Counter[Stack], most: int) -> Counter[Stack]:
    """At most so many stacks, with the same sum."""
    while len(seconds) > most:
        for stack in sorted(seconds, key=lambda each: seconds[each])[: len(seconds) - most]:
            took = seconds.pop(stack)
            seconds[stack[:-1] or OTHERS] += took
    return seconds


def users_stack(frame: FrameType | None) -> Stack:
    """The user's part of the stack of a thread that is at this frame, the outermost entry first."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    if frame is None or not found:
        return ()
    found.reverse()
    own = _package(found[0][0].co_filename) if frame.f_code.co_filename in _CALLERS else None
    if own is None and all(is_library(code.co_filename) or code.co_filename == _MADE for code, _ in found):
        return ()
    entries: list[str] = []
    line_at, running, was_inside = 0, "", False
    for code, line in found:
        name = code.co_filename
        is_inside = is_library(name) and not (own and name.startswith(own))
        if is_inside and was_inside:
            continue
        entries.append(_label(name, code.co_qualname, code.co_firstlineno))
        if not is_inside:
            line_at, running = len(entries), f"line {line}"
        was_inside = is_inside
    entries[line_at:line_at] = [running] if line_at else []
    return tuple(entries if len(entries) <= DEPTH else [*entries[: DEPTH // 2], "…", *entries[1 - DEPTH // 2 :]])


def _package(name: str) -> str:
    """The beginning of all files of the installed package to which a file belongs; empty for one of no package."""
    for folder in _PACKAGES:
        if name.startswith(folder):
            return folder + name.removeprefix(folder).partition("/")[0]
    return ""


@functools.lru_cache(maxsize=4096)
def _label(name: str, qualified: str, line: int) -> str:
    """The name of a function and of its file; of a library's the way to it, too."""
    folder = next((folder for folder in _FOLDERS if name.startswith(folder)), None)
    file = Path(name).name if folder is None else name.removeprefix(folder)
    title = qualified.rpartition("<locals>.")[2]
    return f"{title[:_NAME]} ({file[-_NAME:]}:{line})".replace(";", ",")
