# SPDX-License-Identifier: Apache-2.0
"""A channel's rows in flight in pieces: each can be read by itself, and one that was restored is referred to."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpoint.channel_state import ChannelKey, unpack
from penstock.checkpoint.storage import CheckpointStorage
from penstock.errors import IncompleteDataError
from penstock.record.codec import BatchCodec
from penstock.record.framing import frame_message
from penstock.stream import in_flight
from penstock.stream.in_flight import InFlight, Restored, SavedChannel, pieces_of, restored, rows_of

SCHEMA = pa.schema([("number", pa.int64()), ("word", pa.string())])
KEY = ChannelKey("in", "a->b:0", 1, 2)


def batch(first: int, rows: int) -> pa.RecordBatch:
    """Rows of consecutive numbers."""
    numbers = range(first, first + rows)
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([str(n) * 3 for n in numbers])], schema=SCHEMA)


def messages(batches: list[pa.RecordBatch], chance: random.Random) -> list[bytes]:
    """These as they are on the wire, in slices that are cut anywhere, as one of many segments is."""
    codec = BatchCodec(SCHEMA)
    data = b"".join(bytes(part) for each in batches for part in frame_message(codec.encode(each)).parts)
    cuts = sorted(chance.sample(range(len(data)), min(len(data), chance.randrange(4))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


def numbers_of(rows: list[InFlight]) -> list[int]:
    """Their numbers, in order."""
    return [number for each in rows for number in rows_of(each).column("number").to_pylist()]


@pytest.mark.parametrize("seed", range(30))
def test_rows_go_from_checkpoint_to_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Rows that wait, come, and are taken in part, over some checkpoints: each is there once, in order.

    Rows that were not touched are written once only.
    """
    chance = random.Random(seed)
    monkeypatch.setattr(in_flight, "PIECE_BYTES", chance.choice([1, 300, 2000]))
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    waiting: list[InFlight] = []
    expected: list[int] = []
    first = 0
    for number in range(1, 6):
        if waiting:
            rows = rows_of(waiting[0])
            taken = chance.randint(0, rows.num_rows)
            waiting[:1] = [] if taken == rows.num_rows else [rows.slice(taken)] if taken else waiting[:1]
            del expected[:taken]
        new = []
        for _ in range(chance.randrange(5)):
            new.append(batch(first, chance.randint(1, 40)))
            first += new[-1].num_rows
        expected += numbers_of(list(new))
        overtaken = messages(new, chance) if chance.random() < 0.5 else new
        saved = SavedChannel(KEY, SCHEMA, [*waiting, *overtaken])
        part = storage.write(storage.stamp(number), "t.0", pieces_of(saved))
        untouched = [each.chunk for each in waiting if isinstance(each, Restored)]
        assert [(each.file, each.offset) for each in part.chunks if each.file] == [
            (each.file, each.offset) for each in untouched
        ]
        waiting = []
        for chunk, (name, data) in zip(part.chunks, storage.read(part), strict=True):
            assert name == KEY.chunk
            waiting += restored(part.with_file(chunk), unpack(KEY, data), SCHEMA)
        assert numbers_of(waiting) == expected


def test_rows_that_are_not_there_to_their_end_are_not_stored() -> None:
    """Slices that end in the middle of a message are a fault of whoever saved them."""
    saved = SavedChannel(KEY, SCHEMA, [messages([batch(0, 9)], random.Random(0))[0][:-8]])
    with pytest.raises(IncompleteDataError):
        list(pieces_of(saved))
