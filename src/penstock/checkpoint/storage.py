# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a folder of any `pyarrow.fs` file system: complete or absent, checksummed, fenced, swept.

    <location>/owners/...                     who may commit (see `ownership`)
    <location>/chk-<number>-<owner>/<task>    one task's snapshot: chunks one after the other
    <location>/chk-<number>-<owner>/host-...  the snapshots of several tasks of a host, one after the other
    <location>/chk-<number>-<owner>/_metadata what the checkpoint consists of; it exists when this file does
    <location>/logs-<owner>/...               rows as they were given to channels (see `log_files`)
    <location>/first-positions                where sources began that have none in a checkpoint yet (see there)

Tasks write their parts; the driver writes the metadata last, under another name first and then by a move. A recovery
takes a checkpoint only if its metadata and the sizes of its parts are right; the chunks prove themselves as they are
read. If an older checkpoint could be taken in its place, all chunks are read before anything begins with it. In a
folder of this machine all files of a checkpoint are on the disk before it is complete (`disk`). All calls block on
the file system: they belong on a thread of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import pyarrow as pa
import xxhash
from pyarrow import fs

from penstock.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpointError,
    FencedError,
    UncertainCheckpointError,
)
from penstock.checkpoint.found import Found, Unusable, UsableCheckpoint
from penstock.checkpoint.lineage import lineage
from penstock.checkpoint.log_files import LogName, log_folder
from penstock.checkpoint.metadata import CheckpointMetadata, Chunk, PartHandle, decode, encode
from penstock.checkpoint.needed_files import look_at_files
from penstock.checkpoint.newest import NOTE, NewestNote
from penstock.checkpoint.ownership import Ownership
from penstock.checkpoint.patience import FEW, MANY, patiently
from penstock.checkpoint.removal import METADATA, Removal
from penstock.checkpoint.stamps import Stamp
from penstock.machine.disk import Disk
from penstock.machine.locations import at_uri, here, is_uri

_T = TypeVar("_T")
Buffer = bytes | bytearray | memoryview
Content = Buffer | Sequence[Buffer]
"""The bytes of a chunk, or parts of them, in order."""


def pieces_of(content: Content) -> Sequence[Buffer]:
    """The parts of a chunk's bytes, in order."""
    return [content] if isinstance(content, Buffer) else content


class Sink(Protocol):
    """The file or memory that takes a part's bytes."""

    size: int
    """Those that it has."""

    def write(self, data: Buffer) -> None:
        """Append bytes; raises OSError."""


class PartFile:
    """A file of a checkpoint that is being written, for a `with` block. `path` is below the location."""

    def __init__(self, path: str, stream: pa.NativeFile, filesystem: fs.FileSystem, place: str) -> None:
        self.path = path
        self.size = 0
        """Bytes so far."""
        self._stream = stream
        self._fs = filesystem
        self._place = place

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            try:
                self.close()
            except OSError:
                self.give_up()
                raise
        else:
            self.give_up()

    def write(self, data: Buffer) -> None:
        """Append bytes; raises OSError."""
        self._stream.write(data)
        self.size += memoryview(data).nbytes

    def close(self) -> None:
        """Put what is left into the storage, and wait until all is there to stay; raises OSError."""
        self._stream.close()
        Disk(self._fs).sync_file(self._place)

    def give_up(self) -> None:
        """It is not needed: remove it, as far as that is possible."""
        with contextlib.suppress(OSError):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._fs.delete_file(self._place)


def append(file: Sink, name: str, content: Content | Chunk) -> Chunk:
    """Append a chunk to a file; of one that is referred to nothing is written."""
    if isinstance(content, Chunk):
        return replace(content, name=name)
    offset, checksum = file.size, xxhash.xxh3_64()
    for data in pieces_of(content):
        file.write(data)
        checksum.update(data)
    return Chunk(name, offset, file.size - offset, checksum.intdigest())


