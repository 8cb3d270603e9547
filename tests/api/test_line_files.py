# SPDX-License-Identifier: Apache-2.0
"""Text, CSV and JSON lines as streams: every line once however files are cut, types as declared or found."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import readCsv, readJson, readText
from penstock.api import line_files, readers
from penstock.api.csv_lines import CsvForm, CsvLines
from penstock.api.csv_quotes import Quoting
from penstock.api.json_lines import JsonLines
from penstock.api.line_files import LineRange, whole_lines
from penstock.api.line_formats import TextLines
from penstock.errors import JobError, SchemaError, SettingError
from penstock.operators.csv_write import CsvSigns, csv_lines, signs_fault
from penstock.stream.file_rows import START, LineFileFormat
from penstock.testing.local_runner import run_local


@example(lines=[b"\r\x00"], ends=False, cuts=[1])
@example(lines=[b"a\r", b"b"], ends=False, cuts=[2, 3])
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
        found += whole_lines(filesystem, str(path), LineRange(0, start, end))
    assert b"".join(found) == data
    for part, following in pairwise(found):
        assert part.endswith((b"\n", b"\r"))
        assert not (part.endswith(b"\r") and following.startswith(b"\n"))


def test_a_line_of_many_pieces_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces that lie inside it end where they end: each had read on to the line's end."""
    monkeypatch.setattr(line_files, "READ_BYTES", 64)
    (tmp_path / "a.txt").write_bytes(b"x" * 100_000 + b"\nshort\n")
    read: list[int] = []

    class Counted:
        def __init__(self, file: Any) -> None:
            self.seek, self.tell, self._file = file.seek, file.tell, file

        def read(self, size: int) -> bytes:
            read.append(len(found := self._file.read(size)))
            return found

    class Counting:
        @contextmanager
        def open_input_file(self, path: str) -> Iterator[Counted]:
            with pafs.LocalFileSystem().open_input_file(path) as file:
                yield Counted(file)

    pieces = [LineRange(0, start, min(start + 1000, 100_007)) for start in range(0, 100_007, 1000)]
    found = [lines for piece in pieces for lines in whole_lines(Counting(), str(tmp_path / "a.txt"), piece)]
    assert list(map(len, found)) == [100_001, 6]
    assert sum(read) < 3 * 100_007


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
    r'"a\nb"': r"a\nb", r'a\"b': r'a\"b', '"a""b"': 'a"b', '"a" ': "a", '"a"b': '"a"b', 'a"b': 'a"b',
}  # fmt: skip
"""CSV fields and what they mean: Spark's escapes, and doubled quotes too."""


@pytest.mark.parametrize("sep", [",", "|"])
def test_quotes_in_csv_fields(tmp_path: Path, sep: str) -> None:
    """Quotes that Spark escapes by a backslash, as it writes them, and backslashes, in one file, line by line."""
    (tmp_path / "a.csv").write_text("".join(f"{text.replace(',', sep)}{sep}z\n" for text in QUOTED))
    found = run_local(readCsv(None, tmp_path, "w string, z string", sep=sep))
    assert found.column("w").to_pylist() == [QUOTED[text].replace(",", sep) for text in QUOTED]


def test_a_quoted_field_ends_on_its_line(tmp_path: Path) -> None:
    """A quote that is open at its line's end takes nothing of the next line: each line is read alone, as in Spark."""
    (tmp_path / "a.csv").write_text('0,z\n1,"a\nb"\n2,"c,d\n3,"\n"4,e\n5,f\n')
    found = run_local(readCsv(None, tmp_path, "n string, w string, _corrupt_record string"))
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        ("0", "z", None), ("1", "a", None), ('b"', None, 'b"'), ("2", "c,d", None), ("3", '"', None),
        ("4,e", None, '"4,e'), ("5", "f", None),
    ]  # fmt: skip


ENDS = [
    "a,b\r1,2\r3,4\r",
    "a,b\r1,2\n3,4\n",
    "\ufeffa,b\r\n1,2\r3,4",
    "a,b\r \r\r1,2\r\n\r\n3,4\n\r",
    "a,b\n1,2\n3,4",
]


