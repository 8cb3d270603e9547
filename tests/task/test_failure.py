# SPDX-License-Identifier: Apache-2.0
"""Whose fault a failure is: what a host lacks is told from what the user's code does, by where it arose."""

from __future__ import annotations

import errno
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import FailureKind, OutsideError, SchemaError, StorageError
from penstock.operators.expressions import Call, ColumnRef, ValuesError, evaluate
from penstock.operators.functions import MapInArrow
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import HEADER, MessageAssembler
from penstock.task import failure
from penstock.task.failure import Blame, failure_kind, failure_text


def full_disk() -> None:
    """A write to a disk that is full."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        full.write(b"x")


def test_an_error_out_of_the_users_code_is_his() -> None:
    """It may have any type, and a library of his may have raised it."""
    for work in (full_disk, lambda: pa.allocate_buffer(1 << 60), lambda: json.loads("{")):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the types differ
            work()
        assert failure_kind(caught.value) is FailureKind.CAUSE


def test_memory_and_disks_that_fail_under_penstock_are_the_hosts() -> None:
    """An allocation of ours that fails, whoever has called us."""
    assembler = MessageAssembler(BatchCodec(pa.schema([])), CompletenessCounter(), limit=1 << 61)
    with pytest.raises(MemoryError) as caught:
        assembler.feed(memoryview(HEADER.pack(1 << 60, 0)))
    assert failure_kind(caught.value) is FailureKind.HOST


def test_errors_of_penstock_say_what_they_mean() -> None:
    """Those that users derive from them, too; a file that is missing is none of the host's faults."""
    theirs = type("NoSuchBucketError", (OutsideError,), {})
    assert failure_kind(StorageError("full")) is FailureKind.STORAGE
    assert failure_kind(theirs("gone")) is FailureKind.HOST
    assert failure_kind(FileNotFoundError(errno.ENOENT, "no such file")) is FailureKind.CAUSE


def test_an_error_of_another_library_is_not_taken_for_ours() -> None:
    """Other libraries have a ProtocolError or a StorageError too: those arose in the user's code."""
    theirs = type("StorageError", (Exception,), {"__module__": "their.storage"})
    assert failure_kind(theirs("no such bucket")) is FailureKind.CAUSE


def test_a_value_that_is_refused_shows_no_frames() -> None:
    """An error of Arrow's under our expressions is no code of the user's: the message is all there is to say."""
    value = ColumnRef("n", pa.int64())
    most = pa.record_batch([pa.array([2**63 - 1])], names=["n"])
    with pytest.raises(ValuesError) as caught:
        evaluate(Call("Add", pa.int64(), (value, value), (("mode", "ANSI"),)), most)
    assert caught.value.__traceback__ is not None
    text = failure_text(caught.value.with_traceback(caught.value.__traceback__.tb_next))  # without this test's frame
    assert "overflow (cast to a wider type first)" in text
    assert len(text.splitlines()) == 1


def test_memory_that_ran_out_says_the_limit_and_what_to_do() -> None:
    """In the first line, after the operator: Python's own word for it is empty."""

    def eats(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise MemoryError
        yield from batches

    limit = resource.getrlimit(resource.RLIMIT_AS)
    words = []
    for soft in (1 << 44, limit[0]):
        resource.setrlimit(resource.RLIMIT_AS, (soft, limit[1]))
        with pytest.raises(MemoryError) as caught:
            list(MapInArrow(eats, pa.schema([])).apply(iter([])))
        Blame().note(caught.value, "mapInArrow(eats)", "a stage")
        words.append(failure_text(caught.value).splitlines()[0])
    remedy = "Give it more, or let the function take and hold fewer rows at a time"
    assert words == [
        f"MemoryError (in mapInArrow(eats)): {named}. {remedy}"
        for named in (
            "this process may have 16,777,216 MiB (from spark.executor.pyspark.memory)",
            "no more memory was to be had",
        )
    ]


def test_an_error_of_ours_names_its_operator_once() -> None:
    """Whoever tells it says of which task; nothing of a module, and no frames."""
    for text, told in (("f: no column", "f: no column (in g)"), ("g: no column", "g: no column")):
        error = SchemaError(text)
        Blame().note(error, "g", "a stage")
        assert failure_text(error) == f"SchemaError: {told}"


def test_pythons_own_error_about_a_function_brings_no_frames_of_ours() -> None:
    """StopIteration out of the user's code becomes a RuntimeError in a generator of ours."""

    def stops(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise StopIteration

    with pytest.raises(RuntimeError) as caught:
        list(MapInArrow(stops, pa.schema([])).apply(iter([])))
    text = failure_text(caught.value)
    assert "in stops" in text
    assert "RuntimeError: generator raised StopIteration" in text
    assert str(Path(failure.__file__).parent.parent) not in text
