# SPDX-License-Identifier: Apache-2.0
"""The state of channels: names and bytes that come back, and damage that is named."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from penstock.checkpoint.channel_state import (
    BROADCAST,
    ChannelData,
    ChannelKey,
    edge_uid,
    pack,
    unpack,
)
from penstock.checkpoint.errors import CorruptCheckpointError
from penstock.checkpoint.storage import CheckpointStorage, PartStorage

KEY = ChannelKey("in", "rate-12ab->agg-34cd:0", 3, 1)


@pytest.mark.parametrize(
    "key",
    [
        KEY,
        ChannelKey("out", edge_uid("a", "b", 1, 2), 0, BROADCAST),
        ChannelKey("out", "users/named->with/slashes:0", 11, 128),
        ChannelKey("in", "channel/in/x->y:0", 0, 0),
    ],
)
def test_a_channel_is_found_again_by_the_name_of_its_chunk(key: ChannelKey) -> None:
    """A stage may have any name, also with slashes."""
    assert ChannelKey.of(key.chunk) == key


@pytest.mark.parametrize("name", ["source/position", "sink/sink", "channel/up/e/0/1", "channel/in/e/0", ""])
def test_other_chunks_are_no_channels(name: str) -> None:
    """Those of operators and of the source."""
    assert ChannelKey.of(name) is None


def test_exchanges_between_the_same_stages_have_names_of_their_own() -> None:
    """Each side, and each of several on one side."""
    names = [edge_uid("a", "b", side, twin) for side in range(2) for twin in range(3)]
    assert len(set(names)) == 6


@pytest.mark.parametrize("seed", range(20))
def test_rows_in_flight_come_back(seed: int) -> None:
    """Any number of runs of any length, also none and empty ones, in order."""
    chance = random.Random(seed)
    runs = [chance.randbytes(chance.choice([0, 8, 24, 4096])) for _ in range(chance.randrange(6))]
    data = ChannelData(KEY, runs, chance.randrange(1 << 40))
    assert unpack(KEY, pack(data)) == data
    assert data.size == sum(map(len, runs))


def test_whatever_is_cut_off_is_found_and_named() -> None:
    """Every length but the right one is refused, with the file and the channel."""
    chunk = pack(ChannelData(KEY, [b"12345678", b"", b"1234567812345678"], 3))
    for end in range(len(chunk)):
        with pytest.raises(CorruptCheckpointError, match=f"/store/part: chunk {re.escape(KEY.chunk)}"):
            unpack(KEY, chunk[:end], "/store/part")
    with pytest.raises(CorruptCheckpointError, match="were written"):
        unpack(KEY, chunk + b"x")
    with pytest.raises(CorruptCheckpointError, match="version 9"):
        unpack(KEY, b"\x09" + chunk[1:])


def test_channels_lie_in_a_part_beside_the_state_of_operators(tmp_path: Path) -> None:
    """Written and read through the storage, and found among the other chunks by their names."""
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    out, far = ChannelKey("out", KEY.edge, 3, 1), ChannelKey("in", KEY.edge, 10, 1)
    data = [ChannelData(key, [key.chunk.encode()], 1) for key in (out, far, KEY)]
    chunks = [("source/position", b"5"), *((each.key.chunk, pack(each)) for each in data)]
    handle = storage.write(storage.stamp(1), "agg.1", chunks)
    state = dict(PartStorage(str(tmp_path)).read(handle))
    keys = [key for name in state if (key := ChannelKey.of(name)) is not None]
    assert [unpack(key, state[key.chunk]) for key in keys] == data