@pytest.mark.parametrize("text", ENDS)
@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 7, 1 << 20])
def test_lines_end_as_in_spark_wherever_files_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, piece: int
) -> None:
    """Both signs end lines, mixed in one file, and a mark at its begin is no text: of CSV, JSON and text alike."""
    monkeypatch.setattr(line_files, "PIECE_BYTES", piece)
    (tmp_path / "a.csv").write_bytes(text.encode())
    found = run_local(readCsv(None, tmp_path, header=True, numPartitions=3))
    assert found.to_pylist() == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
    assert run_local(readText(None, tmp_path, numPartitions=3))["value"].to_pylist() == plain
    (tmp_path / "a.json").write_bytes(
        text.replace("a,b", "").replace("1,2", '{"v":1}').replace("3,4", '{"v":2}').encode()
    )
    assert run_local(readJson(None, tmp_path / "a.json", numPartitions=3))["v"].to_pylist() == [1, 2]


def test_files_with_nothing_in_them_have_no_rows(tmp_path: Path) -> None:
    """As in Spark: an empty file gives no rows, alone and beside others; columns can't be found in it."""
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "b.gz").write_bytes(b"")
    assert run_local(readText(None, tmp_path)).num_rows == 0
    assert run_local(readCsv(None, tmp_path, "n int", header=True)).num_rows == 0
    assert run_local(readJson(None, tmp_path, "n int")).num_rows == 0
    with pytest.raises(SchemaError, match="give a schema"):
        readCsv(None, tmp_path)


BAD = "1,2020-01-02\n1,2\nx,2020-1-3\n 1\n1,2020-02-30,3\n99999999999,\n"
KEPT = [
    (1, date(2020, 1, 2), None), (1, None, "1,2"), (None, date(2020, 1, 3), "x,2020-1-3"), (None, None, " 1"),
    (1, None, "1,2020-02-30,3"), (None, None, "99999999999,"),
]  # fmt: skip


def test_bad_lines_of_csv(tmp_path: Path) -> None:
    """Kept with nulls and in a column of their own, dropped, or the end of the job: Spark's modes."""
    (tmp_path / "a.csv").write_text(BAD)
    kept = run_local(readCsv(None, tmp_path, "n int, d date, _corrupt_record string"))
    assert [tuple(row.values()) for row in kept.to_pylist()] == KEPT
    named = readCsv(None, tmp_path, "bad string, n int, d date", columnNameOfCorruptRecord="bad")
    assert [(row["n"], row["d"], row["bad"]) for row in run_local(named).to_pylist()] == KEPT
    dropped = run_local(readCsv(None, tmp_path, "n int, d date", mode="dropMalformed"))
    assert [tuple(row.values()) for row in dropped.to_pylist()] == [KEPT[0][:2]]
    with pytest.raises(JobError, match=r"a\.csv: there are not 2 fields in the line ' 1', and mode is FAILFAST"):
        run_local(readCsv(None, tmp_path, "n int, d date", mode="FAILFAST"))
    with pytest.raises(SettingError, match="readCsv: mode is one of PERMISSIVE, DROPMALFORMED, FAILFAST, not 'skip'"):
        readCsv(None, tmp_path, mode="skip")
    with pytest.raises(SettingError, match="'_corrupt_record' keeps corrupt records, so it is a string, not int32"):
        readCsv(None, tmp_path, "n int, _corrupt_record int")


