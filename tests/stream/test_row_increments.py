# SPDX-License-Identifier: Apache-2.0
"""Snapshots of windows, joins, tops and duplicates that refer to older ones: as those that are written whole."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.checkpoint.storage import pieces_of
from penstock.operators.aggregate_states import Aggregation
from penstock.operators.groups import Side
from penstock.operators.join_sides import AsSide, JoinedSides
from penstock.operators.window_aggregates import WindowSpec
from penstock.operators.windows import FixedWindows, GivenWindows, SessionWindows, Windows
from penstock.record.key_groups import GroupOwners
from penstock.stream import increments
from penstock.stream.chain import Chunk, StepContext
from penstock.stream.duplicates import DropDuplicates
from penstock.stream.stream_join import Between, StreamJoin
from penstock.stream.top_rows import TopRows
from penstock.stream.watermark import MOST, Watermark
from penstock.stream.window_aggregate import WindowAggregate
from uncertain_checkpoints import UncertainCheckpoints

GROUPS = 16
TIME = pa.timestamp("us")
ROWS = pa.schema([("k", pa.int64()), ("s", pa.string()), ("t", TIME), ("v", pa.int64())])
WINDOWED = pa.schema([*ROWS, ("w", pa.struct([("start", TIME), ("end", TIME)]))])
OTHERS = pa.schema([("k", pa.int64()), ("s", pa.string()), ("u", TIME), ("w", pa.int64())])
ITEMS = (Aggregation("n", "*", "count"), Aggregation("s1", "v", "sum"), Aggregation("last", "v", "max"))
Row = tuple[int, int, int]
"""A key, a time, and a side."""


def windows(kind: Windows, keys: tuple[str, ...] = ("k",), *, updates: bool = False) -> WindowAggregate:
    """An aggregation by windows."""
    schema = WINDOWED if isinstance(kind, GivenWindows) else ROWS
    return WindowAggregate(WindowSpec(schema, (*keys, kind.name), kind, ITEMS), updates=updates)


def join(how: str, between: Between | None) -> StreamJoin:
    """A join by both key columns."""
    keys = ("k", "s")
    return StreamJoin(JoinedSides(Side(ROWS, keys), Side(OTHERS, keys), how), between)


BETWEEN = Between(("t", "u"), -4, 6, by_watermark=True)
OPERATORS: dict[str, Callable[[], Any]] = {
    "tumbling": lambda: windows(FixedWindows("t", 10, 10)),
    "sliding": lambda: windows(FixedWindows("t", 12, 4, 1), ("k", "s")),
    "uneven of all": lambda: windows(FixedWindows("t", 10, 4), ()),
    "given": lambda: windows(GivenWindows("w")),
    "given sessions": lambda: windows(GivenWindows("w", are_sessions=True)),
    "sessions": lambda: windows(SessionWindows("t", 4)),
    "sessions by text": lambda: windows(SessionWindows("t", 3), ("s",)),
    "sessions of all": lambda: windows(SessionWindows("t", 2), ()),
    "updates": lambda: windows(FixedWindows("t", 10, 10), ("k", "s"), updates=True),
    "sliding updates": lambda: windows(FixedWindows("t", 12, 4), updates=True),
    "join": lambda: join("inner", None),
    "interval join": lambda: join("inner", BETWEEN),
    "left join": lambda: join("left", BETWEEN),
    "right join": lambda: join("right", BETWEEN),
    "full join": lambda: join("full", BETWEEN),
    "top": lambda: TopRows(ROWS, ("k",), 3, (("v", False),)),
    "top of many": lambda: TopRows(ROWS, ("k",), 40, (("v", False),)),
    "duplicates": lambda: DropDuplicates(ROWS, ("k", "s")),
    "duplicates by time": lambda: DropDuplicates(ROWS, ("k", "t"), "t"),
    "duplicates for a while": lambda: DropDuplicates(ROWS, ("k",), "t", 6),
}


class Tasks:
    """The tasks of one operator, whose keys are dealt out to them."""

    def __init__(self, operator: Any, least: int) -> None:
        self._operator = operator
        self._least = least
        self.steps: list[Any] = []
        self.watermarks = [-1 << 40] * 4

    def open(self, width: int, states: list[dict[str, bytes]]) -> None:
        """Begin so many tasks with these states."""
        before, increments.LEAST_SLOTS = increments.LEAST_SLOTS, self._least  # type: ignore[misc]
        try:
            self.steps = [self._operator.step() for _ in range(width)]
        finally:
            increments.LEAST_SLOTS = before  # type: ignore[misc]
        self.watermarks = [-1 << 40] * 4
        for subtask, step in enumerate(self.steps):
            own = states if width != len(states) else [states[subtask]]
            step.open(StepContext(subtask, width, GROUPS, "test"), own)

    def give(self, rows: list[Row], first: int) -> Counter[str]:
        """The rows that these give, each with a number of its own."""
        found: Counter[str] = Counter()
        for side in (0, 1) if isinstance(self._operator, StreamJoin) else (0,):
            own = [(key, moment, first + n) for n, (key, moment, of) in enumerate(rows) if of == side]
            if isinstance(self._operator, StreamJoin):
                schema = OTHERS if side else ROWS
            else:
                own, schema = [(key, moment, first + n) for n, (key, moment, _) in enumerate(rows)], ROWS
            if own:
                found += self._processed(_batch(own, schema), side)
        return found

    def advance(self, watermark: int, lag: int = 0) -> Counter[str]:
        """The rows that a watermark gives, which comes to each task by so much less than to the one before."""
        self.watermarks = [
            max(former, watermark - lag * place) for place, former in enumerate(self.watermarks[: len(self.steps)])
        ]
        moved = zip(self.steps, self.watermarks, strict=True)
        return _counted([made for step, reached in moved for made in step.on_watermark(Watermark(reached))])

    def late_rows(self) -> float:
        """Those of all tasks."""
        return sum(step.metrics().get("rows_late", 0.0) for step in self.steps)

    def snapshots(self) -> list[Callable[[int], list[Chunk]]]:
        """Those of all tasks."""
        return [step.snapshot for step in self.steps]

    def tell(self, checkpoint: int) -> None:
        """A checkpoint is complete."""
        for step in self.steps:
            step.completed(checkpoint)

    def _processed(self, batch: pa.RecordBatch, side: int) -> Counter[str]:
        operator = self._operator
        keys = ["k"] if isinstance(operator, TopRows) else list(getattr(operator, "keys", ()))
        batches = [batch]
        if isinstance(operator, StreamJoin):
            batches, keys = list(AsSide(operator.sides, side).apply(iter([batch]))), ["k", "s"]
        elif isinstance(operator, WindowAggregate):
            if isinstance(operator.spec.windows, GivenWindows):
                batch = _with_windows(batch)
            batches, keys = [operator.spec.plan.partial(batch)], list(operator.spec.keys)
        found: list[pa.RecordBatch] = []
        for each in batches:
            owners = GroupOwners(GROUPS, len(self.steps)).of([each.column(key) for key in keys]) if keys else None
            for subtask, step in enumerate(self.steps):
                own = each if owners is None else each.filter(pa.array((owners == subtask).tolist(), pa.bool_()))
                if own.num_rows and (owners is not None or subtask == 0):
                    found += step.process(own)
        return _counted(found)


def _batch(rows: list[tuple[int, int, int]], schema: pa.Schema) -> pa.RecordBatch:
    keys, times, values = zip(*rows, strict=True)
    texts = [f"text {key % 2}" for key in keys]
    columns = [pa.array(keys, pa.int64()), pa.array(texts), pa.array(times, pa.int64()).cast(TIME), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _with_windows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with windows of five, as another step would have given them."""
    starts = [moment // 5 * 5 for moment in batch.column("t").cast(pa.int64()).to_pylist()]
    bounds = [pa.array([start + size for start in starts], pa.int64()).cast(TIME) for size in (0, 5)]
    made = pa.StructArray.from_arrays(bounds, fields=list(WINDOWED.field("w").type))
    return pa.RecordBatch.from_arrays([*batch.columns, made], schema=WINDOWED)


def _counted(batches: list[pa.RecordBatch]) -> Counter[str]:
    return Counter(str(sorted(row.items())) for batch in batches for row in batch.to_pylist())


def _stored(take: Callable[[int], list[Chunk]]) -> dict[str, bytes]:
    return {name: b"".join(pieces_of(make())) for name, make in take(1)}


SOME_ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 14), st.integers(0, 1)), min_size=1, max_size=6)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), SOME_ROWS),
        st.tuples(st.just("rows"), SOME_ROWS),
        st.tuples(st.just("watermark"), st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 4]))),
        st.tuples(st.just("checkpoint"), st.booleans()),
        st.tuples(st.just("checkpoint"), st.booleans()),
        st.tuples(st.just("failure"), st.integers(1, 3)),
    ),
    min_size=4,
    max_size=30,
)


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=examples(25), deadline=None)
@given(EVENTS, st.randoms(use_true_random=False))
def test_chains_restore_what_whole_snapshots_do(
    name: str, events: list[tuple[str, Any]], chance: random.Random
) -> None:
    """Two copies of an operator give the same rows for ever: one writes changes, the other all with each checkpoint.

    Rows come with times before and after the watermark, which is not the same in all tasks. Checkpoints fail or are
    heard of late, failures begin with the newest one at other widths. At the end all that is left comes out.
    """
    chained, whole = Tasks(OPERATORS[name](), 0), Tasks(OPERATORS[name](), 1 << 40)
    for tasks in (chained, whole):
        tasks.open(2, [])
    checkpoints = UncertainCheckpoints(chance, chained.tell)
    newest: tuple[list[dict[str, bytes]], list[dict[str, bytes]], int] | None = None
    many = [(key, moment, side) for key in range(6, 30) for moment in (3, 30) for side in (0, 1)]
    assert chained.give(many, 1000) == whole.give(many, 1000)
    watermark = given_rows = 0
    for kind, detail in [*events, ("checkpoint", True), ("failure", 3), ("failure", 2)]:
        if kind == "rows":
            rows = [(key, watermark + moment, side) for key, moment, side in detail]
            assert chained.give(rows, given_rows) == whole.give(rows, given_rows)
            given_rows += len(rows)
        elif kind == "watermark":
            watermark += detail[0]
            assert chained.advance(watermark, detail[1]) == whole.advance(watermark, detail[1])
        elif kind == "checkpoint":
            states, is_complete = checkpoints.take(chained.snapshots())
            if is_complete:
                newest = states, [_stored(take) for take in whole.snapshots()], watermark
        elif newest is not None:
            chained.open(detail, newest[0])
            whole.open(detail, newest[1])
            watermark = newest[2]
    assert chained.advance(MOST) == whole.advance(MOST)


