# SPDX-License-Identifier: Apache-2.0
"""Delta tables whose log says other columns than their files have: the log's are the table's."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.api.delta import write_delta
from penstock.api.streaming.lakes import delta_sink, delta_source
from penstock.api.streaming.options import Options
from penstock.errors import PlanError, SettingError
from penstock.testing.local_runner import run_local
from penstock.testing.sources import fromBatches

pytestmark = pytest.mark.usefixtures("delta")

PHYSICAL = "delta.columnMapping.physicalName"
K, N = ("k", "long"), ("n", "string")
ONE = {"k": 1, "n": None}


def table(folder: Path, fields: list[Any], files: list[pa.Table], mapping: str = "", **values: str) -> str:
    """A table with a log written by hand; `values` are those of its partition columns, of all files."""
    (folder / "_delta_log").mkdir(parents=True)
    columns = [
        each if isinstance(each, dict) else {"name": each[0], "type": each[1], "nullable": True, "metadata": {}}
        for each in fields
    ]
    physical = {
        each["metadata"].get("delta.columnMapping.physicalName", each["name"]): each["name"] for each in columns
    }
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 2 if mapping else 1, "minWriterVersion": 5 if mapping else 2}},
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": columns}),
                "partitionColumns": [physical[name] for name in values],
                "configuration": {"delta.columnMapping.mode": mapping} if mapping else {},
            }
        },
    ]
    for number, rows in enumerate(files):
        name = f"part {number}.parquet"
        pq.write_table(rows, folder / name)
        added = {"path": name.replace(" ", "%20"), "size": (folder / name).stat().st_size, "partitionValues": values}
        actions.append({"add": {**added, "modificationTime": 0, "dataChange": True}})
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return str(folder)


TABLES: list[tuple[list[Any], list[pa.Table], dict[str, str], list[dict[str, Any]]]] = [
    ([K, N], [pa.table({"k": [1]})], {}, [ONE]),
    ([K, N], [pa.table({"k": [1]}), pa.table({"n": ["a"], "k": [2]})], {}, [ONE, {"k": 2, "n": "a"}]),
    ([K], [pa.table({"k": pa.array([1], pa.int32())}), pa.table({"k": [2]})], {}, [{"k": 1}, {"k": 2}]),
    ([K], [pa.table({"k": [1], "old": [2]})], {}, [{"k": 1}]),
    ([("p", "date"), K], [pa.table({"k": [1]})], {"p": "2020-01-02"}, [{"p": "2020-01-02", "k": 1}]),
    (
        [N, ("t", "timestamp")],
        [
            pa.table({"n": pa.array(["a"], kind), "t": pa.array([0], pa.timestamp(unit, "UTC"))})
            for kind, unit in ((pa.large_string(), "us"), (pa.string_view(), "ms"))
        ],
        {},
        [{"n": "a", "t": "1970-01-01 00:00:00+00:00"}] * 2,
    ),
]
"""Columns added, also where no file has them, in another order, widened, dropped; other layouts."""


@pytest.mark.parametrize("number", range(len(TABLES)))
def test_the_logs_columns_are_the_tables(tmp_path: Path, number: int) -> None:
    """Names, order and types are the log's, rows those of all files, also under a filter."""
    fields, files, values, expected = TABLES[number]
    path = table(tmp_path / "t", fields, files, **values)
    found = run_local(penstock.readDelta(None, path))
    assert found.schema.names == [name for name, _ in fields]
    shown = [
        {name: value if isinstance(value, int | None) else str(value) for name, value in row.items()}
        for row in found.to_pylist()
    ]
    assert sorted(shown, key=str) == sorted(expected, key=str)
    name = fields[-1][0]
    kept = run_local(penstock.readDelta(None, path, [name], pc.field(name).is_valid()))
    assert kept.num_rows == sum(row[name] is not None for row in expected)


