# SPDX-License-Identifier: Apache-2.0
"""Snapshots that write what has changed: which keys that are, and which pieces of older checkpoints stay in use.

A snapshot is a chain of pieces: all state as it was once, then for each later checkpoint the state of the keys that
had changed. Pieces that older checkpoints hold are referred to. The chain begins anew where it would be long, and
where keys have got other slots.

Rules
- Only pieces count that are stored, and whose place is known: the thread that stores says so. One that the host's
  store has written has none here, so what it held is written once more.
- Any of the snapshots since the newest checkpoint that this task knows to be complete may be complete too. A snapshot
  refers to what all of these have, so that no piece is asked for that went with an older checkpoint.
- Slots that change are noted once for each snapshot. If that were many of all slots, nothing is noted any more, and
  the next snapshot is whole. Rows that are only ever added are noted as the batches in which they came.
- The changes of a chain are no larger than the whole that it begins with, and that is not much larger than what there
  is now.

Their makers know what the pieces hold: processors (`state/stored`) and tables of keys and states (`keyed_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpoint.metadata import Chunk as StoredChunk
from penstock.stream.chain import Chunk
from penstock.stream.key_index import Slots
from penstock.stream.state_place import zeros

Noted: TypeAlias = Slots | pa.RecordBatch

CHANGED: Final = "changed."
LEAST_SLOTS: Final = 1 << 10
"""The slots of a state that is not written whole each time."""
MOST_CHANGES: Final = 20
MOST_SNAPSHOTS: Final = 16
"""So many snapshots are remembered that are not known to be complete."""
SHARE: Final = 2
"""The changes of a chain are at most one of so many slots."""
_ROUNDS: Final = 255
_LEAST_BYTES: Final = 1 << 16
"""Changes of fewer bytes need no other chain, however small the state is."""


def change_prefix(checkpoint: int) -> str:
    """The beginning of the names of pieces with what had changed up to a checkpoint: in order as text."""
    return f"{CHANGED}{checkpoint:012d}"


class KeptPiece:
    """Makes the bytes of a piece, or tells where they are stored."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._place: StoredChunk | None = None

    def __call__(self) -> Any:
        """The bytes, which are made once, or the place."""
        make, self._make = self._make, None
        return self._place if make is None else make()

    @property
    def is_placed(self) -> bool:
        """True if it is stored, and its place is known."""
        return self._place is not None

    @property
    def size(self) -> int:
        """Its bytes, once it is stored."""
        return 0 if self._place is None else self._place.length

    def written(self, place: StoredChunk) -> None:
        """It is stored here. The storing thread."""
        if self._place is None:
            self._place = place


class ChangedSlots:
    """The slots that changed between two snapshots; they are put in order by the thread that stores."""

    def __init__(self, noted: Sequence[npt.NDArray[np.int64]]) -> None:
        self._noted = noted
        self.most = sum(map(len, noted))
        """The number of them, or more."""
        self._slots: Slots | None = None

    def part(self, start: int, end: int) -> Slots:
        """Those of a range of them, in ascending order."""
        if self._slots is None:
            self._slots = np.unique(np.concatenate(self._noted)) if self._noted else np.zeros(0, np.int64)
            self._noted = ()
        return self._slots[start:end]


@dataclass(slots=True)
class Link:
    """The pieces of one checkpoint in a chain, with their names, and the number of slots that they are of."""

    checkpoint: int
    pieces: list[tuple[str, KeptPiece]] = field(default_factory=list)
    slots: int = 0

    @classmethod
    def of(cls, checkpoint: int, chunks: Sequence[Chunk], slots: int = 0) -> Link:
        """A link whose pieces are not stored yet."""
        return cls(checkpoint, [(name, KeptPiece(make)) for name, make in chunks], slots)

    @property
    def size(self) -> int:
        """Its bytes, as far as they are stored."""
        return sum(piece.size for _, piece in self.pieces)

    @property
    def is_placed(self) -> bool:
        """True if the places of all are known."""
        return all(piece.is_placed for _, piece in self.pieces)


