# SPDX-License-Identifier: Apache-2.0
"""The bench without Spark: rows, checks, medians, pages."""

from __future__ import annotations

import math
import os
import struct
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import SettingError
from penstock.operators.loans import Loan
from penstock.stream.state_place import StateFiles, state_in
from penstock.testing import wait_until
from penstock_bench import catalogue, large_state, pages, ping, row_ways, rows
from penstock_bench.cases import SmallAndAll
from penstock_bench.copies import MadeAnew
from penstock_bench.environment import PeakMemory, environment_pids, private_bytes
from penstock_bench.measure import RATE, Case, Outcome, WrongAnswerError, compare
from penstock_bench.noted_rows import NotedRows, NotingSink
from penstock_bench.page_rows import Row
from penstock_bench.processor import interval_of, processor_seconds

MACHINE = {"cores": 2, "python": "3.11", "pyspark": "4.3", "pyarrow": "26"}


def test_number_files_know_their_answers(tmp_path: Path) -> None:
    """The means are those of the files' rows, and the sizes are right."""
    data = rows.write_numbers(tmp_path, 5000)
    table = pq.read_table(list(data.paths))
    means = table.group_by("k").aggregate([("x", "mean")]).to_pylist()
    assert table.num_rows == data.rows == 5000
    assert data.bytes == 32 * 5000
    assert all(math.isclose(row["x_mean"], data.means[row["k"]]) for row in means)


def test_text_files(tmp_path: Path) -> None:
    """Keys and texts have the lengths that are written down."""
    data = rows.write_texts(tmp_path, 100)
    table = pq.read_table(list(data.paths))
    assert set(map(len, table["key"].to_pylist())) == {rows.KEY_LENGTH}
    assert set(map(len, table["text"].to_pylist())) == {rows.TEXT_LENGTH}


@pytest.mark.parametrize("count", [0, 1, 70_000, 600_001])
def test_generated_rows_are_as_many_as_asked_for(count: int) -> None:
    """Over all subtasks."""
    source = rows.GeneratedSource(count, distinct=2)
    assert sum(batch.num_rows for subtask in range(3) for batch in source.read(subtask, 3)) == count


def test_wrong_answers_are_noticed(tmp_path: Path) -> None:
    """A row too few, a group twice, a mean that is off."""
    both = SmallAndAll(rows.write_numbers(tmp_path, 5000))
    groups = [SimpleNamespace(k=k, mean=mean) for k, mean in enumerate(both.data.means) if not math.isnan(mean)]
    both.check_means(groups, False)
    both.check_count([SimpleNamespace(rows=5000)], False)
    with pytest.raises(WrongAnswerError, match="4999 rows"):
        both.check_count([SimpleNamespace(rows=4999)], False)
    with pytest.raises(WrongAnswerError, match="groups"):
        both.check_means([*groups, groups[0]], False)
    with pytest.raises(WrongAnswerError, match="the mean of group"):
        both.check_means([SimpleNamespace(k=groups[0].k, mean=9.0), *groups[1:]], False)


def test_sides_take_turns_and_are_checked() -> None:
    """Ours, theirs, settled before each, after few rows that choose Spark's partitions; the first turn is dropped."""
    calls: list[str] = []
    case = Case(
        catalogue.PIPELINED,
        lambda small: calls.append(f"p{small:d}"),
        lambda small, partitions: calls.append(f"s{small:d}"),
        lambda answer, small: None,
        1,
        1,
    )
    outcome = compare(case, 2, lambda line: None, lambda: calls.append("-"))
    assert calls == ["p1", "s1", "s1", "s1", "s1", *["-", "p0", "-", "s0"] * 3]
    assert len(outcome.penstock) == len(outcome.spark) == 2
    assert outcome.spark_partitions in (2, 4, 8)


def test_ratios() -> None:
    """Above one is better for Penstock, in seconds as in bytes a second."""
    assert Outcome(catalogue.BLOCKING, penstock=(1.0, 3.0, 2.0), spark=(8.0,)).ratio == 4
    assert Outcome(catalogue.SLOPE, penstock=(8.0,), spark=(2.0,), unit=RATE).ratio == 4
    assert Outcome(catalogue.BLOCKING, penstock=(8.0,)).ratio is None


