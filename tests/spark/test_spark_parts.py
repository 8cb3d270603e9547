# SPDX-License-Identifier: Apache-2.0
"""The parts of the Spark room that need no Spark: refusals, Java, types, tickets, status texts."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from penstock.services.local.launch import EnvironmentLaunch
from penstock.shuffle.errors import ControlError, SchemaError, SettingError, TaskCancelledError
from penstock.spark.checks import python_hint, refuse_conf, refuse_connect
from penstock.spark.java import find_java
from penstock.spark.result_files import ResultFolder, ResultTicket, read_ticket
from penstock.spark.task import error_text
from penstock.spark.types import arrow_schema, conform_batch, spark_batches, spark_schema, struct_type


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"spark.speculation": "true"}, "spark.speculation=false"),
        ({"spark.python.worker.killOnIdleTimeout": "TRUE"}, "back-pressure"),
        ({"spark.sql.execution.pyspark.udf.killOnIdleTimeout": "true"}, "back-pressure"),
        ({"spark.dynamicAllocation.enabled": "true"}, "local shuffle service"),
    ],
)
def test_conf_that_would_break_is_refused(conf: dict[str, str], words: str) -> None:
    """The message names the key and what to set."""
    with pytest.raises(SettingError, match=words):
        refuse_conf(conf, "local")


def test_other_conf_is_fine() -> None:
    """Dynamic allocation only concerns the local service; false is false."""
    refuse_conf({"spark.dynamicAllocation.enabled": "true", "spark.speculation": "false"}, "external")


def test_connect_is_refused() -> None:
    """A Connect session and a thing that is no session get a sentence each."""
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SettingError, match="Spark Connect client has no driver process"):
        refuse_connect(connect)
    with pytest.raises(SettingError, match="not a str"):
        refuse_connect("spark")


def test_python_hint_only_where_it_helps() -> None:
    """A wrong interpreter is hinted at; other errors are left alone."""
    assert "PYSPARK_PYTHON" in python_hint("ModuleNotFoundError: No module named 'penstock'")
    assert python_hint("ValueError: boom") == ""


def test_java_is_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME first, then PATH, then the extra (which sets JAVA_HOME); else one clear sentence."""
    java = _executable(tmp_path / "home" / "bin" / "java")
    on_path = _executable(tmp_path / "path" / "java")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environ) == str(java)
    assert find_java({"PATH": str(on_path.parent)}) == str(on_path)
    extra = tmp_path / "extra"
    _executable(extra / "bin" / "java")
    monkeypatch.setattr("penstock.spark.java._extra_home", lambda: extra)
    environ = {"PATH": ""}
    assert find_java(environ) == str(extra / "bin" / "java")
    assert environ["JAVA_HOME"] == str(extra)
    monkeypatch.setattr("penstock.spark.java._extra_home", lambda: None)
    with pytest.raises(SettingError, match=r"penstock\[java\]"):
        find_java({"PATH": ""})


def test_wrong_java_home_is_said(tmp_path: Path) -> None:
    """It is not silently passed over."""
    with pytest.raises(SettingError, match="correct it or unset it"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def _executable(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


COLUMNS = {
    "dictionary": pa.array(["a", "b", "a", None]).dictionary_encode(),
    "string_view": pa.array(["a", "b", None, "c"], pa.string_view()),
    "large_string": pa.array(["a", "b", None, "c"], pa.large_string()),
    "large_binary": pa.array([b"a", None, b"", b"c"], pa.large_binary()),
    "run_ends": pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array([7, 8])),
    "uint64": pa.array([1, 2, None, 2**63], pa.uint64()),
    "uint8": pa.array([1, 2, None, 255], pa.uint8()),
    "half": pa.array([1.0, None, 2.0, 3.0], pa.float16()),
    "nanos": pa.array([1000, 2000, None, 3000], pa.timestamp("ns", "Europe/Berlin")),
    "plain_time": pa.array([1000, 2000, None, 3000], pa.timestamp("ms")),
    "large_list": pa.array([[1], [], None, [2, 3]], pa.large_list(pa.int32())),
    "fixed_list": pa.array([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.int64(), 2)),
    "map": pa.array([[("a", 1)], [], None, [("b", 2)]], pa.map_(pa.large_string(), pa.int32())),
    "struct": pa.array([{"x": "a"}, None, {"x": None}, {"x": "b"}], pa.struct([("x", pa.large_string())])),
    "decimal": pa.array([1, 2, None, 3], pa.decimal128(10, 2)),
    "fixed_binary": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
    "null": pa.nulls(4),
    "plain": pa.array([1, 2, None, 4]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_reaches_spark(name: str) -> None:
    """A column of any Arrow type has a Spark type, and its batches get the schema Spark's reader checks for."""
    column = COLUMNS[name]
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    target = spark_schema(batch.schema)
    (out,) = spark_batches(iter([batch]), target)
    assert out.schema.equals(arrow_schema(struct_type(batch.schema)))
    expected = column.to_pylist() if name != "nanos" else None
    if expected is not None:
        assert [_plain(item) for item in out.column(0).to_pylist()] == [_plain(item) for item in expected]


def _plain(value: object) -> object:
    return float(value) if isinstance(value, float) else value


def test_fitting_batch_is_not_touched() -> None:
    """The same object comes back."""
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]})
    assert conform_batch(batch, batch.schema) is batch


def test_type_that_spark_lacks_is_refused_by_column() -> None:
    """A decimal of more than 38 digits."""
    with pytest.raises(SchemaError, match="'money'"):
        struct_type(pa.schema([("money", pa.decimal256(50, 2))]))


def test_schema_round_trip() -> None:
    """Spark's own types come back as they were, nullability included."""
    schema = t.StructType(
        [
            t.StructField("a", t.LongType(), nullable=False),
            t.StructField("b", t.ArrayType(t.StringType())),
            t.StructField("c", t.TimestampType()),
            t.StructField("d", t.TimestampNTZType()),
            t.StructField("e", t.MapType(t.StringType(), t.DecimalType(10, 2))),
            t.StructField("f", t.StructType([t.StructField("x", t.DateType())])),
        ]
    )
    assert struct_type(arrow_schema(schema)) == schema


def test_ticket_is_private_and_goes_with_its_folder() -> None:
    """Only this user can read it; it says everything; after close there is nothing."""
    folder = ResultFolder()
    ticket = ResultTicket("r1", EnvironmentLaunch("app", b"s", "h:1", {"k": "v"}), pa.schema([("a", pa.int64())]))
    path = folder.write(ticket)
    assert read_ticket(path) == ticket
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
    Path(path).chmod(0o644)
    with pytest.raises(ControlError, match="not private"):
        read_ticket(path)
    folder.close()
    folder.close()
    assert not Path(path).parent.exists()
    with pytest.raises(ControlError, match="was stopped"):
        read_ticket(path)


def test_secret_never_shows() -> None:
    """Neither a launch nor a ticket prints it."""
    launch = EnvironmentLaunch("app", b"TOPSECRET", "h:1", {})
    assert "TOPSECRET" not in repr(launch)
    assert "TOPSECRET" not in repr(ResultTicket("r1", launch, pa.schema([])))


def test_error_text_shows_the_users_frames() -> None:
    """A user's error comes with traceback; one of ours as its message."""

    def user_function() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as raised:
        user_function()
    text = error_text(raised.value)
    assert "user_function" in text
    assert text.endswith("ValueError: boom")
    assert error_text(TaskCancelledError("told to stop")) == "told to stop"