class PartStorage:
    """A task's side: writes and reads parts. `location` is a URI, or a path of this machine.

    Damage is believed when it was seen twice, the first of `waits` apart.
    """

    def __init__(self, location: str, waits: Sequence[float] = FEW) -> None:
        self.location = location
        self._waits = waits
        if is_uri(location):
            try:
                self._fs, self._root = at_uri(location)
            except (ValueError, OSError) as error:
                raise CheckpointError(f"checkpointLocation {location!r}: {error}") from error
        else:
            self._fs, self._root = here(), location.rstrip("/")
        self._disk = Disk(self._fs)

    @property
    def place(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the folder there."""
        return self._fs, self._root

    def write(self, stamp: Stamp, task: str, chunks: Iterable[tuple[str, Content | Chunk]]) -> PartHandle:
        """Write a task's snapshot; raises OSError as the file system does, with nothing left that counts.

        A content that is a chunk, with its file, is not written: it is referred to.
        """
        with self.open(stamp, task) as file:
            written = tuple([append(file, name, content) for name, content in chunks])
        return PartHandle(file.path, file.size, written)

    def open(self, stamp: Stamp, name: str) -> PartFile:
        """Begin a file of a checkpoint; raises OSError. It counts when it is closed."""
        return self._open(str(stamp), name)

    def open_log(self, name: LogName) -> PartFile:
        """Begin a file of a log; raises OSError. It counts when it is closed."""
        return self._open(name.folder, str(name))

    def logs(self, owner: str, task: str) -> list[LogName]:
        """The files of a task's logs that are there, ended or not; raises OSError."""
        found = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{log_folder(owner)}", allow_not_found=True))
        names = [LogName.of(log_folder(owner), info.base_name) for info in found]
        return [name for name in names if name is not None and name.task == task]

    def _open(self, folder: str, name: str) -> PartFile:
        self._fs.create_dir(f"{self._root}/{folder}")
        place = f"{self._root}/{folder}/{name}"
        return PartFile(f"{folder}/{name}", self._fs.open_output_stream(place), self._fs, place)

    def read(self, part: PartHandle, names: Iterable[str] | None = None) -> Iterator[tuple[str, bytes]]:
        """The chunks with these names (None: all) in order; raises CorruptCheckpointError that names the file.

        A part whose checkpoint has gone with it says nothing of the checkpoint: the location is away, an OSError.
        """
        wanted = part.chunks if names is None else [chunk for name in names for chunk in part.pieces(name)]
        for path, chunks in itertools.groupby(wanted, part.file_of):
            left = list(chunks)
            try:
                yield from self._read(path, left)
            except (FileNotFoundError, CorruptCheckpointError):
                time.sleep(self._waits[0] if self._waits else 0)
                yield from self._read_again(part, path, left)

    def _read_again(self, part: PartHandle, path: str, left: list[Chunk]) -> Iterator[tuple[str, bytes]]:
        """These chunks of one file of a part, at a second look."""
        try:
            yield from self._read(path, left)
        except FileNotFoundError as error:
            metadata = f"{self._root}/{part.path.partition('/')[0]}/{METADATA}"
            if self._fs.get_file_info(metadata).type == fs.FileType.NotFound:
                raise
            raise CorruptCheckpointError(f"{self.location}/{path} is missing") from error

    def _read(self, path: str, left: list[Chunk]) -> Iterator[tuple[str, bytes]]:
        """These chunks of one file; each is taken off the list when it was read."""
        with self._fs.open_input_file(f"{self._root}/{path}") as file:
            while left:
                chunk = left[0]
                file.seek(chunk.offset)
                data = file.read(chunk.length)
                if len(data) != chunk.length or xxhash.xxh3_64_intdigest(data) != chunk.checksum:
                    raise CorruptCheckpointError(
                        f"{self.location}/{path}: chunk {chunk.name} ({chunk.length} bytes at {chunk.offset}) is"
                        " damaged"
                    )
                del left[0]
                yield chunk.name, data


class CheckpointStorage(PartStorage):
    """The driver's side: claims the location, commits, finds what to restore, removes what is not needed.

    A file that it can't read it tries again after each of `waits`, for an error of the file system is no damage.
    """

    def __init__(self, location: str, waits: Sequence[float] = FEW, last_waits: Sequence[float] = MANY) -> None:
        super().__init__(location, waits)
        self._last_waits = last_waits
        self._ownership = Ownership(self._fs, self._root, self._disk)
        self._note = NewestNote(self._fs, self._root, self._disk)
        self._removal = Removal(self._fs, self._root, self._ownership)
        self._read_whole: set[Stamp] = set()
        """Those whose bytes were all compared."""

    def look(self, keep: int = 1) -> Found:
        """The checkpoint to go on from, and up to `keep` in all; nothing is changed.

        Raises CheckpointError where there are checkpoints and none is good: to begin anew would lose all of them.
        """
        if self._patiently(lambda: self._is("", fs.FileType.File)):
            raise CheckpointError(f"checkpointLocation {self.location!r} is a file: give the query a folder")
        self._refuse_sparks()
        found = self.newest(keep)
        if found.unusable and not found.kept:
            causes = "; ".join(f"{each.stamp}: {each.cause}" for each in found.unusable[:3])
            raise CheckpointError(
                f"none of the checkpoints at {self.location} can be restored from ({causes}): bring one back, or"
                " start over with another checkpointLocation"
            )
        return found

    def _refuse_sparks(self) -> None:
        """Raise CheckpointError where a query of Structured Streaming keeps its checkpoints."""
        paths = [f"{self._root}/{name}" for name in ("offsets", "commits")]
        found = self._patiently(lambda: self._fs.get_file_info(paths))
        if all(info.type == fs.FileType.Directory for info in found):
            raise CheckpointError(
                f"checkpointLocation {self.location!r} is that of a query of Spark's own (it holds offsets and"
                " commits), which Penstock can't go on from: give the query another folder"
            )

    def claim(self, keep: int = 1, agree: Callable[[Found], None] = lambda _: None) -> Found:
        """Take the location over, and find as `look` does; `agree` raises where the query can't go on from that.

        The owner of the location loses it only if nothing was raised: all that can go wrong is tried before.
        Checkpoints that it completes meanwhile are found by a second look. Nothing is removed before this owner's
        first commit.
        """
        before = self.look(keep)
        agree(before)
        self._ownership.claim(before.stamp)
        try:
            found = self.look(keep)
            if before.stamp is not None and (found.stamp is None or found.stamp.number < before.stamp.number):
                raise CheckpointError(
                    f"{self.location} showed {before.stamp} a moment ago, and now shows less: is the location away?"
                )
            agree(found)
            self._ownership.go_on_from(found.stamp)
        except BaseException:
            self._ownership.withdraw()
            raise
        self._removal.begin(found)
        return found

    def withdraw(self) -> None:
        """Give the location back: the query did not begin."""
        self._ownership.withdraw()

    def check(self) -> None:
        """Raise FencedError where another driver has taken over, OSError where it is away."""
        self._ownership.check()

    def stamp(self, number: int) -> Stamp:
        """The name of a checkpoint of this owner."""
        return Stamp(number, self._ownership.mine)

    @property
    def owner(self) -> str:
        """This driver, as files and messages name it; raises CheckpointError before it has claimed the location."""
        return str(self._ownership.mine)

    def commit(self, metadata: CheckpointMetadata) -> Stamp:
        """Make a checkpoint exist; raises FencedError where another driver has taken over, or OSError.

        Raises CorruptCheckpointError where a file that it needs is not here: the checkpoint does not exist then.
        Asked twice: an owner that is still the last one after the move is followed by one that sees the checkpoint. A
        step that fails after the move is tried for long, because the checkpoint can be taken for complete by then.
        Raises UncertainCheckpointError where it stays unknown whether it is complete.
        """
        stamp = self.stamp(metadata.number)
        try:
            self._see_files(metadata)
            self._note.prepare(stamp)
            self._put(stamp, encode(metadata))
        except (OSError, CorruptCheckpointError):
            self._note.withdraw(stamp)
            self._ownership.check()  # who has taken over removes what is another's
            raise
        referred = {path.partition("/")[0] for part in metadata.parts.values() for path in part.referred}
        own = {log_folder(str(stamp.owner)), str(stamp)}
        self._for_long(stamp, lambda: self._make_last(stamp, sorted(own & {*referred, str(stamp)})))
        self._removal.committed(stamp, metadata)
        return stamp

    def _see_files(self, metadata: CheckpointMetadata) -> None:
        """Raise CorruptCheckpointError where a file of a checkpoint was seen to be away, or cut, twice."""
        try:
            look_at_files(self._fs, self._root, metadata, self.location)
        except CorruptCheckpointError:
            time.sleep(self._waits[0] if self._waits else 0)
            try:
                look_at_files(self._fs, self._root, metadata, self.location)
            except CorruptCheckpointError as error:
                raise CorruptCheckpointError(
                    f"{error}. Was the location away as its task wrote it, or is it another folder on that host?"
                ) from None

    def _put(self, stamp: Stamp, data: bytes) -> None:
        """Give a checkpoint its metadata: it is complete then, but for the look at who is the owner."""
        folder = f"{self._root}/{stamp}"
        self._fs.create_dir(folder)
        temporary = f"{folder}/{METADATA}.new"
        with self._fs.open_output_stream(temporary) as stream:
            stream.write(data)
        self._disk.sync_file(temporary)
        self._ownership.check()
        try:
            self._fs.move(temporary, f"{folder}/{METADATA}")
        except OSError:
            if not self._for_long(stamp, lambda: self._is(f"{stamp}/{METADATA}", fs.FileType.File)):
                raise

    def _make_last(self, stamp: Stamp, folders: Sequence[str]) -> None:
        """Wait until the names of a checkpoint in these folders are on the disk, and see that they count."""
        self._note.write(stamp)
        for folder in folders:
            self._disk.sync_folder(f"{self._root}/{folder}")
        self._disk.sync_folder(self._root)
        self._ownership.check()

    def _for_long(self, stamp: Stamp, work: Callable[[], _T]) -> _T:
        try:
            return patiently(work, self._last_waits)
        except FencedError:
            raise
        except (OSError, CheckpointError) as error:
            raise UncertainCheckpointError(
                f"nobody can tell whether {self.location}/{stamp} is complete, so the query ends: {error}. Start it"
                " again when the location is well: it goes on from what is there"
            ) from error

    def newest(self, keep: int = 1) -> Found:
        """The newest checkpoint of this location's lineage that is whole, or the newest `keep` of them.

        Damage is believed when it was seen twice. Raises CheckpointError where a file can't be read, or its format is
        not known.
        """
        found = self._patiently(lambda: self._newest(keep))
        if found.unusable:
            time.sleep(self._waits[0] if self._waits else 0)
            found = self._patiently(lambda: self._newest(keep))
        return found

    def _newest(self, keep: int) -> Found:
        kept: list[UsableCheckpoint] = []
        unusable: list[Unusable] = []
        stamps = self._lineage()
        for stamp in reversed(stamps):
            try:
                metadata = self.metadata(stamp)
                if not kept and stamp != stamps[0]:
                    self._read_through(stamp, metadata)
            except CorruptCheckpointError as error:
                if not kept:
                    unusable.append(Unusable(stamp, str(error)))
                continue
            kept.append(UsableCheckpoint(stamp, metadata))
            if len(kept) >= keep:
                break
        return Found(tuple(kept), tuple(unusable))

    def history(self, *, read_through: bool = False) -> list[UsableCheckpoint | Unusable]:
        """All complete checkpoints that count, oldest first, each good or unusable. Needs no claim, changes nothing.

        `read_through`: also compare all bytes of their parts. Raises CheckpointError as `newest` does.
        """
        return self._patiently(lambda: [self._entry(stamp, read_through) for stamp in self._lineage()])

    def _entry(self, stamp: Stamp, read_through: bool) -> UsableCheckpoint | Unusable:
        try:
            metadata = self.metadata(stamp)
            if read_through:
                self._read_through(stamp, metadata)
        except CorruptCheckpointError as error:
            return Unusable(stamp, str(error))
        return UsableCheckpoint(stamp, metadata)

    def discard(self, stamp: Stamp) -> None:
        """Remove a checkpoint, its metadata first, so that what is left of it never looks like one.

        Files that kept checkpoints refer to stay, and go with the last of these. One of an earlier owner stays until
        this one has committed. Raises FencedError where another driver has taken over: that may go on from the very
        checkpoint, complete but for the look at who is the owner.
        """
        self._ownership.check()
        self._note.removing(stamp)
        self._removal.discard(stamp)

    def discard_logs(self, before: int) -> None:
        """Remove what tasks that are gone have logged: files begun before this number that no checkpoint needs.

        Raises FencedError as `discard` does.
        """
        self._ownership.check()
        self._removal.discard_logs(before)

    def sweep(self, keep: Iterable[Stamp]) -> list[Stamp]:
        """Remove what this and earlier owners have left but these checkpoints, which this owner found or committed.

        Newer ones of this owner are under way. Before its first commit nothing goes. Returns the checkpoints that
        were removed, also where files of them stay because one of these refers to them. Raises FencedError as
        `discard` does.
        """
        self._ownership.check()
        return self._removal.sweep(set(keep))

    def end(self) -> None:
        """The query has ended and writes no more logs: what no kept checkpoint needs of them goes.

        Raises FencedError where another driver has taken over: it may need what this one does not know.
        """
        if self._removal.has_logs():  # a location may be gone with its query
            self._ownership.check()
            self._removal.end()

    def _patiently(self, work: Callable[[], _T]) -> _T:
        try:
            return patiently(work, self._waits)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoints at {self.location} can't be read, and none was changed: {error}. Start again when"
                " they can be"
            ) from error

    def _lineage(self) -> list[Stamp]:
        complete = self._complete()  # before the owners, who are there before their checkpoints
        return lineage(self._ownership.bases(), complete, self.location)

    def _complete(self) -> list[Stamp]:
        """The checkpoints that have metadata: those of the list, and the newest one whatever the list lacks."""
        found = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        noted = self._note.read()
        stamps = {stamp for info in found if (stamp := Stamp.of(info.base_name)) is not None}
        looked = sorted(stamps if noted is None else stamps | {noted})
        infos = self._fs.get_file_info([f"{self._root}/{stamp}/{METADATA}" for stamp in looked]) if looked else []
        complete = [stamp for stamp, info in zip(looked, infos, strict=True) if info.type == fs.FileType.File]
        missing = self._note.missing(complete)
        if missing is not None:
            raise CheckpointError(
                f"{self.location} does not show {missing}, its newest checkpoint: is the location away? Bring it"
                f" back. To go on from an older one, and have what came after it again, remove the file {NOTE} there"
            )
        return complete

    def _is(self, path: str, kind: fs.FileType) -> bool:
        return bool(self._fs.get_file_info(f"{self._root}/{path}".rstrip("/")).type == kind)

    def _read_through(self, stamp: Stamp, metadata: CheckpointMetadata) -> None:
        """Raise CorruptCheckpointError where a chunk is not as it was written."""
        if stamp not in self._read_whole:
            for part in metadata.parts.values():
                for _ in self.read(part):
                    pass
            self._read_whole.add(stamp)

    def metadata(self, stamp: Stamp) -> CheckpointMetadata:
        """That of a complete checkpoint whose files are there; raises CorruptCheckpointError or OSError."""
        path = f"{stamp}/{METADATA}"
        with self._fs.open_input_stream(f"{self._root}/{path}") as stream:
            metadata = decode(stream.read(), f"{self.location}/{path}")
        look_at_files(self._fs, self._root, metadata, self.location)
        return metadata