def _catalogued() -> list[Row]:
    """Every row of the catalogue, wherever it lies there."""
    found: list[Row] = []
    left = list(vars(catalogue).values())
    while left:
        value = left.pop(0)
        if isinstance(value, dict | tuple):
            left += value.values() if isinstance(value, dict) else value
        elif isinstance(value, Row) and value not in found:
            found.append(value)
    return found


def test_each_label_has_one_meaning() -> None:
    """No two rows share a label, each says something, stands in a section of the page, and five are the README's."""
    rows = _catalogued()
    assert len({row.label for row in rows}) == len(rows) > 25
    assert all(row.meaning and row.section in catalogue.SECTIONS for row in rows)
    assert len(set(catalogue.IN_README)) == 5


def test_both_pages_are_written_between_their_marks(tmp_path: Path) -> None:
    """Five rows go into the README, all with their meanings to the other page; twice gives the same."""
    readme, page = tmp_path / "README.md", tmp_path / "benchmarks.md"
    for path in (readme, page):
        path.write_text(f"before\n{pages.START}\nold\n{pages.END}\nafter\n")
    outcomes = [Outcome(row, 10, 320, (0.5,), (2.0,), 4) for row in _catalogued() if row in catalogue.IN_README]
    outcomes += [Outcome(row, penstock=(3.0,)) for row in _catalogued() if row not in catalogue.IN_README]
    pages.write_pages(readme, page, outcomes, MACHINE)
    once = readme.read_text(), page.read_text()
    pages.write_pages(readme, page, outcomes, MACHINE)
    assert (readme.read_text(), page.read_text()) == once
    for text in once:
        assert text.startswith("before\n")
        assert text.endswith(f"{pages.END}\nafter\n")
        assert "old" not in text.splitlines()
        assert "2 cores" in text
        assert f"| {catalogue.FEW_ROWS.label} | 10 | 0 kB | 500 ms | 2.00 s (4) | 4.0 |" in text
        assert max(map(len, text.splitlines())) <= 120
    assert once[0].count("\n| ") == 1 + 5
    prose = " ".join(once[1].split())
    for row in _catalogued():
        assert f"\n| {row.label} |" in once[1]
        assert f"**{row.label}**: {row.meaning}" in prose


def test_a_bench_of_one_section_leaves_the_others(tmp_path: Path) -> None:
    """Its figures take their places among those written; figures of another machine are not mixed with them."""
    readme, page = tmp_path / "README.md", tmp_path / "benchmarks.md"
    for path in (readme, page):
        path.write_text(f"{pages.START}\n{pages.END}\n")
    everything = [Outcome(row, penstock=(3.0,)) for row in _catalogued()]
    pages.write_pages(readme, page, everything, MACHINE)
    before = page.read_text(), readme.read_text()
    some = [replace(each, penstock=(7.0,)) for each in everything if each.row.section == catalogue.STREAMING]
    pages.write_pages(readme, page, some, MACHINE)
    assert page.read_text().count("| 7.00 s |") == len(some)
    assert page.read_text().replace("7.00 s", "3.00 s") == before[0]
    assert f"| {catalogue.STREAM_RATE_CHECKPOINTS.label} |  |  | 7.00 s |  |  |" in readme.read_text()
    assert readme.read_text().replace("7.00 s", "3.00 s") == before[1]
    with pytest.raises(SettingError, match="of another machine or version: measure all"):
        pages.write_pages(readme, page, some, {**MACHINE, "cores": 64})
    pages.write_pages(readme, page, everything, {**MACHINE, "cores": 64})
    assert "64 cores" in page.read_text()


def test_nothing_is_written_where_a_page_has_no_marks(tmp_path: Path) -> None:
    """Nor where two outcomes have one label: both pages stay as they are."""
    readme, page = tmp_path / "README.md", tmp_path / "benchmarks.md"
    marks = f"{pages.START}\n{pages.END}\n"
    readme.write_text(marks)
    outcome = Outcome(catalogue.PIPELINED, penstock=(1.0,))
    with pytest.raises(SettingError, match="benchmarks"):
        pages.write_pages(readme, page, [outcome], MACHINE)
    page.write_text(marks)
    with pytest.raises(ValueError, match="exchange by an integer, pipelined"):
        pages.write_pages(readme, page, [outcome, outcome], MACHINE)
    assert readme.read_text() == page.read_text() == marks


def test_memory_of_processes() -> None:
    """Our own is seen; an application without environments has none."""
    assert private_bytes(os.getpid()) > 10 << 20
    assert environment_pids("no-such-application") == []
    with PeakMemory("no-such-application") as peak:
        pass
    assert peak.bytes == 0


