# SPDX-License-Identifier: Apache-2.0
"""Whose fault it is that a source, a sink or storage fails: the operation and the error's type say it."""

from __future__ import annotations

import concurrent.futures
import errno
import gzip
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from penstock.api.line_formats import TextLines
from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError, FencedError
from penstock.errors import FailureKind, OutsideError, SchemaError
from penstock.operators.functions import MapInArrow
from penstock.stream.arriving_files import FilesSource
from penstock.stream.chain import StepContext
from penstock.stream.file_rows import START, LineFileFormat, ParquetFileFormat
from penstock.stream.folder_sink import FolderSink
from penstock.stream.outside import CLIENTS, outside
from penstock.stream.partitioned_source import PartitionedSource
from penstock.stream.sinks import SinkOperator, SinkStep
from penstock.task.failure import failure_kind
from penstock_torture.local_query import LocalQuery, linear_graph, location
from penstock_torture.passing_files import PassingFiles

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
TEXT = TextLines()


def of_client(name: str) -> Exception:
    """An error of a client's own, a subclass as clients have many."""
    module, _, kind = name.rpartition(".")
    base = type(kind, (Exception,), {"__module__": module})
    return type("OfThatKind", (base,), {"__module__": module})("away")


def saying(name: str, **attributes: object) -> Exception:
    """An error of a client's with what it says in attributes of its own."""
    error = of_client(name)
    vars(error).update(attributes)
    return error


def of_aws(code: str, status: int) -> Exception:
    """What botocore makes of an answer."""
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return saying("botocore.exceptions.ClientError", response=answer)


def of_grpc(name: str) -> Exception:
    """A call that ended with a status."""
    return saying("grpc.RpcError", code=lambda: SimpleNamespace(name=name))


AZURE, GOOGLE = "azure.core.exceptions.AzureError", "google.api_core.exceptions.GoogleAPIError"
AIOHTTP = "aiohttp.client_exceptions.ClientResponseError"


class Said:
    """The client's own object of an error, which gives its name."""

    def __init__(self, name: str) -> None:
        self.name = lambda: name

    def __str__(self) -> str:
        return self.name()


def in_vain(name: str) -> Exception:
    """An error of a client that says of it that another try is in vain."""
    error = of_client("confluent_kafka.KafkaException")
    error.args = (Said(name),)
    return error


def away() -> CheckpointError:
    """A location that can't be reached at all."""
    error = CheckpointError("s3://nobody")
    error.__cause__ = OSError("no such host")
    return error


WORLD = [
    *[OSError(code, "no") for code in (errno.ENOENT, errno.EEXIST, errno.EACCES, errno.ETIMEDOUT, errno.ECONNRESET)],
    *[OSError(code, "no") for code in (errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EMFILE, errno.EROFS)],
    OSError("When reading information for key 'x' in bucket 'y': AWS Error NETWORK_CONNECTION"),
    pa.lib.ArrowIOError("the connection is gone"),
    TimeoutError("slow"),
    concurrent.futures.TimeoutError("slow"),
    socket.gaierror("no such host"),
    ssl.SSLError("no"),
    ConnectionResetError("reset"),
    http.client.IncompleteRead(b""),
    away(),
    *map(of_client, sorted(CLIENTS)),
    *map(of_aws, ("SlowDown", "ThrottlingException", "ExpiredToken", "OperationAborted"), (503, 400, 400, 409)),
    *map(of_grpc, ("UNAVAILABLE", "ABORTED", "UNKNOWN")),
    *[saying(AZURE, status_code=status) for status in (429, 500, 503, None)],
    *[saying(GOOGLE, code=429), saying(GOOGLE, code=503, grpc_status_code=SimpleNamespace(name="UNAVAILABLE"))],
    saying(AIOHTTP, status=502),
    *map(in_vain, ("_TRANSPORT", "_ALL_BROKERS_DOWN", "NOT_ENOUGH_REPLICAS", "_FENCED")),
]
USERS = [
    ValueError("x"),
    KeyError("x"),
    RuntimeError("x"),
    EOFError("x"),
    MemoryError("x"),
    pa.ArrowInvalid("x"),
    SchemaError("a null"),
    CorruptCheckpointError("x"),
    FencedError("x"),
    CheckpointError("no such channel"),
    of_client("their.storage.NoSuchBucket"),
    type("TopicAuthorizationFailedError", (type(of_client("kafka.errors.KafkaError")),), {"retriable": False})("x"),
    *map(of_aws, ("AccessDenied", "NoSuchBucket", "InvalidRequest"), (403, 404, 400)),
    of_client("botocore.exceptions.ParamValidationError"),
    *map(of_grpc, ("PERMISSION_DENIED", "NOT_FOUND", "UNIMPLEMENTED")),
    *[saying(AZURE, status_code=status) for status in (401, 403, 404, 501)],
    *[saying(GOOGLE, code=404), saying(GOOGLE, code=500, grpc_status_code=SimpleNamespace(name="DATA_LOSS"))],
    saying(AIOHTTP, status=403),
    *map(in_vain, ("MSG_SIZE_TOO_LARGE", "TOPIC_AUTHORIZATION_FAILED", "_AUTHENTICATION")),
]


