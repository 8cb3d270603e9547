# SPDX-License-Identifier: Apache-2.0
"""The holdings of one worker of a dataset: a merged file for each subpartition, and whose blocks lie in it. Pure.

Rules:

- A file takes the blocks of all writers as they come. A writer's blocks of a file come in the order of their numbers:
  one that was there is a repeat and is dropped; its writer hears so when the first copy is stored. One after a gap is
  refused, and the writer begins again at the gap. A file that another worker had before begins with the number that
  its writer names when it enters.
- A block that could not be written ends its writer's part of the file: those after it that were on their way to the
  disk are not here either, whatever the disk made of them, and go on at another worker together.
- A partition belongs to the writer that commits first. Another one of the same attempt is refused, and so is one
  whose partition was given up: it is stale. A commit that comes again is answered as the first.
- A commit names the sums of what was pushed here, by file, and counts the blocks: it is refused while any is missing.
- Readers get committed blocks only, of the writers that they name, as they lie in the files.
- A file goes when it holds no writer's blocks any more.
- The bytes of all files of an application, also of blocks that nobody needs in files that stay, are in its room, and
  in its user's: so a result that outlives its application counts for somebody. A block that would make them more than
  either quota is refused, and that ends its writer.

Life of a writer here:

| state | commit | discard |
|---|---|---|
| writing | committed | discarded |
| committed | committed | discarded |
| discarded | refused: stale | discarded |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.errors import IncompleteDataError, PartitionReleasedError, StaleError
from penstock.lifecycle.table import Lifecycle, Table
from penstock.remote.blocks import HEAD, BlockHead


class HolderState(Enum):
    """The states of a writer at a worker."""

    WRITING = "writing"
    COMMITTED = "committed"
    DISCARDED = "discarded"


class HolderEvent(Enum):
    """The events of a writer at a worker."""

    COMMIT = "commit"
    DISCARD = "discard"


HOLDER_TABLE: Table[HolderState, HolderEvent] = {
    (HolderState.WRITING, HolderEvent.COMMIT): HolderState.COMMITTED,
    (HolderState.COMMITTED, HolderEvent.COMMIT): HolderState.COMMITTED,
    **{(state, HolderEvent.DISCARD): HolderState.DISCARDED for state in HolderState},
}


class BlockFate(Enum):
    """The fate of a block."""

    STORE = "store"
    REPEAT = "repeat"
    GAP = "gap"
    STALE = "stale"
    FULL = "full"
    """The file takes no more here: it is to go on at another worker."""
    OVER = "over"
    """The application would have more here than it may."""
    USER_OVER = "user over"
    """So would its user, with all applications."""


class Spot(NamedTuple):
    """The place of a block: the number of the file on the disk, the offset, and its bytes with its head."""

    path: int
    offset: int
    size: int


Sums = tuple[int, int, int]
"""Rows, bytes and checksum."""


@dataclass(slots=True)
class _Blocks:
    """One writer's blocks in one file."""

    next: int
    first: int
    spots: list[Spot] = field(default_factory=list)
    is_full: bool = False
    awaited: dict[int, list[Callable[[BlockFate], None]]] = field(default_factory=dict)
    """By number: who waits for the end of its write."""

    def tell(self, number: int, fate: BlockFate) -> None:
        """The write of a block is over."""
        for told in self.awaited.pop(number, ()):
            told(fate)


@dataclass(slots=True)
class _Holder:
    partition: str
    life: Lifecycle[HolderState, HolderEvent]
    files: dict[int, _Blocks] = field(default_factory=dict)
    sums: dict[int, Sums] = field(default_factory=dict)


@dataclass(slots=True)
class Room:
    """The bytes in the files of one application or one user, and how many these may be; 0 is no quota."""

    quota: int = 0
    user: Room | None = None
    """That of an application's user."""
    used: int = 0

    def has(self, nbytes: int) -> bool:
        """Tell whether so many more are within the quota."""
        return not self.quota or self.used + nbytes <= self.quota

    def use(self, nbytes: int) -> None:
        """Have so many more, or fewer."""
        self.used += nbytes
        if self.user is not None:
            self.user.use(nbytes)


@dataclass(slots=True)
class _Merged:
    path: int
    size: int = 0
    writers: set[int] = field(default_factory=set)