def test_the_sink_notes_its_rows(tmp_path: Path) -> None:
    """Those of all tasks, between the moments at which they came."""
    began = time.monotonic()
    sink = NotingSink(str(tmp_path))
    for subtask in range(2):
        writer = sink.open(subtask, 2, [])
        writer.write(pa.record_batch({"x": [1, 2, 3]}))
        writer.close()
    ended = time.monotonic() + 1e-6
    noted = NotedRows(tmp_path)
    assert noted.rate(began, ended) * (ended - began) == pytest.approx(6)
    assert noted.rate(began - 5, began) == noted.rate(ended, ended + 5) == 0


def test_a_checkpoint_has_a_worst_second(tmp_path: Path) -> None:
    """Of ten rows a second one second has two: it counts from the trigger on, and where it is the last one begun."""
    entries = [(second + 0.5, 2 if second == 4 else 10) for second in range(8)]
    (tmp_path / "task.rows").write_bytes(b"".join(struct.pack("<dd", *entry) for entry in entries))
    noted = NotedRows(tmp_path)
    assert noted.usual_second(1, 4) == 10
    assert noted.worst_second(2, 3.9) == 10
    assert noted.worst_second(4, 4.1) == noted.worst_second(3, 4.1) == noted.worst_second(2.1, 6) == 2


def test_the_interval_of_turns() -> None:
    """It lies around the median and is narrow where the turns agree; one turn that is far off does not widen it."""
    low, high = interval_of([4.0, 5.0, 6.0] * 7)
    assert 4 <= low <= 5 <= high <= 6
    assert interval_of([5.0] * 20 + [500.0]) == (5.0, 5.0)


def test_the_seconds_of_processes() -> None:
    """The time that this process takes is counted, and only grows."""
    before = processor_seconds("app-of-nobody")
    ends = time.process_time() + 0.05
    while time.process_time() < ends:
        pass
    assert processor_seconds("app-of-nobody") >= before + 0.03


def test_both_sides_of_the_copies_give_the_same_rows() -> None:
    """Columns are made anew with and without the copy, and what stands for it is taken away again."""
    rows_of = rows.number_batch(100, 1)
    own = Loan.own
    for copied in (True, False):
        (made,) = MadeAnew(copied)(iter([rows_of]))
        assert made.equals(rows_of)
    assert Loan.own is own


@pytest.mark.parametrize("name", large_state.STATES)
def test_a_large_state_is_filled_stored_and_restored(tmp_path: Path, name: str) -> None:
    """In files; a checkpoint with one changed key of a hundred writes less than a tenth of the whole."""
    state = large_state.STATES[name]
    with state_in(StateFiles([str(tmp_path)])):
        figures = large_state.run(tmp_path / "at", 20_000, state(), rounds=2)
        restored = state()
        large_state.restore(tmp_path / "at", restored)
    assert restored.keys == 20_000 or isinstance(restored, large_state.TimedState)
    assert 0 < figures["changed_mb"] < figures["whole_mb"] / 10


def test_a_ping_notes_the_way_of_each_number(tmp_path: Path) -> None:
    """Numbers are due at the rate that was asked for, and each comes after it was due; none is lost on the way."""
    with ping.Ping(2_000, tmp_path) as running:
        wait_until(lambda: (tmp_path / "ping").exists() and len(running.ways()[0]) > 500, "some have come")
    due, ways = running.ways()
    assert (np.diff(due) == 500_000).all()
    assert (ways > 0).all()


def test_ways_are_compared_in_the_seconds_that_both_have() -> None:
    """Rows of the first seconds do not count, and numbers that were due before or after all rows do not either."""
    second = 10**9
    due, sent = np.arange(10, 20) * second, np.arange(0, 40) * second
    ways = np.where(due < 12 * second, 1000.0, 4.0)
    beside = np.where((sent >= 12 * second) & (sent < 20 * second), 2.0, 500.0)
    found = row_ways.compared("function", due, ways, sent, beside, 2)
    shares = len(row_ways.SHARES)
    assert (found.rows, found.query, found.ping) == (8, (4.0,) * shares, (2.0,) * shares)
    assert found.times == (2.0,) * shares
    with pytest.raises(WrongAnswerError, match="no row has arrived"):
        row_ways.compared("function", due[:0], ways[:0], sent, beside, 2)