JUDGES = [name for name in OPERATORS if name not in ("join", "interval join", "top", "duplicates")]
"""Those that store by which watermark they have judged."""


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("name", JUDGES)
def test_other_widths_judge_by_the_watermarks_that_were_reached(name: str, width: int) -> None:
    """Two tasks at 30 and 6 go on as others, which hear of 6 again: no window comes twice, and no late row counts.

    The same rows, late ones too, give the same as in the tasks that went on, and as many are late.
    """
    gone_on, restored = Tasks(OPERATORS[name](), 1 << 40), Tasks(OPERATORS[name](), 1 << 40)
    gone_on.open(2, [])
    first = [(key, moment, side) for key in range(24) for moment in (3, 8, 40) for side in (0, 1)]
    gone_on.give(first, 0)
    gone_on.advance(30, 24)
    restored.open(width, [_stored(take) for take in gone_on.snapshots()])
    assert not restored.advance(6)
    late = [(key, moment, side) for key in range(24) for moment in (1, 4, 7, 9, 29, 31) for side in (0, 1)]
    assert restored.give(late, 1000) == gone_on.give(late, 1000)
    ended = Counter[str]()
    for watermark in (10, 29, 50):
        ended += restored.advance(watermark)
    assert ended == gone_on.advance(50)
    assert restored.late_rows() == gone_on.late_rows()