def test_bad_lines_of_json(tmp_path: Path) -> None:
    """The fitting part of a bad line is kept, field by field; if another reader may see a value, the job ends."""
    lines = [
        '{"n":1,"s":{"a":1}}',
        '{"n":"x","s":{"a":"y","b":"z"}}',
        "{bad",
        "null",
        '{"n":5}{"n":6}',
        '{"s":7,"n":2}',
    ]
    (tmp_path / "a.json").write_text("\n".join(lines))
    schema = "n int, s struct<a:int,b:string>, _corrupt_record string"
    kept = [tuple(row.values()) for row in run_local(readJson(None, tmp_path, schema)).to_pylist()]
    assert kept == [
        (1, {"a": 1, "b": None}, None), (None, {"a": None, "b": "z"}, lines[1]), (None, None, "{bad"),
        (None, None, "null"), (5, None, None), (2, None, lines[5]),
    ]  # fmt: skip
    dropped = run_local(readJson(None, tmp_path, "n int, s struct<a:int,b:string>", mode="DROPMALFORMED"))
    assert dropped["n"].to_pylist() == [1, 5]
    with pytest.raises(JobError, match=r"a value does not fit the schema in the line .*, and mode is FAILFAST"):
        run_local(readJson(None, tmp_path, "n int, s struct<a:int,b:string>", mode="FAILFAST"))
    (tmp_path / "a.json").write_text("{'n': 1}")
    with pytest.raises(JobError, match=r"single quotes in the line .* may be a value to Spark"):
        run_local(readJson(None, tmp_path, "n int"))
    with pytest.raises(SettingError, match="column 'b' is binary, which JSON has as base64"):
        readJson(None, tmp_path, "b binary")
    with pytest.raises(SettingError, match=r"column 'm' is .*JSON is not read into maps: declare it as a struct"):
        readJson(None, tmp_path, "n int, m array<map<string, int>>")