@pytest.mark.parametrize("error", WORLD, ids=lambda error: f"{type(error).__name__} {error}"[:40])
def test_errors_of_the_world_out_of_an_operation_are_tried_again(error: Exception) -> None:
    """Each becomes one of ours, which names the operation and the error, and which no count of bugs takes."""
    with (
        pytest.raises(OutsideError, match=f"the sink can't be written: {type(error).__name__}: ") as caught,
        outside("the sink can't be written"),
    ):
        raise error
    assert caught.value.__cause__ is error
    assert failure_kind(caught.value) is FailureKind.HOST


@pytest.mark.parametrize("error", USERS, ids=lambda error: type(error).__name__)
def test_bugs_and_what_has_a_name_stay_as_they_are(error: Exception) -> None:
    """The user hears of them as they were raised."""
    with pytest.raises(type(error)) as caught, outside("the sink can't be written"):
        raise error
    assert caught.value is error


def test_who_raises_ours_is_not_told_twice() -> None:
    """A source or a sink may say itself that the world has failed."""
    told = OutsideError("the broker is away")
    with pytest.raises(OutsideError) as caught, outside("the source can't be read"):
        raise told
    assert caught.value is told


class Rows:
    """A user's source that fails once, in its second batch."""

    schema = SCHEMA

    def __init__(self, fail: Callable[[], object]) -> None:
        self.fail = fail
        self.failed = False

    def partitions(self) -> Sequence[str]:
        """One."""
        return ["p"]

    def read(self, partition: str, offset: Any) -> Iterator[tuple[pa.RecordBatch | None, Any]]:
        """Five batches."""
        for number in range(offset or 0, 5):
            if number == 2 and not self.failed:
                self.failed = True
                self.fail()
            yield pa.record_batch({"n": [number]}, SCHEMA), number + 1


def no_route() -> None:
    """A read that fails as reads do."""
    raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def bug() -> None:
    """A read with a bug."""
    raise ValueError("no number")


class Leaving(PassingFiles):
    """Renames the folder away before the first file in it is opened, and brings it back after the error."""

    away = False

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        """Fails once, as it would without the folder."""
        if not type(self).away:
            type(self).away = True
            folder = Path(path).parent
            folder.rename(folder.with_name("elsewhere"))
            try:
                return super().open_output_stream(path, metadata)
            finally:
                folder.with_name("elsewhere").rename(folder)
        return super().open_output_stream(path, metadata)


def run(tmp_path: Path, source: Any, sink: FolderSink, function: Any = None) -> list[BaseException]:
    """Run a query of this source and sink to its end; what failed on the way."""
    functions = () if function is None else (MapInArrow(function, SCHEMA),)
    graph = linear_graph(source, [(1, (*functions, SinkOperator(sink)), SCHEMA, None)])
    with LocalQuery(graph, location(tmp_path)) as query:
        query.start()
        query.run_through()
        assert sorted(pq.read_table(tmp_path / "out")["n"].to_pylist()) == [0, 1, 2, 3, 4]
        return query.failures


