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
- The places of a writer's blocks are here as long as it writes, 16 bytes for each. Then the index has them on disk
  (`worker_index`), and one bit is left of each file. So a worker may hold any number of blocks.
- A file that is in no folder when the worker starts takes no more: its disk may come back, with what it holds.
- A file goes when it holds no writer's blocks any more.
- The bytes of all files of an application, also of discarded blocks in files that stay, are in its room, and in its
  user's: so a result that outlives its application still counts. A block that would make them more than either quota
  is refused, and that ends its writer.

Life of a writer here:

| state | commit | discard |
|---|---|---|
| writing | committed | discarded |
| committed | committed | discarded |
| discarded | refused: stale | discarded |
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from penstock.errors import IncompleteDataError, PartitionReleasedError, StaleError
from penstock.lifecycle.table import Lifecycle, Table
from penstock.remote.blocks import HEAD, BlockHead
from penstock.remote.wire import SUM

BUCKET: Final = 16
"""The files of one row of the index: with a block in each it fits its page, and a reader of one file skips 15."""
PLACE: Final = struct.Struct("<IQI")
"""The place of a block: its file, the offset, and its bytes with its head."""


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


@dataclass(slots=True)
class _Blocks:
    """One writer's blocks in one file, while it writes: numbers from `first`, below `stored` they are on the disk."""

    first: int
    next: int
    stored: int
    is_full: bool = False


@dataclass(slots=True)
class _Holder:
    partition: str
    life: Lifecycle[HolderState, HolderEvent]
    held: int = 0
    """A bit for each file that has a block of it."""
    files: dict[int, _Blocks] = field(default_factory=dict)
    places: bytearray = field(default_factory=bytearray)
    """`PLACE` of each block that is on the disk, in the order of their coming."""
    sums: bytes = b""
    rows: int = 0
    """The number of the first of its rows in the index, from 1; 0 until they are there."""
    awaited: dict[tuple[int, int], list[Callable[[BlockFate], None]]] = field(default_factory=dict)
    """By file and number: who waits for the end of its write."""

    def tell(self, file: int, number: int, fate: BlockFate) -> None:
        """The write of a block is over."""
        for told in self.awaited.pop((file, number), ()):
            told(fate)

    def let_go(self) -> None:
        """Forget where its blocks lie."""
        self.files, self.places, self.sums = {}, bytearray(), b""


class Held(NamedTuple):
    """A writer's part of the index: a bit for each file with its blocks, and the number of the first of its rows."""

    files: int
    rows: int


class Pushed(NamedTuple):
    """A writer's part of a partition that is to be kept: the files with blocks, packed sums and places."""

    held: int
    sums: bytes
    places: bytes
    files: dict[int, MergedFile]


@dataclass(slots=True)
class Room:
    """The bytes in the files of one application or one user, and how many these may be; 0 is no quota."""

    quota: int = 0
    user: Room | None = None
    """The room of the application's user."""
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
class MergedFile:
    """A file: its number on the disk, and its bytes."""

    path: int
    size: int = 0
    is_named: bool = False
    """True when the index has its number."""
    is_away: bool = False
    """True if it lies in none of the folders."""


