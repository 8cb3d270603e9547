# SPDX-License-Identifier: Apache-2.0
"""The files of a folder that a reader takes, by names and times: one rule for batch jobs and for queries.

As in Spark names that begin with `_` or `.` are not read, nor those that end with `._COPYING_`, nor what lies in
folders of such names; a folder `_day=3` is one of values all the same. The options are PySpark's: `pathGlobFilter` is
a pattern of Hadoop's for the file's own name, with `*`, `?`, `[a-c]`, `[^a]`, `{csv,tsv}` and a backslash ahead of a
sign that stands for itself. `modifiedAfter` and `modifiedBefore` are times such as `2026-01-31T10:00:00`, in the
session's zone where they name none; a file of just that time is not taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from penstock.errors import SettingError

_GROUP = {"{": "(?:", "}": ")", ",": "|"}


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Which files are read; the bounds are nanoseconds since 1970, as file systems give times of change."""

    glob: str = "*"
    after: int | None = None
    before: int | None = None
    recursive: bool = False
    """Files of subfolders are read as well, and the names of these hold no values."""

    def takes(self, name: str, changed: int) -> bool:
        """Tell whether a file of this name, with or without its folders, and time of change is read."""
        is_late = self.before is not None and changed >= self.before
        if is_late or (self.after is not None and changed <= self.after):
            return False
        return self.glob == "*" or _regex(self.glob).fullmatch(name.rpartition("/")[2]) is not None


EACH_FILE = FileChoice()


def file_choice(
    verb: str, zone: str, glob: str | None, recursive: bool, after: str | None = None, before: str | None = None
) -> FileChoice:
    """What PySpark's options say; raises SettingError for a pattern or a time that is none."""
    try:
        _regex(glob or "*")
    except ValueError as error:
        raise SettingError(f"{verb}: pathGlobFilter={glob!r}: {error}") from None
    since = None if after is None else _nanos(after, f"{verb}: modifiedAfter", zone)
    until = None if before is None else _nanos(before, f"{verb}: modifiedBefore", zone)
    return FileChoice(glob or "*", since, until, recursive)


def is_hidden(relative: str) -> bool:
    """Tell whether a path within a folder is of a file that no reader takes."""
    return any(
        part.startswith(".") or part.endswith("._COPYING_") or (part.startswith("_") and "=" not in part)
        for part in relative.split("/")
    )


def _nanos(text: str, option: str, zone: str) -> int:
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            is_offset = zone.startswith(("+", "-"))
            found = datetime.fromisoformat(text + zone) if is_offset else found.replace(tzinfo=ZoneInfo(zone))
    except (TypeError, ValueError) as error:
        raise SettingError(f"{option}={text!r} is no time such as '2026-01-31T10:00:00': {error}") from None
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


@cache
def _regex(glob: str) -> re.Pattern[str]:
    """A pattern of Hadoop's as a regular expression; raises ValueError where a part of it does not end."""
    found, in_group, place = "", False, 0
    while place < len(glob):
        sign, end = glob[place], glob.find("]", place + 2)
        if sign == "\\" and place + 1 < len(glob):
            place += 1
            found += re.escape(glob[place])
        elif sign == "[" and end > 0:
            found += f"[{_members(glob[place + 1 : end])}]"
            place = end
        elif sign in "\\[" or (sign == "{" and (in_group or "}" not in glob[place:])):
            raise ValueError(f"what begins with the {sign!r} at {place} does not end")
        elif sign == "{" or (in_group and sign in _GROUP):
            in_group = sign != "}"
            found += _GROUP[sign]
        else:
            found += {"*": ".*", "?": "."}.get(sign) or re.escape(sign)
        place += 1
    return re.compile(found, re.DOTALL)


def _members(text: str) -> str:
    """The inside of brackets: `^` or `!` at its start turns it round, and `-` is a range."""
    is_turned = text[0] in "^!"
    return ("^" if is_turned else "") + re.sub(r"([\\\[\]&~|^])", r"\\\1", text[1:] if is_turned else text)