def into(tmp_path: Path, handler: type[PassingFiles] = PassingFiles) -> FolderSink:
    """A sink of files."""
    files = pafs.PyFileSystem(handler(pafs.LocalFileSystem()))
    return FolderSink(files, str(tmp_path / "out"), SCHEMA, "q")


def test_read_error_of_a_users_source_is_the_worlds(tmp_path: Path) -> None:
    """The source that a user wrote is named, with what it raised."""
    (error,) = run(tmp_path, PartitionedSource(Rows(no_route)), into(tmp_path))
    assert type(error) is OutsideError
    assert "Rows can't be read: ConnectionResetError: " in str(error)


def test_bug_of_a_users_source_is_theirs(tmp_path: Path) -> None:
    """It stays what it was."""
    (error,) = run(tmp_path, PartitionedSource(Rows(bug)), into(tmp_path))
    assert type(error) is ValueError


def test_sink_whose_folder_is_away_for_a_moment_is_the_worlds(tmp_path: Path) -> None:
    """ENOENT out of a write: the query goes on when the folder is back."""
    Leaving.away = False
    (error,) = run(tmp_path, PartitionedSource(Rows(lambda: None)), into(tmp_path, Leaving))
    assert type(error) is OutsideError
    assert f"{tmp_path}/out can't be " in str(error)
    assert "FileNotFoundError" in str(error)


def test_same_error_out_of_a_function_is_the_users(tmp_path: Path) -> None:
    """A function that opens a file which is not there has a bug, for all that Penstock knows."""
    failed = []

    def opens(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not failed:
                failed.append(True)
                (tmp_path / "model").read_bytes()
            yield batch

    (error,) = run(tmp_path, PartitionedSource(Rows(lambda: None)), into(tmp_path), opens)
    assert type(error) is FileNotFoundError


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("truncated.gz", gzip.compress(b"hello\n" * 10_000)[:-20]),
        ("nonsense.gz", b"nonsense"),
        ("nonsense.parquet", b"PAR1" + b"x" * 100 + b"\x10\0\0\0PAR1"),
        ("short.parquet", b"x"),
    ],
)
def test_contents_that_can_not_be_read_are_the_users(tmp_path: Path, name: str, data: bytes) -> None:
    """Arrow raises OSError for some of them, as for a disk that fails: these have a number, contents have none."""
    (tmp_path / name).write_bytes(data)
    files = ParquetFileFormat(SCHEMA) if name.endswith("parquet") else LineFileFormat(TEXT)
    with pytest.raises(SchemaError, match=name), outside("the source can't be read"):
        list(files.rows(pafs.LocalFileSystem(), str(tmp_path / name), START))


def test_source_whose_folder_is_away_is_the_worlds(tmp_path: Path) -> None:
    """A mount that is not there, when the source looks into it."""
    source = FilesSource(pafs.LocalFileSystem(), str(tmp_path / "away"), LineFileFormat(TEXT))
    with pytest.raises(OutsideError, match="FileNotFoundError"), outside("the source can't be read"):
        list(source.read(0, 1))


def test_errors_of_each_operation_of_a_sink_name_it(tmp_path: Path) -> None:
    """Open, write, prepare, commit and close."""

    class Sink:
        name = "orders"

        def __init__(self, fails: str) -> None:
            self.fails = fails

        def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> Any:
            return self if self.fails != "open" else self.failed()

        def failed(self, *_: object) -> bytes:
            raise TimeoutError("slow")

        def __getattr__(self, word: str) -> Any:
            if word not in ("write", "prepare", "commit", "close"):
                raise AttributeError(word)
            return self.failed if word == self.fails else lambda *_: b""

    for word, told in {
        "open": "orders can't be opened",
        "write": "orders can't be written",
        "prepare": "orders can't be prepared for checkpoint 7",
        "commit": "orders can't publish checkpoint 7",
        "close": "orders can't be closed",
    }.items():
        with pytest.raises(OutsideError, match=f"{told}: TimeoutError: slow"):
            live(SinkOperator(Sink(word)).step())


def live(step: SinkStep) -> None:
    """All of its operations."""
    step.open(StepContext(0, 1, 128, "sink"), [])
    list(step.process(pa.record_batch({"n": [1]}, SCHEMA)))
    step.snapshot(7)
    step.completed(7)
    step.close()
