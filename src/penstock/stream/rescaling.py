# SPDX-License-Identifier: Apache-2.0
"""Rows in flight of a checkpoint, dealt out to the consumers of another plan: a pure core.

It is decided for each exchange by itself. If neither end has another number of tasks, each side takes its own
channels back and nothing here is needed. Otherwise the consumers take all, also what the producers had saved: so
nothing depends on how many producers there are now, and both ends may change at once.

| exchange | a consumer takes | of these it keeps |
|---|---|---|
| any, with as many consumers as before | the channels that were its own | all rows |
| by key | channels of consumers whose key groups meet its own | rows that the partitioner gives it |
| in turns, at random, to one | whole channels, dealt out in turns | all rows |
| by a user's function, if `forced` | all channels | rows that the function gives it |
| by a user's function; forward, rescale, broadcast | refused by name | |

Order: a channel's rows stay in order, and all of them come before the first new row of the exchange. So over an
exchange by key the rows of one producer and key keep their order, whichever subtask reads them now. In turns, rows of
one producer that went to the same consumer keep their order where they meet again, as a channel is never divided; no
order holds between channels, as before.

Rows that are taken and still wait when the next checkpoint comes belong to no channel any more: they are saved under
the producer `FORMER`, in the order in which they wait, and are read ahead of all other channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.errors import CheckpointError
from penstock.record import Partitioner, PartitionerSpec
from penstock.record.key_groups import group_range

_BY_KEY = "hash"
_IN_TURNS = ("rebalance", "random", "to_one")
_CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class EdgeChange:
    """An exchange then and now: `producers` and `consumers` are numbers of tasks (before, after).

    `groups` is the number of key groups. `forced`: rows of a user's function may be dealt out anew.
    """

    edge: str
    spec: PartitionerSpec
    producers: tuple[int, int]
    consumers: tuple[int, int]
    groups: int
    forced: bool = False

    @property
    def is_changed(self) -> bool:
        """True if its consumers take everything, rather than each side its own."""
        return self.producers[0] != self.producers[1] or self.consumers[0] != self.consumers[1]


@dataclass(frozen=True, slots=True)
class Taken:
    """A saved channel that a consumer reads; `is_filtered` where some of its rows are other consumers'."""

    key: ChannelKey
    is_filtered: bool = False


def taken_by(consumer: int, change: EdgeChange, saved: Iterable[ChannelKey]) -> list[Taken]:
    """The channels that a consumer reads of an exchange's saved ones, in the order in which it does.

    Raises CheckpointError, which names the exchange, where its rows can't be dealt out to other tasks.
    """
    keys = sorted((key for key in saved if key.edge == change.edge), key=_place)
    before, after = change.consumers
    if before == after:
        return [Taken(key) for key in keys if key.consumer == consumer]
    if keys and change.spec.kind not in (_BY_KEY, *_IN_TURNS) and not (change.spec.kind == _CUSTOM and change.forced):
        is_custom = change.spec.kind == _CUSTOM
        how = "a function of yours says whose a row is" if is_custom else "none overtakes rows there"
        forced = ", or have that function deal them out again (option rescaleByFunction)" if is_custom else ""
        raise CheckpointError(
            f"the checkpoint to go on from holds rows in flight of {change.edge}, an exchange of kind "
            f"{change.spec.kind}, which can't be dealt out to {after} tasks instead of {before} ({how}): start with "
            f"{before} tasks, or without the rows in flight (option recoverWithoutInFlight){forced}"
        )
    if change.spec.kind == _BY_KEY:
        return _by_key(consumer, change, keys)
    if change.spec.kind == _CUSTOM:
        return [Taken(key, is_filtered=True) for key in keys]
    # A channel's two sides fall to the same consumer; of one producer they go round by their consumers.
    return [Taken(key) for key in keys if (key.producer + 1 + key.consumer) % after == consumer]


def partitioner_of(change: EdgeChange) -> Partitioner:
    """The exchange's partitioner as it is now: it says whose a filtered row is."""
    spec = replace(change.spec, groups=change.groups) if change.spec.kind == _BY_KEY else change.spec
    return spec.build(change.consumers[1], 0)


def own_rows(consumer: int, partitioner: Partitioner, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of these that are a consumer's, in their order."""
    return [part for batch in batches for number, part in partitioner.split(batch) if number == consumer]


def _by_key(consumer: int, change: EdgeChange, keys: Sequence[ChannelKey]) -> list[Taken]:
    before, after = change.consumers
    own = group_range(change.groups, after, consumer)
    taken = []
    for key in keys:
        theirs = group_range(change.groups, before, key.consumer)
        if max(own.start, theirs.start) < min(own.stop, theirs.stop):
            taken.append(Taken(key, is_filtered=not (own.start <= theirs.start and theirs.stop <= own.stop)))
    return taken


def _place(key: ChannelKey) -> tuple[int, int, str]:
    return key.producer, key.consumer, key.side
