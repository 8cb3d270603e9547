# SPDX-License-Identifier: Apache-2.0
"""Text, CSV and JSON lines as streams: every line once however files are cut, types as declared or found."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import readCsv, readJson, readText
from penstock.api import line_files, readers
from penstock.api.line_files import Piece, whole_lines
from penstock.shuffle.errors import JobError, SchemaError, SettingError
from penstock.testing.local_runner import run_local


@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=12),
    st.booleans(),
    st.lists(st.integers(0, 200), max_size=4),
)
def test_each_line_is_in_one_piece(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ends: bool, cuts: list[int]
) -> None:
    """However a file is cut, its pieces give its bytes once, in order, and cut at line ends only."""
    data = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(data)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    filesystem = pafs.LocalFileSystem()
    found = []
    for start, end in pairwise(places):
        found += whole_lines(filesystem, str(path), Piece(0, start, end))
    assert b"".join(found) == data
    assert all(part.endswith(b"\n") for part in found[:-1])


def test_a_file_is_read_by_several_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of one file go to different tasks; all lines come out once, whatever ends them."""
    monkeypatch.setattr(line_files, "PIECE_BYTES", 100)
    lines = [f"line {number}" for number in range(500)]
    (tmp_path / "a.txt").write_text("\n".join(lines[:400]) + "\n")
    (tmp_path / "b.txt").write_bytes("\r\n".join(lines[400:]).encode())
    (tmp_path / "_hidden").write_text("no\n")
    stream = readText(None, tmp_path, numPartitions=4)
    assert stream.schema == pa.schema([("value", pa.string())])
    assert sorted(run_local(stream).column("value").to_pylist()) == sorted(lines)
    with gzip.open(tmp_path / "c.txt.gz", "wt") as file:
        file.write("packed\n\nlast")
    assert run_local(readText(None, tmp_path / "c.txt.gz")).column("value").to_pylist() == ["packed", "", "last"]


def test_csv_columns(tmp_path: Path) -> None:
    """Strings by default, types where they are declared or inferred; the header of each file is no row."""
    for name, rows in (("a", "1,x,2020-01-02\n2,,\n"), ("b", '3,"quoted, ""so""",2021-05-06\n')):
        (tmp_path / f"{name}.csv").write_text("id,word,day\n" + rows)
    plain = readCsv(None, tmp_path, header=True)
    assert plain.schema == pa.schema([("id", pa.string()), ("word", pa.string()), ("day", pa.string())])
    inferred = readCsv(None, tmp_path, header=True, inferSchema=True)
    assert inferred.schema.types == [pa.int64(), pa.string(), pa.date32()]
    declared = readCsv(None, tmp_path, "n int, w string, d date", header=True)
    found = run_local(declared).sort_by("n").to_pylist()
    assert [row["w"] for row in found] == ["x", None, 'quoted, "so"']
    assert [row["n"] for row in found] == [1, 2, 3]
    unnamed = readCsv(None, tmp_path / "a.csv")
    assert unnamed.columns == ["_c0", "_c1", "_c2"]
    assert run_local(unnamed).num_rows == 3


QUOTED = {
    r'"a\"b"': 'a"b', r'"\""': '"', r'"\\\""': '\\"', r'"a\\b"': r"a\b", r'"a\",b"': 'a",b', r"a\\b": r"a\\b",
    r'"a\nb"': r"a\nb", r'a\"b': r'a\"b', '"a""b"': 'a"b', r'"C:\"': "C:\\",
}  # fmt: skip
"""CSV fields and what they mean: Spark's escapes, and doubled quotes too."""


@pytest.mark.parametrize("sep", [",", "|"])
def test_quotes_in_csv_fields(tmp_path: Path, sep: str) -> None:
    """Quotes that Spark escapes by a backslash, as it writes them, and backslashes, in one file, line by line."""
    (tmp_path / "a.csv").write_text("".join(f"{text.replace(',', sep)}{sep}z\n" for text in QUOTED))
    found = run_local(readCsv(None, tmp_path, "w string, z string", sep=sep))
    assert found.column("w").to_pylist() == [QUOTED[text].replace(",", sep) for text in QUOTED]


