# SPDX-License-Identifier: Apache-2.0
"""Delta Lake and Iceberg tables on this disk, read and written through their own libraries: all rows or none."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from effort import with_all
from penstock.errors import JobError, PlanError, SchemaError, SettingError
from penstock.testing.local_runner import run_local
from underway import listed

pytestmark = pytest.mark.spark

DAY = dt.date(2026, 3, 5)
ROWS = pa.table({"year": [2025, 2026, 2026, None], "word": ["a b", "c/d", None, "e"], "v": [1.5, 2.5, 3.5, 4.5]})


def stream_of(spark: Any, rows: pa.Table) -> penstock.Stream:
    """These rows from Spark."""
    return penstock.fromDataFrame(spark.createDataFrame(rows).repartition(2))


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows in the order of their values."""
    return sorted(table.to_pylist(), key=lambda row: row["v"])


def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give all rows and then fail, so that files have been begun."""
    yield from batches
    raise ValueError("not today")


def under(folder: Path) -> set[Path]:
    """All files below a folder."""
    return {path for path in listed(folder, "**/*") if path.is_file()}


# --- Delta Lake


@pytest.mark.parametrize("keys", [(), with_all(("year",)), with_all(("year", "word"))])
def test_delta_tables_come_back(spark: Any, delta: Any, tmp_path: Path, keys: tuple[str, ...]) -> None:
    """The library and our reader see the rows of one commit, of two, of a replacing one."""
    place, stream = tmp_path / "t", stream_of(spark, ROWS)
    written = stream.writeDelta(place, partitionBy=keys)
    assert written.rows == ROWS.num_rows
    stream.filter("v > 3").writeDelta(place, "append", keys)
    table = delta.DeltaTable(place)
    assert table.metadata().partition_columns == list(keys)
    twice = sorted_rows(pa.concat_tables([ROWS, ROWS.slice(2)]))
    assert sorted_rows(pa.table(table.to_pyarrow_table()).select(ROWS.schema.names)) == twice
    assert sorted_rows(run_local(penstock.readDelta(None, place)).select(ROWS.schema.names)) == twice
    stream.limit(0).writeDelta(place, "overwrite", keys)
    assert penstock.readDelta(spark, place).count() == 0
    assert sorted_rows(
        run_local(penstock.readDelta(None, place, version=0)).select(ROWS.schema.names)
    ) == sorted_rows(ROWS)


def test_a_delta_table_of_the_library_is_read(spark: Any, delta: Any, tmp_path: Path) -> None:
    """Columns, a filter and a typed partition column; Spark's rows after it."""
    rows = pa.table({"day": [DAY, DAY + dt.timedelta(1)], "v": [1, 2]})
    delta.write_deltalake(str(tmp_path / "t"), rows, partition_by=["day"])
    stream = penstock.readDelta(spark, tmp_path / "t", ["v", "day"], "v > 1")
    assert [tuple(row) for row in stream.collect()] == [(2, DAY + dt.timedelta(1))]


def test_a_failed_job_leaves_no_delta_files(spark: Any, delta: Any, tmp_path: Path) -> None:
    """Neither a new table nor an old one changes, and no file stays."""
    stream = stream_of(spark, ROWS)
    broken = stream.mapInArrow(fails, stream.schema)
    with pytest.raises(JobError, match="not today"):
        broken.writeDelta(tmp_path / "new")
    assert not under(tmp_path)
    stream.writeDelta(tmp_path / "t")
    before = under(tmp_path)
    with pytest.raises(JobError, match="not today"):
        broken.writeDelta(tmp_path / "t", "overwrite")
    assert under(tmp_path) == before


def test_delta_refusals(spark: Any, delta: Any, tmp_path: Path) -> None:
    """Each says what is there and what to do, and nothing is written."""
    stream = stream_of(spark, ROWS)
    stream.writeDelta(tmp_path / "t")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "y").write_text("y")
    before = under(tmp_path)
    for change, message in (
        (lambda: stream.writeDelta(tmp_path / "t"), "is a table already: say mode='append'"),
        (lambda: stream.writeDelta(tmp_path / "t", "merge"), "'merge' is none of error, append, overwrite"),
        (lambda: stream.drop("v").writeDelta(tmp_path / "t", "append"), "bring them to the same names"),
        (lambda: stream.writeDelta(tmp_path / "t", "append", ["year"]), r"say partitionBy=\[\]"),
        (lambda: stream.writeDelta(tmp_path / "x"), "is not empty and no Delta table"),
        (lambda: penstock.readDelta(spark, tmp_path / "x"), "check the path"),
    ):
        with pytest.raises(SettingError, match=message):
            change()
    assert under(tmp_path) == before