class Chains:
    """The chains of one store's snapshots that may be complete, and the slots that have changed since."""

    def __init__(self, least: int | None = None) -> None:
        self.least = LEAST_SLOTS if least is None else least
        """A smaller state is written whole."""
        self._taken: dict[int, list[Link]] = {}
        self._newest = self._complete = 0
        self._changed: dict[int, list[Noted]] = {}
        """The slots that changed after each snapshot, or the batches of rows that came."""
        self._count = 0
        self._round = 1
        self._seen: npt.NDArray[np.uint8] = zeros(1, np.uint8)
        self._notes = False

    def changed(self, slots: Slots) -> None:
        """The state of these slots changes."""
        if not self._notes:
            return
        top = int(slots.max(initial=-1)) + 1
        if top > len(self._seen):
            grown: npt.NDArray[np.uint8] = zeros(max(top, 2 * len(self._seen)), np.uint8)
            grown[: len(self._seen)] = self._seen
            self._seen = grown
        fresh = slots[self._seen[slots] != self._round]
        if len(fresh):
            self._seen[fresh] = self._round
            self.added(fresh, len(self._seen))

    def added(self, noted: Noted, count: int) -> None:
        """These came, and are noted once: slots, or a batch of rows. There are `count` in all."""
        if not self._notes or not len(noted):
            return
        self._changed[self._newest].append(noted)
        self._count += len(noted)
        if self._count > max(self.least, count // SHARE):
            self.forget()

    def forget(self) -> None:
        """Slots are others now, or too many have changed: the next snapshot is whole."""
        self._notes = False
        self._changed.clear()
        self._count = 0

    def completed(self, checkpoint: int) -> None:
        """A checkpoint is complete."""
        if checkpoint in self._taken:
            self._complete = checkpoint
            self._taken = {number: chain for number, chain in self._taken.items() if number >= checkpoint}

    def chunks(
        self,
        checkpoint: int,
        count: int,
        whole: Callable[[], Sequence[Chunk]],
        changed: Callable[[Sequence[Any]], Sequence[Chunk]],
    ) -> list[Chunk]:
        """The chunks of a snapshot of `count` slots: `whole` makes those of all, `changed` of what was noted."""
        links = self.kept(count)
        if not links and count < self.least:
            self.forget()
            return list(whole())
        if links:
            self._drop_before(links[-1].checkpoint)
            noted = self.since(links[-1].checkpoint)
            chain = [*links, Link.of(checkpoint, changed(noted), sum(map(len, noted)))]
        else:
            chain = [Link.of(checkpoint, whole(), count)]
        self.taken(checkpoint, chain)
        return [piece for link in chain for piece in link.pieces]

    def kept(self, count: int) -> list[Link]:
        """The links that the next snapshot may refer to; none: it is to be whole. `count` is the number of slots."""
        chains = list(self._taken.values())
        if not self._notes or count < self.least or len(chains) > MOST_SNAPSHOTS:
            return []
        if self._complete not in self._taken:
            return []
        common = 0
        while all(len(chain) > common for chain in chains) and all(
            chain[common] is chains[0][common] for chain in chains
        ):
            common += 1
        links = list(chains[0][:common])
        while links and not all(link.is_placed for link in links):
            links.pop()
        return [] if _is_long(links, count) else links

    def since(self, checkpoint: int) -> list[Noted]:
        """The notes since a checkpoint's snapshot; slots may be there several times."""
        return [noted for number, found in self._changed.items() if number >= checkpoint for noted in found]

    def _drop_before(self, checkpoint: int) -> None:
        """Forget what a snapshot holds to which all later ones refer."""
        for number in [number for number in self._changed if number < checkpoint]:
            self._count -= sum(map(len, self._changed.pop(number)))

    def taken(self, checkpoint: int, chain: Sequence[Link]) -> None:
        """A snapshot was taken, which consists of these links."""
        if len(chain) == 1:  # whole: all that was noted is in it
            self._changed.clear()
            self._count = 0
            self._notes = True
        self._taken[checkpoint] = list(chain)
        while len(self._taken) > MOST_SNAPSHOTS + 1:
            del self._taken[next(iter(self._taken))]
        self._newest = checkpoint
        self._changed[checkpoint] = []
        self._round += 1
        if self._round > _ROUNDS:
            self._seen[:] = 0
            self._round = 1


def _is_long(links: Sequence[Link], count: int) -> bool:
    """Tell whether a chain is too long for a state of so many slots."""
    if not links:
        return False
    whole, *changes = links
    slots, size = sum(link.slots for link in changes), sum(link.size for link in changes)
    return (
        slots > count // SHARE
        or len(changes) >= MOST_CHANGES
        or size > max(whole.size, _LEAST_BYTES)
        or whole.slots > SHARE * max(count, LEAST_SLOTS)
    )