class MergedDataset:
    """One dataset at one worker, in its application's room; `paths` gives numbers of files on the disk, each once."""

    def __init__(self, name: str, paths: Iterable[int], room: Room) -> None:
        self.name = name
        self._room = room
        self._paths = iter(paths)
        self._holders: dict[int, _Holder] = {}
        self._files: dict[int, MergedFile] = {}
        self._winners: dict[str, int] = {}
        """The writer that has committed, by partition."""

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
            holder.files.setdefault(file, _Blocks(number, number, number))

    def offer(self, head: BlockHead) -> tuple[BlockFate, Spot | None]:
        """A block has come: what becomes of it, and where it is to be stored. Then `stored` or `failed` follows."""
        holder = self._holders.get(head.writer)
        if holder is None or holder.life.state is not HolderState.WRITING:
            is_repeat = holder is not None and holder.life.state is HolderState.COMMITTED
            return (BlockFate.REPEAT if is_repeat else BlockFate.STALE), None
        blocks = holder.files.get(head.file)
        if blocks is None:
            blocks = holder.files[head.file] = _Blocks(0, 0, 0)
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
            merged = self._files[head.file] = MergedFile(next(self._paths))
        elif merged.is_away:
            return BlockFate.FULL, None
        if head.number == blocks.first:
            holder.held |= 1 << head.file
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
            blocks.stored = head.number + 1
            holder.places += PLACE.pack(head.file, spot.offset, spot.size)
        holder.tell(head.file, head.number, BlockFate.REPEAT if is_taken else BlockFate.FULL)
        return is_taken

    def failed(self, head: BlockHead) -> None:
        """The block could not be stored: no later one of this writer is taken for this file."""
        holder = self._holders.get(head.writer)
        if holder is not None and (blocks := holder.files.get(head.file)) is not None:
            blocks.is_full = True
            blocks.next = min(blocks.next, head.number)
            holder.tell(head.file, head.number, BlockFate.FULL)

    def repeated(self, head: BlockHead, told: Callable[[BlockFate], None]) -> None:
        """Say what became of a block that is a repeat: now, or when its write is over."""
        holder = self._holders.get(head.writer)
        blocks = None if holder is None else holder.files.get(head.file)
        if holder is None or blocks is None or not _is_writing(holder) or head.number < blocks.stored:
            told(BlockFate.REPEAT)
        else:
            holder.awaited.setdefault((head.file, head.number), []).append(told)

    def commit(self, writer: int, partition: str, sums: bytes, ends: Mapping[int, int]) -> Pushed | None:
        """All that a writer pushed here is here, up to these numbers, with these sums (`SUM`); None if that is kept.

        StaleError for a writer that comes too late, IncompleteDataError where blocks are missing.
        """
        holder = self._holders.get(writer)
        winner = self._winners.get(partition, writer)
        if holder is None or winner != writer or not holder.life.allows(HolderEvent.COMMIT):
            raise _stale(partition)
        if holder.life.state is HolderState.WRITING:
            for file, end in ends.items():
                blocks = holder.files.get(file)
                if blocks is None or blocks.next < end or blocks.stored < end:
                    raise IncompleteDataError(f"{partition}: file {file} has not all blocks up to {end}")
            if not {file for file, *_ in SUM.iter_unpack(sums)} <= holder.files.keys():
                raise IncompleteDataError(f"{partition}: there are sums of files that it has no blocks of here")
            holder.sums = sums
            holder.held = _bits_of([file for file, each in holder.files.items() if each.stored > each.first])
            self._winners[partition] = writer
        holder.life.move(HolderEvent.COMMIT)
        if holder.rows:
            return None
        files = {file: self._files[file] for file in files_in(holder.held) if file in self._files}
        return Pushed(holder.held, holder.sums, bytes(holder.places), files)

    def settled(self, writer: int, rows: int) -> None:
        """The index has what a writer has committed, from this row on; idempotent."""
        holder = self._holders[writer]
        if holder.life.state is HolderState.COMMITTED:
            holder.rows = rows
            holder.let_go()

    def paths(self, files: Iterable[int]) -> dict[int, int]:
        """The numbers on the disk of those of these files that are here."""
        return {file: merged.path for file in files if (merged := self._files.get(file)) is not None}

    def restore(self, writers: Iterable[tuple[int, str, Held]], paths: Mapping[int, int]) -> set[int]:
        """Writers have committed before this worker was started: partition and part of each. The paths of all."""
        held = 0
        for writer, partition, theirs in writers:
            life = Lifecycle(f"writer {writer:x} of {partition}", HOLDER_TABLE, HolderState.COMMITTED)
            self._holders[writer] = _Holder(partition, life, theirs.files, rows=theirs.rows)
            self._winners[partition] = writer
            held |= theirs.files
        self._files = {file: MergedFile(path, is_named=True) for file, path in paths.items() if held >> file & 1}
        return {merged.path for merged in self._files.values()}

    def find(self, sizes: Mapping[int, int]) -> None:
        """The files are there with so many bytes, each by its path, and go on after these; others are away."""
        for merged in self._files.values():
            merged.size, merged.is_away = sizes.get(merged.path, 0), merged.path not in sizes
            self._room.use(merged.size)

    def readable(self, writers: Iterable[int]) -> dict[int, Held]:
        """The parts of these writers; PartitionReleasedError for one that holds nothing here."""
        found = {}
        for writer in writers:
            holder = self._holders.get(writer)
            if holder is None or holder.life.state is not HolderState.COMMITTED or not holder.rows:
                raise PartitionReleasedError(f"{self.name}: writer {writer:x} holds nothing here: it was released")
            found[writer] = Held(holder.held, holder.rows)
        return found

    def drop_all(self) -> list[int]:
        """Discard all that the dataset has; the paths of its files."""
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
        held, holder.held = holder.held, 0
        holder.let_go()
        for file, number in list(holder.awaited):
            holder.tell(file, number, BlockFate.STALE)
        for other in self._holders.values() if held else ():
            held &= ~other.held
        empty = [self._files.pop(file) for file in files_in(held) if file in self._files]
        self._room.use(-sum(merged.size for merged in empty))
        return [merged.path for merged in empty]


def files_in(held: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    bits = f"{held:b}"[::-1]
    file = bits.find("1")
    while file >= 0:
        yield file
        file = bits.find("1", file + 1)


def _bits_of(files: Sequence[int]) -> int:
    """Inverse of `files_in`: a sum of shifted ones would write a number of 8 KiB for each of 65,536 files."""
    digits = bytearray(b"0") * (max(files, default=0) + 1)
    for file in files:
        digits[-1 - file] = ord("1")
    return int(digits, 2)


def _is_writing(holder: _Holder) -> bool:
    return holder.life.state is HolderState.WRITING


def _stale(partition: str) -> StaleError:
    return StaleError(f"{partition}: its writer was given up, or another one has finished before: its rows are stale")