@pytest.mark.parametrize("text", ['1,"a\nb"\n2,c\n', '1,"a\n2,"b\n', '"1,a\n2,b\n3",c\n'])
def test_a_quoted_field_ends_on_its_line(tmp_path: Path, text: str) -> None:
    """Where a quote is open at the end of a line the job fails: the rows up to the next quote would be one."""
    (tmp_path / "a.csv").write_text("0,z\n" + text)
    with pytest.raises(JobError, match=r"[12] lines begin inside a quoted field"):
        run_local(readCsv(None, tmp_path, "n string, w string"))
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(SchemaError, match="readCsv: "):
        readCsv(None, tmp_path, "n string, w string")


def test_columns_of_the_first_file_with_lines(tmp_path: Path) -> None:
    """Empty files, as Spark writes them, and blank lines at the begin hide no columns and no rows."""
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "b").write_bytes(b"\n\r\n")
    with pytest.raises(SchemaError, match="readJson: the files have no lines to find columns in: give a schema"):
        readJson(None, tmp_path)
    assert run_local(readCsv(None, tmp_path, "n int", header=True)).num_rows == 0
    (tmp_path / "c").write_text('\n{"v": 1}\n')
    assert run_local(readJson(None, tmp_path)).to_pylist() == [{"v": 1}]
    (tmp_path / "d").write_text("v,w\n\n")
    (tmp_path / "c").write_text("\nv,w\n1,2\n\n")
    assert run_local(readCsv(None, tmp_path, header=True)).to_pylist() == [{"v": "1", "w": "2"}]


def test_json_columns(tmp_path: Path) -> None:
    """Columns are those of the first lines, or declared; what lacks is null, what is unknown is left out."""
    (tmp_path / "a.json").write_text('{"k": "a", "v": 1}\n{"v": 2, "tags": ["x"]}\n')
    stream = readJson(None, tmp_path)
    assert stream.schema.names == ["k", "v", "tags"]
    assert run_local(stream).column("k").to_pylist() == ["a", None]
    declared = run_local(readJson(None, tmp_path, "v int, other string"))
    assert declared.to_pylist() == [{"v": 1, "other": None}, {"v": 2, "other": None}]


def test_json_columns_of_several_small_files(tmp_path: Path) -> None:
    """Fields that the first file has not are columns all the same, and objects without any field are rows."""
    (tmp_path / "a.json").write_text("{}")
    stream = readJson(None, tmp_path)
    assert (stream.columns, run_local(stream.withColumn("n", pc.scalar(1))).num_rows) == ([], 1)
    (tmp_path / "b.json").write_text('{"v": 1}')
    (tmp_path / "c.json").write_text('{"w": "x"}\n{}\n')
    stream = readJson(None, tmp_path)
    assert stream.columns == ["v", "w"]
    found = sorted(map(str, run_local(stream).to_pylist()))
    assert found == sorted(["{'v': 1, 'w': None}", "{'v': None, 'w': 'x'}", *["{'v': None, 'w': None}"] * 2])
    (tmp_path / "d.json").write_text('{"w": 5}')
    with pytest.raises(SchemaError, match=r"readJson: .*/w"):
        readJson(None, tmp_path)


class Zurich:
    """A session that is asked for its settings only."""

    settings: ClassVar = {"spark.sql.session.timeZone": "Europe/Zurich", "spark.sql.timestampType": "TIMESTAMP_LTZ"}

    class conf:  # noqa: N801 - PySpark's name
        """Its settings."""

        @staticmethod
        def get(key: str) -> str:
            """One of them."""
            return Zurich.settings.get(key, "true")


