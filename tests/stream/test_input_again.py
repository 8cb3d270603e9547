# SPDX-License-Identifier: Apache-2.0
"""The input of a task that begins anew alone: real logs, written by a producer's log while the reader reads them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from keyed_rows import KEYED
from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.errors import CorruptCheckpointError
from penstock.checkpoint.log_files import LogName, log_folder
from penstock.checkpoint.log_index import pieces_of_log
from penstock.checkpoint.storage import PartStorage
from penstock.shuffle import Received
from penstock.shuffle.events import EpochEnd, ProducerIs, Reattached
from penstock.stream import log_writer
from penstock.stream.input_again import InputAgain, LoggedChannel
from penstock.stream.log_reader import LogReader
from penstock.stream.row_log import RowLog
from penstock.testing import DEADLINE, wait_until

OWNER = "000001-abc"
PRODUCER = "a.0"
ATTEMPT = 3


def channel(consumer: int) -> ChannelKey:
    """The channel to a consumer."""
    return ChannelKey("out", "a->b:0", 0, consumer)


def numbered(first: int, count: int) -> pa.RecordBatch:
    """Rows with these numbers."""
    numbers = pa.array(range(first, first + count), KEYED.field("value").type)
    columns = [numbers if field.name == "value" else pa.nulls(count, field.type) for field in KEYED]
    return pa.RecordBatch.from_arrays(columns, names=KEYED.names).cast(KEYED)


class Producer:
    """A producer with two channels, and a reader at the second."""

    def __init__(self, folder: Path, again: InputAgain) -> None:
        name = LogName(log_folder(OWNER), PRODUCER, ATTEMPT, 1, 0)
        self.log = RowLog(str(folder), name, KEYED)
        self.again = again
        self.given = [0, 0]
        self.checkpoint = 1

    def give(self, consumer: int, count: int, *, arrives: bool) -> None:
        """Give rows; those that nobody reads yet go to the log alone."""
        rows = numbered(self.given[consumer], count)
        self.log.append(channel(consumer), rows)
        self.given[consumer] += count
        if arrives and consumer == 1:
            self.again.came(0, Received(0, rows))

    def end_epoch(self, *, arrives: bool) -> None:
        """Take a snapshot and send its barrier."""
        self.checkpoint += 1
        self.log.cut(self.checkpoint, {})
        if arrives:
            self.again.came(0, Received(0, event=EpochEnd(b"", self.given[1], 0, 0, 0)))


def reading(folder: Path, position: int, most: int = 1 << 20, wait: float = DEADLINE) -> InputAgain:
    """The input of a reader that goes on behind so many rows."""
    told = LoggedChannel(PRODUCER, channel(1), KEYED, ATTEMPT, position)
    return InputAgain([told], LogReader(str(folder), OWNER, wait), most)


def taken(again: InputAgain) -> list[int]:
    """The numbers of all rows that are there, in order, when no log is waited for any more."""
    found: list[int] = []

    def all_taken() -> bool:
        while (item := again.take()) is not None:
            if isinstance(item[1], pa.RecordBatch):
                found.extend(item[1].column("value").to_pylist())
        return again.is_over

    wait_until(all_taken, "all rows that the logs have are there")
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_reader_goes_on_behind_its_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Out of the log, then out of its gate: each row once and in order, also where little may wait."""
    monkeypatch.setattr(log_writer, "PIECE_BYTES", 300)
    monkeypatch.setattr(log_writer, "FILE_BYTES", 3000)
    chance = random.Random(seed)
    position = chance.randrange(60)
    again = reading(tmp_path, position, most=chance.choice((500, 1 << 20)))
    producer = Producer(tmp_path, again)
    producer.give(1, 60, arrives=False)
    for arrives in (False, True):
        if arrives:
            again.came(0, Received(0, event=ProducerIs(ATTEMPT)))
            again.came(0, Received(0, event=Reattached()))
        for _ in range(chance.randrange(10, 60)):
            producer.give(chance.randrange(2), chance.randint(1, 20), arrives=arrives)
            if chance.random() < 0.1:
                producer.end_epoch(arrives=arrives)
    producer.end_epoch(arrives=True)
    assert taken(again) == list(range(position, producer.given[1]))
    assert again.missing() == []
    producer.log.close()
    again.close()


def test_rows_whose_file_is_lost_are_left_out_and_counted(tmp_path: Path) -> None:
    """The reader waits for a while, goes on with what is behind them, and says how many they were."""
    again = reading(tmp_path, 10, wait=0.3)
    producer = Producer(tmp_path, again)
    lost = tmp_path / log_folder(OWNER) / f"{PRODUCER}.{ATTEMPT}.2.1"
    for _ in range(3):
        producer.give(1, 30, arrives=False)
        producer.end_epoch(arrives=False)
    again.came(0, Received(0, event=ProducerIs(ATTEMPT)))
    again.came(0, Received(0, event=Reattached()))
    producer.log.cut(9, {}).written.result(DEADLINE)
    lost.unlink()
    producer.end_epoch(arrives=True)
    assert taken(again) == [*range(10, 30), *range(60, 90)]
    assert again.missing() == [(0, 30)]
    producer.log.close()
    again.close()


def test_a_file_that_was_not_ended_has_no_pieces(tmp_path: Path) -> None:
    """One that is being written, or was cut, is told from one whose list can be read; so is a damaged list."""
    storage = PartStorage(str(tmp_path))
    name = LogName(log_folder(OWNER), PRODUCER, ATTEMPT, 1, 0)
    log = RowLog(str(tmp_path), name, KEYED)
    log.append(channel(1), numbered(0, 10))
    pieces = log.cut(2, {}).written.result(DEADLINE).pieces
    log.close()
    assert storage.logs(OWNER, PRODUCER) == [name]
    assert storage.logs(OWNER, "b.0") == []
    assert pieces_of_log(storage.place, name) == pieces
    file = tmp_path / name.folder / str(name)
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:8], whole[:-30] + bytes(6) + whole[-24:]):
        file.write_bytes(damaged)
        with pytest.raises(CorruptCheckpointError, match=r"a\.0\.3\.1\.0"):
            pieces_of_log(storage.place, name)