class ReadPlan(NamedTuple):
    """The answer to a reader: the blocks, in runs of a file, and of each writer and file the sums."""

    spots: list[Spot]
    sums: list[tuple[int, int, int, int, int]]
    """Writer, file, rows, bytes, checksum."""


class MergedDataset:
    """One dataset at one worker, in its application's room; `paths` gives numbers of files on the disk, each once."""

    def __init__(self, name: str, paths: Iterable[int], room: Room) -> None:
        self.name = name
        self._room = room
        self._paths = iter(paths)
        self._holders: dict[int, _Holder] = {}
        self._files: dict[int, _Merged] = {}
        self._winners: dict[str, int] = {}
        """By partition: the writer that has committed."""

    @property
    def writers(self) -> list[int]:
        """The writers that hold anything."""
        return [number for number, each in self._holders.items() if each.life.state is not HolderState.DISCARDED]

    def enter(self, writer: int, partition: str, begins: Mapping[int, int] | None = None) -> None:
        """A writer begins, or comes again; some files begin with other numbers than 0. StaleError for a stale one."""
        holder = self._holders.get(writer)
        if holder is None:
            life = Lifecycle(f"writer {writer:x} of {partition}", HOLDER_TABLE, HolderState.WRITING)
            holder = self._holders[writer] = _Holder(partition, life)
        elif holder.life.state is HolderState.DISCARDED or holder.partition != partition:
            raise _stale(partition)
        for file, number in (begins or {}).items():
            holder.files.setdefault(file, _Blocks(number, number))

    def offer(self, head: BlockHead) -> tuple[BlockFate, Spot | None]:
        """A block has come: what becomes of it, and where it is to be stored. Then `stored` or `failed` follows."""
        holder = self._holders.get(head.writer)
        if holder is None or holder.life.state is not HolderState.WRITING:
            is_repeat = holder is not None and holder.life.state is HolderState.COMMITTED
            return (BlockFate.REPEAT if is_repeat else BlockFate.STALE), None
        blocks = holder.files.get(head.file)
        if blocks is None:
            blocks = holder.files[head.file] = _Blocks(0, 0)
        if head.number < blocks.next:
            return BlockFate.REPEAT, None
        if blocks.is_full:
            return BlockFate.FULL, None
        if head.number > blocks.next:
            return BlockFate.GAP, None
        if not self._room.has(HEAD.size + head.length):
            return BlockFate.OVER, None
        if self._room.user is not None and not self._room.user.has(HEAD.size + head.length):
            return BlockFate.USER_OVER, None
        merged = self._files.get(head.file)
        if merged is None:
            merged = self._files[head.file] = _Merged(next(self._paths))
        merged.writers.add(head.writer)
        blocks.next += 1
        spot = Spot(merged.path, merged.size, HEAD.size + head.length)
        merged.size += spot.size
        self._room.use(spot.size)
        return BlockFate.STORE, spot

    def stored(self, head: BlockHead, spot: Spot) -> bool:
        """The block is where it should be; False if one before it could not be stored: then this one is not taken."""
        holder = self._holders.get(head.writer)
        if holder is None or (blocks := holder.files.get(head.file)) is None:
            return True
        is_taken = head.number < blocks.next
        if is_taken:
            blocks.spots.append(spot)
        blocks.tell(head.number, BlockFate.REPEAT if is_taken else BlockFate.FULL)
        return is_taken

    def failed(self, head: BlockHead) -> None:
        """The block could not be stored: no later one of this writer is taken for this file."""
        holder = self._holders.get(head.writer)
        if holder is not None and (blocks := holder.files.get(head.file)) is not None:
            blocks.is_full = True
            blocks.next = min(blocks.next, head.number)
            blocks.tell(head.number, BlockFate.FULL)

    def repeated(self, head: BlockHead, told: Callable[[BlockFate], None]) -> None:
        """Say what became of a block that is a repeat: now, or when its write is over."""
        holder = self._holders.get(head.writer)
        blocks = None if holder is None else holder.files.get(head.file)
        is_writing = holder is not None and holder.life.state is HolderState.WRITING
        if blocks is None or not is_writing or head.number < blocks.first + len(blocks.spots):
            told(BlockFate.REPEAT)
        else:
            blocks.awaited.setdefault(head.number, []).append(told)

    def commit(self, writer: int, partition: str, sums: Mapping[int, Sums], ends: Mapping[int, int]) -> list[int]:
        """All that a writer pushed here is here: up to these numbers, with these sums; the paths that it lies in.

        StaleError for a writer that comes too late, IncompleteDataError where blocks are missing.
        """
        holder = self._holders.get(writer)
        winner = self._winners.get(partition, writer)
        if holder is None or winner != writer or not holder.life.allows(HolderEvent.COMMIT):
            raise _stale(partition)
        if holder.life.state is HolderState.WRITING:
            for file, end in ends.items():
                blocks = holder.files.get(file)
                if blocks is None or blocks.next < end or blocks.first + len(blocks.spots) < end:
                    raise IncompleteDataError(f"{partition}: file {file} has not all blocks up to {end}")
            if not sums.keys() <= holder.files.keys():
                raise IncompleteDataError(f"{partition}: there are sums of files that it has no blocks of here")
            holder.sums = dict(sums)
            self._winners[partition] = writer
        holder.life.move(HolderEvent.COMMIT)
        return [self._files[file].path for file in holder.files if file in self._files]

    def committed(self, writer: int) -> tuple[dict[int, Sums], dict[int, list[Spot]]]:
        """The sums of a writer that has committed, and where its blocks lie, by file."""
        holder = self._holders[writer]
        return holder.sums, {file: blocks.spots for file, blocks in holder.files.items() if blocks.spots}

    def restore(
        self, writer: int, partition: str, sums: Mapping[int, Sums], spots: Mapping[int, Sequence[Spot]]
    ) -> None:
        """A writer has committed before this worker was started; files go on after the last block that is known."""
        life = Lifecycle(f"writer {writer:x} of {partition}", HOLDER_TABLE, HolderState.COMMITTED)
        holder = self._holders[writer] = _Holder(partition, life, sums=dict(sums))
        self._winners[partition] = writer
        for file, theirs in spots.items():
            holder.files[file] = _Blocks(len(theirs), 0, list(theirs))
            merged = self._files.setdefault(file, _Merged(theirs[0].path))
            merged.writers.add(writer)
            end = max(spot.offset + spot.size for spot in theirs)
            self._room.use(max(0, end - merged.size))
            merged.size = max(merged.size, end)

    def plan(self, writers: Iterable[int], files: Iterable[int]) -> ReadPlan:
        """Plan the reading of these writers' blocks; PartitionReleasedError for one that holds nothing here."""
        spots: list[Spot] = []
        sums = []
        wanted = {}
        for writer in writers:
            holder = self._holders.get(writer)
            if holder is None or holder.life.state is not HolderState.COMMITTED:
                raise PartitionReleasedError(f"{self.name}: writer {writer:x} holds nothing here: it was released")
            wanted[writer] = holder
        for file in files:
            begin = len(spots)
            for writer, holder in wanted.items():
                if (blocks := holder.files.get(file)) is not None:
                    spots += blocks.spots
                if file in holder.sums:
                    sums.append((writer, file, *holder.sums[file]))
            spots[begin:] = sorted(spots[begin:])
        return ReadPlan(spots, sums)

    def drop_all(self) -> list[int]:
        """Nobody needs the dataset any more: the paths of its files."""
        for writer in self.writers:
            self._holders[writer].life.move(HolderEvent.DISCARD)
        files, self._files = self._files, {}
        self._room.use(-sum(merged.size for merged in files.values()))
        return [merged.path for merged in files.values()]

    def discard(self, writer: int) -> list[int]:
        """A writer's blocks are needed no more: the paths of files that hold nothing now. Idempotent."""
        holder = self._holders.get(writer)
        if holder is None:
            life = Lifecycle(f"writer {writer:x}", HOLDER_TABLE, HolderState.WRITING)
            holder = self._holders[writer] = _Holder("", life)
        holder.life.move(HolderEvent.DISCARD)
        files, holder.files, holder.sums = holder.files, {}, {}
        for blocks in files.values():
            for number in list(blocks.awaited):
                blocks.tell(number, BlockFate.STALE)
        empty = []
        for file, merged in list(self._files.items()):
            merged.writers.discard(writer)
            if not merged.writers:
                empty.append(self._files.pop(file).path)
                self._room.use(-merged.size)
        return empty


def _stale(partition: str) -> StaleError:
    return StaleError(f"{partition}: its writer was given up, or another one has finished before: its rows are stale")