def test_times_without_a_zone_are_the_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Spark, in CSV and JSON, also below structs and lists, and among times that have a zone."""
    monkeypatch.setattr(readers, "session_argument", lambda *_: None)
    winter, plain = datetime(2024, 1, 2, 2, 4, 5, tzinfo=UTC), "2024-01-02 03:04:05"
    (tmp_path / "a.csv").write_text(f"t,u,d\n{plain},{plain},2024-01-02\n2024-01-02T03:04:05+01:00,,\n,,\n")
    declared = run_local(readCsv(Zurich(), tmp_path / "a.csv", "t timestamp, u timestamp_ntz, d date", header=True))
    assert declared["t"].to_pylist() == [winter, winter, None]
    assert declared["u"].to_pylist()[0] == datetime(2024, 1, 2, 3, 4, 5)  # noqa: DTZ001 - it has none
    (tmp_path / "b.csv").write_text(f"t\n{plain}\n")
    assert run_local(readCsv(Zurich(), tmp_path / "b.csv", header=True, inferSchema=True))["t"].to_pylist() == [
        winter
    ]
    (tmp_path / "a.json").write_text(
        f'{{"t": "{plain}", "d": "2024-01-02", "s": {{"t": ["{plain}", null, "2024-01-02T03:04:05Z"]}}}}\n{{}}\n'
    )
    found = run_local(readJson(Zurich(), tmp_path / "a.json", "t timestamp, d date, s struct<t: array<timestamp>>"))
    later = winter + timedelta(hours=1)
    assert found.to_pylist() == [
        {"t": winter, "d": date(2024, 1, 2), "s": {"t": [winter, None, later]}},
        {"t": None, "d": None, "s": None},
    ]
    (tmp_path / "b.json").write_text('{"t": "noon"}\n')
    with pytest.raises(JobError, match=r"json .*b\.json: column 't': .*noon"):
        run_local(readJson(Zurich(), tmp_path / "b.json", "t timestamp"))


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    """One such byte does not fail a job: it is U+FFFD, as in Spark; a carriage return alone ends a line of text."""
    (tmp_path / "a.txt").write_bytes(b"a\xffb\rc\r\nd\n\n")
    assert run_local(readText(None, tmp_path / "a.txt"))["value"].to_pylist() == ["a\ufffdb", "c", "d", ""]
    (tmp_path / "a.csv").write_bytes(b"n,w\xfc\n1,\xfcb\n")
    assert run_local(readCsv(None, tmp_path / "a.csv", header=True)).to_pylist() == [{"n": "1", "w\ufffd": "\ufffdb"}]
    (tmp_path / "a.json").write_bytes(b'{"w": "\xfcb"}\n')
    assert run_local(readJson(None, tmp_path / "a.json")).to_pylist() == [{"w": "\ufffdb"}]


def test_what_does_not_fit_names_the_file(tmp_path: Path) -> None:
    """A value of another type fails the job with the file; wrong paths and numbers of columns are refused at once."""
    (tmp_path / "a.csv").write_text("1,2\nx,3\n")
    with pytest.raises(JobError, match=r"csv .*a\.csv.*conversion error"):
        run_local(readCsv(None, tmp_path, "a int, b int"))
    with pytest.raises(SchemaError, match=r"the schema has 1 columns .a. and the first line has 2"):
        readCsv(None, tmp_path, "a int")
    with pytest.raises(SettingError, match=r"readText: .*nowhere does not exist"):
        readText(None, tmp_path / "nowhere")
    with pytest.raises(SettingError, match=r"sep must be one character"):
        readCsv(None, tmp_path, sep="||")


@pytest.mark.parametrize("read", [readCsv, readJson, readText])
def test_a_file_without_lines_is_refused(tmp_path: Path, read: Callable[..., object]) -> None:
    """A Parquet file given to a reader of lines: the sentence names the file and the reader that it needs."""
    pq.write_table(pa.table({"n": [1]}), tmp_path / "rows.csv")
    with pytest.raises(SettingError, match=rf"{read.__name__}: .*rows.csv is a Parquet file.* penstock.readParquet"):
        read(None, tmp_path)
