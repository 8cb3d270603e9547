# SPDX-License-Identifier: Apache-2.0
"""The log of a task's rows: what it was given is there at each snapshot, in order, and it is bounded."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from keyed_rows import KEYED
from penstock.checkpoint.channel_state import ChannelKey, unpack
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.log_files import LogName
from penstock.checkpoint.logged_rows import pieces_between
from penstock.checkpoint.metadata import Chunk, PartHandle, pack_part
from penstock.checkpoint.storage import PartFile, PartStorage
from penstock.connection.frames import FRAME_LIMIT
from penstock.stream import log_writer, row_log
from penstock.stream.in_flight import restored, rows_of
from penstock.stream.row_log import RowLog
from penstock.testing import DEADLINE
from underway import listed

NAME = LogName("logs-000001", "a.0", 0, 4, 0)


def channel(consumer: int) -> ChannelKey:
    """The channel to a consumer."""
    return ChannelKey("out", "a->b:0", 0, consumer)


def rows(first: int, count: int) -> pa.RecordBatch:
    """Rows with these numbers."""
    numbers = pa.array(range(first, first + count), KEYED.field("value").type)
    return pa.RecordBatch.from_arrays(
        [numbers if field.name == "value" else pa.nulls(count, field.type) for field in KEYED],
        schema=pa.schema([pa.field(field.name, field.type) for field in KEYED]),
    ).cast(KEYED)


def numbers_in(location: Path, pieces: list[Chunk], key: ChannelKey) -> list[int]:
    """The numbers that the pieces hold."""
    found = []
    for piece in pieces:
        ((_, data),) = PartStorage(str(location)).read(PartHandle("", 0, (piece,)))
        for each in restored(piece, unpack(key, data), KEYED):
            found += rows_of(each).column("value").to_pylist()
    return found


@pytest.mark.parametrize("seed", range(8))
def test_all_that_was_given_in_front_of_a_snapshot_is_in_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random batches for three channels and snapshots, some complete: pieces and positions are those of the rows."""
    monkeypatch.setattr(log_writer, "PIECE_BYTES", 400)
    monkeypatch.setattr(log_writer, "FILE_BYTES", 2000)
    chance = random.Random(seed)
    log = RowLog(str(tmp_path), NAME, KEYED)
    given, told = [0, 0, 0], [0, 0, 0]
    for checkpoint in range(5, 12):
        for _ in range(chance.randrange(30)):
            number, count = chance.randrange(3), chance.randint(1, 40)
            log.append(channel(number), rows(given[number], count))
            given[number] += count
        cut = log.cut(checkpoint, {"channel/in/z->a:0/1/0": 7})
        handle = cut.added_to(PartHandle("p", 0, ()))
        for number in range(3):
            key = channel(number)
            assert handle.positions.get(key.chunk, 0) == given[number]
            own = [piece for piece in handle.logged if piece.name == key.chunk]
            pieces = pieces_between(key.chunk, own, told[number], given[number])
            assert numbers_in(tmp_path, pieces, key) == list(range(told[number], given[number]))
        assert handle.positions["channel/in/z->a:0/1/0"] == 7
        if chance.random() < 0.5:
            log.completed(checkpoint)
            told = list(given)
    log.close()
    names = [LogName.of("logs-000001", path.name) for path in listed(tmp_path, "logs-000001/*")]
    assert all(name is not None and name.task == "a.0" and 4 <= name.behind < 12 for name in names)


class Tagged(pa.ExtensionType):
    """Strings with a tag."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "tests.tagged")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Tagged:
        return cls()


def words(numbers: range) -> pa.Array:
    """A word for each."""
    return pa.array([f"word {number % 7}" for number in numbers], pa.string())


COLUMNS: dict[str, Callable[[range], pa.Array]] = {
    "a dictionary for each batch": lambda numbers: words(numbers).dictionary_encode(),
    "extension": lambda numbers: pa.ExtensionArray.from_storage(Tagged(), words(numbers)),
    "nested": lambda numbers: pa.array([{"a": [number], "b": None} for number in numbers]),
    "nothing": lambda numbers: pa.nulls(len(numbers)),
    "larger than a piece": lambda numbers: pa.array(["x" * 300_000 + str(number) for number in numbers]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_rows_of_any_type_come_back(tmp_path: Path, kind: str) -> None:
    """In batches of any size, empty ones among them."""
    column, key, first = COLUMNS[kind], channel(0), 0
    batches = []
    for count in (3, 0, 1, 0, 20, 5):
        batches.append(pa.RecordBatch.from_arrays([column(range(first, first + count))], names=["c"]))
        first += count
    schema = batches[0].schema
    batches = [batch.cast(schema) if batch.schema != schema else batch for batch in batches]
    log = RowLog(str(tmp_path), NAME, schema)
    pieces: list[Chunk] = []
    for checkpoint, batch in enumerate(batches, 5):
        log.append(key, batch)
        handle = log.cut(checkpoint, {}).added_to(PartHandle("p", 0, ()))
        pieces = pieces_between(key.chunk, handle.logged, 0, handle.positions[key.chunk])
    log.close()
    found = []
    for piece in pieces:
        ((_, data),) = PartStorage(str(tmp_path)).read(PartHandle("", 0, (piece,)))
        found += [rows_of(each) for each in restored(piece, unpack(key, data), schema)]
    assert pa.Table.from_batches(found, schema).to_pylist() == pa.Table.from_batches(batches, schema).to_pylist()


class Gate:
    """A storage that writes nothing until the gate is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        write = PartFile.write

        def slow(file: PartFile, data: Any) -> None:
            assert self.open.wait(DEADLINE)
            write(file, data)

        monkeypatch.setattr(PartFile, "write", slow)