def test_files_stay_that_a_version_of_a_delta_table_names(
    spark: Any, delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the commit, also where a later version has other files; what no version names goes.

    So do the files of a commit that the library makes no more, and an entry of the log that is gone says nothing.
    """
    place, real = tmp_path / "t", delta.DeltaTable.create_write_transaction
    delta.write_deltalake(place, pa.table({"v": [1]}))
    stream, log = stream_of(spark, pa.table({"v": [2]})), place / "_delta_log"

    def written(commit: Any, error: type[BaseException]) -> bool:
        """Whether files of a write stay that ends with this error."""
        before = under(place)
        with monkeypatch.context() as patch:
            patch.setattr(delta.DeltaTable, "create_write_transaction", commit)
            with pytest.raises(error) as raised:
                stream.writeDelta(place, "append")
        left = [path for path in under(place) - before if path.suffix == ".parquet"]
        assert bool(left) == any("stay" in note for note in getattr(raised.value, "__notes__", ()))
        return bool(left)

    def made(table: Any, *given: Any, **named: Any) -> None:
        real(table, *given, **named)
        raise KeyboardInterrupt

    def replaced(table: Any, *given: Any, **named: Any) -> None:
        real(table, *given, **named)
        delta.write_deltalake(place, pa.table({"v": [3]}), mode="overwrite")
        raise KeyboardInterrupt

    def cleaned(table: Any, *given: Any, **named: Any) -> None:
        real(table, *given, **named)
        delta.write_deltalake(place, pa.table({"v": [3]}), mode="append")
        (log / f"{delta.DeltaTable(place).version() - 1:020d}.json").rename(tmp_path / "entry")
        raise KeyboardInterrupt

    def refused(*given: Any, **named: Any) -> None:
        raise delta.exceptions.CommitFailedError("another one was first")

    assert written(made, KeyboardInterrupt)
    assert sorted_rows(delta.DeltaTable(place).to_pyarrow_table()) == [{"v": 1}, {"v": 2}]
    assert written(replaced, KeyboardInterrupt)
    second = delta.DeltaTable(place).version() - 1
    assert len(delta.DeltaTable(place, version=second).to_pyarrow_table()) == 3
    assert not written(refused, delta.exceptions.CommitFailedError)
    assert written(cleaned, KeyboardInterrupt)


def holds_a_lock(lock: Any) -> Any:
    """A function that can't be sent to a task."""

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with lock:
            yield from batches

    return function


def test_tables_are_not_written_that_hold_values_to_rules(spark: Any, delta: Any, tmp_path: Path) -> None:
    """Constraints; columns without a sign or of nanoseconds, at any depth."""
    delta.write_deltalake(tmp_path / "t", pa.table({"v": [1]}))
    delta.DeltaTable(tmp_path / "t").alter.add_constraint({"positive": "v > 0"})
    with pytest.raises(SettingError, match=r"has rules for its values \(delta.constraints.positive\)"):
        stream_of(spark, pa.table({"v": [-2]})).writeDelta(tmp_path / "t", "append")
    for kind in (pa.uint8(), pa.list_(pa.timestamp("ns"))):
        stream = penstock.fromDataFrame(spark.range(1)).mapInArrow(iter, pa.schema([("v", kind)]))
        with pytest.raises(SettingError, match=r"column 'v' is .*, which Delta Lake does not have: cast it"):
            stream.writeDelta(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_plan_that_is_refused_says_why(spark: Any, delta: Any, catalog: Any, tmp_path: Path) -> None:
    """And not that the folder is missing whose files there are none of."""
    rows = pa.table({"v": [1]})
    stream = stream_of(spark, rows).mapInArrow(holds_a_lock(threading.Lock()), rows.schema)
    with pytest.raises(PlanError, match="lock"):
        stream.writeDelta(tmp_path / "t")
    with pytest.raises(PlanError, match="lock"):
        stream.writeIceberg(catalog.create_table("db.t", rows.schema))


# --- Iceberg


PROMISED = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("l", pa.list_(pa.field("element", pa.int64(), nullable=False))),
    ]
)
"""A table's columns: no null in one of them, nor in the lists of the other."""
GOOD = [(1, [2]), (3, None)]
BAD = {"'a'": [(None, [1])], "'l.element'": [(4, [1, None])]}


def loose(spark: Any, rows: list[Any]) -> penstock.Stream:
    """Rows that may hold nulls for all that their schema says."""
    return penstock.fromDataFrame(spark.createDataFrame(rows, "a long, l array<long>"))


def test_delta_tables_hold_no_nulls_they_forbid(spark: Any, delta: Any, tmp_path: Path) -> None:
    """Rows that keep a table's word are added, also from columns that say less; a null is refused by its path.

    The table keeps its schema, whether rows are added or take the place of others.
    """
    delta.write_deltalake(tmp_path / "t", pa.Table.from_pylist([{"a": 0, "l": []}], PROMISED))
    for mode in ("append", "overwrite"):
        for path, rows in BAD.items():
            with pytest.raises(JobError, match=f"column {path} of .* is NOT NULL, and 1 rows have a null there"):
                loose(spark, rows).writeDelta(tmp_path / "t", mode=mode)
        loose(spark, GOOD).writeDelta(tmp_path / "t", mode=mode)
        table = delta.DeltaTable(tmp_path / "t")
        assert pa.schema(table.schema().to_arrow()).equals(PROMISED)
        assert sorted(row["a"] for row in table.to_pyarrow_table().to_pylist()) == [0, 1, 3][mode == "overwrite" :]
    read = penstock.readDelta(spark, tmp_path / "t")
    assert all(field.nullable for field in read.schema)
    assert sorted(read.collect()) == GOOD