def test_many_bad_lines_of_json_cost_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits of some hundred lines is read at once: each bad line was read by itself, field by field."""
    calls: list[object] = []
    read_json = pj.read_json
    monkeypatch.setattr(pj, "read_json", lambda *given: (calls.append(given), read_json(*given))[1])
    lines = [f'{{"k": "no {number}", "s": {number}}}' if number % 2 else '{"k": 1}' for number in range(4000)]
    rows = JsonLines(pa.schema([("k", pa.int64()), ("s", pa.string())])).rows("\n".join(lines).encode())
    assert rows["k"].to_pylist() == [1, None] * 2000
    assert rows["s"].to_pylist() == [str(number) if number % 2 else None for number in range(4000)]
    assert len(calls) < 100


def test_a_type_that_was_found_is_no_reason_for_nulls(tmp_path: Path) -> None:
    """Spark looks at all lines before it says that a column is long; a later word ends the job here."""
    (tmp_path / "a.csv").write_text("n\n" + "1\n" * (1 << 20) + "x\n")
    with pytest.raises(JobError, match="column 'n': 'x' is no int64, which the first lines were: declare"):
        run_local(readCsv(None, tmp_path, header=True, inferSchema=True))


SIGNS = [
    ({}, r'"a\"b"', 'a"b'),
    ({}, '"a""b"', 'a"b'),
    ({"escape": "\\"}, '"a""b"', '"a""b"'),
    ({"escape": '"'}, '"a""b"', 'a"b'),
    ({"escape": '"'}, r'"a\"b"', r'"a\"b"'),
    ({"escape": "/"}, '"a/"b"', 'a"b'),
    ({"quote": "'"}, "'a,b'", "a,b"),
    ({"quote": ""}, '"a"', '"a"'),
    ({"nullValue": "NA"}, '"NA"', None),
    ({"nullValue": "NA"}, '""', ""),
    ({}, '""', None),
]
"""Options, a field and what it means to Spark, for which a doubled quote is one only with the escape that says so."""


@pytest.mark.parametrize(("options", "field", "text"), SIGNS)
def test_quotes_and_escapes_are_the_readers_options(
    tmp_path: Path, options: dict[str, str], field: str, text: str | None
) -> None:
    """Each sign that is given is heeded, and what equals the null is null, quoted or not."""
    (tmp_path / "a.csv").write_text(f"1,{field}\n{field},2\n")
    found = run_local(readCsv(None, tmp_path, "n string, w string", **options))
    assert [tuple(row.values()) for row in found.to_pylist()] == [("1", text), (text, "2")]


@pytest.mark.parametrize("end", ["", "\r", "\n", "\r\n"])
def test_the_last_line_of_a_small_file_is_looked_at(tmp_path: Path, end: str) -> None:
    """Nothing has to follow it: its fields are columns, and its values say what a column holds."""
    between = end or "\n"
    (tmp_path / "a.json").write_bytes(f'{{"a": 1}}{between}{{"b": 2.5}}{end}'.encode())
    (tmp_path / "a.csv").write_bytes(f"a,b{between}1,2{between}1.5,x{end}".encode())
    (tmp_path / "one.csv").write_bytes(f"a{between}1{end}".encode())
    stream = readJson(None, tmp_path / "a.json")
    assert stream.schema == pa.schema([("a", pa.int64()), ("b", pa.float64())])
    assert run_local(stream).to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": 2.5}]
    stream = readCsv(None, tmp_path / "a.csv", header=True, inferSchema=True)
    assert run_local(stream).to_pylist() == [{"a": 1.0, "b": "2"}, {"a": 1.5, "b": "x"}]
    stream = readCsv(None, tmp_path / "one.csv", header=True, inferSchema=True)
    assert run_local(stream).to_pylist() == [{"a": 1}]


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
    instant = pa.timestamp("us", "UTC")
    (tmp_path / "c.json").write_text('{"s": {"t": ["2024-01-02T03:04:05Z"], "n": []}, "t": "2024-01-02T03:04:05Z"}\n')
    inner = readJson(Zurich(), tmp_path / "c.json").schema.field("s").type
    assert inner.field("t").type.value_type == instant
    assert inner.field("n").type.value_type == pa.string()
    with pytest.raises(JobError, match=r"json .*b\.json: a value does not fit .*noon"):
        run_local(readJson(Zurich(), tmp_path / "b.json", "t timestamp", mode="FAILFAST"))


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    """One such byte does not fail a job: it is U+FFFD, as in Spark; a carriage return alone ends a line of text."""
    (tmp_path / "a.txt").write_bytes(b"a\xffb\rc\r\nd\n\n")
    assert run_local(readText(None, tmp_path / "a.txt"))["value"].to_pylist() == ["a\ufffdb", "c", "d", ""]
    (tmp_path / "a.csv").write_bytes(b"n,w\xfc\n1,\xfcb\n")
    assert run_local(readCsv(None, tmp_path / "a.csv", header=True)).to_pylist() == [{"n": "1", "w\ufffd": "\ufffdb"}]
    (tmp_path / "a.json").write_bytes(b'{"w": "\xfcb"}\n')
    assert run_local(readJson(None, tmp_path / "a.json")).to_pylist() == [{"w": "\ufffdb"}]


def test_what_does_not_fit_names_the_file(tmp_path: Path) -> None:
    """A value of another type fails the job with the file; wrong paths and headers are refused at once."""
    (tmp_path / "a.csv").write_text("1,2\nx,3\n")
    with pytest.raises(JobError, match=r"csv .*a\.csv: column 'a': 'x' is no int32 in the line 'x,3', and mode is"):
        run_local(readCsv(None, tmp_path, "a int, b int", mode="FAILFAST"))
    with pytest.raises(SchemaError, match=r"the schema has 1 columns .a. and the first line has 2"):
        readCsv(None, tmp_path, "a int", header=True)
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


def test_folders_named_by_values_are_columns_of_lines(tmp_path: Path) -> None:
    """After those of the lines or in their place, in the declared type or Spark's; none where they are not asked for.

    Also in a union, whose sides have folders of other names.
    """
    for day in ("007", "8"):
        folder = tmp_path / f"day={day}"
        folder.mkdir()
        (folder / "a.csv").write_text(f"v\na{day}\n")
        (folder / "a.json").write_text('{"Day": "x", "v": "a"}\n')
    csv, json = {"pathGlobFilter": "*.csv", "header": True}, {"pathGlobFilter": "*.json"}
    stream = readCsv(None, tmp_path, **csv)
    assert stream.schema == pa.schema([("v", pa.string()), ("day", pa.int32())])
    rows = [{"v": "a007", "day": 7}, {"v": "a8", "day": 8}]
    assert run_local(stream).to_pylist() == rows
    declared = run_local(readCsv(None, tmp_path, "DAY string, v string", **csv))
    assert declared.to_pylist() == [{"v": "a007", "DAY": "007"}, {"v": "a8", "DAY": "8"}]
    with pytest.raises(SchemaError, match="names of folders say day, which is int32 there and bool in the schema"):
        readCsv(None, tmp_path, "day boolean, v string", **csv)
    assert run_local(readJson(None, tmp_path, **json)).to_pylist() == [{"day": day, "v": "a"} for day in (7, 8)]
    assert run_local(readJson(None, tmp_path, "v string, day long", **json))["day"].to_pylist() == [7, 8]
    text = readText(None, tmp_path, **json)
    assert text.columns == ["value", "day"]
    assert readText(None, tmp_path, recursiveFileLookup=True, **json).columns == ["value"]
    (tmp_path / "other" / "day=9").mkdir(parents=True)
    (tmp_path / "other" / "day=9" / "a.csv").write_text("v\na9\n")
    both = stream.union(readCsv(None, tmp_path / "other", header=True))
    assert sorted(run_local(both)["day"].to_pylist()) == [7, 8, 9]
    (tmp_path / "a.csv").write_text("v\nb\n")
    with pytest.raises(SchemaError, match="readCsv: folders' names do not have the same columns"):
        readCsv(None, tmp_path, **csv)


@pytest.mark.parametrize("ending", ["deflate", "snappy"])
def test_lines_that_only_spark_uncompresses_are_refused(tmp_path: Path, ending: str) -> None:
    """By jobs and queries, wherever the file stands; they were rows of what its bytes looked like."""
    (tmp_path / "a.csv").write_text("1\n")
    path = tmp_path / f"b.csv.{ending}"
    path.write_bytes(b"\x01\n\x02")
    with pytest.raises(SchemaError, match=f"b.csv.{ending} is compressed in a way that only Spark reads"):
        readCsv(None, tmp_path)
    with pytest.raises(SchemaError, match=f"b.csv.{ending} is compressed in a way that only Spark reads"):
        next(LineFileFormat(TextLines()).rows(pafs.LocalFileSystem(), str(path), START))


def test_patterns_are_hadoops(tmp_path: Path) -> None:
    """Both signs of all others; what no reader takes of a folder is taken by no pattern, but by its name."""
    for name in ("a.txt", "b.txt", "^d.txt", "_e.txt", "f.txt._COPYING_", "_g/h.txt", "i/j.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    for pattern, names in {
        "[^b].txt": ["a.txt"],
        "[!b].txt": ["a.txt"],
        "[b^]*.txt": ["^d.txt", "b.txt"],
        "*": ["^d.txt", "a.txt", "b.txt", "i/j.txt"],
        "**/*": ["^d.txt", "a.txt", "b.txt", "i/j.txt"],
        "_g/*": ["_g/h.txt"],
        "_e.txt": ["_e.txt"],
    }.items():
        assert sorted(run_local(readText(None, f"{tmp_path}/{pattern}"))["value"].to_pylist()) == names, pattern
    with pytest.raises(SettingError, match="nothing matches"):
        readText(None, f"{tmp_path}/_e*")


@pytest.mark.parametrize("separator", ["\t", " ", ","])
@pytest.mark.parametrize("null", ["", "NA", "\\N"])
def test_no_row_of_csv_is_lost(separator: str, null: str) -> None:
    """Rows of nulls where the separator is a blank, and texts of signs that a reader takes off or skips."""
    texts = [None, "x", " ", "\t", "\x0b", "\x01", "\x00y", "y\x1f", separator, None]
    batch = pa.record_batch([pa.array(texts), pa.array([None, *texts[2:], None])], names=["a", "b"])
    for rows in (batch, batch.select(["a"])):
        lines = csv_lines(rows, CsvSigns(separator, null)).to_pybytes()
        found = CsvLines(rows.schema, CsvForm(Quoting(separator, '"', ""), null)).rows(lines)
        assert found.to_pylist() == rows.to_pylist()


def test_a_null_that_no_reader_of_csv_finds_is_refused() -> None:
    """Of blanks, or with signs of the file's own."""
    for null in (" ", "\x01", "a,b", '"', "a\nb"):
        assert "name another" in signs_fault(CsvSigns(",", null))
    for null in ("", "NA", "\\N", "a b", "a;b"):
        assert not signs_fault(CsvSigns(",", null))
