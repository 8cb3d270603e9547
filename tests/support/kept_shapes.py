# SPDX-License-Identifier: Apache-2.0
"""Processors that count each number of a query by state of one kind, for runs with kills and restores.

Each gives its number with how often it has come, so rows that are lost or come twice are seen, and state that does
too. That of timers gives a number when its timer fires, some milliseconds after the number came.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.api.stream import Stream

KINDS = ("value", "list", "map", "timers", "rows")
SCHEMA = "path long, key long, value long, n long"


def counted(stream: Stream, kind: str, width: int) -> Stream:
    """The stream behind an exchange by key and a processor of this kind."""
    if kind == "value":
        keyed = stream.keyBy("path", "key", "value", numPartitions=width)
    else:
        keyed = stream.keyBy("path", "key", numPartitions=width)
    if kind == "rows":
        return keyed.transformWithState(by_rows(), SCHEMA, "Update", "ProcessingTime")
    made = {"value": by_value, "list": by_list, "map": by_map, "timers": by_timers}[kind]()
    return keyed.transformWithStateInArrow(made, SCHEMA, "Update", "ProcessingTime")


# Processors are made by functions, so that their classes travel as a whole: workers can't import this module.


def by_value() -> Any:
    """Counts by a value of each number."""
    import penstock

    class Counter(penstock.BatchProcessor):
        def init(self, handle: Any) -> None:
            self.n = handle.getValueState("n", "n long")

        def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> pa.RecordBatch:
            import pyarrow.compute as pc

            n = pc.add(pc.fill_null(self.n.get(keys)["n"], 0), keys.counts())
            self.n.put(keys, {"n": n})
            return pa.RecordBatch.from_arrays([*keys.table.columns, n], names=["path", "key", "value", "n"])

    return Counter()


def by_list() -> Any:
    """Keeps all numbers of a key, and counts among them."""
    import penstock

    class Counter(penstock.BatchProcessor):
        def init(self, handle: Any) -> None:
            self.values = handle.getListState("values", "value long")

        def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> pa.RecordBatch:
            self.values.append(keys, keys.groups, rows.select(["value"]))
            owned = self.values.get(keys)
            there: dict[tuple[int, int], int] = {}
            for each in zip(owned.groups.tolist(), owned.rows["value"].to_pylist(), strict=True):
                there[each] = there.get(each, 0) + 1
            asked = zip(keys.groups.tolist(), rows["value"].to_pylist(), strict=True)
            n = pa.array([there[each] for each in asked], pa.int64())
            return pa.RecordBatch.from_arrays([*rows.columns, n], names=[*rows.schema.names, "n"])

    return Counter()


def by_map() -> Any:
    """Counts by an entry of a map."""
    import penstock

    class Counter(penstock.BatchProcessor):
        def init(self, handle: Any) -> None:
            self.n = handle.getMapState("n", "value long", "n long")

        def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> pa.RecordBatch:
            own = rows.select(["value"])
            before = self.n.get(keys, keys.groups, own)["n"].to_pylist()
            seen: dict[tuple[int, int], int] = {}
            counts = []
            for group, value, n in zip(keys.groups.tolist(), rows["value"].to_pylist(), before, strict=True):
                seen[group, value] = seen.get((group, value), n or 0) + 1
                counts.append(seen[group, value])
            n = pa.array(counts, pa.int64())
            self.n.put(keys, keys.groups, own, {"n": n})
            return pa.RecordBatch.from_arrays([*rows.columns, n], names=[*rows.schema.names, "n"])

    return Counter()


def by_timers() -> Any:
    """Gives a number when its timer fires; waiting numbers are a list, and their times too."""
    import penstock

    class Counter(penstock.BatchProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.waiting = handle.getListState("waiting", "value long, due long")

        def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> None:
            now = timerValues.getCurrentProcessingTimeInMs()
            due = pa.array([now + 1 + value % 40 for value in rows["value"].to_pylist()], pa.int64())
            self.waiting.append(keys, keys.groups, {"value": rows["value"], "due": due})
            self.handle.registerTimers(keys, keys.groups, due)

        def handleExpiredTimers(self, keys: Any, expiryTimesInMs: pa.Array, timerValues: Any) -> pa.RecordBatch:
            fired = set(zip(keys.groups.tolist(), expiryTimesInMs.to_pylist(), strict=True))
            assert len(fired) == len(expiryTimesInMs), "a timer fired twice"
            owned = self.waiting.get(keys)
            all_rows = list(
                zip(
                    owned.groups.tolist(), owned.rows["value"].to_pylist(), owned.rows["due"].to_pylist(), strict=True
                )
            )
            given = [(group, value) for group, value, due in all_rows if (group, due) in fired]
            assert {(group, due) for group, _, due in all_rows} >= fired, "a timer fired of nobody"
            left = [each for each in all_rows if (each[0], each[2]) not in fired]
            kept = {"value": [value for _, value, _ in left], "due": [due for *_, due in left]}
            self.waiting.put(keys, [group for group, *_ in left], kept)
            at = pa.array([group for group, _ in given], pa.int64())
            values = pa.array([value for _, value in given], pa.int64())
            n = pa.array([1] * len(given), pa.int64())
            names = ["path", "key", "value", "n"]
            return pa.RecordBatch.from_arrays([*keys.table.take(at).columns, values, n], names=names)

    return Counter()


def by_rows() -> Any:
    """Gives a number when its timer fires, as a processor of PySpark's does; there is a state of each kind."""

    class Counter:
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.n = handle.getMapState("n", "value long", "n long")
            self.waiting = handle.getListState("waiting", "value long, due long")
            self.calls = handle.getValueState("calls", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            now = timerValues.getCurrentProcessingTimeInMs()
            for row in rows:
                due = now + 1 + row.value % 40
                self.waiting.appendValue((row.value, due))
                self.handle.registerTimer(due)
                self.n.updateValue((row.value,), ((self.n.getValue((row.value,)) or (0,))[0] + 1,))
                self.calls.update(((self.calls.get() or (0,))[0] + 1,))
            return iter([])

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            from pyspark.sql import Row

            expiry = expiredTimerInfo.getExpiryTimeInMs()
            waiting = list(self.waiting.get())
            given = [value for value, due in waiting if due == expiry]
            assert given, "a timer fired of nobody"
            assert sum(n for _, (n,) in self.n.iterator()) == self.calls.get()[0], "states differ"
            self.waiting.put([each for each in waiting if each[1] != expiry])
            for value in given:
                yield Row(path=key[0], key=key[1], value=value, n=1)

        def close(self) -> None:
            pass

    return Counter()
