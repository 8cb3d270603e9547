# SPDX-License-Identifier: Apache-2.0
"""Windows of event time: which rows belong to which, as numbers over whole batches.

A fixed window begins at a multiple of `slide` after `offset`, counted from 1970 in UTC, and is `size` long: tumbling
where both are equal, else sliding, and then a row is in several. Rows are aggregated by *pane*, the longest stretch
that no window divides (the greatest common divisor of size and slide), and a window is the sum of its panes: so a row
is counted once however many windows it is in.

A session is a run of rows of one key none of which is more than `gap` after the one before; it ends `gap` after the
last. Two that touch are one, as in Spark.

Times are microseconds. A row without a time is in no window. In a batch job the windows that rows have are groups as
Spark groups by a struct: one that is open at an end is a group, and null is one. A time column that is itself a
window counts as its last microsecond, so windows can be aggregated again. Sessions that are aggregated again by fewer
keys touch again, and are one then, as in Spark: its mark of sessions is in the metadata of their column, and goes
wherever the column goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.errors import PlanError
from penstock.graph import INTERNAL
from penstock.operators.group_merges import boolean_array
from penstock.operators.intervals import interval_text
from penstock.operators.keys import group_rows
from penstock.operators.times import Times, microseconds_of
from penstock.record.layout import fixed_values, int64_array, null_mask

START, END = f"{INTERNAL}start", f"{INTERNAL}end"
"""The columns in which the bounds of panes and sessions travel."""
OPEN_START, OPEN_END = np.iinfo(np.int64).min, np.iinfo(np.int64).max
"""The bounds of windows that are null there; a window that is null itself begins with the second, which none does."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FixedWindows:
    """Tumbling or sliding windows of the times in a column; `name` is the result's column."""

    column: str
    size: int
    slide: int
    offset: int = 0
    name: str = "window"
    are_sessions: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.size <= 0 or self.slide <= 0:
            raise PlanError("window: its duration and its slide must be longer than nothing")
        if self.slide > self.size:
            raise PlanError(
                f"window: a slide of {interval_text(self.slide)} is longer than the window's "
                f"{interval_text(self.size)}: rows between two windows would be in none; filter them out first"
            )
        if abs(self.offset) >= self.slide:
            raise PlanError(f"window: startTime must be shorter than the slide, {interval_text(self.slide)}")

    @property
    def title(self) -> str:
        """The text that shows it."""
        slide = "" if self.slide == self.size else f", {interval_text(self.slide)}"
        offset = f", from {interval_text(self.offset)}" if self.offset else ""
        return f"window({self.column}, {interval_text(self.size)}{slide}{offset})"

    @property
    def bounds(self) -> tuple[str, ...]:
        """The columns that say where a row's pane lies."""
        return (START,)

    @property
    def pane(self) -> int:
        """The length of a pane."""
        return math.gcd(self.size, self.slide)

    def assigned(self, times: Times) -> tuple[Times, ...]:
        """The pane of each time."""
        return (np.floor_divide(times - self.offset, self.pane) * self.pane + self.offset,)

    def last(self, panes: Times) -> Times:
        """The beginning of the last window that each pane is in."""
        begins: Times = np.floor_divide(panes - self.offset, self.slide) * self.slide + self.offset
        return begins

    def closing(self, panes: Times) -> Times:
        """The end of the last window that each pane is in."""
        return self.last(panes) + self.size

    def due(self, panes: Times, after: Times) -> Times:
        """The end of each pane's first window that ends after such a time; if there is none that of the last.

        No time is before its pane.
        """
        closing = self.closing(panes)
        later = np.maximum(closing - after - 1, 0)
        due: Times = closing - np.minimum(later // self.slide, self._most - 1) * self.slide
        return due

    def windows(self, panes: Times, chosen_by: Callable[[Times], Mask]) -> tuple[npt.NDArray[np.int64], Times]:
        """Each pane in each of its windows that are chosen by their ends: rows, and beginnings."""
        last = self.last(panes)
        rows, starts = [], []
        for number in range(self._most):
            start = last - number * self.slide
            end = start + self.size
            chosen = np.flatnonzero((end > panes) & chosen_by(end))
            rows.append(chosen)
            starts.append(start[chosen])
        return np.concatenate(rows), np.concatenate(starts)

    @property
    def _most(self) -> int:
        """The number of windows that a pane is in at most."""
        return -(-self.size // self.slide)


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Sessions of the times in a column; `name` is the result's column."""

    column: str
    gap: int
    name: str = "session_window"
    are_sessions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.gap <= 0:
            raise PlanError("session_window: its gap must be longer than nothing")

    @property
    def title(self) -> str:
        """The text that shows it."""
        return f"session_window({self.column}, {interval_text(self.gap)})"

    @property
    def bounds(self) -> tuple[str, ...]:
        """The columns that say where a row's session lies."""
        return (START, END)

    def assigned(self, times: Times) -> tuple[Times, ...]:
        """The session of each time alone."""
        return times, times + self.gap


@dataclass(frozen=True, slots=True)
class GivenWindows:
    """Windows that the rows themselves have: a column of structs with `start` and `end`, which keeps its name."""

    column: str
    are_sessions: bool = False
    """True if those of one key that touch are one."""
    keeps_nulls: bool = False
    """True if a window without a start or an end is one, too, and null is one; else their rows are in none."""

    @property
    def name(self) -> str:
        """The result's column."""
        return self.column

    @property
    def title(self) -> str:
        """The text that shows it."""
        return self.column

    @property
    def bounds(self) -> tuple[str, ...]:
        """The columns that say where a row's window lies."""
        return (START, END)


Windows = FixedWindows | SessionWindows | GivenWindows


def times_in(column: pa.Array) -> tuple[Times, Mask | None]:
    """The times of a column of timestamps or windows, and which are null."""
    if not pt.is_struct(column.type):
        return microseconds_of(column)
    times, missing = microseconds_of(column.field("end"))
    if (found := null_mask(column)) is not None:
        missing = found if missing is None else missing | found
    return times - 1, missing


def bounds_in(column: pa.Array, windows: Windows) -> tuple[tuple[Times, ...], Mask | None]:
    """The bounds of the panes, sessions or windows of rows, and which of them have none."""
    times, missing = times_in(column)
    if not isinstance(windows, GivenWindows):
        return windows.assigned(times), missing
    starts, without = microseconds_of(column.field("start"))
    ends = times + 1
    if windows.keeps_nulls:
        _, endless = microseconds_of(column.field("end"))
        starts = starts if without is None else np.where(without, OPEN_START, starts)
        ends = ends if endless is None else np.where(endless, OPEN_END, ends)
        if (is_none := null_mask(column)) is not None:
            starts, ends = np.where(is_none, OPEN_END, starts), np.where(is_none, OPEN_END, ends)
        return (starts, ends), None
    if without is not None:
        missing = without if missing is None else missing | without
    return (starts, ends), missing


def is_window(kind: pa.DataType) -> bool:
    """Tell whether values of a type are windows: structs of two times, `start` and then `end`."""
    if not pt.is_struct(kind) or [field.name for field in kind] != ["start", "end"]:
        return False
    return all(pt.is_timestamp(field.type) for field in kind)


def window_kind(kind: pa.DataType) -> pa.DataType:
    """The type of the windows of a time column: Spark's struct of two timestamps."""
    stamp = kind.field("start").type if pt.is_struct(kind) else kind
    bound = pa.timestamp("us", stamp.tz)
    return pa.struct([pa.field("start", bound), pa.field("end", bound)])


def window_column(starts: Times, ends: Times, kind: pa.DataType) -> pa.Array:
    """Windows with these bounds; an open one has null there."""
    bounds = [
        _opened(int64_array(np.ascontiguousarray(each)).view(kind.field("start").type), each == sign)
        for each, sign in ((starts, OPEN_START), (ends, OPEN_END))
    ]
    is_none = starts == OPEN_END
    mask = boolean_array(is_none) if is_none.any() else None
    return pa.StructArray.from_arrays(bounds, fields=list(kind), mask=mask)


def _opened(bounds: pa.Array, is_open: Mask) -> pa.Array:
    return pc.if_else(boolean_array(is_open), None, bounds) if is_open.any() else bounds


def merged_sessions(keys: Sequence[pa.Array], starts: Times, ends: Times) -> tuple[Times, Times]:
    """The bounds of the session that each of these sessions is a part of."""
    count = len(starts)
    codes = group_rows(keys, count).codes.astype(np.int64)
    order = np.lexsort((starts, codes))
    codes, sorted_starts = codes[order], starts[order]
    places, ranks = np.unique(ends[order], return_inverse=True)
    # The greatest end so far of the same key: keys are told apart by steps that no rank reaches.
    reached = places[np.maximum.accumulate(codes * len(places) + ranks) - codes * len(places)] if count else ends
    begins = np.ones(count, np.bool_)
    begins[1:] = (codes[1:] != codes[:-1]) | (sorted_starts[1:] > reached[:-1])
    firsts = np.flatnonzero(begins)
    numbers = np.cumsum(begins) - 1
    lasts = np.append(firsts[1:], count) - 1
    found_starts, found_ends = np.empty_like(starts), np.empty_like(ends)
    found_starts[order] = sorted_starts[firsts][numbers]
    found_ends[order] = reached[lasts][numbers]
    return found_starts, found_ends


def int64_values(column: pa.Array) -> npt.NDArray[np.int64]:
    """A column of numbers without nulls."""
    return fixed_values(column, np.dtype(np.int64))


@dataclass(frozen=True, slots=True)
class WindowKey:
    """A window as a key of `groupBy`: the user's wish, not checked against any rows. `gap` is a session's."""

    time: object
    size: int = 0
    slide: int = 0
    offset: int = 0
    gap: int = 0
    name: str = "window"

    def alias(self, name: str) -> WindowKey:
        """The same under another name in the result."""
        return replace(self, name=name)

    def over(self, column: str) -> Windows:
        """The windows of the times in a column; raises PlanError for bounds that can't be."""
        if self.gap:
            return SessionWindows(column, self.gap, self.name)
        return FixedWindows(column, self.size, self.slide, self.offset, self.name)
