# SPDX-License-Identifier: Apache-2.0
"""The loop of a streaming task: it waits in one place, and what can't go on there stops nothing else."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from penstock.record import PartitionerSpec
from penstock.shuffle.actions import CheckpointCompleted
from penstock.stream.chain import PlainStep
from penstock.stream.folder_sink import FolderSink
from penstock.stream.noop import NoopSink
from penstock.stream.pace import FEWEST_ROWS, MOST_ROWS, STEP_BYTES, STEP_SECONDS, Pace
from penstock.stream.rate import SCHEMA, RateSource
from penstock.stream.sinks import SinkOperator
from penstock.stream.watermark import Watermark
from penstock.stream.watermark_step import AssignWatermark
from penstock.testing import DEADLINE, wait_until
from penstock_torture.local_query import LocalQuery, linear_graph, location
from timed_queries import OFTEN
from underway import listed

TO_ONE = PartitionerSpec("to_one")


@dataclass
class Held:
    """An operator of a step that a test can hold up, and that says when it was told of a checkpoint."""

    is_open: threading.Event = field(default_factory=threading.Event)
    told: list[int] = field(default_factory=list)
    name: str = "held"
    uid: str = "held"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As they are."""
        return batches

    def step(self) -> HeldStep:
        """The step of one subtask."""
        return HeldStep(self)


