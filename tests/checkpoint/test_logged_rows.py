# SPDX-License-Identifier: Apache-2.0
"""Which pieces of logs a checkpoint needs: exactly those with the rows between its consumers and its producers."""

from __future__ import annotations

import random

import pytest

from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.logged_rows import cut, pieces_between
from penstock.checkpoint.metadata import Chunk, PartHandle, pack_part, unpack_part

OUT, IN = (ChannelKey(side, "a->b:0", 0, 0).chunk for side in ("out", "in"))


def piece(first: int, rows: int, file: str = "logs-000001/a.0.0.0.0") -> Chunk:
    """A piece of the one channel's log."""
    return Chunk(OUT, first, rows, 0, file, first, rows)


def parts(pieces: list[Chunk], given: int, taken: int, since: int = 0) -> dict[str, PartHandle]:
    """The parts that the channel's two tasks acknowledge."""
    return {
        "a.0": PartHandle("chk/a.0", 9, (Chunk("state", 0, 9, 0), *pieces), {OUT: given}, since),
        "b.0": PartHandle("chk/b.0", 0, (), {IN: taken}),
    }


def logged(checkpoint: dict[str, PartHandle]) -> list[tuple[int, int]]:
    """The first row and the number of rows of each piece that a checkpoint needs."""
    return [(each.first, each.rows) for each in checkpoint["a.0"].logged]


def test_pieces_that_the_consumer_has_taken_are_left_out_and_one_taken_in_part_is_not() -> None:
    """The consumer has passed the first of three pieces, and is in the second; other chunks stay."""
    found = cut(parts([piece(0, 10), piece(10, 10), piece(20, 5)], 25, 12), {})
    assert logged(found) == [(10, 10), (20, 5)]
    assert found["a.0"].chunks[0].name == "state"
    assert logged(cut(parts([piece(0, 10)], 10, 10), {})) == []


def test_pieces_of_the_checkpoint_before_come_first_where_the_task_tells_of_later_ones_only() -> None:
    """A task tells of what it logged since a complete checkpoint; the rest is known from the newest complete one."""
    before = cut(parts([piece(0, 10), piece(10, 10)], 20, 5), {})
    assert logged(cut(parts([piece(20, 4)], 24, 8, since=1), before)) == [(0, 10), (10, 10), (20, 4)]
    assert logged(cut(parts([piece(10, 10), piece(20, 4)], 24, 8, since=1), before)) == [(0, 10), (10, 10), (20, 4)]
    with pytest.raises(CheckpointError, match="lacks rows"):
        # A new attempt counts anew: what was there before is not its own.
        cut(parts([piece(20, 4)], 24, 8), before)


@pytest.mark.parametrize(
    "pieces",
    [[], [piece(0, 10)], [piece(10, 10)], [piece(0, 10), piece(11, 9)], [piece(0, 10), piece(9, 11)]],
    ids=["none", "no end", "no begin", "a gap", "twice"],
)
def test_rows_that_were_not_logged_or_logged_twice_are_no_checkpoint(pieces: list[Chunk]) -> None:
    """The channel and the rows are named."""
    with pytest.raises(CheckpointError, match=r"log of channel/out/a->b:0/0/0 lacks rows: those from 3 to 20"):
        pieces_between(OUT, pieces, 3, 20)


def test_a_handle_with_pieces_and_positions_travels() -> None:
    """A packed handle is the same when it is unpacked."""
    handle = parts([piece(3, 4)], 7, 3, since=5)["a.0"]
    assert unpack_part(pack_part(handle)) == handle


@pytest.mark.parametrize("seed", range(50))
def test_any_run_of_snapshots_needs_exactly_what_is_in_flight(seed: int) -> None:
    """Random rows, snapshots, checkpoints that are given up and restarts: each complete one covers its range.

    No piece in it lies in front of the consumer, and the producer forgets what complete checkpoints have.
    """
    chance = random.Random(seed)
    given = taken = ended = since = number = 0
    told: list[tuple[int, Chunk]] = []
    newest: dict[str, PartHandle] = {}
    for _ in range(300):
        deed = chance.random()
        if deed < 0.5:
            given += chance.randint(1, 20)
        elif deed < 0.75:
            taken = chance.randint(taken, given)
        elif deed < 0.97:
            number += 1
            while ended < given:
                rows = chance.randint(1, given - ended)
                told.append((number, piece(ended, rows)))
                ended += rows
            told = [(when, each) for when, each in told if when > since]
            found = cut(parts([each for _, each in told], given, taken, since), newest)
            pieces = found["a.0"].logged
            rows_there = [row for each in pieces for row in range(each.first, each.first + each.rows)]
            assert rows_there[-(given - taken) :] == list(range(taken, given)) if given > taken else not pieces
            assert all(each.first + each.rows > taken for each in pieces)
            if chance.random() < 0.6:
                newest = found
                if chance.random() < 0.7:
                    since = number
        else:
            given = taken = ended = since = 0
            told = []