def test_a_log_whose_storage_is_slow_has_no_room_and_holds_no_more_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that asks for room first gives it the bound and a step at most; there is room when all is written."""
    monkeypatch.setattr(row_log, "MOST_WAITING", 10_000)
    gate = Gate(monkeypatch)
    log = RowLog(str(tmp_path), NAME, KEYED)
    step, given = rows(0, 50), 0
    while log.has_room:
        log.append(channel(0), step)
        given += step.nbytes
    assert 10_000 <= given < 10_000 + step.nbytes
    cut = log.cut(5, {})
    assert not cut.written.done()
    gate.open.set()
    assert sum(piece.rows for piece in cut.written.result(DEADLINE).pieces) == cut.positions[channel(0).chunk]
    assert log.has_room
    log.close()


def test_a_file_that_can_t_be_written_fails_its_snapshot_and_those_that_need_its_rows(tmp_path: Path) -> None:
    """The reason is said once; later pieces lie after a gap, which the driver finds; new rows are logged."""
    folder = tmp_path / "logs-000001"
    folder.write_text("in the way")
    log = RowLog(str(tmp_path), NAME, KEYED)
    log.append(channel(0), rows(0, 10))
    with pytest.raises(OSError, match="logs-000001"):
        log.cut(5, {}).added_to(PartHandle("p", 0, ()))
    folder.unlink()
    log.append(channel(0), rows(10, 10))
    pieces = log.cut(6, {}).written.result(DEADLINE).pieces
    log.close()
    with pytest.raises(CheckpointError, match="lacks rows: those from 5 to 20"):
        pieces_between(channel(0).chunk, pieces, 5, 20)
    behind = pieces_between(channel(0).chunk, pieces, 10, 20)
    assert numbers_in(tmp_path, behind, channel(0)) == list(range(10, 20))


def test_a_snapshot_tells_of_the_newest_pieces_however_long_none_was_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many that a message to the environment holds them; where older ones are needed the driver says so."""
    monkeypatch.setattr(log_writer, "PIECE_BYTES", 1)
    monkeypatch.setattr(log_writer, "MOST_PIECES", 10)
    log = RowLog(str(tmp_path), NAME, KEYED)
    given = 0
    for checkpoint in range(5, 12):
        for _ in range(7):
            log.append(channel(0), rows(given, 2))
            given += 2
        handle = log.cut(checkpoint, {}).added_to(PartHandle("p", 0, ()))
    log.close()
    assert len(handle.logged) == 10
    newest = pieces_between(channel(0).chunk, handle.logged, given - 20, given)
    assert numbers_in(tmp_path, newest, channel(0)) == list(range(given - 20, given))
    with pytest.raises(CheckpointError, match="too many pieces came after them"):
        pieces_between(channel(0).chunk, handle.logged, given - 21, given)


def test_the_most_pieces_of_a_snapshot_fit_into_a_message() -> None:
    """Also where an exchange's and a file's names are long."""
    name, far = ChannelKey("out", "a" * 100 + "->" + "b" * 100 + ":0", 1000, 1000).chunk, 1 << 40
    piece = Chunk(name, far, far, far << 20, "logs-000001/" + "a" * 100 + ".1000.100.1000.1", far, far)
    handle = PartHandle("p", 0, (piece,) * log_writer.MOST_PIECES, {name: far}, 1)
    assert len(pack_part(handle)) < FRAME_LIMIT * 3 / 4


def test_a_log_that_is_closed_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that was asked for and not written fails."""
    gate = Gate(monkeypatch)
    log = RowLog(str(tmp_path), NAME, KEYED)
    monkeypatch.setattr(log_writer, "PIECE_BYTES", 1)
    log.append(channel(0), rows(0, 10))
    cut = log.cut(5, {})
    log.close(0.0)
    gate.open.set()
    with pytest.raises(CheckpointError, match="ended"):
        cut.written.result(DEADLINE)