def test_iceberg_tables_come_back(spark: Any, catalog: Any) -> None:
    """The library and our reader see what was appended, then what replaced it; an old snapshot stays readable."""
    table, stream = catalog.create_table("db.t", ROWS.schema), stream_of(spark, ROWS)
    assert penstock.readIceberg(spark, table).count() == 0
    assert stream.writeIceberg(table).rows == ROWS.num_rows
    first = table.current_snapshot().snapshot_id
    stream.filter("v > 3").writeIceberg(table)
    twice = sorted_rows(pa.concat_tables([ROWS, ROWS.slice(2)]))
    assert sorted_rows(table.scan().to_arrow()) == twice
    assert sorted_rows(penstock.readIceberg(spark, catalog.load_table("db.t")).toArrow()) == twice
    stream.filter("year = 2025").writeIceberg(table, overwrite=True)
    assert sorted_rows(table.scan().to_arrow()) == sorted_rows(ROWS.slice(0, 1))
    assert sorted_rows(run_local(penstock.readIceberg(None, table, snapshot=first))) == sorted_rows(ROWS)
    assert penstock.readIceberg(spark, table, ["v"], "v < 2").columns == ["v"]
    for old, new in (("word", "old"), ("v", "word")):  # a file's columns are numbers, not names
        with table.update_schema() as change:
            change.rename_column(old, new)
    (row,) = ROWS.slice(0, 1).to_pylist()
    assert table.scan().to_arrow().to_pylist() == [{"year": 2025, "old": row["word"], "word": row["v"]}]
    assert penstock.readIceberg(spark, table, filter="word < 2").collect() == [(2025, row["word"], row["v"])]


def test_iceberg_tables_hold_no_nulls_they_forbid(spark: Any, catalog: Any) -> None:
    """As Delta tables: required columns and elements get no nulls, and columns that say less may be written."""
    table = catalog.create_table("db.promised", PROMISED)
    for path, rows in BAD.items():
        with pytest.raises(JobError, match=f"column {path} of db.promised is NOT NULL"):
            loose(spark, rows).writeIceberg(table)
    loose(spark, GOOD).writeIceberg(table)
    assert sorted(row["a"] for row in table.scan().to_arrow().to_pylist()) == [1, 3]
    assert sorted(penstock.readIceberg(spark, table).collect()) == GOOD


def test_a_failed_job_leaves_no_iceberg_files(spark: Any, catalog: Any, tmp_path: Path) -> None:
    """The table keeps its snapshot, and no data file stays."""
    table, stream = catalog.create_table("db.t", ROWS.schema), stream_of(spark, ROWS)
    before = under(tmp_path)
    with pytest.raises(JobError, match="not today"):
        stream.mapInArrow(fails, stream.schema).writeIceberg(table)
    assert under(tmp_path) == before
    assert table.refresh().current_snapshot() is None


def test_files_stay_that_a_snapshot_of_iceberg_may_name(
    spark: Any, catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the commit was made and its answer got lost, or it may come; after a refused one they go."""
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

    table = catalog.create_table("db.t", pa.schema([("v", pa.int64())]), properties={"commit.retry.num-retries": "0"})
    stream, real = stream_of(spark, pa.table({"v": [1]})), type(catalog).commit_table

    def written(error: type[Exception], *, is_made: bool) -> bool:
        """Whether files of a write stay whose commit ends with this error."""

        def commit_table(self: Any, *given: Any) -> None:
            if is_made:
                real(self, *given)
            raise error("it is not known what became of it")

        before = under(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(type(catalog), "commit_table", commit_table)
            with pytest.raises(error):
                stream.writeIceberg(table)
        return any(path.suffix == ".parquet" for path in under(tmp_path) - before)

    assert written(CommitStateUnknownException, is_made=True)
    assert len(catalog.load_table("db.t").scan().to_arrow()) == 1
    assert written(CommitStateUnknownException, is_made=False)
    assert written(ConnectionError, is_made=False)
    assert not written(CommitFailedException, is_made=False)


def test_iceberg_refusals(spark: Any, catalog: Any) -> None:
    """A table that is none, other columns, a partitioned table."""
    from pyiceberg.transforms import IdentityTransform

    table, stream = catalog.create_table("db.t", ROWS.schema), stream_of(spark, ROWS)
    with pytest.raises(TypeError, match=r"load_table\('db.name'\)"):
        stream.writeIceberg("db.t")
    with pytest.raises(SchemaError, match="bring them to the same names"):
        stream.drop("v").writeIceberg(table)
    with table.update_spec() as spec:
        spec.add_field("year", IdentityTransform())
    with pytest.raises(SettingError, match="is partitioned"):
        stream.writeIceberg(table)
