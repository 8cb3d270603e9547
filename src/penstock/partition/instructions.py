# SPDX-License-Identifier: Apache-2.0
"""The instructions of a stored partition to its holder, to be carried out in their order.

The partition does nothing by itself: it knows no memory, disk, reader or JobMaster. It answers an event with
instructions, and two of them with an event in turn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.buffer import BufferSlice
from penstock.buffer.view import DataListener
from penstock.partition.lifecycle import PartitionState
from penstock.partition.stored_items import SpillOrder


@dataclass(frozen=True, slots=True)
class Recycle:
    """Give back a reference of each; then say `recycled`: how many segments came free with that."""

    pieces: list[BufferSlice]


@dataclass(frozen=True, slots=True)
class StoreRuns:
    """Store this; then say `stored`, with an extent for each run. If it can't be stored, end the partition before."""

    order: SpillOrder


@dataclass(frozen=True, slots=True)
class WriteIndex:
    """The producer has finished, and everything is stored; say `indexed` when the index is there."""


@dataclass(frozen=True, slots=True)
class Announce:
    """It can be consumed; told once."""


@dataclass(frozen=True, slots=True)
class Wake:
    """There may be something for a reader, or it has failed. One call too many does no harm."""

    listener: DataListener


@dataclass(frozen=True, slots=True)
class Remove:
    """It has ended in this state: what it has goes."""

    state: PartitionState


Instruction = Recycle | StoreRuns | WriteIndex | Announce | Wake | Remove
Instructions = deque[Instruction]
