# SPDX-License-Identifier: Apache-2.0
"""Processors of PySpark's as verbs of whole queries: what they give does not depend on how rows come together."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.api.stream import Stream
from penstock_torture.stages.query_verbs import MS, Rows, Shape

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - PySpark's rows have times without a zone, and the session is in UTC
_HOUR = 3_600_000


class Reminders:
    """A timer for each row, some time after it; where it fires it says when, and how much there was for its key."""

    def __init__(self, shape: Shape, after: int, *, has_sums: bool) -> None:
        self._shape = shape
        self._after = after
        self._has_sums = has_sums

    def init(self, handle: Any) -> None:
        """Declare the states."""
        self._handle = handle
        self._sum = handle.getValueState("sum", "n long, total long")
        self._rows = handle.getListState("rows", "v long")

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:
        """Add up, and have the timers fire."""
        count, total = tuple(self._sum.get()) if self._sum.exists() else (0, 0)
        for row in rows:
            value = row[self._shape.figure]
            count, total = count + 1, total + (value or 0)
            self._rows.appendValue((value,))
            if (at := _moment(row, self._shape)) is not None:
                self._handle.registerTimer(at + self._after)
        self._sum.update((count, total))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Give what there is."""
        from pyspark.sql import Row

        sums = (*self._sum.get(), len(list(self._rows.get()))) if self._has_sums else (0, 0, 0)
        yield Row(**_named(self._shape, key), at=expiredTimerInfo.getExpiryTimeInMs(), said=str(sums))

    def close(self) -> None:
        """Nothing is held."""


class Seen:
    """The first of equal figures of a key, kept in a map whose entries live for an hour."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self._seen = handle.getMapState("seen", "v long", "n long", _HOUR)

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:
        """Give those that are new."""
        from pyspark.sql import Row

        for row in rows:
            value = row[self._shape.figure] or 0
            if not self._seen.containsKey((value,)):
                self._seen.updateValue((value,), (1,))
                yield Row(**_named(self._shape, key), at=value, said="new")

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Processed:
    """`transformWithState` with reminders so many milliseconds after each row, or (0) with an hour's memory."""

    shape: Shape
    after: int
    has_sums: bool = False
    """True if what timers find is compared too: it is the same in runs that end, and not in those that go on."""

    def __str__(self) -> str:
        what = f"timers {self.after} after" if self.after else "seen"
        return f"processor ({what}) by {self.shape.keys}"

    def of_stream(self, streams: Sequence[Stream], width: int) -> Stream:
        """The verb of Penstock."""
        keyed = streams[0].keyBy(*self.shape.keys, numPartitions=width)
        return keyed.transformWithState(self._processor, self._schema, "Append", self._mode)

    def of_frame(self, frames: Sequence[Any]) -> Any:
        """The verb of Spark."""
        grouped = frames[0].groupBy(*self.shape.keys)
        return grouped.transformWithState(self._processor, self._schema, "Append", self._mode)

    def of_rows(self, inputs: Sequence[Rows]) -> Rows:
        """The same of a list; without sums."""
        said = {}
        for row in inputs[0]:
            named = {key: row[key] for key in self.shape.keys}
            at = (row[self.shape.figure] or 0, "new")
            if self.after:
                time = row[self.shape.time] if self.shape.time else row[self.shape.window]["end"]
                if time is None:
                    continue
                at = (time // MS + self.after, "(0, 0, 0)")
            said[(*named.values(), *at)] = {**named, "at": at[0], "said": at[1]}
        return list(said.values())

    @property
    def _processor(self) -> Any:
        from pyspark.cloudpickle import register_pickle_by_value
        from pyspark.sql.streaming import StatefulProcessor

        register_pickle_by_value(sys.modules[__name__])  # Spark's workers do not have this package
        form = Reminders if self.after else Seen
        made = type(form.__name__, (form, StatefulProcessor), {})
        return made(self.shape, self.after, has_sums=self.has_sums) if self.after else made(self.shape)

    @property
    def _mode(self) -> str:
        return "EventTime" if self.after else "ProcessingTime"

    @property
    def _schema(self) -> str:
        types = {"k": "long", "s": "string"}
        return ", ".join([*(f"{key} {types[key]}" for key in self.shape.keys), "at long", "said string"])


def _moment(row: Any, shape: Shape) -> int | None:
    """The time of a row, in milliseconds."""
    time = row[shape.time] if shape.time else row[shape.window]["end"]
    return None if time is None else round((time.replace(tzinfo=None) - _EPOCH) / dt.timedelta(milliseconds=1))


def _named(shape: Shape, key: Any) -> dict[str, Any]:
    return dict(zip(shape.keys, key, strict=True))
