# SPDX-License-Identifier: Apache-2.0
"""Rows in flight that producers have logged: which pieces of the logs a checkpoint needs, as a core without I/O.

The producer alone logs the rows of each channel as it deals them out, in pieces. Both ends count a
channel's rows since their attempt began. The rows in flight at a checkpoint are then a range: from those that the
consumer had taken at its snapshot to those that the producer had given at its own. The producer does not know how far
consumers are. So it tells of all pieces since the last checkpoint that it knows to be complete, and `cut` puts what
is left of older ones in front, and leaves out what consumers had taken.

Rules
- A piece lies in one file, ends where a snapshot was taken at the latest, and is never changed.
- A checkpoint whose range is not covered by pieces is no checkpoint: a file of the log could not be written.
- A producer that had finished before the checkpoint has no part in it. Its consumers then have all its rows, and save
  them as they do without a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.metadata import Chunk, PartHandle

Parts = Mapping[str, PartHandle]


def cut(parts: Parts, before: Parts) -> dict[str, PartHandle]:
    """The parts of a checkpoint with the pieces that it needs, and no others.

    `before` are those of the newest complete checkpoint, which this function gave. Raises CheckpointError where rows
    in flight were not logged.
    """
    taken = positions_of(parts.values(), "in")
    return {
        name: _with_pieces(part, before.get(name), taken) if part.positions else part for name, part in parts.items()
    }


def bytes_in_flight(part: PartHandle, taken: Mapping[ChannelKey, int]) -> int:
    """About the bytes of the rows in a part's pieces that consumers had not taken."""
    size = 0.0
    for piece in part.logged:
        key = ChannelKey.of(piece.name)
        left = piece.first + piece.rows - (taken.get(key, 0) if key is not None else 0)
        size += piece.length * min(1.0, left / piece.rows)
    return round(size)


def positions_of(parts: Iterable[PartHandle], side: str) -> dict[ChannelKey, int]:
    """The positions of logged channels that the tasks of one side gave, by the key of the producer's side."""
    found = {}
    for part in parts:
        for name, rows in part.positions.items():
            key = ChannelKey.of(name)
            if key is not None and key.side == side:
                found[replace(key, side="out")] = rows
    return found


def pieces_between(name: str, pieces: Iterable[Chunk], taken: int, given: int) -> list[Chunk]:
    """The pieces of a channel with the rows from `taken` to `given`, in order.

    Raises CheckpointError for a gap, and where more was taken than given.
    """
    if taken > given:
        raise CheckpointError(f"of {name} {taken} rows were taken, and its log has {given}: it left some out")
    found = sorted((each for each in pieces if each.first + each.rows > taken), key=_first)
    reached = taken
    for number, piece in enumerate(found):
        if piece.first > reached or (number and piece.first < reached):
            break
        reached = piece.first + piece.rows
    if reached != given:
        raise CheckpointError(
            f"the log of {name} lacks rows: those from {taken} to {given} were in flight, and it has them up to"
            f" {reached}; a file of it could not be written, or too many pieces came after them"
        )
    return found


def _with_pieces(part: PartHandle, before: PartHandle | None, taken: Mapping[ChannelKey, int]) -> PartHandle:
    older: Sequence[Chunk] = before.logged if before is not None and part.since else ()
    of_channel: dict[str, dict[int, Chunk]] = {}
    for piece in (*older, *part.logged):
        of_channel.setdefault(piece.name, {})[piece.first] = piece
    chunks = [chunk for chunk in part.chunks if not chunk.rows]
    for key, given in positions_of([part], "out").items():
        pieces = of_channel.get(key.chunk, {}).values()
        chunks += pieces_between(key.chunk, pieces, taken.get(key, 0), given)
    return replace(part, chunks=tuple(chunks), since=0)


def _first(piece: Chunk) -> int:
    return piece.first