def mapped(name: str, kind: Any, physical: str, number: int) -> dict[str, Any]:
    """A column of a table that maps its columns."""
    metadata = {"delta.columnMapping.id": number, PHYSICAL: physical}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def test_mapped_columns_are_read_by_their_own_names(tmp_path: Path) -> None:
    """Also inside others, of partitions and in filters; files keep the names that they were written with."""
    inner = {"type": "struct", "fields": [mapped("x", "long", "c4", 1), mapped("y", "string", "x", 2)]}
    fields = [
        mapped("b", "long", "a", 3),
        mapped("a", "long", "b", 4),
        mapped("p", "string", "c2", 5),
        mapped("s", inner, "c3", 6),
    ]
    held = pa.table({"a": [1, 3], "b": [2, 4], "c3": [{"c4": 5}, None]})
    path = table(tmp_path / "t", fields, [held], "name", c2="q")
    rows = [{"b": 1, "a": 2, "p": "q", "s": {"x": 5, "y": None}}, {"b": 3, "a": 4, "p": "q", "s": None}]
    assert run_local(penstock.readDelta(None, path)).to_pylist() == rows
    kept = run_local(penstock.readDelta(None, path, ["a", "p"], pc.field("b") == 3))
    assert kept.to_pylist() == [{"a": 4, "p": "q"}]


FORMS: dict[str, tuple[str, list[str], str]] = {
    "ids": ("id", [], "maps its columns by id: read it with Spark"),
    "widened types": ("", ["typeWidening"], r"is not read: .*TypeWidening\]: rewrite it without that feature"),
    "deletion vectors": ("", ["deletionVectors"], r"has deletion vectors: purge them \(REORG TABLE\)"),
}


def of_form(folder: Path, form: str) -> str:
    """A table of a form that nobody here reads."""
    mapping, features, _ = FORMS[form]
    column = mapped("k", "long", "a", 7) if mapping else K
    path = table(folder, [column], [pa.table({"a" if mapping else "k": [1]})], mapping)
    log = Path(path) / "_delta_log" / f"{0:020d}.json"
    protocol, metadata, add = map(json.loads, log.read_text().splitlines())
    if features:
        versions = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol = {"protocol": {**versions, "readerFeatures": features, "writerFeatures": features}}
    if form == "deletion vectors":
        # The protocol's example of a vector in the log itself: rows 3, 4, 7, 11, 18 and 29.
        text = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
        add["add"]["stats"] = json.dumps({"numRecords": 30})
        add["add"]["deletionVector"] = {
            "storageType": "i", "pathOrInlineDv": text, "sizeInBytes": 44, "cardinality": 6,
        }  # fmt: skip
    log.write_text("\n".join(map(json.dumps, (protocol, metadata, add))))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_what_nobody_here_reads_is_refused(tmp_path: Path, form: str) -> None:
    """By jobs and by queries, in the same words."""
    path = of_form(tmp_path / "t", form)
    with pytest.raises(SettingError, match=f"readDelta: .*{FORMS[form][2]}"):
        penstock.readDelta(None, path)
    with pytest.raises(PlanError, match="maps its columns to other names" if form == "ids" else FORMS[form][2]):
        delta_source(Options("readStream"), path)


@pytest.mark.parametrize("mapping", ["name", "id"])
def test_nothing_is_written_to_mapped_columns(tmp_path: Path, mapping: str) -> None:
    """By jobs and by queries: the files would have the table's names for them, and be read as nulls."""
    path = table(tmp_path / "t", [mapped("k", "long", "a", 7)], [pa.table({"a": [1]})], mapping)
    rows = fromBatches(pa.table({"k": [2]}), spark=object())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SettingError, match="maps its columns to other names: write it with Spark"):
        write_delta(rows, path, "append", ())
    with pytest.raises(PlanError, match="maps its columns to other names: write it with Spark"):
        delta_sink(Options("writeStream"), path, rows.schema, "a")
    assert sorted(tmp_path.rglob("*")) == before