class HeldStep(PlainStep):
    """Passes batches on while it is open."""

    name = "held"

    def __init__(self, operator: Held) -> None:
        self._operator = operator

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The batch, when it is open."""
        assert self._operator.is_open.wait(DEADLINE)
        return (batch,)

    def completed(self, checkpoint: int) -> None:
        """Note it."""
        self._operator.told.append(checkpoint)


def test_a_word_of_the_coordinator_is_heard_while_rows_wait(tmp_path: Path) -> None:
    """With a consumer that reads nothing any more, the producer hears it, though it has no room."""
    first, second = Held(), Held()
    first.is_open.set()
    graph = linear_graph(
        RateSource(0, 1, None), [(1, (first,), SCHEMA, None), (1, (second, SinkOperator(NoopSink())), SCHEMA, TO_ONE)]
    )
    with LocalQuery(graph, location(tmp_path)) as query:
        query.start()
        line = query.lines[0, 0]
        wait_until(lambda: line.metrics.get("back_pressured_seconds", 0.0) > 0.1, "back-pressure")
        rows = line.metrics["rows_out"]
        line.act(CheckpointCompleted(77))
        wait_until(lambda: bool(first.told), "word of the checkpoint")
        assert line.metrics["rows_out"] - rows <= MOST_ROWS
        second.is_open.set()
        query.stop()
        query.run_through()


class Ordered(Held):
    """A held operator that notes rows and watermarks in the order in which they come."""

    def __init__(self, *, is_exact: bool) -> None:
        super().__init__()
        self.is_exact = is_exact
        self.came: list[tuple[int, int] | int] = []
        """Of rows their number and greatest time, or a watermark."""

    def step(self) -> OrderedStep:
        """The step of one subtask."""
        return OrderedStep(self)


class OrderedStep(HeldStep):
    """Passes nothing on."""

    def __init__(self, operator: Ordered) -> None:
        super().__init__(operator)
        self._came = operator.came
        self.allows_later_watermarks = not operator.is_exact

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Note the rows, when it is open."""
        super().process(batch)
        self._came.append((batch.num_rows, batch.column("timestamp").cast(pa.int64())[-1].as_py()))
        return ()

    def on_watermark(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """Note it."""
        self._came.append(watermark)
        return ()


@pytest.mark.parametrize("is_exact", [True, False], ids=["exact", "later"])
def test_rows_that_wait_pass_watermarks_only_where_the_steps_allow_it(tmp_path: Path, is_exact: bool) -> None:
    """A task that is behind takes rows in front of watermarks and behind them in one step; else each in its place."""
    ordered = Ordered(is_exact=is_exact)
    graph = linear_graph(
        RateSource(20_000, 1, None),
        [
            (1, (AssignWatermark("timestamp", 0),), SCHEMA, None),
            (1, (ordered, SinkOperator(NoopSink())), SCHEMA, TO_ONE),
        ],
    )
    with LocalQuery(graph, location(tmp_path), settings=OFTEN) as query:
        query.start()
        line = query.lines[0, 0]
        wait_until(lambda: line.metrics.get("back_pressured_seconds", 0.0) > 0.05, "rows that wait")
        ordered.is_open.set()
        wait_until(lambda: sum(each[0] for each in ordered.came if isinstance(each, tuple)) > 2_000, "the rows")
        query.stop()
        query.run_through()
    reached, passed, told = 0, 0, []
    for each in ordered.came:
        if isinstance(each, tuple):
            reached = each[1]
        else:
            passed += each < Watermark(reached)
            told.append(each)
    assert bool(passed) is not is_exact
    assert told == sorted(set(told))


def test_parts_of_a_row_larger_than_all_room_wait_their_turn(tmp_path: Path) -> None:
    """Steps larger than the whole exchange: rows wait in the task, none is lost and their order is kept."""
    sink = FolderSink(pafs.LocalFileSystem(), str(tmp_path / "out"), SCHEMA, "q")
    graph = linear_graph(
        RateSource(0, 1, 20_000), [(1, (), SCHEMA, None), (1, (SinkOperator(sink),), SCHEMA, TO_ONE)]
    )
    with LocalQuery(graph, location(tmp_path), message_rows=7) as query:
        query.start()
        query.run_through()
    files = sorted(listed(tmp_path / "out", "part-*"), key=lambda path: path.stat().st_mtime_ns)
    found = [value for path in files for value in ds.dataset(path).to_table()["value"].to_pylist()]
    assert found == list(range(20_000))


def test_steps_are_as_large_as_their_time_allows() -> None:
    """Fast ones grow up to a bound; one that was too slow makes the next ones smaller at once."""
    pace = Pace()
    for _ in range(20):
        pace.took(pace.rows, pace.rows * 1e-8)
    assert pace.rows == MOST_ROWS
    pace.took(MOST_ROWS, 10 * STEP_SECONDS)
    assert pace.rows <= MOST_ROWS // 10
    for _ in range(3):
        pace.took(pace.rows, pace.rows * 1e-3)
    assert pace.rows == FEWEST_ROWS
    pace.took(3, 1e-6)
    assert pace.rows == FEWEST_ROWS, "a few rows that came alone say nothing"
    for _ in range(50):
        pace.took(pace.rows, pace.rows * 1e-6)
    assert pace.rows > 1_000, "steps grow again when rows are cheap again"


@pytest.mark.parametrize("fixed", [0.02, 0.3])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_steps_are_not_cut_where_the_time_is_not_that_of_rows(fixed: float, noise: float) -> None:
    """If a batch costs more than a step may, a step has the rows that take as long again, and no fewer."""
    pace, chance = Pace(), random.Random(7)
    sizes = []
    for _ in range(300):
        sizes.append(pace.rows)
        pace.took(pace.rows, (fixed + pace.rows * 1e-5) * (1 + noise * chance.random()))
    typical = sorted(sizes[50:])[len(sizes[50:]) // 2]
    assert fixed / 1e-5 / 3 < typical < min(MOST_ROWS, 3 * fixed / 1e-5) + 1
    for _ in range(100):
        pace.took(pace.rows, pace.rows * 1e-5)
    assert STEP_SECONDS / 1e-5 / 2 < pace.rows < 2 * STEP_SECONDS / 1e-5, "the batch costs nothing any more"


def test_steps_follow_what_readers_take() -> None:
    """If rows that steps give wait for room, a step has a part of a target time's rows; if there is none, all."""
    pace, without = Pace(0.4), Pace()
    for _ in range(20):
        for each in (pace, without):
            each.took(each.rows, each.rows * 1e-8, 8 * each.rows)
            each.waited(each.rows, each.rows * 1e-4)
    assert pace.rows == 1_000
    assert without.rows == MOST_ROWS
    for _ in range(20):
        pace.waited(pace.rows, pace.rows * 1e-8)
    assert pace.rows == MOST_ROWS


def test_steps_are_bounded_in_bytes() -> None:
    """Rows that are wide are fewer, however cheap they are."""
    pace = Pace()
    for _ in range(20):
        pace.took(pace.rows, pace.rows * 1e-8, 1_000 * pace.rows)
    assert pace.rows == STEP_BYTES // 1_000
